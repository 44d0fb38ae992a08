"""The way of what the broker itself publishes to handlers within the broker: a queue, emptied in turns of the loop.

A PubAck, a refusal, an advisory or a delivery may go to a subject that a stream keeps, even the very stream that is
deciding what to answer. Were that stream called from within, the answer would take the sequence that the decision at hand
has given away. So a publish of the broker never calls a handler: it leaves its messages here.

    client's read ──> stream: decision ──> publish ──┬──> clients: bytes, at once
                                                     └──> queue ──(a later turn)──> stream: decision ──> …

Order is kept. What waits is bounded by what brings it: a turn takes half of all that waits, so no more than twice what
one turn of the loop publishes is ever here, and streams refuse by themselves what they have no room for.

Source of the order that a client sees: nats-server, where such messages go through the queues of sendq.go and of
stream.go, queueInbound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broker.protocol.parser import Msg

__all__ = ["Inward"]

MSGS_AT_ONCE: Final = 2000
"""Handled in one turn of the loop at least: a few milliseconds."""

Handler = Callable[[Sequence[Msg], int, int, None, int], None]


class _Hearer(Protocol):
    """An in-process subscription."""

    ended: bool

    @property
    def handler(self) -> Handler | None: ...


class Inward:
    """One account's queue. ``call_soon`` has a function called on a later turn of the loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._queue: deque[tuple[_Hearer, Sequence[Msg], int, int, int]] = deque()
        self._scheduled = False
        self.waiting = 0
        """Messages in the queue, each as often as it has hearers."""

    def put(self, hearer: _Hearer, ops: Sequence[Msg], start: int, end: int, now_ns: int) -> None:
        """Have ops[start:end] handled by ``hearer``, unless its subscription ends before."""
        self._queue.append((hearer, ops, start, end, now_ns))
        self.waiting += end - start
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        # Nothing that is published meanwhile: a handler that answers itself must leave the loop to others.
        left = min(self.waiting, max(self.waiting // 2, MSGS_AT_ONCE))
        queue = self._queue
        try:
            while queue and left > 0:
                hearer, ops, start, end, now_ns = queue.popleft()
                if end - start > left:
                    queue.appendleft((hearer, ops, start + left, end, now_ns))
                    end = start + left
                left -= end - start
                self.waiting -= end - start
                if not hearer.ended and hearer.handler is not None:
                    hearer.handler(ops, start, end, None, now_ns)
        finally:
            # Also when a handler failed, which is told by the loop: the others' messages are not its fault.
            self._scheduled = bool(queue)
            if queue:
                self._call_soon(self._turn)
