"""Compaction of a shard: its result, kills at any moment, and removals during a merge. All in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import broker.storage.checkpoint.directory_pages as directory_pages
import broker.storage.state.table as table
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.compactor import Compactor
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace
from broker.storage.format.errors import Corrupt
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import NotFound
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import Fenced
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, SECOND, Rig, Stream, dump, in_virtual_time, read_all

MINUTE = 60.0


def settings(*, segments: int = 8, checkpoint: int = 16, grace_ns: int = SECOND,
             compaction: dict[str, Any] | None = None, **log: int) -> ShardSettings:
    return ShardSettings(log=LogSettings(**log), checkpoint=CheckpointSettings(segments=checkpoint),
                         sweep_grace_ns=grace_ns,
                         compaction=CompactionSettings(segments=segments, quiet_ns=5 * SECOND, few=4,
                                                       **(compaction or {})))


async def a_broker(shared: MemoryStore, clock: ManualClock, name: str = "a", latency_ns: int = 2 * MS,
                   **given: Any) -> Rig:
    rig = Rig(shared, clock, name, faults=Faults(latency_ns=latency_ns), settings=settings(**given))
    await rig.open()
    return rig


def compactor_of(rig: Rig) -> Compactor:
    assert rig.shard is not None
    assert rig.shard.compactor is not None
    return rig.shard.compactor


async def one_by_one(rig: Rig, stream: Stream, count: int) -> None:
    """Publish ``count`` messages, each in a separate segment."""
    for _ in range(count):
        stream.publish(1, b"%d" % (stream.last_seq + 1))
        await rig.log.persisted()


def expected(first: int, last: int, *, without: set[int] = frozenset()) -> dict[int, bytes]:  # type: ignore[assignment]
    return {seq: b"%d" % seq for seq in range(first, last + 1) if seq not in without}


def data_objects(shared: MemoryStore) -> list[str]:
    return [key for key in shared.objects if "/log/" in key or "/runs/" in key]


async def same_everywhere(shared: MemoryStore, rig: Rig) -> None:
    """Check that a fresh reader finds the same state as the owner has."""
    assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)


@pytest.mark.shows("store.compaction")
def test_thousands_of_small_segments_become_few_objects() -> None:
    """Two streams publish one by one. After a quiet while each has a block or two, and the old segments are gone."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, segments=16)
        one, two = Stream(rig.log, 7, "s"), Stream(rig.log, 9, "t")
        one.create()
        two.create()
        for _ in range(300):
            await one_by_one(rig, one, 2)
            await one_by_one(rig, two, 1)
        await asyncio.sleep(20 * MINUTE)
        assert len(data_objects(shared)) < 30
        assert len(rig.log.state.streams[7].blocks) < 8
        assert await read_all(shared) == expected(1, 600)
        assert await read_all(shared, "t") == expected(1, 300)
        await same_everywhere(shared, rig)
        there = set(shared.objects)
        await asyncio.sleep(86_400)
        assert set(shared.objects) == there, "an idle broker writes nothing"
    in_virtual_time(main)


def test_a_new_owner_reads_and_continues() -> None:
    """The owner is killed after some merges: the next owner has every message, continues merging, and deletes the
    old objects."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = Stream(rig.log)
        stream.create()
        await one_by_one(rig, stream, 100)
        await asyncio.sleep(MINUTE)
        assert compactor_of(rig).merges
        assert rig.shard is not None
        await rig.shard.abandon()
        later = await a_broker(shared, clock, "b")
        again = Stream(later.log, 7, "s", 100, 100)
        await one_by_one(later, again, 100)
        await asyncio.sleep(20 * MINUTE)
        assert await read_all(shared) == expected(1, 200)
        assert len(data_objects(shared)) < 30
        await same_everywhere(shared, later)
    in_virtual_time(main)


@pytest.mark.shows("store.compaction")
@pytest.mark.parametrize("calls", range(0, 40, 3))
def test_killed_at_any_call_nothing_is_lost(calls: int) -> None:
    """The process dies after a number of calls of the store since compaction began. A new owner finds everything,
    and no orphan remains."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, segments=16, checkpoint=1 << 20)
        stream = Stream(rig.log)
        stream.create()
        await one_by_one(rig, stream, 15)
        stream.remove(3, 5)
        left = calls
        died = asyncio.Event()

        async def before(operation: str, key: str) -> None:
            nonlocal left
            if compactor_of(rig)._wake.is_set() or left < calls or any("/runs/" in one for one in shared.objects):
                left -= 1
            if left < 0:
                died.set()
                await asyncio.sleep(1 << 30)

        rig.store.before = before
        publishing = asyncio.ensure_future(one_by_one(rig, stream, 60))
        await asyncio.wait([publishing, asyncio.ensure_future(died.wait())], timeout=10 * MINUTE)
        publishing.cancel()
        assert rig.shard is not None
        await rig.shard.abandon()
        acked = rig.log.state.streams[7].last_seq
        later = await a_broker(shared, clock, "b", checkpoint=4)
        found = await read_all(shared)
        assert {seq: found[seq] for seq in found if seq <= acked} == expected(1, acked, without={3, 4, 5})
        known = later.log.state.streams[7]
        await one_by_one(later, Stream(later.log, 7, "s", known.last_seq, known.msgs), 40)
        await asyncio.sleep(20 * MINUTE)
        await same_everywhere(shared, later)
        runs = {f"{run[2]:016x}" for run in later.log.state.counts.runs}
        assert {key[-16:] for key in shared.objects if "/runs/" in key} == runs
    in_virtual_time(main)


