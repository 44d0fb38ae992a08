"""Writes without Spark, to a real broker's store: tasks and driver are called as Spark calls them."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest

import jetblock
from broker.pipeline.errors import NoStream, PipelineError, Unreachable
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.progress import Progress
from broker.pipeline.plan.schema import requested
from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.store.objects import open_object_client
from broker.pipeline.write import commit as commit_module
from broker.pipeline.write.columns import Columns
from broker.pipeline.write.commit import Outcome, commit, plan
from broker.pipeline.write.options import WriteOptions
from broker.pipeline.write.stage import stage_batches
from broker.storage.format.request import Version
from broker.storage.staging.writer import RunWriter
from tests.harness import BrokerProcess
from tests.stores import make_store

TYPES = {"subject": pa.string(), "data": pa.binary(), "headers": pa.binary(), "msg_id": pa.string(),
         "ts_ns": pa.int64()}
T0 = 1_700_000_000_000_000_000

Row = tuple[Any, ...]


class World:
    """A broker on a store, and writes beside it."""

    def __init__(self, broker: BrokerProcess, url: str) -> None:
        self.broker, self.url = broker, url
        self.objects = open_object_client(url)

    async def api(self, subject: str, body: bytes = b"") -> bytes:
        nc = await nats.connect(self.broker.url)
        answer = await nc.request(f"$JS.API.{subject}", body)
        await nc.close()
        assert b'"error"' not in answer.data, answer.data
        return answer.data

    async def make_stream(self, name: str, **config: Any) -> None:
        nc = await nats.connect(self.broker.url)
        await nc.jetstream().add_stream(name=name, **{"subjects": [f"{name}.>"], **config})
        await nc.close()

    async def write(self, stream: str, partitions: Sequence[Sequence[Row]], names: str = "subject data",
                    hand_over_bytes: int = 1 << 20, before_commit: Any = None, **given: Any) -> Outcome:
        """Write rows, by default asking the broker; each partition has batches of up to 1000 rows."""
        chosen = {"store": self.url, "stream": stream, "nats": self.broker.url, **given}
        options = WriteOptions.parse({name: text for name, text in chosen.items() if text})
        columns = Columns(*(names.split().index(name) if name in names.split() else None
                            for name in ("subject", "data", "headers", "msg_id", "ts", "ts_ns")))
        schema = pa.schema([(name, TYPES[name]) for name in names.split()])

        def batches(rows: Sequence[Row]) -> list[pa.RecordBatch]:
            return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows],
                                        schema).to_batches(1000)

        def task(number: int, rows: Sequence[Row]) -> Any:
            return pickle.loads(pickle.dumps(stage_batches(self.objects, target, columns, number, batches(rows),
                                                           hand_over_bytes=hand_over_bytes)))

        target = await asyncio.to_thread(plan, self.objects, options)
        results = [await asyncio.to_thread(task, number, rows) for number, rows in enumerate(partitions)]
        if before_commit is not None:
            await before_commit()
        return await asyncio.to_thread(commit, self.objects, options, target, columns, options.version,
                                       reversed(results))

    async def rows(self, stream: str, *columns: str) -> list[Row]:
        chosen = columns or ("seq", "data")
        table = await asyncio.to_thread(lambda: jetblock.scan(self.url, stream, columns=chosen).read_all())
        return list(zip(*(table[name].to_pylist() for name in chosen), strict=True))

    async def refusal(self, stream: str, partitions: Sequence[Sequence[Row]], names: str = "subject data",
                      **given: Any) -> str:
        """Return the reason for which a write is refused: one line, and nothing was stored."""
        before = await self.rows(stream)
        with pytest.raises(PipelineError) as caught:
            await self.write(stream, partitions, names, **given)
        assert await self.rows(stream) == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def runs(self) -> int:
        """Return the number of runs beside streams."""
        return len(self.objects.list("v1/streams/"))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with BrokerProcess("-js", "--store", f"file://{tmp_path}/store") as broker:
        yield World(broker, f"file://{tmp_path}/store")
        await broker.stop()


def numbered(stream: str, *parts: range) -> list[list[Row]]:
    return [[(f"{stream}.{n % 7}", b"%d" % n) for n in part] for part in parts]


async def test_rows_join_in_the_order_of_partitions(world: World) -> None:
    """Large tasks put runs, adjacent small ones share a run; results may come in any order."""
    await world.make_stream("S")
    sizes = (3, 500, 3, 3, 700, 0, 2)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    parts = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    found = await world.write("S", numbered("S", *parts), hand_over_bytes=2000)
    assert found == Outcome(1211, 0, 0, 1, 1211)
    assert await world.rows("S") == [(n + 1, b"%d" % n) for n in range(1211)]
    assert world.runs() == 5


async def test_many_small_tasks_make_one_object(world: World) -> None:
    """Three hundred partitions of ten rows are one run, and a write without rows asks for nothing."""
    await world.make_stream("S")
    assert await world.write("S", [[], []]) == Outcome()
    assert world.runs() == 0
    await world.write("S", numbered("S", *(range(10 * n, 10 * n + 10) for n in range(300))))
    assert world.runs() == 1
    assert await world.rows("S") == [(n + 1, b"%d" % n) for n in range(3000)]


async def test_a_version_is_stored_once(world: World) -> None:
    """The same version gets the same answer, a lower one stores nothing, and a write without a version is new. A new
    stream of that name gets the following versions."""
    await world.make_stream("S")
    first = await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="4")
    assert await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="4") == first
    assert (await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="3")).messages == 0
    assert len(await world.rows("S")) == 5
    assert (await world.write("S", numbered("S", range(5)), txnAppId="other", txnVersion="4")).first_seq == 6
    assert (await world.write("S", numbered("S", range(5)))).first_seq == 11
    assert (await world.write("S", numbered("S", range(5)))).first_seq == 16
    await world.api("STREAM.DELETE.S")
    await world.make_stream("S")
    assert (await world.write("S", numbered("S", range(3)), txnAppId="job", txnVersion="5")).messages == 3
    assert len(await world.rows("S")) == 3


async def test_rows_that_are_lost_to_another_writer_are_reported(
        world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated write is silent. A warning says that a version differs from the one that was stored, or is below it,
    or that a query begins with a batch that was stored before: two queries may have one name. A new query is silent,
    also if the driver's clock is two days ahead of the broker's."""
    await world.make_stream("S")

    async def warning(rows: int, version: int) -> str:
        caplog.clear()
        await world.write("S", numbered("S", range(rows)), txnAppId="job", txnVersion=str(version))
        return caplog.text

    assert await warning(5, 4) == await warning(5, 4) == ""
    assert "'job' has stored version 4 with 5 rows, and not the 6 of this write: a repeated" in await warning(6, 4)
    assert "'job' has stored version 4, so version 3 was not stored" in await warning(5, 3)
    columns = Columns(0, 1, None, None, None, None)
    batch = pa.record_batch({"subject": ["S.x"], "data": [b"x"]})

    def first_batch(query: str, **where: str) -> str:
        options = WriteOptions.parse({"store": world.url, "stream": "S", "txnAppId": query, **where}, streaming=True)
        caplog.clear()
        target = plan(world.objects, options)
        commit(world.objects, options, target, columns, Version(query, 0),
               [stage_batches(world.objects, target, columns, 0, [batch])])
        return caplog.text

    asked = {"nats": world.broker.url}
    now_ns, two_days_ns = time.time_ns, 2 * 86_400 * 10**9
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns() + two_days_ns)
        assert await asyncio.to_thread(first_batch, "query", **asked) == ""
    assert await asyncio.to_thread(first_batch, "query", **asked) == ""
    monkeypatch.setattr(commit_module, "_CLOCK_STEP_NS", 0)
    begun = "'query' has stored its first batch at 20"
    assert begun in await asyncio.to_thread(first_batch, "query", **asked)
    assert begun in await asyncio.to_thread(first_batch, "query")
    await world.broker.stop()
    later = asyncio.create_task(asyncio.to_thread(first_batch, "later"))
    await asyncio.to_thread(_until, lambda: world.objects.list("v1/shards/0/inbox/"))
    await world.broker.start()
    assert await later == ""


