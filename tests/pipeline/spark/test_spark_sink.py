"""The sink: DataFrames appended to streams, with a broker asked at once and without, on a directory and a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from pyspark.errors import PySparkException

import jetblock
from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.stores import Store, make_store

LINES = 8
"""Upper bound of the lines of an error: Spark's own first and last line, one frame of ours, and the text."""


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


@pytest.fixture(params=["directory", "minio"])
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
