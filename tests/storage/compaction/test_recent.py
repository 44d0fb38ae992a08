"""Segments that are merged soon after they were put are not read back, because each GET on a bucket costs money."""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.compaction.recent import RecentSegments
from broker.storage.objectstore.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.storage.compaction.test_compactor import (  # type: ignore[attr-defined]
    a_broker,
    compactor_of,
    expected,
    one_by_one,
    read_all,
    same_everywhere,
    settings,
    small_blocks,
)
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, Counting, Rig, Stream, in_virtual_time


def test_the_oldest_are_dropped_and_each_is_handed_out_once() -> None:
    """The bound is in bytes. A segment larger than the bound is not kept, and a segment is handed out once."""
    recent = RecentSegments(10)
    recent.add("a", [b"aa", b"aa"])
    recent.add("b", [b"bbbb"])
    assert recent.bytes == 8
    recent.add("large", [b"x" * 11])
    assert (len(recent), recent.bytes) == (2, 8)
    recent.add("c", [b"cccc"])
    assert (len(recent), recent.bytes) == (2, 8)
    assert (recent.size("a"), recent.size("b")) == (None, 4)
    assert recent.pop("a") is None
    assert recent.pop("b") == b"bbbb"
    assert recent.pop("b") is None
    recent.add("d", [b"d", b"", b"d"])
    assert recent.pop("d") == b"dd"
    assert recent.pop("c") == b"cccc"
    assert (len(recent), recent.bytes) == (0, 0)
    nothing = RecentSegments(0)
    nothing.add("a", [b"a"])
    assert nothing.pop("a") is None


async def merged(shared: MemoryStore, clock: ManualClock, recent_bytes: int) -> list[str]:
    """Merge 64 segments; return the segments that were read meanwhile, and the result."""
    counting = Counting(shared)
    rig = Rig(counting, clock, faults=Faults(latency_ns=2 * MS),
              settings=settings(compaction={"recent_bytes": recent_bytes}))
    await rig.open()
    stream = Stream(rig.log)
    stream.create()
    counting.calls.clear()
    await one_by_one(rig, stream, 64)
    await asyncio.sleep(3)
    assert compactor_of(rig).merges >= 4
    read = [key for operation, key in counting.calls if operation == "get" and "/log/" in key]
    assert await read_all(shared) == expected(1, 64)
    await same_everywhere(shared, rig)
    return read


@pytest.mark.shows("store.compaction")
def test_new_segments_are_merged_without_a_get() -> None:
    """No segment is read if there is room for all; each merged one is read without room, and some with room for a
    few."""
    async def main(clock: ManualClock) -> None:
        assert await merged(MemoryStore(), clock, 1 << 20) == []
        each = await merged(MemoryStore(), clock, 0)
        assert len(each) == len(set(each)) >= 32
        assert 0 < len(await merged(MemoryStore(), clock, 1000)) < len(each)
    in_virtual_time(main)


def test_recent_bytes_are_merged_although_the_store_damaged_them() -> None:
    """The bytes in memory are those that were acknowledged, so later damage in the store does not matter."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock)
        entry = rig.log.state.streams[7].blocks.find(9)
        assert entry is not None
        data = bytearray(shared.objects[PATHS.log(entry.ref.position)])
        data[entry.ref.frames_offset] ^= 0x40
        shared.objects[PATHS.log(entry.ref.position)] = bytes(data)
        await compactor_of(rig).work(quiet=True)
        assert await read_all(shared) == expected(1, 20)
    in_virtual_time(main)


def test_a_start_reads_the_segments_of_the_owner_before() -> None:
    """The segments of the earlier owner are read, and merged with ours."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock, 12)
        assert rig.shard is not None
        await rig.shard.abandon()
        later = await a_broker(shared, clock, "b", segments=1000, checkpoint=1 << 20)
        await one_by_one(later, Stream(later.log, 7, "s", 12, 12), 12)
        await compactor_of(later).work(quiet=True)
        assert compactor_of(later).merges
        assert compactor_of(later).read_bytes
        assert await read_all(shared) == expected(1, 24)
        await same_everywhere(shared, later)
    in_virtual_time(main)
