"""Applies an ack of very many messages, as ``ack_policy: all`` allows, in several turns of the loop.

    an ack of 200 000 ──> the first 8192 ──> the next 8192 … ──> the ack itself, then the answers that came after it
                                └── after so many that their record would be large: wait until it is sealed

Each slice is an ack of fewer messages, so a state seen in between is one that a client may have asked for. Meanwhile
the consumer delivers nothing, and requests for its numbers wait.

Owns: the answers that wait. Does not own: what an answer does (handler), when the state is stored (the log).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from broker.jetstream.consumer.acks.handler import AckHandler
    from broker.jetstream.consumer.acks.state import AckState

__all__ = ["LargeAcks"]

_AT_ONCE: Final = 8192
"""The number of messages acked in one turn of the loop: about 2 ms."""

_UNSTORED_MAX: Final = 65_536
"""The largest number of acks in one record: writing them down takes 5 ms, and applying them another 5."""

_SEAL_SECONDS: Final = 1.0
"""The longest wait for a record to be sealed: a store that does not answer must not hold up deliveries."""

_RUNS_MAX: Final = 1000
"""The largest number of waiting runs of answers; if there are more, all are applied at once."""


class Scheduler(Protocol):
    """The part of an event loop that this module uses."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any: ...


class LargeAcks:
    """The very large acks of one consumer.

    Args: ``apply`` applies a run of answers; ``changed`` is called after each slice; ``seal`` asks for a record of the
        state soon, after which ``sealed`` is to be called; ``ended`` is called when no answer waits any more.
    """

    def __init__(self, acks: AckState, answers: AckHandler, loop: Scheduler,
                 apply: Callable[[Sequence[Msg], int, int, int], None], changed: Callable[[], None],
                 seal: Callable[[], None], ended: Callable[[], None]) -> None:
        self._acks = acks
        self._answers = answers
        self._loop = loop
        self._apply = apply
        self._changed = changed
        self._seal = seal
        self._ended = ended
        self._runs: deque[tuple[Sequence[Msg], int]] = deque()
        self._sealing: Any = None
        """The timer that ends the wait for a record; None: no record is awaited."""
        self._unsealed_max = _UNSTORED_MAX
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def under_way(self) -> bool:
        """True while answers wait."""
        return bool(self._runs)

    def defer(self, ops: Sequence[Msg], start: int, end: int, now_ns: int) -> bool:
        """Defer ops[start:end] if they ack very many messages, or if other answers wait. Returns whether they wait."""
        if not self._runs and len(self._acks.pending) <= _AT_ONCE:
            return False
        run = ops[start:end]
        if not self._runs:
            if not self._answers.ack_first(run, _AT_ONCE, now_ns):
                return False
            self._changed()
            self._loop.call_soon(self._apply_next)
        self._runs.append((run, now_ns))
        if len(self._runs) > _RUNS_MAX:
            self.finish()
        return True

    def sealed(self) -> None:
        """Continue after the state has been written down."""
        if self._sealing is not None:
            self._sealing.cancel()
            self._sealing = None
            self._loop.call_soon(self._apply_next)

    def _not_sealed(self) -> None:
        self._unsealed_max = sys.maxsize
        self.sealed()

    def finish(self) -> None:
        """Apply all waiting answers now."""
        while self._runs:
            run, now_ns = self._runs.popleft()
            self._apply(run, 0, len(run), now_ns)
        self._end()

    async def finished(self) -> None:
        """Return once no answer waits."""
        if self._runs:
            done = asyncio.get_running_loop().create_future()
            self._waiting.append(done)
            await done

    def drop(self) -> None:
        """Drop all waiting answers: the consumer is gone."""
        self._runs.clear()
        self._end()

    def _apply_next(self) -> None:
        if not self._runs or self._sealing is not None:
            return
        if self._acks.unstored_acks >= self._unsealed_max:
            self._sealing = self._loop.call_later(_SEAL_SECONDS, self._not_sealed)
            self._seal()
            return
        run, now_ns = self._runs[0]
        if self._answers.ack_first(run, _AT_ONCE, now_ns):
            self._changed()
        else:
            self._runs.popleft()
            self._apply(run, 0, len(run), now_ns)
        if self._runs:
            self._loop.call_soon(self._apply_next)
        else:
            self._end()
            self._ended()

    def _end(self) -> None:
        if self._sealing is not None:
            self._sealing.cancel()
            self._sealing = None
        self._unsealed_max = _UNSTORED_MAX
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            if not done.done():
                done.set_result(None)
