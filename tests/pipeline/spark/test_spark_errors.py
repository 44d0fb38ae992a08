"""Errors that a user sees through Spark: short, naming the object or option; never wrong rows."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.errors import PySparkException

from broker.storage.format.header import FORMAT_VERSION, HEADER_BYTES
from broker.storage.objectstore import open_store
from tests.pipeline.published import Published, published
from tests.pipeline.stores import Owner

LINES = 2
"""Lines of an error: the text, after Spark's own words, and Spark's SQLSTATE."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return asyncio.run(published(f"file://{tmp_path_factory.mktemp('errors')}/store"))


@pytest.fixture
def copy(store: Published, tmp_path: Path) -> Path:
    """The store's directory, to be damaged."""
    return Path(shutil.copytree(store.url.removeprefix("file://"), tmp_path / "store"))


def error_of(frame: Any) -> str:
    """Return the text of the error of reading a whole DataFrame; it must be short, and name our package."""
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    text = str(caught.value)
    assert "broker.pipeline." in text
    assert len(text.splitlines()) <= LINES, text
    assert "During handling" not in text
    return text


def load(spark: Any, url: str, **options: Any) -> Any:
    return spark.read.format("jetblock").options(store=url, **options).load()


def test_missing_things_are_named(spark: Any, store: Published, tmp_path: Path) -> None:
    """A missing store, stream, column or option is named, with the existing ones."""
    text = error_of(load(spark, store.url, stream="ORDER"))
    assert "NoStream" in text
    assert "'ORDER'" in text
    assert "'ORDERS'" in text
    text = error_of(load(spark, f"file://{tmp_path}/nowhere", stream="ORDERS"))
    assert "NoStore" in text
    assert f"{tmp_path}/nowhere" in text
    with pytest.raises(PySparkException, match="no option 'strem': did you mean stream"):
        load(spark, store.url, strem="ORDERS")
    with pytest.raises(PySparkException, match="startSeq='x'"):
        load(spark, store.url, stream="ORDERS", startSeq="x")
    reader = spark.read.format("jetblock").options(**store.options())
    assert "no column 'subjet'; did you mean 'subject'?" in error_of(reader.schema("seq LONG, subjet STRING").load())
    assert "'seq' of the view messages is BIGINT, not STRING" in error_of(reader.schema("seq STRING").load())


