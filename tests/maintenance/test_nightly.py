"""Nightly backups of a store that is written, merged and swept by day, in virtual time. Each backup and each restored
store is whole.

An incremental copy keeps the objects that the source has deleted since, and lacks those that the source wrote and
deleted between two nights.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.inspect.messages import read_messages
from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.fsck import fsck
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.records.release import Release
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from tests.inspect.stores import Owner, Row, Stream
from tests.maintenance.test_copy import copied
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults, FaultyStore
from tests.storage.rig import in_virtual_time

DAY = 86_400.0
KEPT = 150
"""The messages that the busy stream keeps."""


class Days:
    """A source that is written for days, its backup, and the expected messages of each stream."""

    def __init__(self, clock: ManualClock, rng: random.Random, a_day: int) -> None:
        self.rng = rng
        self.source = MemoryStore()
        self.backup = MemoryStore()
        self.a_day = a_day
        self.owner = Owner(self.source)
        self.owner.clock = clock
        self.owner.settings = ShardSettings(
            log=LogSettings(lease_ns=1_800_000_000_000, commit_interval_ns=20_000_000),
            checkpoint=CheckpointSettings(segments=64, subjects=SubjectSettings(blocks_min=32)),
            compaction=CompactionSettings(segments=32, quiet_ns=60_000_000_000))

    async def start(self) -> None:
        await self.owner.start()
        for name in ("busy", "grows"):
            await self.owner.stream(name)

    async def day(self) -> None:
        """Publish all day, in a stream with a limit and in one without; delete some messages of the latter."""
        rng, streams = self.rng, self.owner.streams
        for i in range(self.a_day):
            self._publish(streams["busy"], i)
            if len(streams["busy"].live) > KEPT:
                oldest = min(streams["busy"].live)
                streams["busy"].remove(oldest, oldest)
            if i % 7 == 0:
                self._publish(streams["grows"], i)
            if i % 40 == 0 and streams["grows"].live:
                seq = rng.choice(list(streams["grows"].live))
                streams["grows"].remove(seq, seq)
            await self.owner.log.persisted()
            await asyncio.sleep(rng.expovariate(2 * self.a_day / DAY))
        await asyncio.sleep(DAY / 4)

    async def night(self) -> int:
        """Back up; return the number of objects copied."""
        done = await copied(self.source, self.backup)
        assert done.whole
        assert done.problems == []
        return done.copied.count

    async def restore(self) -> int:
        """Restore to a new place and check it; return the number of objects that an owner of it keeps in the end."""
        restored = MemoryStore()
        done = await copied(self.backup, restored, must_be_new=True)
        assert done.whole
        assert done.problems == []
        await self._check(restored)
        owner = Owner(restored, seed=2)
        owner.clock, owner.settings = self.owner.clock, self.owner.settings
        await owner.start("elsewhere")
        for _ in range(4):
            # An empty record makes the log longer, so that a root can be put.
            owner.log.block(owner.log.shard).add(Release((), (), (), ()))
            await owner.log.drain()
            await owner.round()
            await asyncio.sleep(1200)
        await self._check(restored)
        await owner.stop()
        source = Source(restored)
        assert (await verify(source, await read_survey(source))).problems == []
        return len(restored.objects)

    async def _check(self, store: MemoryStore) -> None:
        for stream in self.owner.streams.values():
            found = [(msg.seq, msg.subject, msg.data) async for msg in read_messages(store, stream.name)]
            assert found == [_read(row) for row in stream.live.values()]

    def _publish(self, stream: Stream, i: int) -> None:
        stream.publish((f"{stream.name}.{i % 13}", b"", b"%d" % i))


def _read(row: Row) -> tuple[int, bytes, bytes]:
    return row[0], row[1], row[3]


def run(days: int, a_day: int, restores: int, ends: dict[int, str]) -> None:
    """Run the days and nights.

    Args: restores: restore after this many nights. ends: the ways in which the owner ends on some days, instead of
    continuing in one epoch.
    """
    async def main(clock: ManualClock) -> None:
        world = Days(clock, random.Random(days), a_day)
        await world.start()
        restored = 0
        for day in range(1, days + 1):
            await world.day()
            fresh = await world.night()
            assert fresh < len(world.backup.objects), "the copy is incremental"
            if day % restores == 0:
                kept = await world.restore()
                restored += 1
                assert kept < len(world.backup.objects) / 2, "an owner deletes what the source has deleted"
            if day in ends:
                await (world.owner.kill() if ends[day] == "kill" else world.owner.stop())
                await world.owner.start(f"broker {day}")
        assert restored == days // restores
        assert len(world.source.objects) < len(world.backup.objects) / 2, "the source was swept between the nights"
        await world.owner.stop()
    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(3))
def test_commands_beside_an_owner_that_sweeps_at_once(seed: int) -> None:
    """A backup, an inspection and a check read slowly while the owner writes, merges, cuts checkpoints and deletes
    without a grace period. Each finds an undamaged store. The restored store is undamaged, too, and has everything
    that was acknowledged when the backup began."""
    async def main(clock: ManualClock) -> None:
        world = Days(clock, random.Random(seed), a_day=400_000)
        world.owner.settings = ShardSettings(
            log=LogSettings(), sweep_grace_ns=0, checkpoint=CheckpointSettings(segments=16),
            compaction=CompactionSettings(segments=8, quiet_ns=200_000_000))
        await world.start()
        busy = asyncio.create_task(world.day())
        slow = FaultyStore(world.source, rng=world.rng, faults=Faults(latency_ns=5_000_000))
        for _ in range(4):
            await asyncio.sleep(60)
            acked = list(world.owner.streams["grows"].live.values())
            done = await copied(slow, world.backup)
            assert (done.whole, done.problems) == (True, [])
            found = {msg.seq: msg.data async for msg in read_messages(world.backup, "grows")}
            removed = {row[0] for row in acked} - world.owner.streams["grows"].live.keys()
            assert all(found.get(row[0]) == row[3] for row in acked if row[0] not in removed)
            source = Source(slow)
            assert (await verify(source, await read_survey(source))).problems == []
            assert (await fsck(slow, clock, random.Random(seed))).problems == []
            assert not busy.done()
        busy.cancel()
        assert world.owner.shard.sweeper.deleted > 500, "much was deleted meanwhile"
        await world.owner.log.persisted()
        await world.night()
        await world.restore()
        await world.owner.kill()
    in_virtual_time(main)


def test_nightly_backups_of_one_long_epoch() -> None:
    """Four nights without a restart of the owner, a restore every second."""
    run(4, 400, 2, {})


@pytest.mark.soak
def test_nightly_backups_for_a_month() -> None:
    """Thirty nights, with a restore every third; the owner is killed once and stopped once, and runs for ten days in
    between."""
    run(30, 1500, 3, {11: "kill", 21: "stop"})
