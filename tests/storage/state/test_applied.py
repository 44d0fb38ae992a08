"""The replay of outcomes: a block's effect on a stream's state, applied once or twice."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.compaction.inventory import make_inventory
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, Outcome, Removed
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.format.page import PageBody
from broker.storage.format.record import Record
from broker.storage.format.records.consumer_state import ConsumerDelta, PendingColumns
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.release import Release, pack_runs, unpack_runs
from broker.storage.state.applied import ShardState
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.dead import DeadSet
from broker.storage.state.packed import Packed
from broker.storage.state.table import PAGE_ENTRIES, BlockEntry, BlockTable


def ref(first: int, last: int, number: int = 1, count: int | None = None) -> BlockRef:
    count = last - first + 1 if count is None else count
    return BlockRef(BlockPlace.LOG, Position(1, number), 0, 7, 0, 200, 200, 50, 250, 100, first, last, count,
                    40 * count, 1, 2, ((b"foo", count, first, last),))


def segment(state: ShardState, number: int, *, first: int = 0, last: int = 0, outcome: Outcome | None = None,
            removed: list[Removed] | None = None, records: list[tuple[int, Any]] | None = None,
            stream_id: int = 7, count: int | None = None) -> None:
    """Apply a segment with one block."""
    count = (last - first + 1 if first else 0) if count is None else count
    core = BlockCore(stream_id, Position(1, number), count=count, first_seq=first, last_seq=last, bytes=40 * count,
                     first_time_ns=1, last_time_ns=number, removed=removed or [],
                     outcome=outcome or Outcome(1, last, last, 40 * last, 1),
                     records=[Record.of(kind, 0, body) for kind, body in records or []])
    if Position(1, number) > state.position:
        state.apply_segment(Position(1, number))
    state.apply_block(core, ref(first, last, number, count) if count else None)


CREATE = (RecordKind.STREAM_CREATE, {"account": "$G", "name": "s", "config": {"subjects": ["foo"]}, "created_ns": 5,
                                     "ceiling": 9, "origin": "elsewhere"})
CONSUMER = (RecordKind.CONSUMER_CREATE, {"name": "c", "config": {"ack": "explicit"}, "created_ns": 6, "f": [3, 3],
                                         "x": {"k": 1}, "start": 4})


def made() -> ShardState:
    state = ShardState()
    segment(state, 1, records=[CREATE], outcome=Outcome(1, 0, 0, 0, 0))
    return state


def test_create_update_delete() -> None:
    """A create record makes a stream and its name; an update replaces its config; a delete removes both, and then
    nothing names its blocks' segments."""
    state = made()
    stream = state.stream("$G", "s")
    assert stream is not None
    assert (stream.ceiling, stream.extra, stream.created_ns) == (9, {"origin": "elsewhere"}, 5)
    segment(state, 2, first=1, last=10, records=[(RecordKind.STREAM_UPDATE, {"config": {"x": 1}}),
                                                 (RecordKind.CEILING, {"seq": 65536})])
    assert (stream.config, stream.ceiling, stream.msgs, stream.position) == ({"x": 1}, 65536, 10, Position(1, 2))
    assert state.counts.unreferenced == {(1 << 48) + 1}
    segment(state, 3, records=[(RecordKind.STREAM_DELETE, {})])
    assert state.stream("$G", "s") is None
    assert len(state.counts.unreferenced) == 3
    segment(state, 4, first=11, last=12)  # a late block of a deleted stream
    assert state.streams == {}


def test_the_end_of_a_stream_leaves_its_name_to_the_newer_stream() -> None:
    """A stream is deleted and created again in one segment: the name belongs to the newer stream."""
    state = made()
    account, name = next(iter(state.names))
    segment(state, 20, stream_id=8, records=[(RecordKind.STREAM_CREATE, {"account": account, "name": name, "config": {},
                                                                        "created_ns": 2})])
    segment(state, 20, stream_id=7, records=[(RecordKind.STREAM_DELETE, {})])
    stream = state.stream(account, name)
    assert stream is not None
    assert stream.stream_id == 8