def test_credentials_are_refused_and_not_shown(spark: Any, store: Published) -> None:
    """A URL with a password is refused without repeating it; no plan shows options."""
    with pytest.raises(PySparkException, match="no credentials in the URL") as caught:
        load(spark, "s3://AKIAUSER:hunter2@bucket/prefix", stream="ORDERS")
    assert "hunter2" not in str(caught.value)
    frame = load(spark, store.url, stream="ORDERS", subjects="orders.only.shown.here")
    assert frame.count() == 0
    plan = frame._jdf.queryExecution().toString()
    assert "orders.only.shown.here" not in plan
    events = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    logged = "".join(path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    assert "SparkListenerApplicationStart" in logged
    assert "orders.only.shown.here" not in logged


def test_tables_name_an_alternative(spark: Any, store: Published) -> None:
    """The errors have no frames of Spark above their text."""
    options = f"OPTIONS (store '{store.url}', stream 'ORDERS')"
    instead = "CREATE TEMPORARY VIEW … USING jetblock OPTIONS"
    with pytest.raises(PySparkException, match=instead) as caught:
        spark.sql(f"CREATE TABLE refused USING jetblock {options}")
    assert len(str(caught.value).splitlines()) <= LINES
    spark.sql(f"CREATE TABLE given_columns (seq BIGINT) USING jetblock {options}")
    try:
        assert instead in error_of(spark.table("given_columns"))
    finally:
        spark.sql("DROP TABLE given_columns")


def test_an_empty_range_has_no_rows(spark: Any, store: Published) -> None:
    for options in ({"startSeq": 11, "endSeq": 10}, {"startTime": 10**18, "endTime": 10**18}):
        for view in ("messages", "subjects", "blocks"):
            assert load(spark, store.url, stream="ORDERS", view=view, **options).collect() == []


@pytest.mark.parametrize(("options", "reason"), [
    ({"startSeq": "4"}, "BadOption: option startSeq is for batch queries: a streaming query begins at startingOffsets"),
    ({"stream": "NONE"}, "NoStream: .*: no stream 'NONE'")])
def test_a_streaming_query_s_error_is_plain(spark: Any, store: Published, tmp_path: Path, options: dict[str, str],
                                            reason: str) -> None:
    """The text has no traceback, and no error of Spark hides it."""
    frame = spark.readStream.format("jetblock").options(**{**store.options(), **options}).load()
    query = (frame.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/checkpoint")
             .trigger(availableNow=True).start())
    with pytest.raises(PySparkException, match=reason) as caught:
        query.awaitTermination()
    text = str(caught.value).partition("=== Streaming Query ===")[0]
    assert len(text.splitlines()) <= LINES
    assert "During handling" not in text


def a_block(spark: Any, copy: Path, seq: int) -> tuple[Path, Any]:
    """Return the path of the object that holds a message, and its block's row in the catalogue."""
    row, = load(spark, f"file://{copy}", stream="ORDERS", view="blocks").where(
        f"first_seq <= {seq} AND last_seq >= {seq}").collect()
    return copy / row.block, row


@pytest.mark.parametrize("section", ["frames", "index"])
def test_a_flipped_bit(spark: Any, copy: Path, section: str) -> None:
    """A query for an object with a flipped bit fails and names it; queries that do not need the object succeed."""
    path, block = a_block(spark, copy, 250)
    data = bytearray(path.read_bytes())
    data[block[f"{section}_offset"] + block[f"{section}_bytes"] // 2] ^= 1
    path.write_bytes(data)
    text = error_of(load(spark, f"file://{copy}", stream="ORDERS"))
    assert "Damaged" in text
    assert block.block in text
    assert load(spark, f"file://{copy}", stream="ORDERS", startSeq=block.last_seq + 1).count() > 0


def test_a_truncated_object(spark: Any, copy: Path) -> None:
    path, block = a_block(spark, copy, 250)
    path.write_bytes(path.read_bytes()[:block.frames_offset + block.frames_bytes // 2])
    text = error_of(load(spark, f"file://{copy}", stream="ORDERS"))
    assert block.block in text


def test_an_object_that_is_gone(spark: Any, copy: Path) -> None:
    """The newest state still names the object: the query fails and names it."""
    frame = load(spark, f"file://{copy}", stream="ORDERS")
    assert frame.count() > 0
    path, block = a_block(spark, copy, 250)
    path.unlink()
    assert block.block in error_of(frame)


def test_a_store_of_a_newer_version(spark: Any, copy: Path) -> None:
    """The store is refused before anything is read, and the text names the remedy."""
    path = copy / "v1" / "format"
    data = bytearray(path.read_bytes())
    data[10:12] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    data[HEADER_BYTES - 4:HEADER_BYTES] = crc32(data[:HEADER_BYTES - 4]).to_bytes(4, "little")
    path.write_bytes(data)
    text = error_of(load(spark, f"file://{copy}", stream="ORDERS"))
    assert "Newer" in text
    assert re.search("upgrade jetblock", text)


async def test_objects_that_go_under_a_planned_query(spark: Any, tmp_path: Path) -> None:
    """A DataFrame keeps the plan of its first query. If objects are deleted afterwards, it fails, or with
    ``failOnDataLoss=false`` leaves out their messages and reads the others. Messages purged from an object that still
    exists belong to the plan's snapshot."""
    url = f"file://{tmp_path}/store"
    owner = Owner(open_store(url), seed=3)
    await owner.start()
    stream = await owner.make("GOING")
    for _ in range(6):
        stream.append([(b"GOING.a", b"", b"%d" % i) for i in range(50)])
        await owner.log.persisted()
    await owner.round()
    frame = load(spark, url, stream="GOING", targetPartitionBytes="1")
    lenient = load(spark, url, stream="GOING", targetPartitionBytes="1", failOnDataLoss="false")
    for one in (frame, lenient):
        assert await asyncio.to_thread(one.count) == 300

    def keys() -> set[str]:
        return {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}

    before = keys()
    planned = {row.block for row in load(spark, url, stream="GOING", view="blocks").collect()}
    stream.purge(175)
    for _ in range(4):  # one round more than roots are kept
        stream.append([(b"GOING.b", b"", b"later")])
        await owner.log.persisted()
        await owner.round()
    gone = before - keys()
    assert {f"store/{key}" for key in planned} & gone
    text = await asyncio.to_thread(error_of, frame)
    assert "DataLoss" in text
    assert "stream $G/GOING: messages between" in text
    assert "reader_grace" in text
    rows = await asyncio.to_thread(lenient.collect)
    assert [(row.seq, row.data) for row in rows] == [(seq, b"%d" % ((seq - 1) % 50)) for seq in range(151, 301)]
    assert next(iter(stream.live)) == 176
    await owner.kill()
