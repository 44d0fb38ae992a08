"""Queries for one of many subjects: blocks that lack it are not read, whether a checkpoint or the log's end names
them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from broker.inspect.messages import read_messages
from broker.pipeline.plan.backlog import StreamBacklog
from broker.pipeline.plan.plan import estimate, tasks
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, read_store
from broker.pipeline.read.scan import read_tasks
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read.snapshot import read_snapshot
from tests.pipeline.read.test_scan import EXACT, matching, rows_of
from tests.pipeline.stores import MemoryObjectClient, Owner

BLOCKS = 120
SUBJECTS = 960
A_BLOCK = 40
"""Number of subjects in each block; every 24th block has the same subjects."""


def subject(i: int) -> bytes:
    return b"sensors.%d.%d.value" % (i // A_BLOCK, i)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner() -> AsyncIterator[Owner]:
    """A stream ``s`` of 120 blocks with all 960 subjects, four fifths of them in a checkpoint."""
    owner = Owner(MemoryStore())
    await owner.start()
    stream = await owner.make("s")
    for block in range(BLOCKS):
        first = block * A_BLOCK % SUBJECTS
        stream.append([(subject(i), b"", b"%d" % block) for i in range(first, first + A_BLOCK)])
        await owner.log.persisted()
        # The table is first inline in the stream's entry, then in its own page, then that page is written again.
        if block in (30, 70, 95):
            await owner.round()
    yield owner
    await owner.kill()


def snapshot_of(owner: Owner) -> tuple[MemoryObjectClient, StreamSnapshot]:
    assert isinstance(owner.store, MemoryStore)
    objects = MemoryObjectClient(owner.store)
    [snapshot] = read_store(objects, stream="s")
    return objects, snapshot


SELECTIONS = [
    Selection(equal=frozenset((subject(500),))),
    Selection(subjects=(subject(500),)),
    Selection(subjects=(b"sensors.12.>",)),
    Selection(subjects=(b"sensors.12.*.value", b"sensors.12.499.*")),
    Selection(prefixes=(b"sensors.12.5",)),
    Selection(prefixes=(b"sensors.",), subjects=(subject(499), subject(501)),
              excluded=(Selection(suffixes=(b"501.value",)),)),
]


async def test_blocks_without_the_subject_are_not_read(owner: Owner) -> None:
    """All selections are for the subjects of every 24th block. Those blocks are read, and few others."""
    for selection in SELECTIONS:
        objects, snapshot = snapshot_of(owner)
        assert len(snapshot.blocks) == BLOCKS
        assert all(entry.ref.subjects is None and entry.ref.subject_filter for entry in snapshot.blocks)
        objects.asked.clear()
        planned = tasks(snapshot, selection)
        assert not objects.asked
        # Equal blocks have equal filters, which err alike: at most three of the other 23 kinds of block may be read.
        assert BLOCKS // 24 <= len(planned) <= 4 * BLOCKS // 24, selection
        assert all(task.ref.subject_filter is None for task in planned)  # tasks stay small
        assert estimate([snapshot], selection).blocks == len(planned)
        rows = rows_of(read_tasks(objects, planned, selection, EXACT))
        assert rows == matching(owner.streams["s"].rows(), selection)
        assert len(rows) >= BLOCKS // 24
        assert len(objects.asked) <= 2 * len(planned)


async def test_a_limit_skips_what_filters_exclude(owner: Owner) -> None:
    """A micro-batch of few rows reaches as far as blocks are excluded for certain."""
    _, snapshot = snapshot_of(owner)
    backlog = StreamBacklog(iter(snapshot.blocks), 1, snapshot.end_seq + 1, SELECTIONS[0], lambda entry: [])
    rows, _ = backlog.advance(3 * A_BLOCK, 1 << 40)
    assert rows <= 3 * A_BLOCK
    assert backlog.next_seq > 24 * A_BLOCK


async def test_a_new_owner_and_inspect_have_them_too(owner: Owner) -> None:
    """A checkpoint's filters equal the log's; the reader of ``inspect`` excludes by them."""
    state = (await read_snapshot(owner.store, 0)).state
    [stream] = state.streams.values()
    _, snapshot = snapshot_of(owner)
    assert [entry.ref for entry in stream.blocks] == [entry.ref for entry in snapshot.blocks]
    assert isinstance(owner.store, MemoryStore)
    for wanted in (subject(500), b"sensors.12.>", b"*.12.500.value"):
        found = [message.seq async for message in read_messages(owner.store, "s", subject=wanted)]
        assert found == [row[0] for row in owner.streams["s"].rows()
                         if Selection(subjects=(wanted,)).matches_subject(row[1])]
