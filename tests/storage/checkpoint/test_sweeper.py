"""Release, then delete: which objects, when, by which owner; and objects that are never deleted."""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import encode_segment
from broker.storage.objectstore.base import StoreError, StoreFull, StoreRefused, Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.put import Fenced
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import Shard, ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import (
    MS,
    PATHS,
    SECOND,
    Counting,
    Publisher,
    Rig,
    Stream,
    dump,
    in_virtual_time,
    read_all,
)


def often(grace_ns: int = 0, segments: int = 4, **log: int) -> ShardSettings:
    return ShardSettings(log=LogSettings(**log), checkpoint=CheckpointSettings(segments=segments),
                         sweep_grace_ns=grace_ns)


class Room:
    """The room of the store."""

    full: StoreFull | None = None
    bytes_free = 1 << 40


def keys(shared: MemoryStore, folder: str) -> list[str]:
    return [key for key in sorted(shared.objects) if f"/{folder}/" in key]


def position_of(key: str) -> Position:
    parsed = parse(key)
    assert parsed is not None
    assert parsed.position is not None
    return parsed.position


async def churn(rig: Rig, rounds: int) -> Stream:
    """Publish and remove all messages, repeatedly."""
    stream = Publisher(rig, {}).stream
    for _ in range(rounds):
        for _ in range(3):
            stream.publish()
            await rig.log.persisted()
        stream.remove(stream.first_seq, stream.last_seq)
        await rig.log.persisted()
        await asyncio.sleep(0.2)
    return stream


def test_dead_segments_old_pages_and_old_roots_are_deleted() -> None:
    """Shows that after many changes the store has three roots, their pages, and the segments since the oldest."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often())
        await rig.open()
        await churn(rig, 60)
        await asyncio.sleep(10)
        assert len(keys(shared, "checkpoint")) <= 4
        assert len(keys(shared, "pages")) <= 8
        assert len(keys(shared, "log")) <= 30
        assert keys(shared, "epochs") == [PATHS.epoch(1)]
        assert len(rig.log.state.released) <= 2, "what is deleted is forgotten"
        assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)
    in_virtual_time(main)


def test_a_live_block_keeps_its_segment() -> None:
    """A message of a hundred segments is live: its segment is kept, the others are deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often())
        await rig.open()
        keeper = Stream(rig.log, 9, "keep")
        keeper.create()
        keeper.publish(1, b"precious")
        await rig.log.persisted()
        held = PATHS.log(rig.log.position)
        await churn(rig, 40)
        await asyncio.sleep(10)
        assert held in shared.objects
        assert len(keys(shared, "log")) <= 31
        assert await read_all(shared, "keep") == {1: b"precious"}
    in_virtual_time(main)


def test_nothing_is_deleted_before_its_record_is_persisted() -> None:
    """The put with the record is stalled: nothing is deleted until the record is in the log."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often(segments=1 << 20))
        shard = await rig.open()
        await churn(rig, 3)
        for _ in range(3):
            await shard.checkpointer.cut()
            await churn(rig, 1)
        before = len(keys(shared, "log"))
        stall = rig.store.stall_put(rig.store.puts)
        await shard.sweeper.after_round(shard.checkpointer)
        await asyncio.sleep(100)
        assert len(keys(shared, "log")) == before
        stall.release()
        await asyncio.sleep(10)
        assert len(keys(shared, "log")) < before
    in_virtual_time(main)


def test_a_fenced_owner_deletes_nothing_more() -> None:
    """O is paused for two hours between its root and its record, and N is owner by then. O's record is never persisted,
    so objects of N, which are unknown to O, are not deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        old = Rig(shared, clock, "old", 1, settings=often(segments=1 << 20))
        shard = await old.open()
        await churn(old, 3)
        for _ in range(4):
            await churn(old, 1)
            await shard.checkpointer.cut()
        new = Rig(shared, clock, "new", 2, settings=often())
        await new.open()
        await Publisher(new, {}).publish_many(30)
        await asyncio.sleep(7200)
        there = dict(shared.objects)
        await shard.sweeper.after_round(shard.checkpointer)
        with pytest.raises(Fenced):
            await old.log.persisted()
        await asyncio.sleep(7200)
        assert shared.objects == there
        assert len(await read_all(shared)) == 30
    in_virtual_time(main)


