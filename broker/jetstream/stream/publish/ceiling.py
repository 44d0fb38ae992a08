"""The sequence below which an async stream may assign sequences without persisting them first.

With ``persist_mode: async`` a publisher gets a sequence before its message is stored. A crash may lose the message, but
its sequence is not assigned again: a restart continues at the last persisted ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.storage.format.records.ceiling import Ceiling
from broker.storage.log.owner import BlockOwner

if TYPE_CHECKING:
    from broker.storage.log.log import Log
    from broker.storage.log.memory_log import MemoryLog

__all__ = ["SequenceCeiling"]

_STEP = 65_536


class Queue(Protocol):
    """The stream's publish queue."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class SequenceCeiling:
    """The ceiling of ``owner``, a stream. ``value``: the persisted one; 0: none."""

    __slots__ = ("_asked", "_log", "_owner", "value")

    def __init__(self, owner: BlockOwner, log: Log | MemoryLog, value: int = 0) -> None:
        self._owner = owner
        self._log = log
        self.value = self._asked = value

    def ask(self, last_seq: int) -> None:
        """Persist a ceiling well above ``last_seq``."""
        ceiling = self._asked = (last_seq // _STEP + 2) * _STEP
        self._log.block(self._owner).add(Ceiling(ceiling))
        self._log.wait(self._persisted, ceiling, of=self._owner)

    def near(self, last_seq: int) -> None:
        """``last_seq`` is near the ceiling, or beyond it: ask for a higher one, unless one is already on its way."""
        if last_seq >= self._asked - _STEP // 2:
            self.ask(last_seq)
            self._log.urgent()

    def wait(self, queue: Queue) -> None:
        """Queue publishes until the requested ceiling is persisted."""
        queue.begin()
        self._log.wait(queue.end, of=self._owner)

    def lower(self, next_seq: int) -> None:
        """After the last publish: the next start continues at ``next_seq``."""
        if self._asked > next_seq:
            self._asked = self.value = next_seq
            self._log.block(self._owner).add(Ceiling(next_seq))
            self._log.urgent()

    def _persisted(self, ceiling: int) -> None:
        self.value = ceiling