def test_removed_ranges_span_blocks_and_all_dead_blocks_leave() -> None:
    """A range covers the end of one block, all of the next and the beginning of the third."""
    state = made()
    for number, first in ((2, 1), (3, 11), (4, 21)):
        segment(state, number, first=first, last=first + 9)
    stream = state.streams[7]
    segment(state, 5, removed=[Removed(8, 23, 16, 640)], outcome=Outcome(1, 30, 14, 560, 1))
    assert [e.ref.first_seq for e in stream.blocks] == [1, 21]
    assert [e.dead_count for e in stream.blocks] == [3, 3]
    assert [s for s in range(1, 31) if (e := stream.blocks.find(s)) and not e.is_dead(s)] == [
        *range(1, 8), *range(24, 31)]
    assert (1 << 48) + 3 in state.counts.unreferenced
    segment(state, 6, removed=[Removed(s, s, 1, 40) for s in (1, 2, 3, 4, 5, 6, 7)], outcome=Outcome(24, 30, 7, 280, 1))
    assert [e.ref.first_seq for e in stream.blocks] == [21]


def test_blocks_below_first_seq_leave() -> None:
    """Shows that limits take effect only through the outcome."""
    state = made()
    for number, first in ((2, 1), (3, 11), (4, 21)):
        segment(state, number, first=first, last=first + 9)
    segment(state, 5, outcome=Outcome(15, 30, 16, 640, 1), records=[(RecordKind.STREAM_UPDATE, {"config": {}})])
    assert [e.ref.first_seq for e in state.streams[7].blocks] == [11, 21]
    segment(state, 6, outcome=Outcome(31, 30, 0, 0, 0), records=[(RecordKind.STREAM_UPDATE, {"config": {}})])
    assert len(state.streams[7].blocks) == 0
    assert len(state.counts.unreferenced) == 6


def test_a_thousand_steps_of_expiry_in_a_segment_mark_only_the_remaining_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step names the last block that it removed. All but the last leave by the outcome, and in one step."""
    state = made()
    blocks = 1000
    for at in range(blocks):
        segment(state, at + 2, first=10 * at + 1, last=10 * at + 10)
    stream, marked = state.streams[7], []
    remove = BlockTable.remove

    def counted(self: BlockTable, first: int, last: int, msgs: int, size: int) -> Any:
        marked.append((first, last))
        return remove(self, first, last, msgs, size)

    monkeypatch.setattr(BlockTable, "remove", counted)
    edge = 10 * (blocks - 1) + 4
    steps = [Removed(10 * at + 1, 10 * at + 10, 10, 400) for at in range(blocks - 1)]
    steps.append(Removed(edge - 3, edge, 4, 160))
    segment(state, blocks + 2, removed=steps, outcome=Outcome(edge + 1, 10 * blocks, 6, 240, 1))
    assert marked == [(edge - 3, edge)]
    assert [(e.first_seq, e.dead_count, e.dead_bytes) for e in stream.blocks] == [(edge - 3, 4, 160)]
    assert {key - (1 << 48) for key in state.counts.unreferenced} == {1, *range(2, blocks + 1), blocks + 2}


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 12)), min_size=1, max_size=12), st.integers(1, 101))
def test_removals_around_the_first_sequence_agree_with_a_plain_set(ranges: list[tuple[int, int]], first_seq: int
                                                                   ) -> None:
    """Shows any ranges in any order: below the outcome's first sequence, above it or across it."""
    state = made()
    for at in range(10):
        segment(state, at + 2, first=10 * at + 1, last=10 * at + 10)
    live = {*range(1, 101)}
    removed = []
    for first, length in [*ranges, (1, first_seq - 2)]:
        gone = live & {*range(first, first + length + 1)}
        live -= gone
        removed += [Removed(seq, seq, 1, 40) for seq in sorted(gone)]
    segment(state, 20, removed=removed, outcome=Outcome(min(live, default=101), 100, len(live), 40 * len(live), 1))
    blocks = state.streams[7].blocks
    assert {s for e in blocks for s in range(e.first_seq, e.last_seq + 1) if not e.is_dead(s)} == live
    assert sum(e.live_msgs for e in blocks) == len(live)


