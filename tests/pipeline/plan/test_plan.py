"""Plans: all blocks that are needed and no others, packed by the bytes to read; and the estimate of the cost."""

from __future__ import annotations

import pickle
import random

import pytest

from broker.pipeline.errors import Damaged
from broker.pipeline.plan.plan import (
    SCAN_TASK_BYTES_MIN,
    TASK_BYTES_MIN,
    Estimate,
    ScanTask,
    estimate,
    pack,
    tasks,
    weight,
)
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, read_store, snapshot_of
from broker.storage.format.block import BlockPlace, BlockRef, SubjectSummary
from broker.storage.format.header import Position
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import StreamPaths
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry
from tests.pipeline.stores import T0, MemoryObjectClient, Row, varied

MIB = 1 << 20
SUBJECTS = [b"one.>", b"few.1.*", b"*.*.x", b"many.orders.*.created", b"many.alarm.>", b"mixed.*", b"mixed.b.c",
            b"none", b">"]


def a_selection(rng: random.Random, rows: list[Row]) -> Selection:
    """Return random options and pushed filters that concern existing rows."""
    chosen = Selection()
    row = rng.choice(rows)
    if rng.random() < 0.5:
        chosen = Selection(subjects=tuple(rng.sample(SUBJECTS, rng.randrange(1, 3))))
    changes: dict[str, object] = {}
    if rng.random() < 0.2:
        changes["prefixes"] = (row[1][:rng.randrange(1, 6)],)
    if rng.random() < 0.1:
        changes["equal"] = frozenset((row[1], b"none"))
    if rng.random() < 0.4:
        changes["first_seq"] = row[0] + rng.randrange(-2, 3)
    if rng.random() < 0.4:
        changes["last_seq"] = rng.choice(rows)[0] + rng.randrange(-2, 3)
    if rng.random() < 0.3:
        changes["first_ns"] = row[4] + rng.randrange(-1, 2)
    if rng.random() < 0.3:
        changes["last_ns"] = rng.choice(rows)[4] + rng.randrange(-1, 2)
    return Selection(**{**vars(chosen), **changes})  # type: ignore[arg-type]


def wanted(selection: Selection, row: Row) -> bool:
    return (selection.matches_subject(row[1]) and row[0] >= selection.first_seq
            and (selection.last_seq is None or row[0] <= selection.last_seq)
            and selection.matches_times(row[4], row[4]))


@pytest.mark.parametrize("seed", range(5))
async def test_each_wanted_message_is_in_one_task(seed: int) -> None:
    """Tasks of random stores and selections rise, and stay within their blocks and bounds. They hold each wanted live
    message once, and no more messages than they state. Packing yields the same tasks, or parts of them."""
    rng = random.Random(seed)
    store = MemoryStore()
    owner = await varied(store, seed, steps=25, large=False)
    snapshots = [snapshot for snapshot in read_store(MemoryObjectClient(store), account="*")
                 if owner.streams[snapshot.name].live]
    planned = pruned = 0
    for _ in range(150):
        snapshot = rng.choice(snapshots)
        rows = owner.streams[snapshot.name].rows()
        selection = a_selection(rng, rows)
        found = tasks(snapshot, selection)
        planned += len(found)
        pruned += len(snapshot.blocks) - len(found)
        matching = [row[0] for row in rows if wanted(selection, row)]
        for payload in (True, False):
            target = rng.choice([1, 70_000, 200_000, 10 * MIB])
            packed = pack(found, target, payload=payload, cores=rng.choice([1, 3, 50]))
            assert all(packed)
            parts = [task for part in packed for task in part]
            seen: list[int] = []
            last = 0
            for task in parts:
                assert last < task.first_seq <= task.last_seq
                assert task.ref.first_seq <= task.first_seq
                assert task.last_seq <= task.ref.last_seq
                assert task.first_seq >= max(selection.first_seq, snapshot.first_seq)
                last = task.last_seq
                inside = [seq for seq in matching if task.first_seq <= seq <= task.last_seq]
                assert len(inside) <= task.messages <= task.last_seq - task.first_seq + 1
                assert not any(task.dead is not None and seq in task.dead for seq in inside)
                seen += inside
            assert seen == matching, (seed, selection)
            assert {task.key for task in parts} == {task.key for task in found}
        total = estimate([snapshot], selection)
        assert (total.blocks, total.blocks_of) == (len(found), len(snapshot.blocks))
        assert len(matching) <= total.messages == sum(task.messages for task in found)
        assert total.index_bytes == sum(task.ref.index_bytes for task in found)
        assert total.frames_bytes <= sum(task.ref.frames_bytes for task in found)
    assert planned > 100
    assert pruned > 150
    await owner.kill()


