"""The sink: DataFrames appended to streams, with a broker asked at once and without, on a directory and a bucket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

import jetblock
from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.real.s3 import session_of
from tests.stores import Store, make_store

LINES = 2
"""Lines of an error: the text, after Spark's own words, and Spark's SQLSTATE."""


class World:
    """A store, the broker on it, and writes to it from Spark."""

    def __init__(self, spark: Any, store: Store, broker: BrokerProcess) -> None:
        self.spark, self.store, self.broker = spark, store, broker

    async def make_stream(self, name: str, **config: Any) -> None:
        nc = await nats.connect(self.broker.url)
        await nc.jetstream().add_stream(name=name, subjects=[f"{name}.>"], **config)
        await nc.close()

    async def write(self, frame: Any, stream: str, mode: str = "append", **options: Any) -> None:
        """Write a DataFrame, by default asking the broker."""
        given = {"store": self.store.url, "stream": stream, "nats": self.broker.url, **options}
        writer = frame.write.format("jetblock").mode(mode).options(
            **{name: value for name, value in given.items() if value is not None})
        writer.save()  # A thread of its own would have no active session, and the name "jetblock" would be unknown.

    async def refusal(self, frame: Any, stream: str, mode: str = "append", **options: Any) -> str:
        """Return the text of the error of a write: it is short, and nothing was stored."""
        before = await self.rows(stream)
        with pytest.raises(PySparkException) as caught:
            await self.write(frame, stream, mode, **options)
        text = str(caught.value)
        assert len(text.splitlines()) <= LINES, text
        assert "During handling" not in text
        assert await self.rows(stream) == before
        return text

    async def rows(self, stream: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the live messages, as the store has them."""
        def read() -> list[tuple[Any, ...]]:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self.store.environ.items():
                    patch.setenv(name, value)
                chosen = columns or ("seq", "subject", "data")
                table = jetblock.scan(self.store.url, stream, columns=chosen).read_all()
                return list(zip(*(table[name].to_pylist() for name in chosen), strict=True))

        return await asyncio.to_thread(read)


@pytest.fixture(params=[pytest.param("directory", marks=pytest.mark.soak), "minio"])
async def world(spark: Any, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    store = make_store(request.param, tmp_path, request)
    async with BrokerProcess("-js", "--store", store.url, environ=store.environ) as broker:
        with environment(spark, store.environ):
            yield World(spark, store, broker)
        await broker.stop()


async def test_a_dataframe_is_appended(world: World) -> None:
    """Rows of all partitions join in their order, with the next sequences; columns are taken by name."""
    await world.make_stream("S")
    frame = world.spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) DATA", "concat('S.', id % 10) subject")
    await world.write(frame, "S")
    await world.write(frame.limit(0), "S")
    expected = [(n + 1, f"S.{n % 10}", b"%d" % n) for n in range(1000)]
    assert await world.rows("S") == expected
    nc = await nats.connect(world.broker.url)
    message = await nc.jetstream().get_msg("S", 1000)
    assert (message.subject, message.data) == ("S.9", b"999")
    await nc.close()


async def test_a_streaming_query_stores_each_batch_once(world: World, tmp_path: Path) -> None:
    """One stream is copied to another in micro-batches. If Spark loses its record of the last batch, as by a kill
    after the adoption, it repeats that batch, and nothing is stored twice. The query continues with new messages."""
    await world.make_stream("IN")
    await world.make_stream("OUT")
    numbers = world.spark.range(0, 500, 1, 2)
    await world.write(numbers.selectExpr("concat('IN.', id % 3) subject", "cast(id as string) data"), "IN")

    def follow(per_batch: int, **options: Any) -> list[int]:
        frame = world.spark.readStream.format("jetblock").options(
            store=world.store.url, stream="IN", maxMessagesPerTrigger=per_batch).load()
        rows = frame.selectExpr("regexp_replace(subject, '^IN', 'OUT') subject", "data")
        query = (rows.writeStream.format("jetblock").options(store=world.store.url, stream="OUT", **options)
                 .queryName("copy").option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True)
                 .start())
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    assert follow(200, nats=world.broker.url) == [200, 200, 100]
    copied = [(n + 1, f"OUT.{n % 3}", b"%d" % n) for n in range(500)]
    assert await world.rows("OUT") == copied
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert follow(200, nats=world.broker.url) == [100]
    assert await world.rows("OUT") == copied
    await world.write(numbers.limit(3).selectExpr("'IN.x' subject", "'new' data"), "IN")
    assert follow(200, nats=world.broker.url) == [3]
    assert (await world.rows("OUT"))[500:] == [(n, "OUT.x", b"new") for n in (501, 502, 503)]