def test_applying_again_changes_nothing() -> None:
    """A page may have more than its stream's position includes: a replay over it arrives at the same state."""
    blocks: list[dict[str, Any]] = [
        {"number": 2, "first": 1, "last": 10},
        {"number": 3, "first": 11, "last": 20, "removed": [Removed(3, 5, 3, 120)]},
        {"number": 4, "removed": [Removed(11, 20, 10, 400)], "outcome": Outcome(1, 20, 7, 280, 1)},
        {"number": 5, "first": 21, "last": 22, "outcome": Outcome(6, 22, 7, 280, 1)}]

    def numbers(state: ShardState) -> Any:
        return [e.pack() for e in state.streams[7].blocks], state.streams[7].outcome

    once, again = made(), made()
    for block in blocks:
        segment(once, **block)
        segment(again, **block)
    again.streams[7].position = Position(1, 1)
    for block in blocks:
        again.position = Position(1, block["number"])
        segment(again, **block)
    assert numbers(once) == numbers(again)


def test_blocks_that_a_page_includes_are_skipped() -> None:
    """Shows that blocks at or before a stream's position have no effect."""
    state = made()
    state.streams[7].position = Position(1, 3)
    segment(state, 2, first=1, last=10)
    segment(state, 3, first=11, last=20)
    assert len(state.streams[7].blocks) == 0
    segment(state, 4, first=21, last=30)
    assert len(state.streams[7].blocks) == 1


def test_consumer_records() -> None:
    """Shows create with a start state, deltas in lists and in packed columns, update, delete."""
    state = made()
    segment(state, 2, records=[CONSUMER])
    consumer = state.streams[7].consumers["c"]
    assert (consumer.floor_cseq, consumer.extra) == (3, {"k": 1, "start": 4})
    packed = [array("q", values).tobytes() for values in ((5, 6, 7), (1, 2, 3), (100, 100, 200))]
    segment(state, 3, records=[(RecordKind.CONSUMER_STATE, {"n": "c", "d": [3, 7, 50], "la": 60, "add": packed,
                                                            "re": {5: 2}, "x": {"k": None, "z": [1]}})])
    assert consumer.pending == {5: (1, 100), 6: (2, 100), 7: (3, 200)}
    assert (consumer.redelivered, consumer.extra["z"], "k" in consumer.extra) == ({5: 2}, [1], False)
    segment(state, 4, records=[(RecordKind.CONSUMER_STATE, {"n": "c", "f": [1, 5], "drop": [5],
                                                            "add": [[6], [4], [300]]})])
    assert list(consumer.pending.items()) == [(7, (3, 200)), (6, (4, 300))]
    assert consumer.redelivered == {}
    copy = ConsumerState.unpack(consumer.pack())
    assert copy.pack() == consumer.pack()
    assert list(copy.pending) == [7, 6]
    segment(state, 5, records=[(RecordKind.CONSUMER_UPDATE, {"name": "c", "config": {"new": 1}})])
    assert consumer.config == {"new": 1}
    segment(state, 6, records=[(RecordKind.CONSUMER_DELETE, {"name": "c"}),
                               (RecordKind.CONSUMER_STATE, {"n": "c", "d": [9, 9, 9]})])
    assert state.streams[7].consumers == {}


def test_a_consumer_is_packed_in_its_earlier_state() -> None:
    """Its page is made in a thread while its stream continues: without later changes, and in the order of delivery."""
    consumer = ConsumerState("c", {}, 1)
    consumer.apply_delta(ConsumerDelta("c", [3, 3, 1], [0, 0], 0,
                                       pending=PendingColumns([2, 1, 3], [1, 2, 3], [5, 5, 6]),
                                       redelivered={2: 1}, extra={"x": 1}))
    before, later = consumer.pack(), consumer.pack_later()
    consumer.apply_delta(ConsumerDelta("c", [4, 4, 2], [1, 1], 9, [1], PendingColumns([4, 2], [4, 1], [7, 7]),
                                       redelivered={2: 0, 3: 2}, extra={"x": 2}))
    assert later() == before != consumer.pack()
    assert list(ConsumerState.unpack(before).pending.items()) == [(2, (1, 5)), (1, (2, 5)), (3, (3, 6))]


