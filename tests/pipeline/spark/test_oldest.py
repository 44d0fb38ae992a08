"""The oldest supported Spark runs tests of this folder in a process of its own: the environment has the newest one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import parts
from tests.real.s3 import MISSING

ROOT = Path(__file__).resolve().parents[3]
SOME = ("spark/test_spark_batch.py::test_a_store_reads_as_it_was_published",
        "spark/test_spark_sink.py::test_a_dataframe_is_appended[directory]",
        "spark/test_spark_sink.py::test_a_streaming_query_stores_each_batch_once[directory]",
        "jobs/test_spark_export.py::test_each_run_copies_what_is_new")
MORE = ("spark/test_spark_batch.py", "spark/test_spark_stream.py", "spark/test_spark_sink.py",
        "spark/test_spark_errors.py", "spark/test_spark_functions.py", "jobs")


@pytest.mark.parametrize("tests", [
    pytest.param(SOME, id="some", marks=pytest.mark.timeout(600)),
    pytest.param(MORE, id="more", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_the_oldest_spark(tests: tuple[str, ...], spark_environ: dict[str, str], tmp_path: Path) -> None:
    """Batch reads, a batch write, stream to stream and an export; a long run takes all such tests."""
    try:
        folder = parts.pyspark()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}pyspark: {error}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    version = subprocess.run([sys.executable, "-c", "import pyspark; print(pyspark.__version__)"], env=environ,
                             capture_output=True, text=True, check=True)
    assert version.stdout.strip() == parts.PYSPARK_VERSION
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp",
                           str(tmp_path / "base"), *(f"tests/pipeline/{one}" for one in tests)],
                          cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    if tests == SOME:
        assert f"{len(SOME)} passed" in done.stdout
