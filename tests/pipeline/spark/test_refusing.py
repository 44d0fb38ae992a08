"""The reader in place of one that cannot be made: Spark's first call raises the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from broker.pipeline.errors import BadOption
from broker.pipeline.spark.source import JetblockSource

ROOT = Path(__file__).resolve().parents[3]

OLD = """
import sys
from broker.pipeline.spark.source import JetblockSource
sys.modules["pyspark.sql.streaming.datasource"] = None
reader = JetblockSource({"store": "file:///nowhere", "stream": "S"}).streamReader(None)
for call in (reader.initialOffset, lambda: reader.partitions({}, {})):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_an_older_spark_is_named() -> None:
    """The process is like one with Spark 4.1, which lacks a module: its first call raises the version that is needed.
    Raised earlier, the error would be lost in an UnboundLocalError of Spark's."""
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, cwd=ROOT, check=True)
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("PipelineError streaming reads need PySpark 4.2 or newer, and this is ")


def test_a_mistake_is_raised_by_each_call() -> None:
    reader = JetblockSource({"store": "file:///nowhere", "stream": "S", "startSeq": "4"}).streamReader(None)
    for call in (reader.initialOffset, lambda: reader.latestOffset({}, None), lambda: reader.partitions({}, {})):
        with pytest.raises(BadOption, match="option startSeq is for batch queries"):
            call()
