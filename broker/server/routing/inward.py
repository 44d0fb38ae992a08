"""A queue from the broker's own publishes to handlers within the broker, emptied on later turns of the loop.

A PubAck, a refusal, an advisory or a delivery may go to a subject that a stream stores. It may even be the stream that
is deciding what to answer. If that stream were called recursively, the answer would take the sequence that the decision
has already assigned. So a publish by the broker never calls a handler: it queues its messages here.

    client's read ──> stream: decision ──> publish ──┬──> clients: bytes, at once
                                                     └──> queue ──(a later turn)──> stream: decision ──> …

Order is kept. The queue is bounded by its input: a turn handles half of it, so it never holds more than twice the
messages that one turn of the loop publishes. Streams refuse messages for which they have no room.

Source of the order that a client sees: nats-server, where such messages go through the queues of sendq.go and of
stream.go, queueInbound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broker.protocol.run import Msg

__all__ = ["Inward"]

MSGS_AT_ONCE: Final = 2000
"""Number of messages that one turn of the loop handles at least: a few milliseconds."""

Handler = Callable[[Sequence[Msg], int, int, None, int], object]


class _Subscription(Protocol):
    """An in-process subscription."""

    ended: bool

    @property
    def handler(self) -> Handler | None: ...


class Inward:
    """The queue of one account. ``call_soon`` runs a function on a later turn of the loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._queue: deque[tuple[_Subscription, Sequence[Msg], int, int, int]] = deque()
        self._scheduled = False
        self.waiting = 0
        """Messages in the queue, each counted once per subscription."""

    def put(self, sub: _Subscription, ops: Sequence[Msg], start: int, end: int, now_ns: int) -> None:
        """Queue ops[start:end] for ``sub``; they are dropped if the subscription ends first."""
        self._queue.append((sub, ops, start, end, now_ns))
        self.waiting += end - start
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        # Messages that handlers publish meanwhile wait: a handler that publishes to itself must yield the loop to
        # others.
        left = min(self.waiting, max(self.waiting // 2, MSGS_AT_ONCE))
        queue = self._queue
        try:
            while queue and left > 0:
                sub, ops, start, end, now_ns = queue.popleft()
                if end - start > left:
                    queue.appendleft((sub, ops, start + left, end, now_ns))
                    end = start + left
                left -= end - start
                self.waiting -= end - start
                if not sub.ended and sub.handler is not None:
                    sub.handler(ops, start, end, None, now_ns)
        finally:
            # Continue even if a handler failed, which the loop reports: other handlers still get their messages.
            self._scheduled = bool(queue)
            if queue:
                self._call_soon(self._turn)