def test_the_grace_period_is_for_readers() -> None:
    """Shows that a reader that planned before has that much time; then the object is deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often(grace_ns=60 * SECOND, segments=1 << 20))
        shard = await rig.open()
        for _ in range(4):
            await churn(rig, 2)
            await shard.checkpointer.cut()
        before = len(keys(shared, "log"))
        await shard.sweeper.after_round(shard.checkpointer)
        await asyncio.sleep(58)
        assert len(keys(shared, "log")) >= before
        await asyncio.sleep(10)
        assert len(keys(shared, "log")) < before
    in_virtual_time(main)


def test_the_grace_period_is_ignored_while_the_store_is_full() -> None:
    """Released objects are deleted at once when the store becomes full, and until it has room again."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often(grace_ns=6000 * SECOND, segments=1 << 20))
        shard = await rig.open()
        room = Room()
        shard.log.store_room = room

        async def released() -> int:
            for _ in range(4):
                await churn(rig, 2)
                await shard.checkpointer.cut()
            before = shard.sweeper.deleted
            await shard.sweeper.after_round(shard.checkpointer)
            await asyncio.sleep(58)
            return shard.sweeper.deleted - before

        assert await released() == 0
        room.full = StoreFull("the disk is full")
        shard.log.store_room_changed()
        await asyncio.sleep(1)
        assert shard.sweeper.deleted
        assert await released()
        room.full = None
        shard.log.store_room_changed()
        assert await released() == 0
    in_virtual_time(main)


def test_nothing_is_deleted_while_the_clocks_disagree() -> None:
    """Nothing is released, and nothing released is deleted; both continue once the clocks are trusted again."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock)
        taken = await rig.take_shard()
        trusted = True
        rig.shard = shard = await Shard.open(rig.store, PATHS, taken.epoch, rig.me.nonce, clock, rig.rng, often(),
                                             clock_trusted=lambda: trusted)
        await churn(rig, 12)
        trusted = False
        await asyncio.sleep(5)
        deleted, log = shard.sweeper.deleted, len(keys(shared, "log"))
        assert deleted
        await churn(rig, 12)
        await asyncio.sleep(100)
        assert shard.sweeper.deleted == deleted
        trusted = True
        await churn(rig, 12)
        await asyncio.sleep(10)
        assert len(keys(shared, "log")) <= log + 20
        assert shard.sweeper.deleted > deleted
    in_virtual_time(main)


def test_claims_and_seals_are_never_deleted() -> None:
    """Shows that after twenty successive owners, all claims and seals exist, and no old segments."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        for epoch in range(1, 21):
            rig = Rig(shared, clock, f"b{epoch}", epoch, settings=often())
            shard = await rig.open()
            await churn(rig, 6)
            await asyncio.sleep(5)
            await shard.abandon()
        assert len(keys(shared, "epochs")) == 20
        old = [key for key in keys(shared, "log") if key[key.index("/log/"):] < "/log/00000012-"]
        assert [shared.objects[key][8] for key in old] == [4] * 17, "one seal for each epoch, nothing else"
    in_virtual_time(main)


def test_an_owner_does_not_read_its_own_objects_before_deleting_them() -> None:
    """The headers of an earlier owner's segments are read, since one of them might be a seal; our own are not."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        old = Rig(shared, clock, "old", 1, settings=often(grace_ns=1000 * SECOND))
        shard = await old.open()
        await churn(old, 12)
        assert any(released.segments for released in old.log.state.released.values())
        await shard.abandon()
        counting = Counting(shared)
        new = Rig(counting, clock, "new", 2, settings=often())
        await new.open()
        counting.calls.clear()
        await churn(new, 12)
        await asyncio.sleep(10)
        logs = [(operation, position_of(key)) for operation, key in counting.calls
                if "/log/" in key and operation != "list"]
        deleted = {position for operation, position in logs if operation == "delete"}
        assert {position.epoch for position in deleted} == {1, 2}
        read = {position for operation, position in logs if operation == "get"}
        assert {position for position in deleted if position.epoch == 1} <= read
        assert not {position for position in read if position.epoch == 2}
        assert await read_all(shared) == {}
        assert dump((await read_snapshot(shared, 0)).state) == dump(new.log.state)
    in_virtual_time(main)


async def leave_strays(shared: MemoryStore, clock: ManualClock) -> list[str]:
    """Leave segments beyond an epoch's end and unnamed pages, by an owner that dies. Returns: their keys."""
    old = Rig(shared, clock, "old", 1, settings=often(segments=1 << 20, segment_bytes=5))
    shard = await old.open()
    stream = await churn(old, 2)
    await shard.checkpointer._writer.put_pages([])
    old.store.stall_put(old.store.puts)
    for _ in range(3):
        stream.publish()
        await asyncio.sleep(0.1)
    end = old.log.position.number
    orphans = [PATHS.log(Position(1, end + 2)), PATHS.log(Position(1, end + 3)), PATHS.pages(Position(1, 1))]
    assert all(key in shared.objects for key in orphans)
    return orphans