async def test_as_of_bounds_scan_tasks() -> None:
    store = MemoryStore()
    owner = await varied(store, 2, steps=20, large=False)
    objects = MemoryObjectClient(store)
    [snapshot] = read_store(objects, stream="many")
    half = list(owner.streams["many"].live)[len(owner.streams["many"].live) // 2]
    [bounded] = read_store(objects, stream="many", as_of=f"seq:{half}")
    found = tasks(bounded, Selection())
    assert found[-1].last_seq == tasks(bounded, Selection(last_seq=1 << 40))[-1].last_seq == half
    for last_seq in (half, 5):
        for one, other in zip(tasks(bounded, Selection(last_seq=last_seq)),
                              tasks(snapshot, Selection(last_seq=last_seq)), strict=True):
            assert one._replace(dead=None) == other._replace(dead=None)
    await owner.kill()


def a_ref(n: int, *, subjects: SubjectSummary | None = None, frames_bytes: int = 8_000_000, index_bytes: int = 10_000,
          count: int = 1000, place: BlockPlace = BlockPlace.LOG) -> BlockRef:
    """Return the reference of block ``n`` of a stream, with the messages of one second."""
    first = 1 + n * count
    return BlockRef(place, Position(1, n + 1), 5 if place != BlockPlace.LOG else 0, 0x77, 160, 900, 1060, index_bytes,
                    1060 + index_bytes, frames_bytes, first, first + count - 1, count, frames_bytes, T0 + n * 10**9,
                    T0 + n * 10**9 + 999_999_999, subjects)


def a_snapshot(*refs: BlockRef) -> StreamSnapshot:
    state = StreamState(0x77, "$G", "s", {}, T0)
    state.last_seq = refs[-1].last_seq
    return snapshot_of(state, 0, Position(1, 99), [BlockEntry(ref) for ref in refs])


def summary(n: int, *subjects: bytes, count: int = 1000) -> SubjectSummary:
    """Return the summary of block ``n``. The first subject has all messages but one for each other subject; those are
    at the block's end."""
    first = 1 + n * count
    return ((subjects[0], count - len(subjects) + 1, first, first + count - len(subjects)), *(
        (subject, 1, first + count - len(subjects) + i, first + count - len(subjects) + i)
        for i, subject in enumerate(subjects[1:], 1)))


def test_prunes_by_summaries() -> None:
    """A block whose summary has no wanted subject is not read. Other blocks are read from the first to the last wanted
    message; a block without a summary as a whole."""
    snapshot = a_snapshot(a_ref(0, subjects=summary(0, b"a.x", b"a.y")), a_ref(1, subjects=summary(1, b"b.x")),
                          a_ref(2), a_ref(3, subjects=summary(3, b"b.x", b"b.y", b"c")))
    found = tasks(snapshot, Selection(subjects=(b"*.y",)))
    assert [(task.first_seq, task.last_seq, task.messages) for task in found] == [
        (1000, 1000, 1), (2001, 3000, 1000), (3999, 3999, 1)]
    assert all(task.ref.subjects is None for task in found)
    assert estimate([snapshot], Selection(subjects=(b"*.y",))).unsure == 1
    assert estimate([snapshot], Selection()) == Estimate(4, 4, 4000, 40_000, 32_000_000, 0)
    assert [task.key for task in tasks(snapshot, Selection(suffixes=(b"y",), first_ns=T0 + 10**9))] == [
        "v1/shards/0/log/00000001-000000000003", "v1/shards/0/log/00000001-000000000004"]
    assert tasks(snapshot, Selection(first_seq=5, last_seq=4)) == []


def test_names_objects_of_all_places() -> None:
    """The objects are segments and runs of the shard, and runs of one stream."""
    snapshot = a_snapshot(a_ref(0), a_ref(1, place=BlockPlace.RUN), a_ref(2, place=BlockPlace.STREAM_RUN))
    assert [task.key for task in tasks(snapshot, Selection())] == [
        "v1/shards/0/log/00000001-000000000001", "v1/shards/0/runs/00000001-000000000002-0000000000000005",
        StreamPaths("$G", "s", 0x77).run(Position(1, 3), 5)]


def test_a_stream_offline_gives_no_plan() -> None:
    """The block table of such a stream may be wrong, so neither a plan nor an estimate is made of it."""
    snapshot = a_snapshot(a_ref(0))
    snapshot.offline = "record kind 200 is unknown"
    for call in (tasks, lambda snapshot, selection: estimate([snapshot], selection)):
        with pytest.raises(Damaged, match=r"stream \$G/s is offline, and no rows .* record kind 200"):
            call(snapshot, Selection())


def sizes(packed: list[list[ScanTask]], *, payload: bool = True) -> list[int]:
    return [sum(weight(task, payload=payload) for task in part) for part in packed]


def test_packs_to_the_target() -> None:
    """Eight or nine blocks of 8 MB make a partition of about 64 MiB; the indexes of 200 blocks make few tasks."""
    found = tasks(a_snapshot(*[a_ref(n) for n in range(200)]), Selection())
    packed = pack(found, 64 * MIB)
    assert len(packed) == 24
    assert {len(part) for part in packed} == {8, 9}
    assert [task for part in packed for task in part] == found
    assert len(pack(found, 64 * MIB, payload=False)) == 1
    assert pack([], 64 * MIB) == []


def test_few_bytes_are_few_tasks_and_many_are_a_multiple_of_the_cores() -> None:
    """The partitions have about the same size: none is left with the rest."""
    found = tasks(a_snapshot(*[a_ref(n, frames_bytes=800_000) for n in range(100)]), Selection())  # 81 MB
    for cores, count in [(1, 2), (2, 2), (3, 3), (4, 4), (7, 7)]:
        packed = pack(found, 64 * MIB, cores=cores)
        assert len(packed) == count
        assert max(sizes(packed)) - min(sizes(packed)) <= 2 * 810_000
    assert len(pack(found, 24 * MIB, cores=3)) == 6  # not 4: two cores would wait for the third
    assert len(pack(found, 64 * MIB, cores=500)) == 81_000_000 // TASK_BYTES_MIN
    assert len(pack(found[:5], 64 * MIB, cores=500)) == 1
    assert 78 <= len(pack(found, 1 * MIB)) <= 100


def test_a_block_larger_than_a_partition_is_split() -> None:
    """The block is split by sequence; all sequences are kept, in order."""
    [task] = tasks(a_snapshot(a_ref(0, frames_bytes=300 * MIB, count=70_000)), Selection())
    packed = pack([task], 64 * MIB)
    assert [len(part) for part in packed] == [1] * 5
    assert all(32 * MIB <= size <= 66 * MIB for size in sizes(packed))
    assert [part[0].first_seq for part in packed] == [1, *(part[0].last_seq + 1 for part in packed[:-1])]
    assert packed[-1][0].last_seq == 70_000
    one, = tasks(a_snapshot(a_ref(0, frames_bytes=300 * MIB, count=1)), Selection())
    assert pack([one], 64 * MIB) == [[one]]


def test_weighs_what_will_be_read() -> None:
    """A few messages of a block cost a few of its frames; even a small get has a minimum cost."""
    whole, = tasks(a_snapshot(a_ref(0)), Selection())
    assert weight(whole) == 8_010_000
    assert weight(whole, payload=False) == SCAN_TASK_BYTES_MIN
    few, = tasks(a_snapshot(a_ref(0, subjects=summary(0, b"a", b"b", b"c"))), Selection(subjects=(b"b", b"c")))
    assert few.messages == 2
    assert 200_000 < weight(few) < 400_000
    some, = tasks(a_snapshot(a_ref(0)), Selection(first_seq=101, last_seq=200))
    assert 800_000 < weight(some) < 1_200_000
    tiny, = tasks(a_snapshot(a_ref(0, frames_bytes=10, index_bytes=90)), Selection())
    assert weight(tiny) == SCAN_TASK_BYTES_MIN


async def test_pickled_scan_tasks_are_small_and_equal() -> None:
    """Spark sends about two hundred bytes a block to its tasks, including the dead sequences."""
    store = MemoryStore()
    owner = await varied(store, 4, steps=30, large=False)
    for snapshot in read_store(MemoryObjectClient(store), account="*"):
        found = tasks(snapshot, Selection())
        again = pickle.loads(pickle.dumps(found))
        assert [task._replace(dead=None) for task in again] == [task._replace(dead=None) for task in found]
        assert [task.dead and list(task.dead.seqs()) for task in again] == [
            task.dead and list(task.dead.seqs()) for task in found]
        assert type(again[0].ref) is BlockRef if again else True
    found = tasks(a_snapshot(*[a_ref(n, subjects=summary(n, b"a", b"b")) for n in range(100)]), Selection())
    assert len(pickle.dumps(found)) / 100 < 200
    await owner.kill()
