"""A consumer's position in its stream: the effects of removals and purges on it and on its count."""

from __future__ import annotations

import asyncio
import weakref
from array import array
from types import SimpleNamespace
from typing import Any

from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.consumer.cursor.message_columns import MessageColumns
from broker.jetstream.filters import Filters
from broker.storage.format.frame import Chunk
from tests.jetstream.consumer.fakes import FakeLoading, FakeStream
from tests.manual_clock import ManualClock


class Messages:
    """A stream of ``msgs`` messages, counted by hand: ``counting`` is called during a count."""

    def __init__(self, msgs: int) -> None:
        self.first_seq, self.safe_seq = 1, msgs
        self.counting: list[object] = []

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, object, int] | None:
        return None

    def may_hold(self, seq: int) -> bool:
        return self.first_seq <= seq <= self.safe_seq

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        counted = self.safe_seq - max(seq, self.first_seq) + 1
        if self.counting:
            self.counting.pop()()  # type: ignore[operator]
        return counted, self.safe_seq


async def test_messages_removed_during_the_first_count_are_not_counted() -> None:
    """Messages purged while they are being counted in the store: the count starts again."""
    stream = Messages(10)
    cursor = Cursor(stream, Filters(), 1, set())  # type: ignore[arg-type]

    def purge() -> None:
        stream.first_seq = 7
        cursor.removed(1, 6, 6, None)
        cursor.pass_over(7)

    stream.counting.append(purge)
    await cursor.recount()
    assert (cursor.pending, cursor.next_seq) == (4, 7)