async def paused_at_its_put(rig: Rig) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Compaction that has read and merged, and whose put of the run waits for the event."""
    go, there = asyncio.Event(), asyncio.Event()

    async def before(operation: str, key: str) -> None:
        if operation == "put" and "/runs/" in key:
            there.set()
            await go.wait()

    rig.store.before = before
    working = asyncio.ensure_future(compactor_of(rig).work(quiet=True))
    await there.wait()
    return working, go


async def small_blocks(shared: MemoryStore, clock: ManualClock, count: int = 20, **given: Any) -> tuple[Rig, Stream]:
    """Make a stream of ``count`` messages, each in a separate segment, and a compactor that works only when the test
    calls it."""
    rig = await a_broker(shared, clock, **{"segments": 1000, "checkpoint": 1 << 20, **given})
    stream = Stream(rig.log)
    stream.create()
    await one_by_one(rig, stream, count)
    return rig, stream


def test_removals_during_a_merge_stay() -> None:
    """Removals between the read and the record: single messages, a whole block, the front of the stream; and again
    between sequencing and persisting the record. No message comes back: not in the owner's state, not for a fresh
    reader, not after a checkpoint."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, stream = await small_blocks(shared, clock, 5)
        for _ in range(5):
            stream.publish(4, b"x")
            await rig.log.persisted()
        working, go = await paused_at_its_put(rig)
        stream.remove(3, 3)  # a block
        stream.remove(7, 8)  # in the middle of one
        stream.remove(1, 2)  # the front
        await rig.log.persisted()
        go.set()
        await asyncio.sleep(0.005)
        stream.remove(10, 10)
        await rig.log.persisted()
        await working
        stream.remove(12, 13)
        await rig.log.persisted()
        gone = {1, 2, 3, 7, 8, 10, 12, 13}
        [entry] = rig.log.state.streams[7].blocks
        assert entry.ref.place is BlockPlace.RUN
        assert entry.live_msgs == 25 - len(gone)
        assert set(await read_all(shared)) == set(range(1, 26)) - gone
        await same_everywhere(shared, rig)
        assert rig.shard is not None
        await rig.shard.checkpointer.cut()
        await same_everywhere(shared, rig)
        await compactor_of(rig).work(quiet=True)
        assert set(await read_all(shared)) == set(range(1, 26)) - gone
    in_virtual_time(main)


