"""Compaction of a shard: what it leaves, what survives kills, and what removals do meanwhile. All in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.compaction.compactor import Compactor
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.faulty import Faults
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from tests.storage.rig import MS, SECOND, Rig, Stream, dump, in_virtual_time, read_all

MINUTE = 60.0


def settings(*, segments: int = 8, checkpoint: int = 16, grace_ns: int = SECOND, compaction: dict[str, Any] | None = None,
             **log: int) -> ShardSettings:
    return ShardSettings(log=LogSettings(**log), checkpoint=CheckpointSettings(segments=checkpoint), sweep_grace_ns=grace_ns,
                         compaction=CompactionSettings(segments=segments, quiet_ns=5 * SECOND, few=4, **(compaction or {})))


async def a_broker(shared: MemoryStore, clock: ManualClock, name: str = "a", latency_ns: int = 2 * MS, **given: Any) -> Rig:
    rig = Rig(shared, clock, name, faults=Faults(latency_ns=latency_ns), settings=settings(**given))
    await rig.open()
    return rig


def compactor_of(rig: Rig) -> Compactor:
    assert rig.shard is not None
    assert rig.shard.compactor is not None
    return rig.shard.compactor


async def one_by_one(rig: Rig, stream: Stream, count: int) -> None:
    """Publish ``count`` messages, each in a segment of its own."""
    for _ in range(count):
        stream.publish(1, b"%d" % (stream.last_seq + 1))
        await rig.log.persisted()


def expected(first: int, last: int, *, without: set[int] = frozenset()) -> dict[int, bytes]:  # type: ignore[assignment]
    return {seq: b"%d" % seq for seq in range(first, last + 1) if seq not in without}


def data_objects(shared: MemoryStore) -> list[str]:
    return [key for key in shared.objects if "/log/" in key or "/runs/" in key]


async def same_everywhere(shared: MemoryStore, rig: Rig) -> None:
    """A fresh reader finds the state that the owner has."""
    assert dump((await read_snapshot(shared)).state) == dump(rig.log.state)


def test_thousands_of_small_segments_become_few_objects() -> None:
    """Two streams publish one by one; after a quiet while each has a block or two, and the old segments are gone."""
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


def test_a_new_owner_reads_and_goes_on() -> None:
    """Killed after some merges: the next owner has every message, merges on, and deletes what it took over."""
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


@pytest.mark.parametrize("calls", range(0, 40, 1))
def test_killed_at_any_call_nothing_is_lost(calls: int) -> None:
    """The process dies after so many calls of the store since compaction began; a new owner finds everything, and no object
    is left that nothing names."""
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
        runs = {f"{run[2]:016x}" for run in later.log.state.runs}
        assert {key[-16:] for key in shared.objects if "/runs/" in key} == runs
    in_virtual_time(main)
