"""The table of the longest test files names existing files."""

from __future__ import annotations

from pathlib import Path

from tests.distribution import SECONDS, SPARK, seconds, unit

ROOT = Path(__file__).resolve().parent.parent


def test_the_longest_files_are_there() -> None:
    """A renamed file would be started late, and delay the end of the run."""
    assert [path for path in SECONDS if path != SPARK and not (ROOT / path).is_file()] == []


def test_units() -> None:
    """Units are files, all tests with Spark together, and single tests of the simulation."""
    assert unit("tests/a/test_b.py::TestC::test_d[x::y]") == "tests/a/test_b.py"
    assert unit("tests/pipeline/spark/test_spark_live.py::test_d") == SPARK
    assert unit("tests/sim/test_streams.py::test_d[10]") == "tests/sim/test_streams.py::test_d[10]"
    assert seconds(SPARK) > seconds("tests/sim/test_streams.py::test_d[10]") > seconds("tests/a/test_b.py")
