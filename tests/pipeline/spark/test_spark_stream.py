"""Structured streaming over a broker's messages: batches, restarts, starts, losses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline.spark import session
from tests.pipeline.published import broker_on, publish


class Sink:
    """A streaming query into Parquet, run until nothing is left, repeatedly on one checkpoint."""

    def __init__(self, spark: Any, folder: Path, url: str, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"store": url, **options}

    def run(self) -> list[int]:
        """Run once with Trigger.AvailableNow; return the rows of each batch that had any. Raises: the error that ended
        the query."""
        frame = self.spark.readStream.format("jetblock").schema("stream STRING, seq LONG, subject STRING, data BINARY")
        query = (frame.options(**self.options).load().writeStream.format("parquet")
                 .option("path", f"{self.folder}/rows").option("checkpointLocation", f"{self.folder}/checkpoint")
                 .trigger(availableNow=True).start())
        assert query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    @property
    def rows(self) -> list[tuple[str, int]]:
        frame = self.spark.read.parquet(f"{self.folder}/rows")
        return sorted((row.stream, row.seq) for row in frame.select("stream", "seq").collect())


def _range(stream: str, first: int, last: int) -> list[tuple[str, int]]:
    return [(stream, seq) for seq in range(first, last + 1)]


def test_batches_of_the_requested_size_and_a_restart(spark: Any, tmp_path: Path) -> None:
    """AvailableNow reads the existing messages in several batches; the next run reads exactly the newer ones."""
    url = f"file://{tmp_path}/store"

    async def fill(first: int, count: int) -> None:
        async with broker_on(url) as (_, nc):
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s.>"])
            await publish(js, [(f"s.{n % 7}", None, b"%d" % n) for n in range(first, first + count)])

    asyncio.run(fill(0, 1000))
    sink = Sink(spark, tmp_path, url, stream="S", maxMessagesPerTrigger="400")
    assert sink.run() == [400, 400, 200]
    asyncio.run(fill(1000, 450))
    assert sink.run() == [400, 50]
    assert sink.rows == _range("S", 1, 1450)
    read = spark.read.parquet(f"{tmp_path}/rows").selectExpr("count(DISTINCT CAST(data AS STRING)) n").first()
    assert read.n == 1450


def test_streams_by_wildcard_and_starts(spark: Any, tmp_path: Path) -> None:
    """A query reads several streams, and those created later; others begin at the end, and at a time."""
    url = f"file://{tmp_path}/store"
    times: list[str] = []

    async def fill(*streams: str) -> None:
        async with broker_on(url) as (_, nc):
            js = nc.jetstream()
            for stream in streams:
                await js.add_stream(name=stream, subjects=[f"{stream}.>"])
                await publish(js, [(f"{stream}.x", None, b"") for _ in range(20)])
                message = await js.get_msg(stream, 16)
                times.append(message.time.isoformat())

    asyncio.run(fill("A1", "A2", "B"))
    every = Sink(spark, tmp_path / "every", url, stream="A*", maxMessagesPerTrigger="30")
    latest = Sink(spark, tmp_path / "latest", url, stream="A*", startingOffsets="latest")
    assert [every.run(), latest.run()] == [[30, 10], []]
    asyncio.run(fill("A1", "A3"))
    assert [sum(every.run()), sum(latest.run())] == [40, 40]
    assert every.rows == _range("A1", 1, 40) + _range("A2", 1, 20) + _range("A3", 1, 20)
    assert latest.rows == _range("A1", 21, 40) + _range("A3", 1, 20)
    frame = session.read_stream(spark, store=url, stream="B", startingOffsets=times[2], subjects="B.*")
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/time")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert 5 <= rows <= 20  # from the time of the 16th message, which others of its batch may share


def test_a_loss_ends_a_query_by_default(spark: Any, tmp_path: Path) -> None:
    """A limit removed messages before they were read: the error names stream and sequences."""
    url = f"file://{tmp_path}/store"

    async def fill(count: int) -> None:
        async with broker_on(url) as (_, nc):
            js = nc.jetstream()
            await js.add_stream(name="L", subjects=["l.>"], max_msgs=50)
            await publish(js, [("l.x", None, b"") for _ in range(count)])

    asyncio.run(fill(50))
    sink = Sink(spark, tmp_path, url, stream="L")
    assert sink.run() == [50]
    asyncio.run(fill(100))
    with pytest.raises(Exception,
                       match=r"stream \$G/L lost messages before they were read: expected sequence 51, found "
                                         r"that it begins at 101.*failOnDataLoss=false"):
        sink.run()
    sink.options["failOnDataLoss"] = "false"
    assert sink.run() == [50]
    assert sink.rows == _range("L", 1, 50) + _range("L", 101, 150)
