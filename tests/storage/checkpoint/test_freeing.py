"""Objects are freed: deleting, purging and expiring empty the store within minutes, also on an idle broker.

All tests run in virtual time and count objects. A broker that has nothing more to free writes nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, SECOND, Rig, Stream, dump, in_virtual_time, read_all

MINUTE = 60.0
SEGMENTS = 10_000
"""More segments than fit into two release records."""


async def a_broker(shared: MemoryStore, clock: ManualClock, latency_ns: int = 0, **log: int) -> Rig:
    """Open a shard with a directory's settings: a round after 4096 segments."""
    rig = Rig(shared, clock, faults=Faults(latency_ns=latency_ns),
              settings=ShardSettings(log=LogSettings(**log), checkpoint=CheckpointSettings(segments=4096),
                                      sweep_grace_ns=int(MINUTE) * SECOND))
    await rig.open()
    return rig


async def filled(rig: Rig, segments: int, stream_id: int = 7, name: str = "s") -> Stream:
    """Create a stream with one message in each of that many segments."""
    stream = Stream(rig.log, stream_id, name)
    stream.create()
    for _ in range(segments):
        stream.publish()
        await rig.log.persisted()
    return stream


async def check_idle(shared: MemoryStore) -> None:
    """Check that no object is created or deleted for a day."""
    there = dict(shared.objects)
    await asyncio.sleep(86_400)
    assert shared.objects.keys() == there.keys()


def test_a_deleted_stream_of_many_segments_leaves_an_idle_broker() -> None:
    """Shows that ten thousand segments are deleted within ten minutes; then the broker is idle."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        kept = await filled(rig, 1, 9, "kept")
        stream = await filled(rig, SEGMENTS)
        assert len(shared.objects) > SEGMENTS
        stream.record(RecordKind.STREAM_DELETE, {})
        await asyncio.sleep(10 * MINUTE)
        assert len(shared.objects) < 40
        await check_idle(shared)
        assert kept.msgs == len(await read_all(shared, "kept"))
        assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)
        assert not rig.log.state.released, "deletions are recorded, so that no later owner repeats them"
    in_virtual_time(main)


@pytest.mark.shows("store.compaction")
def test_a_purge_frees_all_but_the_remaining_messages() -> None:
    """All but the last ten messages are purged: about ten segments are left."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = await filled(rig, 3000)
        stream.remove(1, 2990)
        await asyncio.sleep(10 * MINUTE)
        assert len(shared.objects) < 50
        await check_idle(shared)
        assert sorted(await read_all(shared)) == list(range(2991, 3001))
    in_virtual_time(main)


def test_expiry_of_one_message_after_another() -> None:
    """A message expires every ten seconds, as by max_age: its segment is deleted a few minutes later. Rounds for that
    run at most once a minute."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = await filled(rig, 500)
        rounds = rig.shard.checkpointer.rounds  # type: ignore[union-attr]
        for seq in range(1, 491):
            stream.remove(seq, seq)
            await asyncio.sleep(10)
            if seq % 100 == 0:
                assert len(shared.objects) < 600 - seq
        assert rig.shard.checkpointer.rounds - rounds <= 490 / 6 + 1  # type: ignore[union-attr]
        await asyncio.sleep(10 * MINUTE)
        assert len(shared.objects) < 50
        await check_idle(shared)
    in_virtual_time(main)


def test_heartbeats_of_a_quiet_broker_are_bounded() -> None:
    """A store has a lease, and a message is published each hour into a stream of ten messages: the store is as large
    after five days as after one."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, latency_ns=5 * MS, lease_ns=300 * SECOND)
        stream = await filled(rig, 10)
        most: list[int] = []
        for _ in range(5):
            most.append(0)
            for _ in range(24):
                stream.publish()
                stream.remove(stream.first_seq, stream.first_seq)
                await asyncio.sleep(3600)
                most[-1] = max(most[-1], len(shared.objects))
        assert max(most) < 120
    in_virtual_time(main)


def test_a_crash_before_anything_was_released() -> None:
    """Shows that the next owner frees everything that the previous one had no time to free, without a record of it."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = await filled(rig, 300)
        stream.record(RecordKind.STREAM_DELETE, {})
        await rig.log.persisted()
        await rig.shard.abandon()  # type: ignore[union-attr]
        rig = await a_broker(shared, clock)
        await asyncio.sleep(10 * MINUTE)
        assert len(shared.objects) < 40
        await check_idle(shared)
    in_virtual_time(main)


@pytest.mark.parametrize("segments", [1, 3])
def test_a_few_large_segments_are_enough(segments: int) -> None:
    """Shows that a few freed segments start rounds too: one segment may contain megabytes."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = await filled(rig, segments)
        mine = [PATHS.log(entry.ref.position) for entry in rig.log.state.streams[7].blocks]
        assert len(mine) == segments
        stream.remove(1, segments)
        await asyncio.sleep(10 * MINUTE)
        assert not any(key in shared.objects for key in mine)
        await check_idle(shared)
    in_virtual_time(main)


def test_a_record_releases_a_bounded_number_of_segments() -> None:
    """Shows bounds on a record's size, and on the time to apply it. More segments need more records."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock)
        stream = await filled(rig, SEGMENTS)
        stream.record(RecordKind.STREAM_DELETE, {})
        sizes: list[int] = []
        apply = rig.log.state._apply_shard_records

        def applied(records: list[object]) -> None:
            before = len(rig.log.state.counts.segments)
            apply(records)  # type: ignore[arg-type]
            sizes.append(before - len(rig.log.state.counts.segments))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(rig.log.state), "_apply_shard_records", lambda _, records: applied(records))
            await asyncio.sleep(10 * MINUTE)
        assert sum(sizes) >= SEGMENTS
        assert max(sizes) <= 4096
    in_virtual_time(main)