async def test_without_a_broker_the_request_waits(world: World) -> None:
    """The error names the request, the command and whether repeating is safe; a repeated write finds the waiting
    request, whose rows join once when a broker starts."""
    await world.make_stream("S")
    await world.broker.stop()
    given = {"nats": "", "waitForAdoption": "300ms"}
    for options, text in (({}, "do not repeat the write"),
                          ({"txnAppId": "job", "txnVersion": "1"}, "repeating the write is safe"),
                          ({"txnAppId": "job", "txnVersion": "1"}, "repeating the write is safe")):
        with pytest.raises(Unreachable, match=rf"request [0-9a-f]{{16}} is stored, and no broker adopted it within "
                                              rf"300ms: start a broker, or run `jetblock adopt file://.*`; {text}"):
            await world.write("S", numbered("S", range(3)), **given, **options)
    assert not (await world.write("S", numbered("S", range(3)), nats="", waitForAdoption="0", txnAppId="b",
                                  txnVersion="1")).adopted
    waiting = asyncio.create_task(world.write("S", numbered("S", range(3)), nats="", txnAppId="c", txnVersion="1"))
    await asyncio.to_thread(_until, lambda: len(world.objects.list("v1/shards/0/inbox/")) == 4)
    await world.broker.start()
    assert (await waiting).messages == 3
    await asyncio.to_thread(_until, lambda: not world.objects.list("v1/shards/0/inbox/"))
    assert sorted(data for _, data in await world.rows("S")) == [b"%d" % n for n in (0, 1, 2) for _ in range(4)]