def test_a_damaged_record_takes_only_its_stream_offline() -> None:
    """Shows that the stream is not replayed further, has the reason, and can be deleted."""
    state = made()
    segment(state, 2, records=[(RecordKind.STREAM_CREATE, {"account": "$G", "name": "t", "config": {},
                                                           "created_ns": 1})],
            stream_id=8, outcome=Outcome(1, 0, 0, 0, 0))
    segment(state, 3, first=1, last=10)
    segment(state, 4, records=[(RecordKind.CONSUMER_UPDATE, {"name": "nobody"})])
    segment(state, 5, first=11, last=20)
    segment(state, 6, first=1, last=5, stream_id=8)
    assert "segment 00000001-000000000004" in str(state.streams[7].offline)
    assert state.streams[7].last_seq == 10
    assert state.streams[8].last_seq == 5
    segment(state, 7, records=[(RecordKind.STREAM_DELETE, {})])
    assert list(state.streams) == [8]


def test_blocks_of_a_stream_without_a_create_record_are_an_error() -> None:
    """Shows that after a replay a stream without a create record is an error, unless its delete record follows."""
    state = ShardState()
    state.replaying = True
    segment(state, 1, first=1, last=2)
    with pytest.raises(Corrupt, match="0000000000000007"):
        state.finish_replay()
    segment(state, 2, records=[(RecordKind.STREAM_DELETE, {})])
    state.finish_replay()


def test_released_segments_leave_the_table_and_done_ends_the_release() -> None:
    """A record releases segments; a later one records that all of them are deleted."""
    state = made()
    segment(state, 2)
    body = Release([Position(1, 1), Position(1, 2)], [Position(1, 9)], [Position(1, 1)]).encode()
    segment(state, 3, records=[(RecordKind.RELEASE, body)], stream_id=0)
    assert list(state.counts.segments) == [(1 << 48) + 3]
    assert list(state.released[Position(1, 3)].segments) == [Position(1, 1), Position(1, 2)]
    segment(state, 4, records=[(RecordKind.RELEASE, {"done": [[1, 3]]})], stream_id=0)
    assert state.released == {}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20))))
def test_runs_of_positions(pairs: list[tuple[int, int]]) -> None:
    """Shows that packing into runs and unpacking returns every position once, ascending."""
    positions = {Position(*pair) for pair in pairs}
    assert list(unpack_runs(pack_runs(positions))) == sorted(positions)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 199), st.integers(0, 30))), st.booleans())
def test_dead_sets_agree_with_a_plain_set(ranges: list[tuple[int, int]], sparse: bool) -> None:
    """Shows for bits and ranges: membership, count of the newly dead, joined ranges, packing."""
    width = 100_000 if sparse else 1
    dead = DeadSet(50, 50 + 230 * width, 231)
    assert (dead.bits is None) == sparse
    model: set[int] = set()
    for first, length in ranges:
        span = range(50 + first, 50 + first + length + 1)
        assert dead.add(span[0], span[-1]) == len(set(span) - model)
        model.update(span)
    assert {s for s in range(50, 281) if s in dead} == model
    assert {s for first, last in dead.seqs() for s in range(first, last + 1)} == model
    assert all(a[1] + 1 < b[0] for a, b in zip(list(dead.seqs()), list(dead.seqs())[1:], strict=False))
    copy = DeadSet(50, 50 + 230 * width, 231)
    copy.load(dead.pack())
    assert list(copy.seqs()) == list(dead.seqs())
    moved = dead.moved(1000)
    assert [(first - 950, last - 950) for first, last in moved.seqs()] == list(dead.seqs())
    assert (moved.first_seq, moved.last_seq) == (1000, 1000 + 230 * width)
    moved.add(1000, 1000)
    assert (50 in dead) == (50 in model)
    first_alive = next((seq for seq in range(50, 50 + 231) if seq not in model), 0)
    if first_alive:
        last_alive = next(seq for seq in range(50 + 230 * width, first_alive - 1, -1) if seq not in model)
        assert dead.ends == (first_alive, last_alive)


