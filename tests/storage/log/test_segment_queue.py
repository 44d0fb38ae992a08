"""The order of segments between closing and persistence, and what their puts prove about the lease."""

from __future__ import annotations

from broker.storage.format.header import Position
from broker.storage.log.lease import Lease
from broker.storage.log.segment_queue import SegmentQueue
from tests.manual_clock import ManualClock


def _queue(count: int) -> SegmentQueue:
    queue = SegmentQueue(Position(3, 7), 0)
    for _ in range(count):
        queue.close([], [])
    return queue


def test_segments_are_persisted_in_the_order_of_their_numbers() -> None:
    """Shows that a segment stored early waits for those before it, and which segment is the newest."""
    queue = _queue(3)
    first, second = queue.begin(10), queue.begin(20)
    assert [segment.position.number for segment in queue] == [8, 9, 10]
    assert (queue.next, queue.began_ns, queue.newest) == (Position(3, 11), 20, queue.closed[0])
    queue.mark_stored(second, 20)
    assert list(queue.pop_persisted()) == []
    queue.mark_stored(first, 10)
    assert list(queue.pop_persisted()) == [first, second]
    queue.clear()
    assert queue.newest is None


def test_a_segment_waits_for_the_encoding_of_the_one_before() -> None:
    """Shows the link, which ends with the put. It keeps blocks out of segments after an earlier failure."""
    queue = _queue(1)
    first = queue.begin(1)
    queue.close([], [])
    assert queue.closed[0].before is first
    queue.mark_stored(first, 1)
    second = queue.begin(2)
    second.encoded = True
    queue.close([], [])
    assert queue.closed[0].before is None


def test_a_lease_counts_from_the_newest_put_without_a_gap_before_it() -> None:
    """Shows that a put after one that is not stored renews nothing, and that the end of an expiry is reported once."""
    clock = ManualClock()
    lease = Lease(300, clock, clock.monotonic_ns())
    began_ns = clock.monotonic_ns()
    assert lease.renew_at_ns == began_ns + 100
    queue = _queue(2)
    first, second = queue.begin(0), queue.begin(0)
    clock.advance(301)
    assert lease.expired
    queue.mark_stored(second, clock.monotonic_ns())
    assert not lease.renew(queue.in_flight)
    assert lease.expired
    queue.mark_stored(first, began_ns + 5)
    assert lease.renew(queue.in_flight)
    assert not lease.expired
    assert not lease.renew(queue.in_flight)


def test_a_lock_never_expires() -> None:
    clock = ManualClock()
    lease = Lease(None, clock, 0)
    clock.advance(1 << 60)
    assert not lease.expired
    assert lease.renew_at_ns is None