def _until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_a_broker_that_is_not_reached_is_waited_for(world: World) -> None:
    """A login that fails stores nothing; a broker that ends during the write is found in the store again."""
    await world.make_stream("S")
    text = await world.refusal("S", numbered("S", range(3)), nats="nats://127.0.0.1:1")
    assert "option nats: nats://127.0.0.1:1: cannot connect: connection refused" in text
    assert world.runs() == 0

    async def restart() -> None:
        await world.broker.stop()
        asyncio.get_running_loop().call_later(0.5, lambda: started.append(asyncio.create_task(world.broker.start())))

    started: list[Any] = []
    found = await world.write("S", numbered("S", range(3)), before_commit=restart)
    await started[0]
    assert found.messages == 3
    assert len(await world.rows("S")) == 3


async def test_rows_that_no_message_can_be(world: World) -> None:
    """The error names the row, and its reason."""
    await world.make_stream("S")
    good = ("S.a", b"x")
    where = r"row 1 of partition 1 \("
    for bad, text in (((None, b"data"), where + r"data 'data'\) cannot be stored: its subject is NULL"),
                      (("S a", b"x"), where + r"subject 'S a', data 'x'\) .*no message can have the subject"),
                      (("S.*", b"x"), "no message can have the subject")):
        for hand_over_bytes in (0, 1 << 20):
            text_found = await world.refusal("S", [[good], [good, bad, good]], hand_over_bytes=hand_over_bytes)
            assert re.search(text, text_found), text_found
    with_headers = "subject data headers"
    ttl = b"NATS/1.0\r\nNats-TTL: 5s\r\nA: b\r\n\r\n"
    text = await world.refusal("S", [[("S.a", b"x", ttl)]], with_headers)
    assert "the header Nats-TTL asks the stream for something" in text
    await world.write("S", [[("S.a", b"x", ttl), ("S.b", b"y", b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n")]], with_headers,
                      actingHeaders="strip")
    assert await world.rows("S", "data", "headers") == [(b"x", b"NATS/1.0\r\nA: b\r\n\r\n"), (b"y", None)]


async def test_times(world: World) -> None:
    """Descending times are refused by default, within a task and between tasks; raised, or ignored."""
    await world.make_stream("S")
    names = "subject data ts_ns"
    falling = [[("S.a", b"1", T0 + 5), ("S.a", b"2", T0)]]
    apart = [[("S.a", b"1", T0 + 5)], [("S.a", b"2", T0)]]
    text = await world.refusal("S", falling, names)
    assert "row 1 of partition 0" in text
    assert "its time is below that of an earlier row: sort the rows by time" in text
    await world.refusal("S", apart, names)
    assert "time" in await world.refusal("S", apart, names, hand_over_bytes=0)
    assert (await world.write("S", apart, names, hand_over_bytes=0, times="raise")).raised == 1
    await world.write("S", falling, names, times="raise")
    assert await world.rows("S", "ts_ns") == [(T0 + 5,)] * 4
    await world.write("S", falling, names, times="ignore")
    (fifth,), (sixth,) = (await world.rows("S", "ts_ns"))[4:]
    assert sixth == fifth > T0 + 10**9
    assert "time" in await world.refusal("S", [[("S.a", b"1", T0)]], names)
    for time_ns in (-1, 0, -1 << 63):
        assert (f"its time is {time_ns} ns since 1970, and a message's time is after 1970 and before 2262"
                in await world.refusal("S", [[("S.a", b"1", time_ns)]], names))


async def test_times_in_the_future(world: World) -> None:
    """A time that the stream would lower to the present is refused by default. A clock may be a little ahead."""
    await world.make_stream("S")
    names = "subject data ts_ns"
    hour_ns = 3600 * 10**9
    later = [[("S.a", b"1", time.time_ns()), ("S.a", b"2", time.time_ns() + hour_ns)]]
    for hand_over_bytes in (0, 1 << 20):
        text = await world.refusal("S", later, names, hand_over_bytes=hand_over_bytes)
        assert "row 1 of partition 0" in text
        assert "its time is in the future" in text
    await world.write("S", later, names, times="raise")
    await world.write("S", [[("S.a", b"3", time.time_ns() + 10**9)]], names)
    assert len(rows := await world.rows("S", "ts_ns")) == 3
    assert all(ts_ns < time.time_ns() for ts_ns, in rows)


async def test_a_second_attempt_of_a_task(world: World) -> None:
    """Spark may run a task twice and take the result of one. The runs of the other one join nowhere."""
    await world.make_stream("S")
    options = WriteOptions.parse({"store": world.url, "stream": "S", "nats": world.broker.url})
    columns = Columns(0, 1, None, None, None, None)

    def write() -> Outcome:
        target = plan(world.objects, options)
        batch = pa.record_batch([pa.array(["S.a"] * 1000), pa.array([b"%d" % n for n in range(1000)])],
                                names=["subject", "data"])
        attempts = [stage_batches(world.objects, target, columns, 0, [batch], hand_over_bytes=0) for _ in range(2)]
        assert world.runs() == 2
        return commit(world.objects, options, target, columns, None, attempts[1:])

    assert (await asyncio.to_thread(write)).messages == 1000
    assert await world.rows("S") == [(n + 1, b"%d" % n) for n in range(1000)]


class Counting:
    """Counts the requests of a client: each range, listing and put is one."""

    def __init__(self, objects: Any) -> None:
        self._objects, self.url, self.requests = objects, objects.url, 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.requests += len(args[0]) if name == "get_many" else 1
            return getattr(self._objects, name)(*args)

        return call


async def test_requests_of_a_trigger(world: World) -> None:
    """The driver of a query from stream to stream makes 5 requests to the store for each write of a batch, if a
    checkpoint has the stream: 3 to find it, the run and the request. Once a minute it also lists the keys of the
    stream's shard. Following the stream that it reads takes 12 requests."""
    await world.make_stream("IN")
    await world.make_stream("OUT")
    await world.broker.stop()  # a checkpoint
    await world.broker.start()
    counting: Any = Counting(world.objects)
    options = WriteOptions.parse({"store": world.url, "stream": "OUT", "nats": world.broker.url})
    progress = Progress(counting, Options.parse({"store": world.url, "stream": "IN"}, streaming=True))
    columns = Columns(0, 1, None, None, None, None)
    batch = pa.record_batch([pa.array(["OUT.x"] * 1500), pa.array([b"x"] * 1500)], names=["subject", "data"])

    def trigger(start: Any, number: int) -> Any:
        counting.requests = 0
        end = progress.latest(start, 1500)
        assert progress.tasks(start, end)
        reads.append(counting.requests)
        target = plan(counting, options, brief=True)
        results = [stage_batches(world.objects, target, columns, 0, [batch])]
        commit(counting, options, target, columns, Version("query", number), results)
        return end

    await world.write("IN", numbered("IN", range(1500)))
    place = await asyncio.to_thread(progress.initial)
    reads: list[int] = []
    for number in range(4):
        place = await asyncio.to_thread(trigger, place, number)
        assert counting.requests - reads[-1] == (5 if number else 6)
        await world.write("IN", numbered("IN", range(1500)))
    assert max(reads[1:]) <= 12, reads


async def test_a_replay_after_a_thousand_other_requests(world: World) -> None:
    """A batch is repeated after 1100 requests of others, and again after a kill of the broker: it is stored once."""
    await world.make_stream("S")
    first = await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="4")
    target = await asyncio.to_thread(plan, world.objects, WriteOptions.parse({"store": world.url, "stream": "S"}))

    def stage(request_id: int) -> bytes:
        writer = RunWriter("$G", "S", target.stream_id, now_ns=time.time_ns())
        writer.add(b"S.other", b"other")
        [run] = writer.finish()
        request = writer.request(request_id, target.shard)
        for put in (run, request):
            world.objects.put(put.key, put.data)
        return json.dumps({"request": f"{request_id:016x}"}).encode()

    bodies = await asyncio.to_thread(lambda: [*map(stage, range(1, 1101))])
    nc = await nats.connect(world.broker.url)
    answers = await asyncio.gather(*(nc.request("$JS.API.JETBLOCK.ADOPT.S", body, timeout=60) for body in bodies))
    assert all(json.loads(answer.data).get("messages") == 1 for answer in answers)
    await nc.close()
    assert await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="4") == first
    await world.broker.kill()
    await world.broker.start()
    assert await world.write("S", numbered("S", range(5)), txnAppId="job", txnVersion="4") == first
    nc = await nats.connect(world.broker.url)
    assert (await nc.jetstream().stream_info("S")).state.messages == 1105
    await nc.close()


async def test_message_ids(world: World) -> None:
    """Ids that the stream knows are dropped, and counted; without such ids sequences have no gaps."""
    await world.make_stream("S")
    rows = [[(f"S.{n}", b"%d" % n, f"id{n % 3}" if n else None) for n in range(6)]]
    found = await world.write("S", rows, "subject data msg_id")
    assert (found.messages, found.duplicates) == (4, 2)
    assert [data for _, data in await world.rows("S")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(("config", "row", "text"), [
    ({}, ("OTHER.a", b"x"), "subject 'OTHER.a' is not one of the stream's"),
    ({"max_msg_size": 10}, ("S.a", b"x" * 11), "message size exceeds maximum allowed"),
    ({"sealed": True}, ("S.a", b"x"), "sealed"),
    ({"max_msgs": 2, "discard": "new"}, ("S.a", b"x"), "maximum messages exceeded"),
    ({"allow_msg_counter": True}, ("S.a", b"x"), "counters"),
    ({}, ("S.a", b"x" * 2_000_000), "max_payload is 1048576"),
])
async def test_streams_that_refuse(world: World, config: dict[str, Any], row: Row, text: str) -> None:
    """The broker's reason is the error, and nothing is stored."""
    made = {"name": "S", "subjects": ["S.>"], **config, "sealed": False}
    await world.api("STREAM.CREATE.S", json.dumps(made).encode())
    if "sealed" in config:
        await world.api("STREAM.UPDATE.S", json.dumps({**made, "sealed": True}).encode())
    found = await world.refusal("S", [[row], [("S.b", b"y")] * 2])
    assert text in found
    assert "stream $G/S: the write was refused, and nothing was stored" in found


async def test_a_mirror_refuses(world: World) -> None:
    await world.make_stream("S")
    await world.api("STREAM.CREATE.M", b'{"name": "M", "mirror": {"name": "S"}}')
    assert "nothing was stored" in await world.refusal("M", [[("S.a", b"x")]])


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_that_is_deleted_meanwhile(world: World, again: bool, asked: bool) -> None:
    """Its rows do not join a new stream of that name."""
    await world.make_stream("S")

    async def replace() -> None:
        await world.api("STREAM.DELETE.S")
        if again:
            await world.make_stream("S")

    with pytest.raises(NoStream, match="was deleted, or deleted and made anew, during the write, and nothing was"):
        await world.write("S", [[("S.a", b"x")]], before_commit=replace, **({} if asked else {"nats": ""}))
    if again:
        assert await world.rows("S") == []


async def test_a_stream_that_is_missing(world: World) -> None:
    """The error lists those that exist; createStream makes it."""
    await world.make_stream("S")
    with pytest.raises(NoStream, match=r"no stream 'T' in account .*existing streams: 'S'"):
        await world.write("T", [[("T.a", b"x")]])
    with pytest.raises(PipelineError, match="the broker refused to create the stream 'T': subjects overlap"):
        await world.write("T", [[("T.a", b"x")]], createStream='{"subjects": ["S.a"]}')
    for _ in range(2):
        await world.write("T", [[("T.a", b"x")]], createStream='{"subjects": ["T.>"]}')
    assert await world.rows("T") == [(1, b"x"), (2, b"x")]


async def test_too_many_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is too large is refused with the remedy; with splitCommits it becomes several requests, each of
    which is stored once."""
    await world.make_stream("S")
    monkeypatch.setattr(commit_module, "RUNS_MAX", 2)
    parts = numbered("S", range(5), range(5, 10), range(10, 15))
    text = await world.refusal("S", parts, hand_over_bytes=0)
    assert "15 rows in 3 blocks and 3 runs are too many for one request" in text
    assert "set option splitCommits" in text
    for _ in range(2):
        found = await world.write("S", parts, hand_over_bytes=0, splitCommits="true", txnAppId="j", txnVersion="1")
        assert found == Outcome(15, 0, 0, 1, 15)
    assert await world.rows("S") == [(n + 1, b"%d" % n) for n in range(15)]


async def test_a_bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes to a store on MinIO are adopted, and its client puts a key once."""
    store = make_store("minio", tmp_path, request)
    for name, value in store.environ.items():
        monkeypatch.setenv(name, value)
    async with BrokerProcess("-js", "--store", store.url, environ=store.environ) as broker:
        world = World(broker, store.url)
        await world.make_stream("S")
        for nats_url in (broker.url, ""):
            await world.write("S", numbered("S", range(5), range(5, 10)), nats=nats_url, hand_over_bytes=0,
                              txnAppId="job", txnVersion="1")
        assert await world.rows("S") == [(n + 1, b"%d" % n) for n in range(10)]
        assert world.objects.put("v1/test", [b"a", b"b"])
        assert not world.objects.put("v1/test", [b"c"])
        assert world.objects.get("v1/test") == b"ab"
        await broker.stop()


async def test_a_trigger_of_stream_to_stream_takes_few_requests(world: World) -> None:
    """A trigger of 1500 rows, from one stream to another: the driver asks the store 12 times at most, 3 times of these
    to know the stream that it writes to. The first trigger of a minute lists the keys of the stream's shard, too."""
    await world.make_stream("A")
    await world.make_stream("B")
    await world.write("A", numbered("A", range(10)))
    await world.broker.stop()  # the checkpoint has both streams
    await world.broker.start()
    await world.broker.wait_ready()
    objects: Any = Counting(world.objects)
    reading = Progress(objects, Options.parse({"store": world.url, "stream": "A", "startingOffsets": "earliest"},
                                              streaming=True))
    start = await asyncio.to_thread(lambda: reading.latest(reading.initial()))
    await world.write("A", numbered("A", range(1500)))
    objects.requests = 0

    def trigger() -> None:
        end = reading.latest(start)
        batches = list(read_tasks(world.objects, reading.tasks(start, end), Selection(), requested(
            "messages", [("subject", "string"), ("data", "binary")])))
        assert sum(batch.num_rows for batch in batches) == 1500
        options = WriteOptions.parse({"store": world.url, "stream": "B", "nats": world.broker.url}, streaming=True)
        before = objects.requests
        target = plan(objects, options, brief=True)
        assert objects.requests - before <= 4
        rows = pa.table({"subject": [f"B.{n}" for n in range(1500)], "data": pa.concat_arrays(
            [batch.column("data") for batch in batches])})
        columns = Columns(0, 1, None, None, None, None)
        staged = stage_batches(world.objects, target, columns, 0, rows.to_batches())
        assert commit(objects, options, target, columns, Version("query", 1), [staged]).messages == 1500

    await asyncio.to_thread(trigger)
    assert objects.requests <= 13