@pytest.mark.parametrize("everything", [False, True])
def test_a_stream_that_is_deleted_during_a_merge(everything: bool) -> None:
    """A stream is deleted, or purged, between the read and the record: the run is not adopted, and is deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, stream = await small_blocks(shared, clock)
        working, go = await paused_at_its_put(rig)
        if everything:
            stream.record(RecordKind.STREAM_DELETE, {})
        else:
            stream.remove(1, 20)
        await rig.log.persisted()
        go.set()
        await working
        assert not rig.log.state.counts.runs
        await asyncio.sleep(20 * MINUTE)
        assert not [key for key in shared.objects if "/runs/" in key]
        assert await read_all(shared) == {}
        await same_everywhere(shared, rig)
    in_virtual_time(main)


def test_a_fenced_owner_adopts_nothing() -> None:
    """The owner is paused at the put of its run. Meanwhile another one takes the shard, merges the same blocks and
    deletes them. The old owner's record meets the seal, and its run is an orphan, which the owner after that
    deletes."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock)
        working, go = await paused_at_its_put(rig)
        other = await a_broker(shared, clock, "b", segments=1000)
        stream = Stream(other.log, 7, "s", 20, 20)
        await one_by_one(other, stream, 3)
        await compactor_of(other).work(quiet=True)
        await asyncio.sleep(20 * MINUTE)
        there = {key for key in shared.objects if "/runs/" in key}
        go.set()
        with pytest.raises(Fenced):
            await working
        assert await read_all(shared) == expected(1, 23)
        left = {key for key in shared.objects if "/runs/" in key} - there
        assert len(left) == 1
        third = await a_broker(shared, clock, "c", segments=1000, checkpoint=4)
        await one_by_one(third, Stream(third.log, 7, "s", 23, 23), 5)
        await asyncio.sleep(20 * MINUTE)
        assert not left & shared.objects.keys()
        assert await read_all(shared) == expected(1, 28)
    in_virtual_time(main)


@pytest.mark.parametrize("turns", (0, 3, 6, 12))
def test_a_round_has_all_of_an_adoption_or_nothing(turns: int) -> None:
    """An adoption joins blocks of nine pages. Its record would be persisted when a checkpoint round has copied some
    of these, so the round waits for it. The newest root, with the log after it, gives every message."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock, 140, latency_ns=0)
        assert rig.shard is not None
        landing = asyncio.Event()

        async def before(operation: str, key: str) -> None:
            if operation == "put" and "/log/" in key:
                await landing.wait()

        working, go = await paused_at_its_put(rig)
        rig.store.before = before
        go.set()
        await asyncio.sleep(2)  # the record is being put
        cutting = asyncio.ensure_future(rig.shard.checkpointer.cut())
        for _ in range(turns):
            await asyncio.sleep(0)
        landing.set()
        await asyncio.gather(working, cutting)
        assert len(rig.log.state.streams[7].blocks) == 1
        await same_everywhere(shared, rig)
        assert len(await read_all(shared)) == 140
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "PAGE_ENTRIES", 16)
        patch.setattr(directory_pages, "_TURN_WEIGHT", 1)
        in_virtual_time(main)


def test_commits_that_wait_for_a_round_do_not_wait_for_ever() -> None:
    """The round waits for the adoption, and commits wait for the round: the record is committed nevertheless."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, stream = await small_blocks(shared, clock, 20, checkpoint=8, latency_ns=MS)
        assert rig.shard is not None
        rounds = rig.shard.checkpointer
        working, go = await paused_at_its_put(rig)
        held = rounds._busy
        await held.acquire()  # no round begins, so that many segments wait for one
        publishing = asyncio.ensure_future(one_by_one(rig, stream, 100))
        await asyncio.sleep(5)
        assert rounds.commits_paused()
        go.set()
        await asyncio.sleep(0.1)
        held.release()
        async with asyncio.timeout(60):
            await asyncio.gather(working, publishing)
        assert await read_all(shared) == expected(1, 120)
        await same_everywhere(shared, rig)
    in_virtual_time(main)


@pytest.mark.parametrize("section", ["index", "frames"])
def test_a_damaged_block_is_left_where_it_is(section: str, caplog: pytest.LogCaptureFixture) -> None:
    """The damaged block is named in the log. All others are merged, and it is not deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock, compaction={"recent_bytes": 0})
        entry = rig.log.state.streams[7].blocks.find(9)
        assert entry is not None
        key = PATHS.log(entry.ref.position)
        at = entry.ref.index_offset + 90 if section == "index" else entry.ref.frames_offset
        data = bytearray(shared.objects[key])
        data[at] ^= 0x40
        shared.objects[key] = bytes(data)
        await compactor_of(rig).work(quiet=True)
        assert key in caplog.text
        assert "leaves a damaged block where it is" in caplog.text
        assert [(one.first_seq, one.last_seq) for one in rig.log.state.streams[7].blocks] == [(1, 8), (9, 9), (10, 20)]
        await asyncio.sleep(20 * MINUTE)
        assert key in shared.objects
        data[at] ^= 0x40
        shared.objects[key] = bytes(data)
        assert await read_all(shared) == expected(1, 20)
    in_virtual_time(main)


@pytest.mark.parametrize("how", ["cut", "flipped", "of another", "gone"])
def test_a_run_that_is_tampered_with_gives_no_wrong_message(how: str) -> None:
    """A reader detects every kind of tampering."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, stream = await small_blocks(shared, clock)
        await compactor_of(rig).work(quiet=True)
        await one_by_one(rig, stream, 20)
        await compactor_of(rig).work(quiet=True)
        [*runs] = [key for key in shared.objects if "/runs/" in key]
        refs = {PATHS.run(entry.ref.position, entry.ref.object_id): entry.ref
                for entry in rig.log.state.streams[7].blocks if entry.ref.place is BlockPlace.RUN}
        key, ref = next(iter(refs.items()))
        data = shared.objects[key]
        if how == "gone":
            del shared.objects[key]
        else:
            other = next(shared.objects[one] for one in runs if one != key) if len(runs) > 1 else bytes(len(data))
            shared.objects[key] = {"cut": data[:-1], "flipped": data[:-3] + b"?" + data[-2:], "of another": other}[how]
        with pytest.raises((Corrupt, NotFound)):
            await read_all(shared)
        assert ref.count
    in_virtual_time(main)


