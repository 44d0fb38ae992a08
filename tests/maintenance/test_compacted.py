"""Copies and repairs of a store whose blocks were merged into runs."""

from __future__ import annotations

import asyncio
import random

from broker.inspect.shardview import key_of
from broker.inspect.source import Source
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import verify
from broker.maintenance.copy import Copier
from broker.maintenance.destination import Destination
from broker.maintenance.fsck import fsck
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.store import StoreFormat
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import FORMAT
from broker.storage.shard import ShardSettings
from broker.storage.state.table import BlockEntry
from tests.manual_clock import ManualClock
from tests.storage.rig import SECOND, Rig, Stream, in_virtual_time, read_all

COUNT = 120


async def compacted(clock: ManualClock) -> MemoryStore:
    """A stream of COUNT messages, published one by one, most of them in runs; some are removed."""
    store = MemoryStore()
    await store.put(FORMAT, [StoreFormat.make(bytes(16), 1).encode()])
    rig = Rig(store, clock, settings=ShardSettings(
        log=LogSettings(), checkpoint=CheckpointSettings(segments=16), sweep_grace_ns=SECOND,
        compaction=CompactionSettings(segments=8, quiet_ns=5 * SECOND, few=4)))
    await rig.open()
    stream = Stream(rig.log)
    stream.create()
    for number in range(1, COUNT + 1):
        stream.publish(1, b"%04d" % number + bytes(random.Random(number).randbytes(1)))
        await rig.log.persisted()
    stream.remove(50, 50)
    await asyncio.sleep(300)
    assert rig.shard is not None
    assert rig.shard.compactor is not None
    assert rig.shard.compactor.merges
    await rig.shard.abandon()
    assert [key for key in store.objects if "/runs/" in key]
    return store


def test_a_copy_has_the_runs() -> None:
    """A copy of a compacted store is whole."""
    async def main(clock: ManualClock) -> None:
        store, copy = await compacted(clock), MemoryStore()
        done = await Copier(Source(store), Destination(copy)).run(verifying=True)
        assert done.whole
        # The scripted stream does not count bytes as a real one does.
        assert {problem.object for problem in done.problems} <= {"stream $G/s"}
        assert await read_all(copy) == await read_all(store)
    in_virtual_time(main)


def test_damaged_and_missing_runs() -> None:
    """Only the messages of a damaged or missing run are lost, and brokers serve the store without it."""
    async def main(clock: ManualClock) -> None:
        original = await compacted(clock)
        everything = await read_all(original)
        tried = 0
        for key in [key for key in original.objects if "/runs/" in key]:
            for missing in (False, True):
                store = MemoryStore()
                for name, data in original.objects.items():
                    if name != key:
                        await store.put(name, [data])
                    elif not missing:
                        hurt = bytearray(data)
                        hurt[-3] ^= 1
                        await store.put(name, [bytes(hurt)])
                live = _entries(await read_survey(Source(original)), key)
                done = await fsck(store, clock, random.Random(1), repair=True)
                if not live:
                    continue
                tried += 1
                assert done.repaired, done.refused
                lost = {seq for one in done.lost for seq in range(one.first_seq, one.last_seq + 1)} & everything.keys()
                assert lost
                assert sum(one.messages for one in done.lost) == len(lost)
                assert await read_all(store) == {seq: body for seq, body in everything.items() if seq not in lost}
                source = Source(store)
                survey = await read_survey(source)
                assert survey.problems == []
                assert all("no live message" in problem.means for problem in (await verify(source, survey)).problems)
        assert tried
    in_virtual_time(main)


def _entries(survey: Survey, key: str) -> list[BlockEntry]:
    return [entry for shard, stream in survey.streams for entry in stream.blocks
            if key_of(shard.paths, stream, entry.ref) == key]
