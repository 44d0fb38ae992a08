"""The table of the longest test files names files that are there."""

from __future__ import annotations

from pathlib import Path

from tests.distribution import SECONDS, SPARK, seconds, unit

ROOT = Path(__file__).resolve().parent.parent


def test_the_longest_files_are_there() -> None:
    """A renamed file would be handed out late, and hold up the end of the run."""
    assert [path for path in SECONDS if path != SPARK and not (ROOT / path).is_file()] == []


def test_units() -> None:
    """Files, all tests with Spark together, those of the simulation one by one."""
    assert unit("tests/a/test_b.py::TestC::test_d[x::y]") == "tests/a/test_b.py"
    assert unit("tests/pipeline/spark/test_spark_live.py::test_d") == SPARK
    assert unit("tests/sim/test_streams.py::test_d[10]") == "tests/sim/test_streams.py::test_d[10]"
    assert seconds(SPARK) > seconds("tests/sim/test_streams.py::test_d[10]") > seconds("tests/a/test_b.py")