@pytest.mark.shows("store.compaction")
def test_large_blocks_are_rewritten_when_half_is_dead() -> None:
    """Blocks of 2 MiB are not moved until more than half of their messages were removed."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, segments=1000)
        stream = Stream(rig.log)
        stream.create()
        rng = random.Random(1)
        for _ in range(4):
            for _ in range(2048):
                stream.publish(1, rng.randbytes(1000), urgent=False)
            rig.log.urgent()
            await rig.log.persisted()
        await compactor_of(rig).work(quiet=True)
        assert {entry.ref.place for entry in rig.log.state.streams[7].blocks} == {BlockPlace.LOG}
        before = await read_all(shared)
        for seq in range(1, 4097, 2):
            rig.log.block(stream).remove(seq, seq, 1, 1033)
            stream.msgs -= 1
            stream.first_seq = 2
        rig.log.urgent()
        await rig.log.persisted()
        await compactor_of(rig).work(quiet=True)
        places = [entry.ref.place for entry in rig.log.state.streams[7].blocks]
        assert places == [BlockPlace.RUN] * 1 + [BlockPlace.LOG] * 2
        assert await read_all(shared) == {seq: body for seq, body in before.items() if seq > 4096 or seq % 2 == 0}
    in_virtual_time(main)


def test_a_stream_with_enough_has_runs_of_its_own() -> None:
    """The blocks of the larger one of two streams go into an object below its own prefix, which is deleted with the
    stream; also after a restart. A run of the stream that was never adopted is deleted, too."""
    async def main(clock: ManualClock) -> None:
        shared, bounds = MemoryStore(), {"object_bytes": 20_000}
        rig, _ = await small_blocks(shared, clock, compaction=bounds)
        big = Stream(rig.log, 9, "BIG stream")
        big.create()
        for _ in range(30):
            big.publish(1, b"b" * 1000)
            await rig.log.persisted()
        await compactor_of(rig).work(quiet=True)
        places = {name: {entry.ref.place for entry in rig.log.state.streams[stream_id].blocks}
                  for stream_id, name in ((7, "s"), (9, "BIG stream"))}
        assert places == {"s": {BlockPlace.RUN}, "BIG stream": {BlockPlace.STREAM_RUN}}
        prefix = "v1/streams/%24%47/%42%49%47%20stream/0000000000000009/runs/"
        own = [key for key in shared.objects if key.startswith(prefix)]
        assert len(own) == 1
        await same_everywhere(shared, rig)
        assert len(await read_all(shared, "BIG stream")) == 30
        assert rig.shard is not None
        await rig.shard.abandon()
        stray = own[0][:-16] + f"{5:016x}"
        shared.objects[stray] = shared.objects[own[0]]
        shared._keys[:] = sorted(shared.objects)
        later = await a_broker(shared, clock, "b", checkpoint=4, compaction=bounds)
        await one_by_one(later, Stream(later.log, 7, "s", 20, 20), 10)
        await asyncio.sleep(20 * MINUTE)
        assert own[0] in shared.objects
        assert stray not in shared.objects
        assert len(await read_all(shared, "BIG stream")) == 30
        Stream(later.log, 9, "BIG stream", 30, 30).record(RecordKind.STREAM_DELETE, {})
        await asyncio.sleep(20 * MINUTE)
        assert not [key for key in shared.objects if key.startswith("v1/streams/")]
        await same_everywhere(shared, later)
    in_virtual_time(main)
