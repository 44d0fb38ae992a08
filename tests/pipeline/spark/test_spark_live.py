"""The main job: a live stream is followed by structured streaming while a publisher runs and the broker is killed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.js.api import StreamConfig

from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.real.s3 import S3Server

KINDS = 7


class Publisher:
    """A publisher of ``messages``, 200 at a time.

    Each is published until it is acknowledged: its message id ensures that an attempt whose ack was lost counts once.
    After half of them the publisher waits for ``go``.
    """

    def __init__(self, port: int, messages: int) -> None:
        self.acked: set[int] = set()
        self.go = asyncio.Event()
        self._port = port
        self._messages = messages
        self._left = iter(range(messages))
        self._acked = asyncio.Condition()

    async def run(self) -> None:
        nc = await nats.connect(f"nats://127.0.0.1:{self._port}", max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        await asyncio.gather(*(self._one_by_one(nc.jetstream()) for _ in range(200)))
        await nc.close()

    async def reached(self, count: int) -> None:
        """Wait until that many messages are acknowledged."""
        async with self._acked:
            await self._acked.wait_for(lambda: len(self.acked) >= count)

    async def _one_by_one(self, js: Any) -> None:
        for number in self._left:
            if number >= self._messages // 2:
                await self.go.wait()
            while number not in self.acked:
                with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError, OSError):
                    await js.publish(f"live.{number % KINDS}", b"%d" % number, timeout=2,
                                     headers={"Nats-Msg-Id": str(number)})
                    self.acked.add(number)
            async with self._acked:
                self._acked.notify_all()


async def _follow(spark: Any, url: str, folder: Path, messages: int, environ: dict[str, str]) -> list[int]:
    """Run publisher, broker and query side by side; the broker is killed while the others are at work.

    Returns: the rows of each batch that had any.
    """
    async with BrokerProcess("-js", "--store", url, environ=environ) as broker:
        setup = await nats.connect(broker.url)
        await setup.jetstream().add_stream(StreamConfig(name="LIVE", subjects=["live.*"]))
        await setup.close()
        # The query keeps all its progress, because a busy machine has more than the last 100.
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        frame = spark.readStream.format("jetblock").options(store=url, stream="LIVE").load()
        query = (frame.writeStream.format("parquet").option("path", f"{folder}/rows")
                 .option("checkpointLocation",
                         f"{folder}/checkpoint").trigger(processingTime="200 milliseconds").start())

        def batches() -> list[int]:
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

        publisher = Publisher(broker.port, messages)
        publishing = asyncio.create_task(publisher.run())
        try:
            while not batches():
                assert query.isActive, query.exception()
                await asyncio.sleep(0.05)
            publisher.go.set()
            await publisher.reached(messages * 3 // 4)
            await broker.kill()
            assert not publishing.done()
            assert sum(batches()) < messages
            await broker.start()
            await publishing
            await asyncio.to_thread(query.processAllAvailable)
            assert query.isActive, query.exception()
            return batches()
        finally:
            publishing.cancel()
            query.stop()


def _check(spark: Any, folder: Path, messages: int) -> None:
    """Check that every message is there once, under its subject, in sequence."""
    spark.read.parquet(f"{folder}/rows").createOrReplaceTempView("live")
    totals = spark.sql("SELECT subject, count(*) total, count(DISTINCT CAST(data AS STRING)) different, "
                       "min(CAST(CAST(data AS STRING) AS LONG)) least, max(CAST(CAST(data AS STRING) AS LONG)) most, "
                       "count_if(CAST(CAST(data AS STRING) AS LONG) % 7 != CAST(split(subject, '[.]')[1] AS LONG)) "
                       "wrong FROM live GROUP BY subject ORDER BY subject").collect()
    assert [tuple(row) for row in totals] == [
        (f"live.{kind}", len(numbers), len(numbers), numbers[0], numbers[-1], 0)
        for kind in range(KINDS) if (numbers := range(kind, messages, KINDS))]
    row = spark.sql("SELECT count(DISTINCT seq) seqs, min(seq) first, max(seq) last FROM live").first()
    assert tuple(row) == (messages, 1, messages)


def test_a_live_stream_is_followed_while_its_broker_is_killed(spark: Any, tmp_path: Path) -> None:
    """Each acknowledged message is counted once by a query on a directory that began before the publisher."""
    messages = 12_000
    batches = asyncio.run(_follow(spark, f"file://{tmp_path}/store", tmp_path, messages, {}))
    assert len(batches) > 1
    assert sum(batches) == messages
    _check(spark, tmp_path, messages)


@pytest.mark.soak
@pytest.mark.parametrize("server", ["minio", "seaweed"])
def test_the_same_on_s3(spark: Any, server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Messages in a bucket are counted alike, for a larger stream."""
    s3: S3Server = request.getfixturevalue(server)
    messages = 60_000
    with environment(spark, s3.env):
        batches = asyncio.run(_follow(spark, s3.new_url(), tmp_path, messages, s3.env))
    assert sum(batches) == messages
    _check(spark, tmp_path, messages)
