"""The main job on Spark: the most frequent imports of the standard library, from a stream of its files, without a
broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.stores import make_store
from tests.tour import tour


@pytest.mark.parametrize("kind", ["directory", "minio"])
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
        await broker.kill()
    with environment(spark, store.environ):
        found = library_spark.by_sql(spark, store.url)
    expected = library_spark.by_python(file.data for file in files)
    assert expected.files == len(files) > 1000
    assert len(expected.top) == 10
    assert found == expected