@pytest.mark.parametrize("world", ["directory"], indirect=True)
async def test_foreach_batch_with_a_transaction(world: World, tmp_path: Path) -> None:
    """A batch write within foreachBatch names the query's transaction itself, and is stored once."""
    await world.make_stream("S")
    calls = []

    def twice(frame: Any, batch: int) -> None:
        rows = frame.selectExpr("concat('S.', value) subject", "cast(value as string) data")
        for _ in range(2):
            rows.write.format("jetblock").mode("append").options(
                store=world.store.url, stream="S", nats=world.broker.url, txnAppId="rates", txnVersion=batch).save()
        calls.append(batch)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(f'{{"value": {n}}}' for n in range(7)))
    query = (world.spark.readStream.schema("value LONG").json(f"{tmp_path}/in").writeStream.foreachBatch(twice)
             .option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start())
    query.awaitTermination()
    assert calls == [0]
    assert sorted(data for _, _, data in await world.rows("S")) == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize("world", ["directory"], indirect=True)
async def test_refused_writes_name_their_reason(world: World, tmp_path: Path) -> None:
    """Rows, columns, modes and options that are refused: the error is short, a task is not repeated, and nothing is
    stored."""
    await world.make_stream("S")
    numbers = world.spark.range(0, 10, 1, 2)
    rows = numbers.selectExpr("'S.a' subject", "cast(id as string) data")
    nulls = numbers.selectExpr("if(id = 7, null, 'S.a') subject", "cast(id as string) data")
    assert "row 2 of partition 1 (data '7') cannot be stored: its subject is NULL" in await world.refusal(nulls, "S")
    foreign = numbers.selectExpr("if(id = 7, 'T.a', 'S.a') subject", "cast(id as string) data")
    assert "subject 'T.a' is not one of the stream's" in await world.refusal(foreign, "S")
    assert "no column 'id': leave it out by select" in await world.refusal(numbers.selectExpr(
        "'S.a' subject", "'' data", "id"), "S")
    assert "rows are only appended: use append" in await world.refusal(rows, "S", mode="overwrite")
    assert "no option 'natz': did you mean nats" in await world.refusal(rows, "S", natz="nats://127.0.0.1")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"value": 1}')
    for mode, text in (("complete", "rows are only appended: use append"),
                       ("update", "jetblock does not support Update mode")):
        stream = (world.spark.readStream.schema("value LONG").json(f"{tmp_path}/in").groupBy("value").count()
                  .selectExpr("concat('S.', value) subject", "cast(count as string) data"))
        with pytest.raises(PySparkException, match=text):
            stream.writeStream.format("jetblock").outputMode(mode).options(
                store=world.store.url, stream="S").option("checkpointLocation", f"{tmp_path}/{mode}").trigger(
                availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("world", ["directory"], indirect=True)
async def test_to_table(world: World, tmp_path: Path) -> None:
    """``toTable`` and ``saveAsTable`` with the options of the sink append to the stream. The table that Spark makes of
    it has no use, and a second query does not mind it."""
    await world.make_stream("S")
    given = {"store": world.store.url, "stream": "S", "nats": world.broker.url}
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"value": {number}}}')
        rows = world.spark.readStream.schema("value LONG").json(f"{tmp_path}/in").selectExpr(
            "'S.a' subject", "cast(value as string) data")
        rows.writeStream.format("jetblock").options(**given).option("checkpointLocation", f"{tmp_path}/check").trigger(
            availableNow=True).toTable("streamed_to_s").awaitTermination()
        world.spark.range(10, 12, 1, 1).selectExpr("'S.a' subject", "cast(id as string) data").write.format(
            "jetblock").mode("append").options(**given).saveAsTable(f"saved_to_s{number}")
    assert [data for _, _, data in await world.rows("S")] == [b"0", b"10", b"11", b"1", b"10", b"11"]
    for table in ("streamed_to_s", "saved_to_s0", "saved_to_s1"):
        world.spark.sql(f"DROP TABLE {table}")


