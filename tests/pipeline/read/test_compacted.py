"""Scans of a store whose blocks are merged: the same rows as before, also for a query that was planned before."""

from __future__ import annotations

import asyncio

import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.pipeline.plan.plan import ScanTask, tasks
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import read_store
from broker.pipeline.read.scan import read_tasks
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import key_position
from broker.storage.objectstore.memory import MemoryStore
from tests.pipeline.read.test_scan import EXACT, rows_of
from tests.pipeline.stores import MemoryObjectClient, Owner, Row, varied
from tests.plain_records import add_record

EVERYTHING = Selection()


def planned(client: MemoryObjectClient, name: str, account: str) -> list[ScanTask]:
    [snapshot] = read_store(client, account=account, stream=name)
    return list(tasks(snapshot, EVERYTHING))


def read(client: MemoryObjectClient, found: list[ScanTask]) -> list[Row]:
    return rows_of(read_tasks(client, found, EVERYTHING, EXACT))


async def compacted(owner: Owner, store: MemoryStore) -> None:
    """Merge all blocks that are small or half dead, and wait until the replaced objects are deleted."""
    assert owner.shard.compactor is not None
    held = {key for key, count in owner.shard.state.counts.segments.items() if count}
    await owner.shard.compactor.work(quiet=True)
    for _ in range(4):
        add_record(owner.log.block(owner.log.shard), 10, {})
        owner.log.urgent()
        await owner.log.persisted()
        await owner.round()
    freed = {owner.paths.log(key_position(key)) for key in held if not owner.shard.state.counts.segments.get(key)}
    assert freed
    for _ in range(2000):
        if not freed & store.objects.keys():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the merged objects were not deleted")


@pytest.mark.parametrize(("seed", "object_bytes"), [(0, 8 << 20), (1, 8 << 20), (2, 8000), (3, 8000)])
async def test_the_same_rows_from_merged_blocks(seed: int, object_bytes: int) -> None:
    """Streams of all kinds, with removed messages, gaps, headers and large messages, have the same rows before and
    after. Earlier plans read the same rows from the new blocks, and every byte of the store is sound."""
    store = MemoryStore()
    owner = await varied(store, seed)
    owner.settings.compaction = CompactionSettings(segments=1000, few=2, cpu=1.0, bytes_per_second=1 << 40,
                                                   large_bytes=1 << 16, object_bytes=object_bytes,
                                                   quiet_ns=3_600_000_000_000)
    await owner.again()
    client = MemoryObjectClient(store)
    streams = {name: stream for name, stream in owner.streams.items() if stream.live}
    plans = {name: planned(client, name, stream.account) for name, stream in streams.items()}
    await compacted(owner, store)
    moved: set[BlockPlace] = set()
    for name, stream in streams.items():
        assert read(client, plans[name]) == stream.rows()
        again = planned(client, name, stream.account)
        assert read(client, again) == stream.rows()
        moved |= {task.ref.place for task in again}
    assert BlockPlace.RUN in moved or BlockPlace.STREAM_RUN in moved
    assert object_bytes > 8000 or BlockPlace.STREAM_RUN in moved
    source = Source(store, give_up_ns=0)
    survey = await read_survey(source)
    found = await verify(source, survey)
    assert (survey.problems, found.problems, found.orphans) == ([], [], [])
    await owner.kill()


async def test_a_filter_of_subjects_reads_few_bytes_of_merged_blocks() -> None:
    """Commits of a megabyte and more, each with all subjects: once the shard is idle, they are merged by subject.

    Then a filter of 7 % of the messages reads less than a fifth of the bytes, and one subject a tenth. All rows are as
    before, and a second merge finds nothing to do."""
    store = MemoryStore()
    owner = Owner(store)
    owner.settings.compaction = CompactionSettings(cpu=1.0, bytes_per_second=1 << 40, quiet_ns=3_600_000_000_000)
    await owner.start()
    stream = await owner.make("s")
    for _ in range(3):
        stream.append([(b"s.%d" % (i * 7 % 100), b"", owner.rng.randbytes(260)) for i in range(5000)])
        await owner.log.persisted()
    client = MemoryObjectClient(store)

    def read_some(selection: Selection) -> tuple[list[Row], int]:
        before = client.bytes_read
        [snapshot] = read_store(client, stream="s")
        rows = rows_of(read_tasks(client, list(tasks(snapshot, selection)), selection, EXACT))
        return rows, client.bytes_read - before

    some = Selection(subjects=tuple(b"s.%d" % i for i in range(10, 17)))
    one = Selection(subjects=(b"s.42",))
    whole, size = read_some(EVERYTHING)
    assert whole == stream.rows()
    assert read_some(some)[1] > 0.9 * size
    await compacted(owner, store)
    for selection, share in ((EVERYTHING, 1.1), (some, 0.2), (one, 0.1)):
        rows, read = read_some(selection)
        assert rows == [row for row in stream.rows() if selection.matches_subject(row[1])]
        assert read < share * size
    compactor = owner.shard.compactor
    assert compactor is not None
    merges = compactor.merges
    await compactor.work(quiet=True)
    assert compactor.merges == merges
    await owner.kill()