def test_orphans_are_deleted_after_the_next_owners_first_round() -> None:
    """Shows it for segments beyond an epoch's end, and for pages that no root names."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        orphans = await leave_strays(shared, clock)
        new = Rig(shared, clock, "new", 2, settings=often())
        await new.open()
        await churn(new, 2)
        await asyncio.sleep(10)
        assert not any(key in shared.objects for key in orphans)
        assert dump((await read_snapshot(shared, 0)).state) == dump(new.log.state)
    in_virtual_time(main)


def test_a_seal_alone_in_its_epoch_is_not_read() -> None:
    """Seals are kept forever, one for each process run. The next owner recognizes them from the log's state, without a
    GET for each."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        orphans = await leave_strays(shared, clock)
        for epoch in range(2, 12):
            await (await Rig(shared, clock, f"b{epoch}", epoch, settings=often(segments=1 << 20)).open()).abandon()
        counting = Counting(shared)
        new = Rig(counting, clock, "new", 20, settings=often())
        await new.open()
        counting.calls.clear()
        await churn(new, 3)
        await asyncio.sleep(20)
        assert not any(key in shared.objects for key in orphans)
        seals = {key for key in keys(shared, "log") if shared.objects[key][8] == ObjectKind.SEAL}
        assert len(seals) == 11
        asked = {key for operation, key in counting.calls if operation == "get" and key in seals}
        assert asked == {PATHS.log(p) for p in map(position_of, seals) if p.epoch == 1}, "the epoch with orphans"
    in_virtual_time(main)


def test_many_orphans_are_read_concurrently() -> None:
    """A thousand headers at 30 ms each take about a second; and the orphans are deleted although the log is idle."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await leave_strays(shared, clock)
        for number in range(1000, 2000):
            position = Position(1, number)
            await shared.put(PATHS.log(position), encode_segment(position, bytes(16), []))
        new = Rig(shared, clock, "new", 2, settings=often(segments=1 << 20), faults=Faults(latency_ns=30 * MS))
        shard = await new.open()
        assert await shard.checkpointer.cut()
        await shard.sweeper.after_round(shard.checkpointer)
        await asyncio.sleep(3)  # the record is put within a second
        assert sum(len(released.segments) for released in new.log.state.released.values()) >= 1000
        await asyncio.sleep(60)
        assert len(keys(shared, "log")) < 20
    in_virtual_time(main)


@pytest.mark.parametrize("operation", ["list", "get", "delete"])
@pytest.mark.parametrize("error", [Transient, StoreRefused])
def test_store_errors_during_the_search_for_orphans(operation: str, error: type[StoreError]) -> None:
    """Shows that the sweeper repeats its requests, and that the log continues meanwhile."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        orphans = await leave_strays(shared, clock)
        new = Rig(shared, clock, "new", 2, settings=often())
        await new.open()
        failed: list[str] = []

        async def fail(called: str, key: str) -> None:
            if called == operation and (called == "list" or key in orphans) and len(failed) < 5:
                failed.append(key)
                raise error(f"{called} {key}: injected")

        new.store.before = fail
        await churn(new, 2)
        await asyncio.sleep(60)
        assert len(failed) == 5
        assert not any(key in shared.objects for key in orphans)
        await churn(new, 2)
        assert dump((await read_snapshot(shared, 0)).state) == dump(new.log.state)
    in_virtual_time(main)


def test_the_next_owner_deletes_objects_that_were_released_before() -> None:
    """The record is in the log; its writer died during the grace period."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        old = Rig(shared, clock, "old", 1, settings=often(grace_ns=1000 * SECOND))
        shard = await old.open()
        await churn(old, 30)
        assert old.log.state.released
        dead = [PATHS.log(p) for released in old.log.state.released.values() for p in released.segments]
        assert all(key in shared.objects for key in dead)
        await shard.abandon()
        new = Rig(shared, clock, "new", 2, settings=often())
        await new.open()
        await asyncio.sleep(10)
        assert not any(key in shared.objects for key in dead)
    in_virtual_time(main)


def test_a_deleted_stream_frees_its_segments() -> None:
    """Shows that all segments that only it used are deleted."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=often())
        await rig.open()
        stream = Stream(rig.log, 9, "t")
        stream.create()
        for _ in range(20):
            stream.publish()
            await rig.log.persisted()
        mine = [PATHS.log(entry.ref.position) for entry in rig.log.state.streams[9].blocks]
        stream.record(RecordKind.STREAM_DELETE, {})
        await rig.log.persisted()
        await churn(rig, 12)
        await asyncio.sleep(10)
        assert not any(key in shared.objects for key in mine)
        assert isinstance(rig.shard.sweeper, Sweeper)  # type: ignore[union-attr]
    in_virtual_time(main)
