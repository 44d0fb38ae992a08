"""The source with the jar and without it: random queries through both, and features of the jar alone."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from broker.pipeline.errors import PipelineError
from broker.pipeline.jar import write_jar
from tests.pipeline.published import Message, Published, broker_on, published
from tests.pipeline.spark.test_spark_batch import FILTERS, PUSHDOWN, messages
from tests.real.s3 import MISSING

JAR = "jetblock_jar"
"""The name of the jar's source here, so that the plain one stays available."""
KINDS = ("rows", "count", "columns", "union", "union", "join", "group")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return asyncio.run(published(f"file://{tmp_path_factory.mktemp('jar')}/store"))


@pytest.fixture(scope="module")
def jar(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the jar's source in the session."""
    path = tmp_path_factory.mktemp("jar") / "jetblock.jar"
    try:
        with path.open("wb") as file:
            write_jar(file, JAR)
    except PipelineError as error:
        if "no javac" in str(error):
            pytest.skip(f"{MISSING}javac: {error}")
        raise
    spark.sql(f"ADD JAR '{path}'")
    return JAR


@pytest.fixture(autouse=True)
def pushdown(spark: Any) -> Iterator[None]:
    """Turn on Spark's setting, without which no filter is pushed."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def load(spark: Any, source: str, store: Published | str, **more: Any) -> Any:
    url = store if isinstance(store, str) else store.url
    return spark.read.format(source).options(store=url, stream="ORDERS", **more).load()


@pytest.mark.parametrize("source", [pytest.param("jetblock", marks=pytest.mark.soak), JAR])
def test_random_queries(spark: Any, store: Published, jar: str, source: str) -> None:
    """Random filters, columns, unions, joins and aggregates agree with plain Python: with the jar all on one DataFrame,
    without it each on its own, as ``pushdown=true`` demands there."""
    rng = random.Random(5)
    live = store.streams["ORDERS"]
    shared = load(spark, jar, store)

    def some() -> tuple[Any, list[Message], str]:
        chosen = rng.sample(FILTERS, rng.choice([0, 1, 1, 2]))
        frame = shared if source == jar else load(spark, source, store, pushdown="true")
        for text, _ in chosen:
            frame = frame.where(text)
        kept = [one for one in live if all(wanted(one) for _, wanted in chosen)]
        return frame, kept, " AND ".join(text for text, _ in chosen)

    for kind in rng.sample(KINDS, len(KINDS)):
        frame, kept, text = some()
        if kind == "rows":
            assert messages(frame) == kept, text
        elif kind == "count":
            assert frame.count() == len(kept), text
        elif kind == "columns":
            names = rng.sample(["seq", "subject", "data"], rng.randrange(1, 4))
            assert [tuple(row) for row in frame.select(*names).collect()] == [
                tuple(getattr(one, name) for name in names) for one in kept], text
        elif kind == "group":
            found = {row.subject: row["count"] for row in frame.groupBy("subject").count().collect()}
            assert found == Counter(one.subject for one in kept), text
        else:
            other, others, more = some()
            if kind == "union":
                assert sorted(row.seq for row in frame.select("seq").union(other.select("seq")).collect()) == sorted(
                    one.seq for one in [*kept, *others]), (text, more)
            else:
                both = {one.seq for one in kept} & {one.seq for one in others}
                assert frame.select("seq").join(other.select("seq"), "seq").count() == len(both), (text, more)


@pytest.fixture
def without_payloads(spark: Any, store: Published, tmp_path: Path) -> str:
    """Copy the store so that no frame can be read."""
    copy = Path(shutil.copytree(store.url.removeprefix("file://"), tmp_path / "store"))
    for row in load(spark, "jetblock", f"file://{copy}", view="blocks").collect():
        data = bytearray((copy / row.block).read_bytes())
        data[row.frames_offset:row.frames_offset + row.frames_bytes] = bytes(row.frames_bytes)
        (copy / row.block).write_bytes(data)
    return f"file://{copy}"


def test_columns_that_are_not_named_are_not_read(spark: Any, store: Published, without_payloads: str) -> None:
    """All payloads are damaged: a narrow DataFrame or view answers without the jar, which fails for all columns."""
    live = store.streams["ORDERS"]
    with pytest.raises(PySparkException, match="Damaged"):
        load(spark, "jetblock", without_payloads).count()
    narrow = spark.read.format("jetblock").schema("seq LONG, subject STRING").options(store=without_payloads,
                                                                                      stream="ORDERS")
    assert narrow.load().count() == len(live)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW narrow (seq BIGINT, subject STRING) USING jetblock "
              f"OPTIONS (store '{without_payloads}', stream 'ORDERS')")
    row, = spark.sql("SELECT count(*) AS n, max(seq) AS last FROM narrow WHERE subject LIKE 'orders.eu.%'").collect()
    eu = [one.seq for one in live if one.subject.startswith("orders.eu.")]
    assert (row.n, row.last) == (len(eu), max(eu))


def test_the_jar_reads_the_columns_that_a_query_wants(spark: Any, store: Published, jar: str,
                                                      without_payloads: str) -> None:
    """The jar, with all columns loaded, reads only those of the query and of its filters, also of one that Spark
    applies itself."""
    live = store.streams["ORDERS"]
    frame = load(spark, jar, without_payloads)
    assert frame.count() == len(live)
    assert [row.seq for row in frame.where("subject = 'orders.us.1'").select("seq").collect()] == [
        one.seq for one in live if one.subject == "orders.us.1"]
    assert frame.where("subject RLIKE '[.]7$' AND seq > 9").count() == sum(one.subject[-2:] == ".7" and one.seq > 9
                                                                           for one in live)
    for damaged in (frame.select("data"), frame.where("length(data) > 1").select("seq")):
        with pytest.raises(PySparkException, match="Damaged"):
            damaged.collect()
    assert frame.select("seq", "subject").distinct().count() == len(live)
    assert load(spark, jar, store, view="blocks").count() == load(spark, "jetblock", store, view="blocks").count()


def test_the_jar_keeps_filters_to_their_scan(spark: Any, store: Published, jar: str) -> None:
    """Queries that fail without the jar, with ``pushdown=true`` for several scans, are right; pushed filters are gone
    from the plan."""
    frame = load(spark, jar, store, pushdown="true")
    assert sorted(row.seq for row in frame.where("seq = 4").union(frame.where("seq = 5")).collect()) == [4, 5]
    assert frame.count() == len(store.streams["ORDERS"])

    def filtered(one: Any) -> bool:
        return "Filter (" in str(one.where("seq > 10")._jdf.queryExecution().executedPlan().toString())

    assert not filtered(frame)
    assert not filtered(load(spark, jar, store))
    assert filtered(load(spark, jar, store, pushdown="false"))
    spark.conf.unset(PUSHDOWN)
    plain = load(spark, jar, store)
    assert filtered(plain)
    assert [row.seq for row in plain.where("seq = 5").collect()] == [5]


def test_tables(spark: Any, store: Published, jar: str) -> None:
    """A catalogue keeps a table for other sessions; one with options of reading cannot be written."""
    live = store.streams["ORDERS"]
    spark.sql(f"CREATE TABLE kept USING {jar} OPTIONS (store '{store.url}', stream 'ORDERS', subjects 'orders.us.*')")
    try:
        other = spark.newSession()
        row, = other.sql("SELECT count(*) AS n, sum(length(data)) AS size FROM kept WHERE seq > 20").collect()
        wanted = [one for one in live if one.seq > 20 and one.subject.startswith("orders.us.")]
        assert (row.n, row.size) == (len(wanted), sum(len(one.data) for one in wanted))
        with pytest.raises(PySparkException, match="no option 'subjects'"):
            other.sql("INSERT INTO kept SELECT * FROM kept")
    finally:
        spark.sql("DROP TABLE kept")


def test_streams_and_errors_are_the_python_source_s(spark: Any, store: Published, jar: str, tmp_path: Path) -> None:
    """A micro-batch query works; unknown options and streams are named in one line; no plan shows an option."""
    query = (spark.readStream.format(jar).options(store=store.url, stream="ORDERS", maxMessagesPerTrigger="500").load()
             .select("seq").writeStream.format("memory").queryName("through_the_jar")
             .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    query.awaitTermination(120)
    assert [row.seq for row in spark.sql("SELECT seq FROM through_the_jar ORDER BY seq").collect()] == [
        one.seq for one in store.streams["ORDERS"]]
    for more, why in (({"strem": "x"}, "no option 'strem': did you mean stream"),
                      ({"stream": "ORDER"}, "no stream 'ORDER'")):
        with pytest.raises(PySparkException, match=why) as caught:
            load(spark, jar, store.url, **more).count() if "strem" in more else spark.read.format(jar).options(
                store=store.url, **more).load().count()
        assert len(str(caught.value).splitlines()) < 10
    plan = load(spark, jar, store, subjects="orders.only.shown.here")._jdf.queryExecution().toString()
    assert "orders.only.shown.here" not in plan


def test_a_jar_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the remedy without a JDK, with an incompatible Spark, and with an invalid name."""
    def refused(why: str, **how: Callable[..., Any] | str) -> None:
        with (tmp_path / "x.jar").open("wb") as out, pytest.raises(PipelineError, match=why):
            write_jar(out, **how)  # type: ignore[arg-type]

    refused("no name for a source", name='x"; evil')
    (tmp_path / "jars").mkdir()
    with_spark = monkeypatch.context
    with with_spark() as patch:
        patch.setenv("SPARK_HOME", str(tmp_path))
        (tmp_path / "jars" / "spark-sql_2.13-9.0.0.jar").write_bytes(b"")
        if shutil.which("javac"):
            refused("does not compile with the jars of")
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(tmp_path))
        refused("no javac on PATH")


