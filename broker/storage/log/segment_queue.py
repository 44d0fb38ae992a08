"""The closed segments until they are persisted: some wait for their puts, and the older ones are in flight.

    persisted position < every position in flight < every closed segment < the open one

Owns the order and numbers of segments. Does not own when a put begins (``commit_schedule``), the put (``putter``), nor
what follows once a segment is persisted (``log``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from broker.storage.format.header import Position
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.putter import Segment
from broker.storage.log.waiters import Waiter

__all__ = ["SegmentQueue"]


class SegmentQueue:
    """The closed segments that are not persisted, in log order.

    Attributes: ``next`` is the position of the next segment; ``raw_bytes`` is the size of all blocks in the queue;
        ``began_ns`` is when the newest put began; ``began_empty``: its segment has no blocks.
    """

    __slots__ = ("_last", "began_empty", "began_ns", "closed", "in_flight", "next", "raw_bytes")

    def __init__(self, position: Position, began_ns: int) -> None:
        """Begin with the segment after ``position``."""
        self.next = Position(position.epoch, position.number + 1)
        self.began_ns = began_ns
        self.began_empty = True
        self.raw_bytes = 0
        self.closed: deque[Segment] = deque()
        self.in_flight: deque[Segment] = deque()
        self._last: Segment | None = None
        """The segment closed last, until it is stored: the next one must not be encoded before it."""

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over all segments, in log order."""
        yield from self.in_flight
        yield from self.closed

    @property
    def newest(self) -> Segment | None:
        """The segment that was closed last; None: all segments are persisted."""
        if self.closed:
            return self.closed[-1]
        return self.in_flight[-1] if self.in_flight else None

    def close(self, blocks: list[OpenBlock[Any]], waiters: list[Waiter], urgent_ns: int = 0) -> Segment:
        """Add a segment, whose contents and position are fixed, and return it."""
        raw_bytes = sum(block.raw_bytes for block in blocks)
        segment = Segment(self.next, blocks, waiters, raw_bytes)
        segment.urgent_ns = urgent_ns
        if self._last is not None and not self._last.encoded:
            segment.before = self._last
        self._last = segment
        self.raw_bytes += raw_bytes
        self.closed.append(segment)
        self.next = Position(self.next.epoch, self.next.number + 1)
        return segment

    def begin(self, now_ns: int) -> Segment:
        """Move the oldest closed segment to those in flight, and return it."""
        segment = self.closed.popleft()
        segment.began_ns = self.began_ns = now_ns
        self.began_empty = not segment.blocks
        self.in_flight.append(segment)
        return segment

    def mark_stored(self, segment: Segment, proved_ns: int) -> None:
        """Record that the put of ``segment`` succeeded, which proves that the shard was ours at ``proved_ns``."""
        segment.stored, segment.proved_ns = True, proved_ns
        if self._last is segment:
            self._last = None

    def pop_persisted(self) -> Iterator[Segment]:
        """Remove and yield, in log order, each segment that is stored with all segments before it."""
        while self.in_flight and self.in_flight[0].stored:
            segment = self.in_flight.popleft()
            yield segment

    def clear(self) -> None:
        self.closed.clear()
        self.in_flight.clear()
