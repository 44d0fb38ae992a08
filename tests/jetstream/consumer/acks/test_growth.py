"""The cost of a message does not grow with the state that a consumer keeps for others.

Collections that may hold hundreds of thousands of entries are replaced by ones that refuse iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.filters import Filters
from tests.jetstream.consumer.fakes import MS, World

MANY = 20_000


class Unwalked(dict[int, int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError(f"all {len(self)} of them were visited for one message")


class UnwalkedSet(set[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError(f"all {len(self)} of them were visited for one message")


def test_a_removal_beside_many_exhausted_messages() -> None:
    """Messages that reached max_deliver are counted while they are in the stream;
    a removal's cost ignores their number."""
    world = World()
    for _ in range(3):
        world.stream.add("s.a")
    consumer = world.consumer(ack_wait=100 * MS, max_deliver=1)
    acks = consumer._acks
    acks.redelivered = Unwalked(dict.fromkeys(range(1, MANY + 1), 1))
    acks.delivered_sseq = acks.floor_sseq = MANY
    consumer.removed(1, 1, 1)
    assert len(acks.redelivered) == MANY - 1
    consumer.removed(2, 7, 6)
    assert len(acks.redelivered) == MANY - 7
    assert acks.exhausted(1, 20) == list(range(8, 21))


def test_messages_acked_ahead() -> None:
    """Messages whose delivery was forgotten in a crash are passed, removed and counted one by one."""
    acks = AckState([30 * 10**9], 0, 1)
    for seq in range(1, MANY + 1):
        acks.ack_ahead(seq, 0)
    ahead = UnwalkedSet(range(1, MANY + 1))
    acks.ahead = ahead
    acks.forget_ahead(4)
    acks.forget_ahead(7, 6)
    assert len(ahead) == MANY - 4
    assert all(seq not in ahead for seq in (1, 2, 3, 6))
    stream: Any = World().stream
    cursor = Cursor(stream, Filters(), 4, ahead)
    assert cursor.count_ahead(4, 103) == 99


def test_both_ways_to_search_a_range_find_the_same() -> None:
    """Shows that a range wider than the set is answered by walking the set, in the same order."""
    acks = AckState([30 * 10**9], 0, 1)
    acks.redelivered = dict.fromkeys((900, 5, 70, 12), 1)
    assert acks.exhausted(6, 1_000_000) == [12, 70, 900]
    assert acks.exhausted(69, 71) == [70]
    for seq in (50, 9, 400):
        acks.ack_ahead(seq, 0)
    acks.forget_ahead(1 << 40, 10)
    assert acks.ahead == {9}
    acks.forget_ahead(1 << 40)
    assert acks.ahead == set()


def test_an_ack_of_all_beyond_a_crash_is_applied_in_slices() -> None:
    """Very many messages are pending when an ack arrives whose delivery a crash forgot.

    The pending ones are acked 8192 in each turn of the loop. The gap up to that message is not listed one by one.
    """
    world = World()
    world.stream.add(*["s.a"] * 20_001)
    consumer = world.consumer(ack_policy="all", max_ack_pending=-1)
    got = world.pull(consumer, {"batch": 20_000, "expires": 1000 * MS})
    assert len(got) == 20_000
    consumer._answers.forgotten_seq = world.stream.last_seq
    reply = got[0].reply.split(b".")
    reply[5] = b"20001"
    consumer.on_ack([(b".".join(reply), b"", 0, b"")], 0, 1, None, world.clock.now_ns())
    assert consumer.info()["num_ack_pending"] == 20_000 - 8192
    world.loop.settle()
    assert (consumer.info()["num_ack_pending"], consumer.info()["ack_floor"]["stream_seq"]) == (0, 20_001)
    assert sorted(world.stream.acknowledged) == list(range(1, 20_002))