@settings(deadline=None)
@given(st.sets(st.integers(0, 3000)), st.sets(st.integers(0, 3000)))
def test_marking_scattered_messages(first: set[int], second: set[int]) -> None:
    """Shows the union, the number of new ones, ranges across pieces, and that a second call has no effect."""
    dead, other = DeadSet(1, 3001, 3001), DeadSet(1, 3001, 3001)
    for at in first:
        dead.add(at + 1, at + 1)
    for at in second:
        other.add(at + 1, at + 1)
    assert dead.merge(other.pack()) == len(second - first)
    assert dead.merge(other.pack()) == 0
    found = list(dead.seqs())
    assert {seq - 1 for low, high in found for seq in range(low, high + 1)} == first | second
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))
    with pytest.raises(ValueError, match="do not fit"):
        dead.merge(bytes(5))


def test_scattered_messages_of_a_block_of_a_table() -> None:
    """Shows that messages are marked and counted once, and that a table with other blocks is not changed."""
    table = BlockTable()
    for i in range(5):
        table.append(ref(i * 10 + 1, i * 10 + 10).pack())
    for _ in range(2):
        table.mark(11, 20, b"\x05\x02", 120)
        entry = table.find(11)
        assert entry is not None
        assert (entry.dead_count, entry.dead_bytes, [seq for seq in range(11, 21) if entry.is_dead(seq)]) == (
            3, 120, [11, 13, 20])
    for first, last in ((61, 70), (12, 20), (11, 30), (1, 9)):
        table.mark(first, last, bytes((last - first + 8) >> 3), 1)
    assert sum(entry.dead_count for entry in table) == 3
    with pytest.raises(ValueError, match="do not fit"):
        table.mark(21, 30, bytes(1), 1)


def test_a_table_of_many_pages_agrees_with_a_plain_set() -> None:
    """Shows 3000 blocks after random removals and trims: the live sequences are those of a model."""
    rng = random.Random(5)
    table = BlockTable()
    for i in range(3 * PAGE_ENTRIES):
        assert table.append(ref(i * 5 + 1, i * 5 + 5).pack())
    last_seq = 15 * PAGE_ENTRIES
    live = set(range(1, last_seq + 1))
    for _ in range(400):
        first = rng.randint(1, last_seq)
        last = min(last_seq, first + rng.choice((0, 0, 3, 40, 900)))
        gone = live & set(range(first, last + 1))
        if gone:
            table.remove(first, last, len(gone), 40 * len(gone))
            live -= gone
    table.trim(2001)
    live = {seq for seq in live if seq > 2000}
    found = {s for e in table for s in range(e.ref.first_seq, e.ref.last_seq + 1) if not e.is_dead(s)}
    assert found == live
    assert len(table) == sum(1 for _ in table)
    assert all(page.entries for page in table.pages)
    for seq in rng.sample(range(1, last_seq), 200):
        entry = table.find(seq)
        assert (entry is not None and not entry.is_dead(seq)) == (seq in live)


def test_a_block_with_gaps() -> None:
    """Shows that sequences that never existed do not count, removed one by one or as a range."""
    table = BlockTable()
    table.append(ref(10, 1_000_000, count=3).pack())
    table.remove(10, 10, 1, 40)
    table.remove(500, 500, 1, 40)
    [entry] = table
    assert entry.dead_count == 2
    assert entry.is_dead(10)
    assert not entry.is_dead(1_000_000)
    [left] = table.remove(5, 2_000_000, 1, 40)
    assert isinstance(left, BlockEntry)
    assert left.ref == entry.ref
    assert len(table) == 0


