"""Compaction keeps each of its bounds: objects written, bytes read and written, processor time, memory of a merge."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from broker.config.settings import StorageSettings
from broker.storage.compaction import compactor
from broker.storage.compaction.compactor import Compactor
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.compaction.test_compactor import MINUTE, a_broker, compactor_of, one_by_one, same_everywhere
from tests.storage.rig import MS, SECOND, Stream, in_virtual_time

SEGMENTS = 400


async def merging(shared: MemoryStore, clock: ManualClock, **bounds: Any) -> Compactor:
    """Run compaction for a minute on a store with more work than that."""
    rig = await a_broker(shared, clock, segments=4, compaction=bounds)
    stream = Stream(rig.log)
    stream.create()
    await one_by_one(rig, stream, SEGMENTS)
    await asyncio.sleep(MINUTE)
    await same_everywhere(shared, rig)
    return compactor_of(rig)


def runs(shared: MemoryStore) -> int:
    return sum("/runs/" in key for key in shared.objects)


def test_without_a_bound_a_minute_is_enough() -> None:
    """All of the work is done without bounds; the other tests compare with this one."""
    async def main(clock: ManualClock) -> None:
        found = await merging(MemoryStore(), clock, puts_per_second=inf)
        assert found.merges > SEGMENTS / 8
        assert found.read_bytes + found.written_bytes > 100_000
    in_virtual_time(main)


def test_objects_written() -> None:
    async def main(clock: ManualClock) -> None:
        found = await merging(shared := MemoryStore(), clock, puts_per_second=0.1)
        assert 5 <= found.merges <= 8
        assert runs(shared) <= 8
    in_virtual_time(main)


def test_bytes_read_and_written() -> None:
    async def main(clock: ManualClock) -> None:
        found = await merging(MemoryStore(), clock, bytes_per_second=500, recent_bytes=0)
        moved = found.read_bytes + found.written_bytes
        assert 20_000 < moved < 62 * 500 + 3 * moved / found.merges  # the pause after the last merge may not be over
    in_virtual_time(main)


def test_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge takes a fifth of a second of a core."""
    async def main(clock: ManualClock) -> None:
        whole = compactor.merge  # type: ignore[attr-defined]

        def slow(*args: Any) -> Any:
            clock.advance(200 * MS)
            return whole(*args)

        monkeypatch.setattr(compactor, "merge", slow)
        began_ns = clock.monotonic_ns()
        found = await merging(MemoryStore(), clock, cpu=0.1)
        assert found.merges > 10
        assert found.merges * 0.2 * SECOND <= 0.1 * (clock.monotonic_ns() - began_ns) + 0.2 * SECOND
    in_virtual_time(main)


def test_the_configured_bounds_are_used() -> None:
    """The settings reach compaction, in its units."""
    chosen = ShardSettings.for_store(MemoryStore(), StorageSettings(
        compaction_cpu=5, compaction_bytes_per_second=1 << 20)).compaction
    expected = CompactionSettings(cpu=0.05, bytes_per_second=1 << 20, recent_bytes=0)
    assert chosen is not None
    assert vars(chosen) == vars(expected)


def test_segments_are_kept_where_requests_are_paid_for() -> None:
    """Segments are not kept on a directory, since they are read from the page cache."""
    bucket = MemoryStore()
    bucket.puts_cost = True
    kept = [ShardSettings.for_store(store, StorageSettings()).compaction for store in (bucket, MemoryStore())]
    assert [one.recent_bytes for one in kept if one is not None] == [16 << 20, 0]
