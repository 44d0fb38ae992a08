"""Batch reads through Spark: SQL returns the messages of a broker, on a directory and on an S3 server; soak runs use
two."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from broker.pipeline.spark import session
from tests.pipeline.environment import environment
from tests.pipeline.published import Message, Published, broker_on, publish, published
from tests.real.s3 import S3Server

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Turn on Spark's setting, which is off by default."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A broker's store on a directory."""
    return asyncio.run(published(f"file://{tmp_path_factory.mktemp('published')}/store"))


def load(spark: Any, store: Published, stream: str = "ORDERS", schema: str | None = None, **more: Any) -> Any:
    reader = spark.read.format("jetblock").options(**store.options(stream, **more))
    return (reader.schema(schema) if schema else reader).load()


def messages(frame: Any) -> list[Message]:
    """The rows of a DataFrame with the default columns."""
    return [Message(row.seq, row.subject, row.headers, row.data)
            for row in frame.select("seq", "subject", "headers", "data").collect()]


def test_a_store_reads_as_it_was_published(spark: Any, store: Published) -> None:
    """Every stream is read in order, with its times, through a source that Spark found by itself."""
    for stream, expected in store.streams.items():
        assert messages(load(spark, store, stream)) == expected
    rows = load(spark, store, schema="ts_ns LONG, ts TIMESTAMP, seq LONG").collect()
    assert [row.ts_ns // 1000 for row in rows] == [round(row.ts.timestamp() * 1_000_000) for row in rows]
    assert [row.ts_ns for row in rows] == sorted(row.ts_ns for row in rows)


@pytest.mark.parametrize("server", ["minio", pytest.param("seaweed", marks=pytest.mark.soak)])
def test_a_bucket_reads_as_it_was_published(spark: Any, server: str, request: pytest.FixtureRequest) -> None:
    """A store on S3 reads alike, with credentials and endpoint from the environment of planner and workers."""
    s3: S3Server = request.getfixturevalue(server)
    there = asyncio.run(published(s3.new_url(), s3.env))
    with environment(spark, s3.env):
        for stream, expected in there.streams.items():
            assert messages(load(spark, there, stream)) == expected
        forecast = session.explain_read(spark, **there.options())
        assert forecast["blocks"] == forecast["blocks_of"] > 1
        assert session.read(spark, **there.options()).count() == len(there.streams["ORDERS"])


SCHEMAS = (
    "data BINARY",
    "seq LONG",
    "headers BINARY, seq LONG",
    "pos INT, block STRING, account STRING, stream STRING, ts_ns LONG, data BINARY, headers BINARY, ts TIMESTAMP, "
    "subject STRING, seq LONG",
    "subject BINARY, headers ARRAY<STRUCT<name: STRING, value: STRING>>, SEQ LONG",
)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_any_columns_in_any_order(spark: Any, store: Published, schema: str) -> None:
    """Columns that ``.schema`` names, in its order and its types, hold the same values as when read alone."""
    frame = load(spark, store, schema=schema)
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    expected = store.streams["ORDERS"]
    assert len(rows) == len(expected)
    known: dict[str, Callable[[Message], Any]] = {
        "seq": lambda one: one.seq, "SEQ": lambda one: one.seq, "data": lambda one: one.data,
        "stream": lambda one: "ORDERS", "account": lambda one: "$G",
        "subject": lambda one: one.subject.encode() if "subject BINARY" in schema else one.subject,
        "headers": lambda one: one.headers if "ARRAY" not in schema else _pairs(one.headers)}
    for name in frame.columns:
        if name in known:
            assert [row[name] for row in rows] == [known[name](one) for one in expected], name
        elif name == "pos":
            assert all(row["pos"] >= 0 for row in rows)
        elif name == "block":
            assert all(re.search(r"\.(seg|run)|/", row["block"]) for row in rows)
        else:
            assert None not in [row[name] for row in rows], name


def _pairs(block: bytes | None) -> list[dict[str, str]] | None:
    if block is None:
        return None
    lines = block.decode().split("\r\n")[1:-2]
    return [dict(zip(("name", "value"), line.split(": ", 1), strict=True)) for line in lines]


FILTERS: tuple[tuple[str, Callable[[Message], bool]], ...] = (
    ("subject LIKE 'orders.eu.%'", lambda one: one.subject.startswith("orders.eu.")),
    ("subject LIKE '%.3'", lambda one: one.subject.endswith(".3")),
    ("subject LIKE '%us%'", lambda one: "us" in one.subject),
    ("subject LIKE 'orders.a%.7'", lambda one: one.subject.startswith("orders.a") and one.subject.endswith(".7")),
    ("subject = 'orders.us.1'", lambda one: one.subject == "orders.us.1"),
    ("subject IN ('orders.us.1', 'orders.eu.9', 'none')", lambda one: one.subject in ("orders.us.1", "orders.eu.9")),
    ("subject <> 'orders.us.1'", lambda one: one.subject != "orders.us.1"),
    ("subject > 'orders.eu' AND subject <= 'orders.us.1'", lambda one: "orders.eu" < one.subject <= "orders.us.1"),
    ("seq BETWEEN 100 AND 420", lambda one: 100 <= one.seq <= 420),
    ("seq > 1100 AND subject LIKE '%.1'", lambda one: one.seq > 1100 and one.subject.endswith(".1")),
    ("seq = 17 OR seq = 1190", lambda one: one.seq in (17, 1190)),
    ("seq < 0", lambda one: False),
    ("seq IN (1, 5, 900)", lambda one: one.seq in (1, 5, 900)),
    ("headers IS NULL AND seq < 200", lambda one: one.headers is None and one.seq < 200),
    ("headers IS NOT NULL", lambda one: one.headers is not None),
    ("data = CAST('order 17.................' AS BINARY)", lambda one: one.data == b"order 17................."),
    ("ts < TIMESTAMP'2020-01-01'", lambda one: False),
    ("ts > TIMESTAMP'2020-01-01' AND NOT subject LIKE 'orders.e%'", lambda one: not one.subject.startswith("orders.e")),
    ("subject RLIKE '[.][0-4]$'", lambda one: one.subject[-1] in "01234"),
    ("subject IS NULL", lambda one: False),
)


@pytest.mark.usefixtures("pushdown")
def test_filters_give_the_same_pushed_and_not_pushed(spark: Any, store: Published) -> None:
    """Each filter agrees with plain Python, pushed down and not."""
    plain = load(spark, store)
    # Each frame is loaded for one scan, as pushdown=true demands. One query of all of them costs a third of many.
    pushed = [load(spark, store, pushdown="true").where(text) for text, _ in FILTERS]
    others = [plain.where(text) for text, _ in FILTERS if len(text) % 3 == 0]
    columns = ("seq", "subject", "headers", "data")
    found: dict[int, list[Message]] = {number: [] for number in range(len(pushed) + len(others))}
    tagged = [frame.selectExpr(f"{number} AS number", *columns) for number, frame in enumerate([*pushed, *others])]
    for number, *values in reduce(DataFrame.union, tagged).collect():
        found[number].append(Message(*values))
    texts = [*FILTERS, *(one for one in FILTERS if len(one[0]) % 3 == 0)]
    for number, (text, wanted) in enumerate(texts):
        assert found[number] == [one for one in store.streams["ORDERS"] if wanted(one)], text


def test_without_sparks_setting(spark: Any, store: Published) -> None:
    """Filters work with Spark's default, and the error of a load with pushdown names the setting."""
    assert [row.seq for row in load(spark, store).where("seq = 5 OR subject = 'none'").collect()] == [5]
    with pytest.raises(Exception, match=re.escape(PUSHDOWN)):
        load(spark, store, pushdown="true").where("seq = 5").collect()


@pytest.mark.usefixtures("pushdown")
def test_scans_of_one_frame_do_not_share_filters(spark: Any, store: Published) -> None:
    """Several filters on one DataFrame or view are used in one query and one after another. Spark up to 4.3 mixes up
    pushed filters, so by default none is pushed, though its setting is on."""
    frame = load(spark, store)
    both = frame.where("seq = 4").union(frame.where("seq = 5"))
    assert sorted(row.seq for row in both.collect()) == [4, 5]
    assert frame.count() == len(store.streams["ORDERS"])
    frame.createOrReplaceTempView("shared")
    row, = spark.sql("SELECT (SELECT count(*) FROM shared WHERE seq < 11) AS few, (SELECT count(*) FROM shared) AS "
                     "everything, (SELECT max(seq) FROM shared WHERE subject LIKE 'orders.us.%') AS last").collect()
    live = store.streams["ORDERS"]
    assert (row.few, row.everything) == (sum(one.seq < 11 for one in live), len(live))
    assert row.last == max(one.seq for one in live if one.subject.startswith("orders.us."))


@pytest.mark.usefixtures("pushdown")
def test_pushed_filters_are_not_applied_again(spark: Any, store: Published) -> None:
    """Spark's plan has none of the pushed filters left, and blocks that cannot match have no task."""
    def plan(frame: Any) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    frame = load(spark, store, pushdown="true")
    assert "Filter (" not in plan(frame.where("subject LIKE 'orders.eu.%' AND seq > 10"))
    assert "Filter (" in plan(load(spark, store).where("seq > 10"))
    assert "Filter (" in plan(load(spark, store,
                                   pushdown="true").where("seq > 10 AND data IS NOT NULL AND length(data) > 9"))


def test_wildcards_of_streams_and_subjects(spark: Any, store: Published) -> None:
    """A DataFrame has several streams, NATS patterns as an option, a range of sequences, and an estimate that
    agrees."""
    rows = load(spark, store, "LOGS*", schema="stream STRING, seq LONG, subject STRING").collect()
    expected = [(stream, one.seq, one.subject) for stream in ("LOGS", "LOGS2") for one in store.streams[stream]]
    assert sorted(map(tuple, rows)) == sorted(expected)
    both = load(spark, store, "LOGS2,ORDERS", subjects="orders.*.4,logs2.>",
                schema="subject STRING, seq LONG").collect()
    assert sorted(row.subject for row in both) == sorted(
        one.subject for stream in ("ORDERS", "LOGS2") for one in store.streams[stream]
        if one.subject.endswith(".4") or one.subject.startswith("logs2."))
    some = load(spark, store, startSeq=10, endSeq=20)
    assert messages(some) == [one for one in store.streams["ORDERS"] if 10 <= one.seq <= 20]
    forecast = session.explain_read(spark, **store.options(startSeq=10, endSeq=20))
    assert (forecast["blocks"], forecast["partitions"]) == (1, 1)
    assert forecast["blocks_of"] > 1


def test_views(spark: Any, store: Published) -> None:
    """The totals of the views other than messages equal the published ones."""
    live = {name: len(found) for name, found in store.streams.items()}
    streams = {row.name: row for row in load(spark, store, "*", view="streams").collect()}
    assert {name: row.messages for name, row in streams.items()} == live
    assert all(re.fullmatch("[0-9a-f]{16}", row.stream_id) and row.account == "$G" for row in streams.values())
    blocks = load(spark, store, "*", view="blocks")
    assert {row.stream: row.n for row in blocks.groupBy("stream").sum("live").withColumnRenamed("sum(live)", "n")
            .collect()} == live
    subjects: dict[str, tuple[int, int, int]] = {}
    for one in store.streams["ORDERS"]:
        count, first, _ = subjects.get(one.subject, (0, one.seq, 0))
        subjects[one.subject] = (count + 1, first, one.seq)
    load(spark, store, view="subjects").createOrReplaceTempView("by_block")
    found = spark.sql("SELECT subject, sum(count), min(first_seq), max(last_seq) FROM by_block "
                      "GROUP BY subject").collect()
    assert {row[0]: (row[1], row[2], row[3]) for row in found} == subjects
    consumer, = load(spark, store, view="consumers").collect()
    assert (consumer.stream, consumer.name) == ("ORDERS", "worker")
    assert load(spark, store, "*", view="consumers", schema="name STRING").count() == 1


def test_sql_with_a_view_and_the_functions(spark: Any, store: Published) -> None:
    """CREATE VIEW … USING jetblock, and the functions on subjects and headers, from SQL alone."""
    session.register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING jetblock OPTIONS (store '{store.url}', stream 'ORDERS', "
              f"startSeq '50')")
    rows = spark.sql("SELECT subject_token(subject, 2) AS region, count(*) AS n, count(header(headers, 'X-No')) AS h "
                     "FROM orders WHERE subject_matches(subject, 'orders.*.4') GROUP BY 1 ORDER BY 1").collect()
    expected: dict[str, list[int]] = {}
    for one in store.streams["ORDERS"]:
        if one.seq >= 50 and one.subject.endswith(".4"):
            pair = expected.setdefault(one.subject.split(".")[1], [0, 0])
            pair[0] += 1
            pair[1] += one.headers is not None
    assert [(row.region, row.n, row.h) for row in rows] == [(name, *pair) for name, pair in sorted(expected.items())]


async def test_one_snapshot_while_a_broker_writes(spark: Any, tmp_path: Path) -> None:
    """A DataFrame of ``session.read`` and all derived ones have the same messages while a broker publishes and purges;
    later loads have all changes."""
    url = f"file://{tmp_path}/growing"

    def rows(count: int) -> list[tuple[str, None, bytes]]:
        return [("grow.a", None, b"%d" % i) for i in range(count)]

    async with broker_on(url) as (_, nc):
        js = nc.jetstream()
        await js.add_stream(name="GROW", subjects=["grow.*"])
        await publish(js, rows(200))
        frame = await asyncio.to_thread(session.read, spark, store=url, stream="GROW")
        fresh = spark.read.format("jetblock").options(store=url, stream="GROW").load()
        await publish(js, rows(50))
        assert await asyncio.to_thread(frame.count) == 200
        await js.purge_stream("GROW", seq=31)  # keeps 31
        await publish(js, rows(50))
        derived = await asyncio.to_thread(frame.where("seq > 0").collect)
        assert set(range(31, 201)) <= {row.seq for row in derived} <= set(range(1, 201))
        assert await asyncio.to_thread(frame.where("seq >= 31").count) == 170
        newest = await asyncio.to_thread(fresh.collect)
        assert [row.seq for row in newest] == list(range(31, 301))
