"""The sequence below which an async stream may assign sequences without persisting them first.

With ``persist_mode: async`` a publisher gets a sequence before its message is stored. A crash may lose the message, but
its sequence is not assigned again: a restart continues at the last persisted ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.format.records.ceiling import Ceiling

if TYPE_CHECKING:
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["SequenceCeiling"]

_STEP = 65_536


class SequenceCeiling:
    """The ceiling of one stream.

    Attributes: ``value``: the persisted ceiling; 0: none.
    """

    __slots__ = ("_log", "_queue", "_requested", "_stream", "value")

    def __init__(self, parts: StreamParts, value: int = 0) -> None:
        self._stream, self._log, self._queue = parts.stream, parts.log, parts.queue
        self.value = self._requested = value

    def request(self, last_seq: int) -> None:
        """Persist a ceiling well above ``last_seq``."""
        ceiling = self._requested = (last_seq // _STEP + 2) * _STEP
        self._log.block(self._stream).add(Ceiling(ceiling))
        self._log.wait(self._persisted, ceiling, of=self._stream)

    def request_if_near(self, last_seq: int) -> None:
        """Request a higher ceiling if ``last_seq`` is near the requested one, or beyond it."""
        if last_seq >= self._requested - _STEP // 2:
            self.request(last_seq)
            self._log.urgent()

    def wait(self) -> None:
        """Queue publishes until the requested ceiling is persisted."""
        self._queue.begin()
        self._log.wait(self._queue.end, of=self._stream)

    def lower(self, next_seq: int) -> None:
        """Lower the ceiling after the last publish, so that the next start continues at ``next_seq``."""
        if self._requested > next_seq:
            self._requested = self.value = next_seq
            self._log.block(self._stream).add(Ceiling(next_seq))
            self._log.urgent()

    def _persisted(self, ceiling: int) -> None:
        self.value = ceiling
