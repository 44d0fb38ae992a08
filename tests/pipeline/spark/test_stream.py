"""The streaming reader without Spark: its methods are called as Spark calls them, over a store that grows meanwhile."""

from __future__ import annotations

import json
import logging
import pickle
import random
import re
from typing import Any

import pytest

from broker.pipeline.errors import BadOption, Damaged, DataLoss, NoStream
from broker.pipeline.plan.follow import Follower
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.schema import named
from broker.pipeline.read import query
from broker.pipeline.spark import stream
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.state.table import BlockTable
from tests.pipeline.stores import MemoryObjectClient, Owner, Stream

pytest.importorskip("pyspark")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

ALL = ReadAllAvailable()
SCHEMA = named("messages", ["stream", "seq", "data"])


class Query:
    """A streaming query as Spark runs it: recorded offsets survive it as text, and batches may be planned again."""

    def __init__(self, objects: MemoryObjectClient, **options: str) -> None:
        self.options = {"store": "s3://bucket/there", "stream": "S", **options}
        self.start()
        self.rows: list[tuple[str, int]] = []
        self.committed: str | None = None

    def start(self) -> None:
        """Start, or restart."""
        self.reader = stream.StreamReader(Options.parse(self.options, streaming=True), SCHEMA)

    def begin(self) -> Any:
        return json.loads(self.committed) if self.committed is not None else self.reader.initialOffset()

    def plan(self, limit: Any = None) -> str:
        """Return the end of the next batch, as it is recorded."""
        limit = limit or self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(self.begin(), limit))

    def read(self, end: str) -> list[tuple[str, int]]:
        """Return the rows of a batch, pickled to tasks and back."""
        found = []
        task = pickle.loads(pickle.dumps(stream.StreamReader(Options.parse(self.options, streaming=True), SCHEMA)))
        for part in self.reader.partitions(self.begin(), json.loads(end)):
            for batch in task.read(pickle.loads(pickle.dumps(part))):
                found += [(row["stream"], row["seq"]) for row in batch.to_pylist()]
        return found

    def batch(self, limit: Any = None) -> list[int]:
        """Read and commit one batch; return its sequences."""
        end = self.plan(limit)
        rows = self.read(end)
        self.rows += rows
        self.committed = end
        return [seq for _, seq in rows]

    def batches(self, limit: Any = None) -> list[list[int]]:
        """Read batches until nothing is new, as with Trigger.AvailableNow."""
        found = []
        while self.committed is None or self.plan(limit) != self.committed:
            found.append(self.batch(limit))
            assert len(found) < 1000
        return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def objects(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> MemoryObjectClient:
    """The store that every URL opens."""
    made = MemoryObjectClient(store)
    for module in (stream, query):
        monkeypatch.setattr(module, "open_object_client", lambda url: made)
    return made


@pytest.fixture
async def owner(store: MemoryStore) -> Owner:
    made = Owner(store)
    await made.start()
    return made


async def add(stream: Stream, count: int, subject: str = "a", size: int = 5) -> None:
    """Publish to ``stream``, as one block."""
    stream.append([(f"{stream.name}.{subject}".encode(), b"", b"x" * size)] * count)
    await stream.owner.log.persisted()


# ---- batches


async def test_a_query_follows_a_stream(owner: Owner, objects: MemoryObjectClient) -> None:
    """Each batch has the messages since the last one, each once; without new ones the offset is the same."""
    s = await owner.make("S")
    await add(s, 10)
    query = Query(objects)
    assert query.batch() == list(range(1, 11))
    assert query.plan() == query.committed
    assert query.reader.partitions(query.begin(), query.begin()) == []
    await add(s, 5)
    await add(s, 5)
    assert query.batch() == list(range(11, 21))
    s.remove(22, 23)
    await add(s, 5)
    s.remove(22, 23)
    await owner.log.persisted()
    assert query.batch() == [21, 24, 25]
    assert query.reader.reportLatestOffset() == json.loads(query.committed)


async def test_batches_have_as_many_messages_as_requested(owner: Owner, objects: MemoryObjectClient) -> None:
    s = await owner.make("S")
    for _ in range(7):
        await add(s, 100)
    s.remove(120, 139)
    await owner.log.persisted()
    query = Query(objects, maxMessagesPerTrigger="150")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(150)
    query.reader.prepareForTriggerAvailableNow()
    found = query.batches()
    assert list(map(len, found)) == [150, 150, 150, 150, 80]
    assert [seq for some in found for seq in some] == list(s.live)


async def test_batches_have_about_as_many_bytes_as_requested(owner: Owner, objects: MemoryObjectClient) -> None:
    """Bytes are counted as in the stream's state; a batch has at least one message."""
    s = await owner.make("S")
    for _ in range(5):
        await add(s, 100, size=67)  # 100 bytes each, as the stream counts
    query = Query(objects, maxBytesPerTrigger="25000")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(25000)
    assert list(map(len, query.batches())) == [250, 250]
    await add(s, 3, size=30_000)
    assert list(map(len, query.batches())) == [1, 1, 1]


async def test_both_limits_hold_and_a_trigger_that_wants_all_gets_all(owner: Owner,
                                                                      objects: MemoryObjectClient) -> None:
    s = await owner.make("S")
    await add(s, 400, size=67)
    query = Query(objects, maxMessagesPerTrigger="100", maxBytesPerTrigger="5000")
    assert len(query.batch()) == 50
    await add(s, 400, size=1)
    query.batches()
    assert [len(query.batch()) for _ in range(1)] == [0]
    await add(s, 300, size=1)
    assert len(query.batch()) == 100
    assert len(query.batch(ALL)) == 200
    with pytest.raises(Exception, match="ReadMinRows"):
        query.plan(ReadMinRows(5))


async def test_available_now_ends_where_it_began(owner: Owner, objects: MemoryObjectClient) -> None:
    """Messages after the trigger began are left for the next one, new streams included."""
    s, t = await owner.make("S"), await owner.make("T")
    await add(s, 30)
    await add(t, 3)
    query = Query(objects, stream="*", maxMessagesPerTrigger="8")
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    u = await owner.make("U")
    for one in (s, t, u):
        await add(one, 10)
    query.batches()
    assert sorted(query.rows) == [("S", n) for n in range(1, 31)] + [("T", n) for n in range(1, 4)]
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    query.batches()
    assert sorted(query.rows) == ([("S", n) for n in range(1, 41)] + [("T", n) for n in range(1, 14)]
                                  + [("U", n) for n in range(1, 11)])


async def test_a_batch_is_the_same_when_it_is_planned_again(owner: Owner, objects: MemoryObjectClient) -> None:
    """A batch has the same rows after a restart, with more in the store, a new epoch and a checkpoint; except for
    messages removed meanwhile."""
    s = await owner.make("S")
    await add(s, 50)
    query = Query(objects, maxMessagesPerTrigger="20")
    query.batch()
    end = query.plan()
    rows = query.read(end)
    await add(s, 50)
    await owner.round()
    await owner.again()
    s = owner.streams["S"]
    await add(s, 50)
    query.start()
    assert query.read(end) == rows == [("S", n) for n in range(21, 41)]
    s.remove(25, 26)
    await owner.log.persisted()
    query.start()
    assert query.read(end) == [row for row in rows if row[1] not in (25, 26)]


async def test_subjects_narrow_a_stream(owner: Owner, objects: MemoryObjectClient) -> None:
    s = await owner.make("S")
    for n in range(6):
        await add(s, 10, f"{'even' if n % 2 == 0 else 'odd'}.{n}")
    query = Query(objects, subjects="S.even.*", maxMessagesPerTrigger="15")
    found = query.batches()
    assert [seq for some in found for seq in some] == [*range(1, 11), *range(21, 31), *range(41, 51)]
    assert max(map(len, found)) <= 15
    assert len(found) == 2


async def test_several_streams_share_a_limit(owner: Owner, objects: MemoryObjectClient) -> None:
    busy, quiet = await owner.make("busy"), await owner.make("quiet")
    await add(busy, 1000)
    await add(quiet, 10)
    query = Query(objects, stream="busy,quiet", maxMessagesPerTrigger="50")
    query.batch()
    assert query.rows == [("busy", n) for n in range(1, 41)] + [("quiet", n) for n in range(1, 11)]


# ---- starts


@pytest.mark.parametrize(("text", "first"), [("earliest", 3), ("latest", 21), ("seq:7", 7), ("7", 7), ("21", 21)])
async def test_the_start_of_a_query(owner: Owner, objects: MemoryObjectClient, text: str, first: int) -> None:
    s = await owner.make("S")
    await add(s, 10)
    await add(s, 10)
    s.purge(2)
    await owner.log.persisted()
    query = Query(objects, startingOffsets=text)
    assert query.batch() == list(range(first, 21))
    await add(s, 2)
    assert query.batch() == [21, 22]


async def test_a_query_starts_at_a_time(owner: Owner, objects: MemoryObjectClient) -> None:
    """In each stream, the query starts at the first message that is not earlier."""
    s, t = await owner.make("S"), await owner.make("T")
    for _ in range(4):
        s.append([(b"S.a", b"", b"")] * 5, after_ns=10**9)
        s.append([(b"S.a", b"", b"")] * 5, after_ns=10**9)
        t.append([(b"T.a", b"", b"")], after_ns=10**9)
        await owner.log.persisted()
    for seq in (1, 14, 15, 16, 40):
        at = s.live[seq][4]
        query = Query(objects, stream="*", startingOffsets=str(at) if at < 1 else f"time:{at}")
        query.batch()
        # messages of several streams are interleaved, as in the log
        in_order = sorted(query.rows, key=lambda row: row[0])
        assert in_order == ([("S", n) for n, row in s.live.items() if row[4] >= at]
                            + [("T", n) for n, row in t.live.items() if row[4] >= at])
    query = Query(objects, stream="*", startingOffsets="2100-01-01T00:00:00Z")
    assert query.batch() == []
    await add(s, 1)
    assert query.batch() == [41]


async def test_a_query_starts_where_another_ended(owner: Owner, objects: MemoryObjectClient) -> None:
    s, t = await owner.make("S"), await owner.make("T")
    await add(s, 10)
    await add(t, 10)
    one = Query(objects, stream="*", maxMessagesPerTrigger="7")
    one.batch()
    assert one.committed is not None
    other = Query(objects, stream="*", startingOffsets=one.committed)
    other.batch()
    assert sorted(one.rows + other.rows) == [("S", n) for n in range(1, 11)] + [("T", n) for n in range(1, 11)]


async def test_latest_is_the_first_start_of_the_query_after_any_restart(owner: Owner,
                                                                        objects: MemoryObjectClient) -> None:
    """Spark asks for the initial offset again while the first batch is not committed. The recorded batch begins where
    the query first began."""
    s = await owner.make("S")
    await add(s, 10)
    query = Query(objects, startingOffsets="latest")
    assert query.begin() is query.begin()
    await add(s, 5)
    end = query.plan()
    await add(s, 5)
    query.start()
    assert query.begin()["streams"] != json.loads(end)["began"]
    assert query.read(end) == [("S", n) for n in range(11, 16)]
    query.committed = end
    assert query.batch() == list(range(16, 21))
    assert "began" not in json.loads(query.committed)


async def test_a_start_that_does_not_fit_is_refused(owner: Owner, objects: MemoryObjectClient) -> None:
    s = await owner.make("S")
    await owner.make("T")
    await add(s, 10)
    with pytest.raises(BadOption, match="ends at sequence 10, before 12"):
        Query(objects, startingOffsets="seq:12").begin()
    with pytest.raises(BadOption, match=r"names the stream \$G/X, which is not there"):
        Query(objects, startingOffsets='{"v": 1, "streams": {"$G/X": {"id": "00000000000000aa", "next": 1}}}').begin()
    with pytest.raises(BadOption, match=r"not 00000000000000aa: it was deleted and recreated"):
        Query(objects, startingOffsets='{"v": 1, "streams": {"$G/S": {"id": "00000000000000aa", "next": 1}}}').begin()
    with pytest.raises(BadOption, match="option startingOffsets='soon'"):
        Query(objects, startingOffsets="soon")
    with pytest.raises(NoStream, match=r"no stream 'X' in account '\$G'; existing streams: 'S', 'T'; to follow"):
        Query(objects, stream="S,X").begin()


# ---- streams created and deleted


async def test_a_stream_that_comes_later_is_read_from_its_first_message(owner: Owner,
                                                                        objects: MemoryObjectClient) -> None:
    """A wildcard must match its name. The same holds if there was no stream before."""
    query = Query(objects, stream="S*", startingOffsets="latest")
    assert query.batch() == []
    s = await owner.make("S1")
    other = await owner.make("other")
    await add(s, 3)
    await add(other, 3)
    query.batches()
    assert query.rows == [("S1", n) for n in range(1, 4)]
    late = await owner.make("S2", config={"first_seq": 100})
    late.last_seq = 99
    await add(late, 2)
    query.batches()
    assert query.rows[3:] == [("S2", 100), ("S2", 101)]


async def _lose(owner: Owner, how: str) -> None:
    s = owner.streams["S"]
    if how == "purge":
        s.purge(15)
    else:
        s.delete()
    if how == "anew":
        await owner.make("S")
        await add(owner.streams["S"], 4)
    await owner.log.persisted()


LOSSES = {
    "purge": (r"stream \$G/S lost messages before they were read: expected sequence 11, found that it begins at 16",
              [("S", n) for n in range(16, 21)]),
    "deleted": (r"stream \$G/S of incarnation [0-9a-f]{16} was deleted; expected its sequence 11", []),
    "anew": (r"stream \$G/S was deleted and recreated; expected sequence 11 of incarnation [0-9a-f]{16}, found "
             r"incarnation [0-9a-f]{16}", [("S", n) for n in range(1, 5)]),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_a_loss_ends_a_query(owner: Owner, objects: MemoryObjectClient, how: str) -> None:
    """The error has the stream, the expected and the actual state. The loss is detected before the next batch, or when
    a recorded batch is planned again."""
    await add(await owner.make("S"), 20)
    query = Query(objects, maxMessagesPerTrigger="10")
    query.batch()
    on_record = query.plan()
    await _lose(owner, how)
    with pytest.raises(DataLoss, match=LOSSES[how][0] + ".*set failOnDataLoss=false"):
        query.plan()
    query.start()
    with pytest.raises(DataLoss, match=r"begins at 16|was deleted"):
        query.read(on_record)


@pytest.mark.parametrize("how", LOSSES)
async def test_a_loss_is_only_logged_on_request(owner: Owner, objects: MemoryObjectClient, how: str,
                                                caplog: pytest.LogCaptureFixture) -> None:
    """The query continues with the existing messages, and logs once what it missed."""
    await add(await owner.make("S"), 20)
    query = Query(objects, stream="S*", maxMessagesPerTrigger="10", failOnDataLoss="false")
    query.batch()
    on_record = query.plan()
    await _lose(owner, how)
    reason, rows = LOSSES[how]
    before = len(query.rows)
    with caplog.at_level(logging.WARNING):
        query.batches()
    assert query.rows[before:] == rows
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(reason, record.getMessage())
    again = Query(objects, stream="S*", failOnDataLoss="false")
    again.committed = json.dumps({"v": 1, "streams": {}})
    assert again.read(on_record) == (rows if how == "purge" else [])


async def test_a_restored_store_is_a_loss(owner: Owner, objects: MemoryObjectClient) -> None:
    """The restored store ends before the last message that was read: its next messages will have sequences that were
    read."""
    s = await owner.make("S")
    await add(s, 10)
    kept = dict(objects.objects)
    await add(s, 10)
    query = Query(objects)
    query.batch()
    objects.objects = kept
    query.start()
    with pytest.raises(DataLoss, match="went back: expected sequence 21, found that it ends at 10"):
        query.plan()
    query.options["failOnDataLoss"] = "false"
    query.start()
    assert query.batch() == []
    assert '"next": 11' in str(query.committed)


@pytest.mark.parametrize("config", [{"max_msgs_per_subject": 1}, {"retention": "workqueue"}, {"retention": "interest"}])
async def test_streams_that_remove_messages_one_by_one_lose_nothing(owner: Owner, objects: MemoryObjectClient,
                                                                    config: dict[str, Any]) -> None:
    s = await owner.make("S", config=config)
    await add(s, 10)
    query = Query(objects)
    query.batch()
    await add(s, 5)
    s.purge(13)
    await owner.log.persisted()
    assert query.batch() == [14, 15]


async def test_deletes_further_on_are_no_loss(owner: Owner, objects: MemoryObjectClient) -> None:
    s = await owner.make("S")
    await add(s, 10)
    query = Query(objects)
    query.batch()
    await add(s, 5)
    s.remove(12, 14)
    await owner.log.persisted()
    assert query.batch() == [11, 15]


async def test_a_stream_that_is_offline_ends_a_query(owner: Owner, objects: MemoryObjectClient,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    s = await owner.make("S")
    await add(s, 10)
    query = Query(objects)
    query.batch()
    seen = query.reader._progress._follower.refresh()["$G/S"]
    seen.state.offline = "a record is damaged"
    with pytest.raises(Damaged, match=r"stream \$G/S is offline: a record is damaged"):
        query.plan()


async def test_a_stream_that_is_left_out_keeps_its_place(owner: Owner, objects: MemoryObjectClient) -> None:
    """A restart with fewer streams than the checkpoint has continues with the others. Named again, the stream resumes
    at its place."""
    a, b = await owner.make("A"), await owner.make("B")
    await add(a, 3)
    await add(b, 3)
    query = Query(objects, stream="A,B")
    assert query.batch() == [1, 2, 3, 1, 2, 3]
    query.options["stream"] = "B"
    query.start()
    assert query.plan() == query.committed
    await add(a, 2)
    await add(b, 2)
    assert query.batch() == [4, 5]
    assert query.plan() == query.committed
    query.options["stream"] = "*"
    query.start()
    assert query.batch() == [4, 5]
    assert sorted(query.rows) == [(name, seq) for name in "AB" for seq in range(1, 6)]


@pytest.mark.parametrize("fail", [True, False])
async def test_a_stream_that_is_left_out_of_a_batch_under_way(owner: Owner, objects: MemoryObjectClient,
                                                              fail: bool) -> None:
    """The recorded batch has messages of the stream, which would be skipped: a loss, unless the query accepts it."""
    a, b = await owner.make("A"), await owner.make("B")
    query = Query(objects, stream="A,B", failOnDataLoss=str(fail).lower())
    await add(a, 3)
    await add(b, 3)
    end = query.plan()
    query.committed = json.dumps(query.begin())
    query.options["stream"] = "B"
    query.start()
    if fail:
        with pytest.raises(DataLoss,
                           match=r"stream \$G/A was left out of .* messages up to 3 was under way: name it until"):
            query.read(end)
    else:
        assert query.read(end) == [("B", 1), ("B", 2), ("B", 3)]


# ---- following


async def test_a_refresh_reads_only_new_objects(owner: Owner, objects: MemoryObjectClient,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh reads no checkpoint's page and no segment twice, and no batch walks all blocks, however large the store
    is."""
    s = await owner.make("S")
    for _ in range(60):
        await add(s, 3)
    await owner.round()
    query = Query(objects)
    query.batch()
    objects.asked.clear()
    assert query.plan() == query.committed
    nothing_new = len(objects.asked)
    assert nothing_new <= 6
    monkeypatch.delattr(BlockTable, "__iter__")
    objects.asked.clear()
    await add(s, 3)
    assert query.batch() == [181, 182, 183]
    keys = [key for key, _, _ in objects.asked]
    assert not any("/pages/" in key for key in keys)
    assert len(keys) <= nothing_new + 6


async def test_a_follower_keeps_up_with_the_store(owner: Owner, objects: MemoryObjectClient,
                                                  store: MemoryStore) -> None:
    """Checkpoints, sweeps, kills and clean ends happen between and during refreshes: each message is read once."""
    s = await owner.make("S")
    query = Query(objects, maxMessagesPerTrigger="1000")
    for n in range(60):
        s = owner.streams["S"]
        await add(s, 1 + n % 3)
        if n % 4 == 1:
            query.batch()
        if n % 7 == 2:
            await owner.round()
        if n % 11 == 3:
            await owner.again(clean=n % 2 == 0)
        if n % 10 == 9:
            query.start()
    query.batches()
    assert [seq for _, seq in query.rows] == list(range(1, owner.streams["S"].last_seq + 1))


@pytest.mark.parametrize("seed", range(3))
async def test_a_followed_state_equals_a_replayed_one(owner: Owner, objects: MemoryObjectClient, seed: int) -> None:
    """Streams are made and deleted, messages removed, checkpoints, sweeps and new epochs made; the follower is
    refreshed at random."""
    rng = random.Random(seed)
    follower = Follower(objects, "*", "*")
    await owner.make("S0")
    for n in range(120):
        s = owner.streams[rng.choice(sorted(owner.streams))]
        kind = rng.random()
        if kind < 0.6:
            await add(s, rng.randrange(1, 9))
        elif kind < 0.8 and s.live:
            first = rng.choice(sorted(s.live))
            s.remove(first, min(s.last_seq, first + rng.randrange(12)))
        elif kind < 0.85:
            await owner.make(f"S{n + 1}")
        elif kind < 0.88 and len(owner.streams) > 1:
            s.delete()
        elif kind < 0.94:
            await owner.log.persisted()
            await owner.shard.checkpointer.cut()
            await owner.shard.sweeper.after_round(owner.shard.checkpointer)
            owner.log.urgent()
        elif kind < 0.97:
            await owner.log.persisted()
            await owner.again(clean=rng.random() < 0.5)
        await owner.log.persisted()
        if rng.random() < 0.4:
            assert _all(follower) == _all(Follower(objects, "*", "*"))
    assert list(follower.refresh()) == sorted(f"$G/{name}" for name in owner.streams)


def _all(follower: Follower) -> dict[str, Any]:
    return {name: (seen.state.stream_id, seen.state.outcome, [entry.pack() for entry in seen.state.blocks])
            for name, seen in follower.refresh().items()}


async def test_a_log_swept_between_refreshes_is_replayed_again(owner: Owner, objects: MemoryObjectClient) -> None:
    """The next number is gone and there is a checkpoint beyond it: the log did not end there."""
    s = await owner.make("S")
    await add(s, 10)
    query = Query(objects)
    query.batch()
    there = set(objects.objects)
    await add(s, 10)
    [following] = {key for key in objects.objects if "/log/" in key} - there
    s.remove(11, 20)
    while following in objects.objects:  # until the maximum number of checkpoints is kept
        await add(s, 1)
        await owner.round()
    assert query.batch() == list(range(21, s.last_seq + 1))