def test_a_range_that_ends_after_the_runs_block() -> None:
    """While a run is adopted, a stream names removed ranges by the blocks that it still has, up to their ends, where
    messages may be dead. The run's block has no such messages: in it, the live messages of the range become dead."""
    state = made()
    segment(state, 2, first=1, last=1)
    segment(state, 3, first=11, last=19, count=3, removed=[Removed(15, 19, 1, 40)], outcome=Outcome(1, 19, 3, 120, 1))
    state.apply_segment(Position(1, 4))
    run = BlockRef.of((int(BlockPlace.RUN), 1, 3, 9, 7, *ref(11, 14, count=2).pack()[5:]))
    adoption = Record.of(RecordKind.ADOPTION, 0, {"blocks": [[11, 19, list(run.pack())]]})
    state.apply_block(BlockCore(0, Position(1, 4), records=[adoption]), None)
    stream = state.streams[7]
    segment(state, 5, removed=[Removed(14, 19, 1, 41)], outcome=Outcome(1, 19, 2, 79, 1))
    assert [(entry.ref, entry.dead_count, entry.dead_bytes) for entry in stream.blocks] == [
        (ref(1, 1, 2), 0, 0), (run, 1, 41)]
    segment(state, 6, removed=[Removed(11, 13, 1, 39)], outcome=Outcome(1, 19, 1, 40, 1))
    assert [entry.ref for entry in stream.blocks] == [ref(1, 1, 2)]
    assert (1, 3, 9, 0) in state.counts.freed_runs


def unreadable(state: ShardState, stream_id: int) -> None:
    """Make the blocks of a stream impossible to unpack, as if a page of the checkpoint had other contents."""
    table = state.streams[stream_id].blocks
    for page in table.pages:
        packed = page.pack()
        page.keep(Packed.summarized(PageBody((b"none", 4, 0)), packed.summary, filters=False))


def two_streams() -> ShardState:
    state = ShardState()
    for at, stream_id in enumerate((7, 8)):
        segment(state, 1 + 10 * at, stream_id=stream_id, outcome=Outcome(1, 0, 0, 0, 0), records=[
            (RecordKind.STREAM_CREATE, {"account": "$G", "name": f"s{at}", "config": {}, "created_ns": 5})])
        segment(state, 2 + 10 * at, first=1, last=10, stream_id=stream_id)
        segment(state, 3 + 10 * at, first=11, last=20, stream_id=stream_id)
    unreadable(state, 7)
    return state


def test_a_page_that_cannot_be_unpacked_takes_only_its_stream_offline() -> None:
    """Shows it for a block with messages and nothing else, and for the adoption of a run."""
    state = two_streams()
    state.apply_segment(Position(1, 30))
    state.apply_small(ref(21, 22, 30).pack(), Outcome(15, 22, 8, 320, 1))
    assert "page" in (state.streams[7].offline or "")
    assert state.streams[8].offline is None

    state = two_streams()
    runs = [BlockRef.of((int(BlockPlace.STREAM_RUN), 1, 20, 9, stream_id, *ref(1, 20).pack()[5:]))
            for stream_id in (7, 8)]
    state.apply_segment(Position(1, 30))
    record = Record.of(RecordKind.ADOPTION, 0, {"blocks": [[1, 20, list(run.pack())] for run in runs]})
    state.apply_block(BlockCore(0, Position(1, 30), records=[record]), None)
    assert "page" in (state.streams[7].offline or "")
    assert [entry.ref.place for entry in state.streams[8].blocks] == [BlockPlace.STREAM_RUN]


async def test_compaction_skips_a_page_that_cannot_be_unpacked(caplog: pytest.LogCaptureFixture) -> None:
    """Shows that the blocks of all other streams are merged as before."""
    found = await make_inventory(two_streams(), CompactionSettings())
    assert [one.key[:3] for one in found] == [(1, 1, 12), (1, 1, 13)]
    assert "block table" in caplog.text
