"""The main job on Spark: what the standard library imports most, asked of the stream of its files, with no broker running."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from broker.pipeline.source import JetblockSource
from tests.harness import BrokerProcess
from tests.stores import make_store

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour"


def tour(name: str) -> ModuleType:
    """A script of docs/tour, which the README runs."""
    spec = importlib.util.spec_from_file_location(name, TOUR / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["directory", "minio"])
async def test_sql_counts_as_python_does(spark: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Lines, bytes and the ten most imported modules by SQL are those of the files themselves."""
    library, library_spark = tour("library"), tour("library_spark")
    store = make_store(kind, tmp_path, request)
    files = library.files()
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        nc = await library.connect(broker.url)
        await library.make_stream(nc.jetstream())
        await library.publish(nc, files)
        await nc.close()
        await broker.kill()
    kept = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(store.environ)
    spark.dataSource.register(JetblockSource)  # takes the environment of this moment along
    try:
        found = library_spark.by_sql(spark, store.url)
    finally:
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(kept)
    expected = library_spark.by_python(file.data for file in files)
    assert expected.files == len(files) > 1000
    assert len(expected.top) == 10
    assert found == expected
