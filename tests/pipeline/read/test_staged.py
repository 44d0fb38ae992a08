"""Staged blocks in Spark's readers: the rows of the stream, with its sequences and times."""

from __future__ import annotations

import random

import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.pipeline.errors import BadOption
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.plan import tasks
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import AsOf, last_of, read_store
from broker.pipeline.read.scan import read_tasks
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import Position
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read.snapshot import read_snapshot
from tests.pipeline.read.test_compacted import compacted
from tests.pipeline.read.test_scan import EXACT, rows_of
from tests.pipeline.stores import HEADERS, MemoryObjectClient, Owner, Row, Stream

pytestmark = pytest.mark.asyncio

WANTED = b"s.3"


async def store_of(seed: int) -> tuple[MemoryStore, Owner, Stream]:
    """Make a stream of published and staged messages in turn, with removals, checkpoints and new owners in between."""
    rng, store = random.Random(seed), MemoryStore()
    owner = Owner(store, seed=seed)
    owner.settings.compaction = CompactionSettings(segments=1000, quiet_ns=1 << 62, cpu=1.0, bytes_per_second=1 << 40)
    await owner.start()
    stream = await owner.make("s")
    for _ in range(30):
        rows = [(b"s.%d" % rng.randrange(9), rng.choice((b"", HEADERS)), rng.randbytes(rng.randrange(50)))
                for _ in range(rng.choice((1, 5, 40)))]
        if rng.random() < 0.6:
            plain = [(subject, b"", data) for subject, _, data in rows]
            await stream.adopt(plain, block_messages=rng.choice((1, 4, 100)),
                               drop=rng.sample(range(len(rows)), rng.choice((0, 0, len(rows) // 3))))
        else:
            stream.append(rows, after_ns=rng.choice((1, 1_000_003)))
        await owner.log.persisted()
        if rng.random() < 0.3 and stream.live:
            first = rng.choice(list(stream.live))
            stream.remove(first, min(stream.last_seq, first + rng.randrange(30)))
        await owner.log.persisted()
        if rng.random() < 0.2:
            await owner.round()
        if rng.random() < 0.1:
            await owner.again(clean=rng.random() < 0.5)
    return store, owner, stream


def read(store: MemoryStore, selection: Selection) -> list[Row]:
    client = MemoryObjectClient(store)
    [snapshot] = read_store(client, account="$G", stream="s")
    return rows_of(read_tasks(client, list(tasks(snapshot, selection)), selection, EXACT))


@pytest.mark.parametrize("seed", range(4))
async def test_rows_are_those_of_the_stream(seed: int) -> None:
    """All rows, and those of a subject, of sequences, of times, equal the joined messages. The broker's own replay
    agrees, every byte is sound, and compaction changes nothing."""
    store, owner, stream = await store_of(seed)
    times = sorted(row[4] for row in stream.live.values())
    middle = times[len(times) // 2]
    seqs = list(stream.live)
    low, high = seqs[len(seqs) // 4], seqs[3 * len(seqs) // 4]

    async def check() -> None:
        assert read(store, Selection()) == stream.rows()
        assert read(store, Selection(first_seq=low, last_seq=high)) == stream.rows(lambda row: low <= row[0] <= high)
        assert read(store, Selection(first_ns=middle)) == stream.rows(lambda row: row[4] >= middle)
        assert read(store, Selection(last_ns=middle)) == stream.rows(lambda row: row[4] <= middle)
        options = Options.parse({"store": "s3://bucket/there", "stream": "s", "subjects": WANTED.decode()})
        assert read(store, options.selection()) == stream.rows(lambda row: row[1] == WANTED)
        survey = await read_survey(Source(store))
        assert [*survey.problems, *(await verify(Source(store), survey)).problems] == []
        state = (await read_snapshot(store, 0)).state.stream("$G", "s")
        assert state is not None
        assert (state.msgs, state.last_seq, state.last_time_ns) == (len(stream.live), stream.last_seq,
                                                                    state.last_time_ns)

    await check()
    await owner.round()
    await owner.again()
    await check()
    await compacted(owner, store)
    await check()
    await owner.stop()


async def test_a_past_position_has_the_messages_that_had_joined_by_then() -> None:
    """The whole log gives the stream at each of its positions. If only the newest state is known, a position before
    staged messages is refused with the remedy."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    then: list[tuple[Position, int]] = []
    for step in range(3):
        stream.append([(b"s.p", b"", b"%d" % step)])
        await owner.log.persisted()
        then.append((owner.log.state.position, stream.last_seq))
        await stream.adopt([(b"s.a", b"", b"%d" % step)] * 2)
        then.append((owner.log.state.position, stream.last_seq))
    client = MemoryObjectClient(store)
    for position, last_seq in then:
        [snapshot] = read_store(client, account="$G", stream="s", as_of=str(position))
        assert [entry.last_seq for entry in snapshot.blocks][-1] == last_seq
    [newest] = read_store(client, account="$G", stream="s")
    for position, last_seq in then[1:-1]:
        before = next(seq for at, seq in reversed(then) if at < position)
        bound = AsOf(position=position)
        if last_seq == before + 1:  # A published message ends it, so the staged ones before it had joined.
            with pytest.raises(BadOption, match=f"messages {last_seq + 1} to .* joined stream .* is not known"):
                last_of(client, newest, bound)
    assert last_of(client, newest, AsOf(seq=5)) == 5
    await owner.stop()