async def test_messages_delivered_during_a_count_are_not_subtracted_twice() -> None:
    """Messages delivered and acked during a count are not found by it; the five after them are pending."""
    stream = FakeStream(ManualClock())
    stream.add(*"aaaaaaaaaa")
    cursor = Cursor(stream, Filters([b"a"]), 1, set())  # type: ignore[arg-type]
    counting = asyncio.ensure_future(cursor.recount())
    await asyncio.sleep(0)
    assert not cursor.known
    msgs = cursor.next_messages(5, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    cursor.advance(msgs, 5)
    stream.dead = set(msgs.seqs)
    await counting
    assert (cursor.pending, cursor.exact) == (5, True)


async def test_a_list_of_last_messages_survives_a_purge_of_some() -> None:
    """A consumer of the last message of each subject continues with those listed beyond the purged ones."""
    stream = Messages(10)
    cursor = Cursor(stream, Filters(), 3, set())  # type: ignore[arg-type]
    cursor.list_first((3, 6, 9), 10)
    await cursor.recount()
    assert cursor.pending == 3
    cursor.pass_over(7)
    assert (cursor.pending, cursor.listed.up_to(10, 4)) == (1, [9])
    cursor.pass_over(11)
    assert (cursor.pending, cursor.next_seq, len(cursor.listed)) == (0, 11, 0)


async def test_removals_around_a_list_of_last_messages() -> None:
    """Nothing between the listed messages is pending; after them, all counted messages are.

    Removals after them are subtracted, also the part of a range that reaches so far.
    """
    stream = FakeStream(ManualClock())
    stream.add(*"abcbcdbcd")
    cursor = Cursor(stream, Filters([b"*"]), 1, set())  # type: ignore[arg-type]
    cursor.list_first((1, 7, 8, 9), 9)
    await cursor.recount()
    msgs = cursor.next_messages(1, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    cursor.advance(msgs, 1)
    for seq in (2, 3, 4, 5):
        cursor.removed(seq, seq, 1, b"b")
    assert (cursor.pending, cursor.exact) == (3, True)
    stream.add("b", "b", "b", "c")
    assert cursor.count() is None
    assert cursor.pending == 7
    cursor.removed(10, 10, 1, b"b")
    cursor.removed(11, 11, 1, b"b")
    assert (cursor.pending, cursor.exact) == (5, True)
    stream.dead = {9, 10, 11, 12}
    cursor.removed(9, 12, 2, None)
    assert not cursor.exact
    await cursor.recount()
    assert cursor.count() is None
    assert (cursor.pending, cursor.exact) == (4, True)
    got = []
    while isinstance(msgs := cursor.next_messages(10, 1 << 20), MessageColumns):
        got += msgs.seqs
        cursor.advance(msgs, len(msgs))
    assert (got, cursor.pending) == ([7, 8, 13], 0)


class Chunks:
    """A stream of chunks of four messages, sequences 1 to 20 without every fifth, of which some have left."""

    first_seq, safe_seq = 1, 20

    def __init__(self) -> None:
        self.dead: set[int] = set()
        seqs = [seq for seq in range(1, 21) if seq % 5]
        self.chunks = [Chunk(0, part[0], array("Q", part) if part[-1] - part[0] != 3 else None,
                             [b"s%d" % seq for seq in part], None, [b"m%d" % seq for seq in part], array("q", part), 8)
                       for part in zip(*[iter(seqs)] * 4, strict=True)]

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, object, int] | None:
        for chunk in self.chunks:
            for i in range(len(chunk)):
                if chunk.seq(i) >= max(seq, self.first_seq) and chunk.seq(i) not in self.dead:
                    return chunk, SimpleNamespace(dead=self.dead), i
        return None

    def may_hold(self, seq: int) -> bool:
        return True

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        return 0, 0


def test_a_list_is_delivered_as_far_as_one_chunk_goes() -> None:
    """Listed messages are delivered in runs, within the limits.

    Messages that have left since the list was made, or never existed, are skipped and no longer pending. Messages that
    a delivery did not reach come again.
    """
    stream = Chunks()
    cursor = Cursor(stream, Filters(), 1, set())  # type: ignore[arg-type]
    cursor.list_first([1, 2, 4, 5, 6, 8, 9, 11, 12, 16, 19], 20)
    cursor.pending, cursor.known = 11, True
    stream.dead = {8, 16}
    stream.first_seq = 2
    runs = []
    while isinstance(msgs := cursor.next_messages(2, 1 << 20), MessageColumns):
        used = 1 if not runs else len(msgs)
        assert list(msgs.bodies) == [b"m%d" % seq for seq in msgs.seqs]
        runs.append(list(msgs.seqs[:used]))
        cursor.advance(msgs, used)
    assert runs == [[2], [4], [6], [9], [11, 12], [19]]
    assert (cursor.pending, cursor.next_seq) == (0, 21)


def test_the_values_of_a_key_are_delivered_together() -> None:
    """Values that the stream knows are delivered from many chunks at once, within the bytes, up to one that must be
    loaded.

    Values acked before or removed meanwhile are left out. Values that a delivery did not reach come again.
    """
    stream = FakeStream(ManualClock(), chunk_messages=3)
    stream.indexed = True
    for at in range(10):
        stream.add("k", *(f"other.{at}.{i}" for i in range(3)), payload=b"%08d" % at)
    values = list(range(1, 41, 4))
    ahead = {values[2]}
    cursor = Cursor(stream, Filters([b"k"]), 1, ahead)  # type: ignore[arg-type]
    cursor.pending, cursor.known = 9, True

    def msgs(count: int, size: int = 1 << 20) -> list[int]:
        found = cursor.next_messages(count, size)
        assert isinstance(found, MessageColumns)
        assert list(found.bodies) == [b"%08d" % ((seq - 1) // 4) for seq in found.seqs]
        assert set(found.subjects) == {b"k"}
        return list(found.seqs)

    assert msgs(1000) == [seq for seq in values if seq not in ahead]
    assert msgs(4) == [values[0], values[1], values[3]]
    assert msgs(1000, 9) == values[:2]
    found = cursor.next_messages(1000, 1 << 20)
    assert isinstance(found, MessageColumns)
    cursor.advance(found, 3)
    assert (cursor.next_seq, cursor.pending) == (values[3] + 1, 6)
    stream.dead = {values[5]}
    stream.not_loaded = True
    loading = cursor.next_messages(1000, 1 << 20)
    assert isinstance(loading, FakeLoading)
    assert msgs(1000) == [values[4]]  # and the next chunk is being loaded
    stream.not_loaded = False
    assert msgs(1000) == [values[4], *values[6:]]


def test_only_acked_values_are_left() -> None:
    """Shows that the cursor reaches the end if all values that the stream knows were acked ahead."""
    stream = FakeStream(ManualClock(), chunk_messages=2)
    stream.indexed = True
    stream.add("k", "a", "k", "b")
    cursor = Cursor(stream, Filters([b"k"]), 1, {1, 3})  # type: ignore[arg-type]
    assert cursor.next_messages(10, 1 << 20) is None
    assert cursor.next_seq == 5


class Forgetful(FakeStream):
    """A stream whose cache keeps nothing: a chunk is in memory only while its Loading is held."""

    def __init__(self) -> None:
        super().__init__(ManualClock(), chunk_messages=2)
        self.indexed = True
        self.held: dict[int, weakref.ref[FakeLoading]] = {}

    def chunk_of(self, seq: int) -> tuple[Chunk, Any, int] | None:
        held = self.held.get((seq - 1) // 2)
        return None if held is None or held() is None else super().chunk_of(seq)

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, Any, int] | FakeLoading | None:
        if ((held := self.held.get((seq - 1) // 2)) is not None and held() is not None) or filters is None:
            return super().next_chunk(seq, filters)
        loading = FakeLoading(seq)
        self.held[(seq - 1) // 2] = weakref.ref(loading)
        return loading


def test_a_chunk_loaded_for_a_key_is_held_until_it_is_delivered() -> None:
    """Shows that each load is followed by a delivery, even with the smallest cache."""
    stream = Forgetful()
    stream.add(*["k", "a"] * 4)
    cursor = Cursor(stream, Filters([b"k"]), 1, set())  # type: ignore[arg-type]
    cursor.pending, cursor.known = 4, True
    seqs: list[int] = []
    for _ in range(8):
        found = cursor.next_messages(10, 1 << 20)
        if isinstance(found, MessageColumns):
            seqs += found.seqs
            cursor.advance(found, len(found))
        del found
    assert seqs == [1, 3, 5, 7]


def all_messages(chunk_messages: int, count: int) -> tuple[FakeStream, Cursor]:
    stream = FakeStream(ManualClock(), chunk_messages=chunk_messages)
    stream.add(*[f"s.{i % 3}" for i in range(count)])
    cursor = Cursor(stream, Filters(), 1, set())  # type: ignore[arg-type]
    cursor.pending, cursor.known, cursor.counted = count, True, count
    return stream, cursor


def test_small_chunks_are_delivered_together() -> None:
    """Chunks in memory make one delivery, up to the number and about the bytes asked for, with all columns."""
    stream, cursor = all_messages(3, 20)
    msgs = cursor.next_messages(8, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    assert msgs.seqs == range(1, 9)
    assert list(msgs.bodies) == [b"m%d" % seq for seq in range(1, 9)]
    assert list(msgs.subjects) == [stream.messages[seq][0] for seq in range(1, 9)]
    assert list(msgs.times) == [stream.messages[seq][3] for seq in range(1, 9)]
    assert (msgs.hlens, msgs.end) == (None, 9)
    cursor.advance(msgs, 8)
    assert (cursor.next_seq, cursor.pending) == (9, 12)
    few = cursor.next_messages(100, 5)
    assert isinstance(few, MessageColumns)
    assert 1 <= len(few) < 6
    rest = cursor.next_messages(100, 1 << 20)
    assert isinstance(rest, MessageColumns)
    assert rest.seqs == range(9, 21)
    cursor.advance(rest, 2)
    assert cursor.next_seq == 11


def test_chunks_with_gaps_and_headers_are_delivered_together() -> None:
    """Removed messages and messages acked ahead are left out in each chunk; headers of some make a column for all."""
    stream, cursor = all_messages(3, 6)
    stream.add("h", headers=b"NATS/1.0\r\nA: 1\r\n\r\n")
    stream.add("t", "u")
    stream.dead |= {2, 5}
    cursor.ahead.add(8)
    msgs = cursor.next_messages(100, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    assert list(msgs.seqs) == [1, 3, 4, 6, 7, 9]
    assert msgs.hlens == [0, 0, 0, 0, len(b"NATS/1.0\r\nA: 1\r\n\r\n"), 0]
    assert msgs.end == 10


def test_a_chunk_that_is_not_in_memory_ends_the_delivery() -> None:
    """Shows that a chunk that is not in memory ends the delivery before it, and is not loaded for that."""
    stream, cursor = all_messages(3, 9)
    loaded: list[int] = []
    stream.chunk_of = lambda seq: loaded.append(seq)  # type: ignore[assignment, func-returns-value]
    msgs = cursor.next_messages(100, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    assert (msgs.seqs, loaded) == (range(1, 4), [4])


def test_only_stored_messages_are_delivered() -> None:
    """Shows that messages in memory that are not persisted are not delivered."""
    stream, cursor = all_messages(3, 9)
    later, _ = all_messages(3, 9)
    stream.safe_seq, stream.chunk_of = 6, later.chunk_of  # type: ignore[method-assign]
    msgs = cursor.next_messages(100, 1 << 20)
    assert isinstance(msgs, MessageColumns)
    assert msgs.seqs == range(1, 7)
