"""Merges without a result: they end, and leave nothing in the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from broker.storage.format.records.adoption import Adopted
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.log.listener import LogListener
from broker.storage.objectstore.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.storage.compaction.test_compactor import (  # type: ignore[attr-defined]
    MINUTE,
    a_broker,
    compactor_of,
    one_by_one,
    read_all,
    same_everywhere,
    small_blocks,
)
from tests.storage.rig import PATHS, Stream, in_virtual_time

COUNT = 4000


@pytest.mark.parametrize("gone", [12, 19], ids=["large", "small"])
def test_a_block_with_dead_messages_kept_for_ids_is_rewritten_once(gone: int) -> None:
    """Within the duplicate window the removed messages (12 or 19 of 20) stay in the block for their ids. It is
    rewritten once, and again only when they can leave."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, segments=1000)
        stream = Stream(rig.log)
        stream.create()
        stream.publish(COUNT, random.Random(1).randbytes(1000), urgent=False)
        rig.log.block(stream).add(MessageIds(list(range(COUNT)), [b"id%d" % at for at in range(COUNT)]))
        rig.log.urgent()
        await rig.log.persisted()
        for seq in range(2, COUNT - 18, 20):
            rig.log.block(stream).remove(seq, seq + gone - 1, gone, gone * 1033)
            stream.msgs -= gone
        rig.log.urgent()
        await rig.log.persisted()
        before = await read_all(shared)
        compactor = compactor_of(rig)
        async with asyncio.timeout(60 * MINUTE):
            await compactor.work(quiet=True)
        assert compactor.merges == 1
        await asyncio.sleep(10 * MINUTE)
        await compactor.work(quiet=True)
        assert compactor.merges == 1, "it is the stream's last block"
        await one_by_one(rig, stream, 1)
        await compactor.work(quiet=True)
        assert compactor.merges == 2
        entry = rig.log.state.streams[7].blocks.find(1)
        assert entry is not None
        assert entry.ref.count == len(before)
        assert await read_all(shared) == {**before, COUNT + 1: b"%d" % (COUNT + 1)}
        await same_everywhere(shared, rig)
    in_virtual_time(main)


def test_streams_whose_dead_messages_must_stay_are_merged_once() -> None:
    """Each stream has enough messages for a run of its own, but few live ones: such runs would be merged again
    without end."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await a_broker(shared, clock, segments=1000, compaction={"object_bytes": 100_000})
        streams = [Stream(rig.log, stream_id, f"s{stream_id}") for stream_id in range(5, 10)]
        for stream in streams:
            stream.create()
            stream.publish(120, random.Random(1).randbytes(1000), urgent=False)
            rig.log.block(stream).add(MessageIds(list(range(120)), [b"id%d" % at for at in range(120)]))
            rig.log.urgent()
            await rig.log.persisted()
            rig.log.block(stream).remove(50, 79, 30, 30 * 1033)
            stream.msgs -= 30
            rig.log.urgent()
            await rig.log.persisted()
        before = [await read_all(shared, stream.name) for stream in streams]
        compactor = compactor_of(rig)
        async with asyncio.timeout(60 * MINUTE):
            await compactor.work(quiet=True)
            await compactor.work(quiet=True)
        assert compactor.merges == 1
        assert [await read_all(shared, stream.name) for stream in streams] == before
        await same_everywhere(shared, rig)
    in_virtual_time(main)


def test_blocks_with_missing_objects_are_merged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The other blocks of their group are merged once, and the missing ones are named in the log."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock, 5, compaction={"recent_bytes": 0})
        other = Stream(rig.log, 9, "t")
        other.create()
        await one_by_one(rig, other, 3)
        assert rig.shard is not None
        await rig.shard.checkpointer.cut()  # so that no reader replays these segments
        missing = [PATHS.log(entry.ref.position) for entry in rig.log.state.streams[7].blocks][1:4]
        for key in missing:
            del shared.objects[key]
        async with asyncio.timeout(60 * MINUTE):
            await compactor_of(rig).work(quiet=True)
        assert compactor_of(rig).merges == 1
        assert all(f"{key} is missing" in caplog.text for key in missing)
        assert [entry.first_seq for entry in rig.log.state.streams[7].blocks] == [1, 2, 3, 4, 5]
        assert len(rig.log.state.streams[9].blocks) == 1
        assert await read_all(shared, "t") == {1: b"1", 2: b"2", 3: b"3"}
    in_virtual_time(main)


def everything(stream: Stream) -> None:
    stream.remove(1, stream.last_seq)


def the_stream(stream: Stream) -> None:
    stream.record(RecordKind.STREAM_DELETE, {})


@pytest.mark.parametrize("removed", [everything, the_stream])
def test_a_run_that_is_left_with_nothing_as_its_record_is_applied_is_deleted(removed: Callable[[Stream], None]) -> None:
    """The removal is sequenced just before the record, so the record replaces nothing. The state never has a block
    of the run, and the run is deleted nevertheless."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, stream = await small_blocks(shared, clock)
        compactor = compactor_of(rig)
        between_rounds = compactor._adopter._checkpointer.between_rounds

        async def after_a_removal(change: Callable[[], object]) -> None:
            removed(stream)
            await between_rounds(change)

        compactor._adopter._checkpointer.between_rounds = after_a_removal  # type: ignore[method-assign]
        await compactor.work(quiet=True)
        assert compactor.merges == 1
        assert [key for key in shared.objects if "/runs/" in key]
        await asyncio.sleep(20 * MINUTE)
        assert not [key for key in shared.objects if "/runs/" in key]
        await same_everywhere(shared, rig)
    in_virtual_time(main)


def test_a_stream_that_cannot_follow_keeps_only_what_it_reads() -> None:
    """While a live stream reads from the old blocks, their objects stay; all others are deleted as usual. Afterwards
    these are deleted, too."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, _ = await small_blocks(shared, clock)
        joined = {PATHS.log(entry.ref.position) for entry in rig.log.state.streams[7].blocks}
        notified = asyncio.Event()

        class Reader(LogListener):
            busy = True

            def blocks_adopted(self, adopted: Sequence[Adopted]) -> list[Adopted]:
                notified.set()
                return list(adopted) if self.busy else []

        reader = Reader()
        rig.log.listen(reader)
        merging = asyncio.ensure_future(compactor_of(rig).work(quiet=True))
        await notified.wait()
        other = Stream(rig.log, 9, "t")
        other.create()
        await one_by_one(rig, other, 5)
        removed = {PATHS.log(entry.ref.position) for entry in rig.log.state.streams[9].blocks}
        other.remove(1, 5)
        await asyncio.sleep(20 * MINUTE)
        assert not merging.done()
        assert joined <= set(shared.objects)
        assert not removed & set(shared.objects)
        reader.busy = False
        await merging
        await asyncio.sleep(20 * MINUTE)
        assert not joined & set(shared.objects)
        await same_everywhere(shared, rig)
    in_virtual_time(main)
