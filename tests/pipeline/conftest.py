"""The one Spark session that all tests share, and its stop."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real import jvm, parts
from tests.real.s3 import MISSING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SPARK_TEST_SECONDS = 300
"""Timeout of a test with Spark; the first such test also waits for the session to start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the session, and put them all into the group of one worker."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            if not item.path.name.startswith("test_spark_"):
                raise pytest.UsageError(f"{item.nodeid}: tests with Spark live in files named test_spark_*")
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TEST_SECONDS))


@pytest.fixture(scope="session")
def spark_environ() -> dict[str, str]:
    """Return the environment that a process needs to start Spark: Java, the interpreter, the path of our modules."""
    try:
        environ = jvm.spark_environ() | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}java: {error}")
    if importlib.util.find_spec("pyspark_jetblock") is None:  # run from a checkout that is not installed
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), str(ROOT / "broker/pipeline/autoload"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environ


@pytest.fixture(scope="session")
def spark(spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a session on ``local[2,3]``: two tasks side by side, each tried up to three times. An event log is
    written. Rows pass through Unix sockets; test_cluster.py has sessions without them."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environ.items():
            patch.setenv(name, value)
        session = SparkSession.builder.master("local[2,3]").appName("jetblock tests").config(map={
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.sql.session.timeZone": "UTC",
            # Tests turn the other one of ``builder_conf`` on and off.
            "spark.python.unix.domain.socket.enabled": "true",
        }).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
            _end_gateway()


@pytest.fixture
def command_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of ``jetblock pipeline`` that run in the test's process use the shared session."""
    monkeypatch.setattr("broker.pipeline.jobs.session.session", lambda *_: contextlib.nullcontext(spark))


def _end_gateway() -> None:
    """End the JVM, which outlives ``stop()`` until its standard input is closed."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
