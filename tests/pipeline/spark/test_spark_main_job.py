"""The main job on Spark: the most frequent imports of the standard library, from a stream of its files, without a
broker; and its result as a key-value bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats
import pytest

from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.stores import Store, make_store
from tests.tour import tour


@pytest.mark.parametrize("kind", [pytest.param("directory", marks=pytest.mark.soak), "minio"])
async def test_sql_counts_as_python_does(spark: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Lines, bytes and the ten most imported modules by SQL equal those of the files themselves."""
    library, library_spark = tour("library"), tour("library_spark")
    store = make_store(kind, tmp_path, request)
    files = library.files()
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        nc = await library.connect(broker.url)
        await library.make_stream(nc.jetstream())
        await library.publish(nc, files)
        await nc.close()
        # Without a broker, what only the journal of a killed one has is read after the next start.
        await (broker.stop() if kind == "directory" else broker.kill())
    with environment(spark, store.environ):
        found = library_spark.by_sql(spark, store.url)
        await _publish_back(spark, store, found.top)
    expected = library_spark.by_python(file.data for file in files)
    assert expected.files == len(files) > 1000
    assert len(expected.top) == 10
    assert found == expected


async def _publish_back(spark: Any, store: Store, top: list[tuple[str, int]]) -> None:
    """Publish the counts as a bucket, twice as one version; nats-py reads each of them once."""
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        nc = await nats.connect(broker.url)
        bucket = await nc.jetstream().create_key_value(bucket="imports", history=5)
        for _ in range(2):
            tour("recipes_spark").publish_counts(spark.createDataFrame(top, "key STRING, value LONG"), store.url,
                                                 broker.url, "imports", 1)
        entries = [await bucket.get(key) for key in await bucket.keys()]
        assert sorted((one.key, int(one.value)) for one in entries) == sorted(top)
        assert (await bucket.status()).values == len(top)
        await nc.close()
        await broker.stop()