@pytest.mark.parametrize("world", ["minio"], indirect=True)
async def test_denied_access(world: World, request: pytest.FixtureRequest) -> None:
    """Credentials that may only read: the error says which right is missing, and the task is not repeated."""
    await world.make_stream("S")
    bucket = request.getfixturevalue("minio").bucket
    policy = json.dumps({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"],
         "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]}]})
    rows = world.spark.range(0, 3000, 1, 2).selectExpr("'S.a' subject", "repeat('x', 1000) data")
    with environment(world.spark, session_of(request.getfixturevalue("minio"), policy)):
        text = await world.refusal(rows, "S")
    assert "/runs/" in text
    assert "AccessDenied (403): allow s3:PutObject on such keys" in text


@pytest.mark.parametrize("world", ["directory"], indirect=True)
async def test_many_partitions_and_failed_tasks(world: World) -> None:
    """Rows of 300 partitions join in their order, with text columns of other types, times, ids and headers. A task
    fails after it read rows, and Spark repeats it."""
    await world.make_stream("S")

    def once(numbers: Any) -> Any:
        task = TaskContext.get()
        yield from ((n,) for n in numbers)
        if task.partitionId() in (7, 150) and not task.attemptNumber():
            raise RuntimeError("made to fail")

    numbers = world.spark.sparkContext.range(0, 900, 1, 300).mapPartitions(once)
    frame = (world.spark.createDataFrame(numbers, "id LONG").selectExpr(
        "'S.a' COLLATE UTF8_LCASE AS subject", "if(id = 5, NULL, cast(id AS string)) AS data",
        "if(id % 2 = 0, concat('id', id), NULL) AS msg_id",
        "if(id % 3 = 0, array(named_struct('name', 'N', 'value', cast(id AS string))), NULL) AS headers",
        "timestamp_micros(1700000000000000 + id div 10) AS ts"))
    await world.write(frame, "S")
    found = await world.rows("S", "seq", "data", "headers", "ts_ns")
    assert [row[0] for row in found] == list(range(1, 901))
    assert [row[1] for row in found] == [b"" if n == 5 else b"%d" % n for n in range(900)]
    assert [row[2] for row in found[:4]] == [b"NATS/1.0\r\nN: 0\r\nNats-Msg-Id: id0\r\n\r\n", None,
                                            b"NATS/1.0\r\nNats-Msg-Id: id2\r\n\r\n",
                                            b"NATS/1.0\r\nN: 3\r\n\r\n"]
    assert [row[3] for row in found] == [1_700_000_000_000_000_000 + n // 10 * 1000 for n in range(900)]
    early = world.spark.sql("SELECT 'S.a' subject, '' data, TIMESTAMP'1969-07-20 20:17:40Z' ts")
    assert "a message's time is after 1970" in await world.refusal(early, "S")


@pytest.mark.parametrize("world", ["directory"], indirect=True)
async def test_a_table_becomes_a_bucket(world: World) -> None:
    """A DataFrame is written as a key-value bucket, with a delete marker and a purge marker, which acts upon what the
    bucket had and upon the rows before it; nats-py and the view kv read it alike."""
    nc = await nats.connect(world.broker.url)
    kv = await nc.jetstream().create_key_value(bucket="WORDS", history=3)
    await kv.put("e", b"old")
    frame = world.spark.sql(
        "SELECT concat('$KV.WORDS.', word) subject, cast(count AS string) data, CASE count "
        "WHEN 0 THEN array(named_struct('name', 'KV-Operation', 'value', 'DEL')) "
        "WHEN -1 THEN array(named_struct('name', 'KV-Operation', 'value', 'PURGE'), "
        "                   named_struct('name', 'Nats-Rollup', 'value', 'sub')) END headers "
        "FROM VALUES ('a', 1), ('b.c', 2), ('a', 3), ('d', 4), ('d', 0), ('e', 5), ('e', -1) AS t(word, count)")
    assert "the header Nats-Rollup asks the stream for something" in await world.refusal(frame, "KV_WORDS")
    await world.write(frame.coalesce(1), "KV_WORDS", actingHeaders="apply")
    assert sorted(await kv.keys()) == ["a", "b.c"]
    assert (await kv.get("a")).value == b"3"
    assert [(one.revision, one.operation) for one in await kv.history("e")] == [(8, "PURGE")]
    await nc.close()
    reader = world.spark.read.format("jetblock").options(store=world.store.url, stream="KV_WORDS", view="kv")
    assert sorted((row.key, row.operation, bytes(row.value)) for row in reader.load().collect()) == [
        ("a", "PUT", b"3"), ("b.c", "PUT", b"2"), ("d", "DEL", b"0"), ("e", "PURGE", b"-1")]
    assert reader.option("history", "all").load().where("key = 'a'").count() == 2