async def test_writes(spark: Any, jar: str, tmp_path: Path) -> None:
    """The jar's source and its tables are appended to: by save, INSERT INTO, and a streaming query's toTable."""
    async with broker_on(f"file://{tmp_path}/store") as (broker, nc):
        await nc.jetstream().add_stream(name="S", subjects=["S.>"])
        options = {"store": f"file://{tmp_path}/store", "stream": "S", "nats": broker.url}
        rows = spark.range(2).selectExpr("'S.a' subject", "cast(id as string) data")
        rows.write.format(jar).mode("append").options(**options).save()
        with pytest.raises(PySparkException, match="rows are only appended"):
            rows.write.format(jar).mode("overwrite").options(**options).save()
        # A table's options are for reads and writes.
        given = ", ".join(f"{name} '{value}'" for name, value in options.items() if name != "nats")
        spark.sql(f"CREATE TABLE written (subject STRING, data BINARY) USING {jar} OPTIONS ({given})")
        try:
            spark.sql(f"INSERT INTO written WITH ('nats' = '{broker.url}') VALUES ('S.b', CAST('2' AS BINARY))")
            (tmp_path / "in").mkdir()
            (tmp_path / "in" / "a.json").write_text('{"data": "3"}')
            query = (spark.readStream.schema("data STRING").json(f"{tmp_path}/in")
                     .selectExpr("'S.c' subject", "cast(data as binary) data").writeStream
                     .options(checkpointLocation=f"{tmp_path}/checkpoint", nats=broker.url)
                     .trigger(availableNow=True).toTable("written"))
            query.awaitTermination()
            assert [(row.subject, bytes(row.data)) for row in spark.table("written").collect()] == [
                ("S.a", b"0"), ("S.a", b"1"), ("S.b", b"2"), ("S.c", b"3")]
        finally:
            spark.sql("DROP TABLE written")
