"""The oldest Spark that is supported runs tests of this folder, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import parts
from tests.real.s3 import MISSING

ROOT = Path(__file__).resolve().parents[3]
TESTS = ("spark/test_spark_batch.py", "spark/test_spark_stream.py", "spark/test_spark_sink.py",
         "spark/test_spark_errors.py", "spark/test_spark_functions.py", "jobs")

PREPARE = "import pyspark, tests.real.jvm; tests.real.jvm.spark_environ(); print(pyspark.__version__)"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_oldest_spark(spark_environ: dict[str, str], tmp_path: Path) -> None:
    """Reads, streaming, writes and jobs; test_cluster.py has a part of that in each run."""
    try:
        folder = parts.pyspark()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}pyspark: {error}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # The archive of classes is made here, beyond the timeout of the first test.
    version = subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environ, capture_output=True, text=True,
                             check=True)
    assert version.stdout.strip() == parts.PYSPARK_VERSION
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp",
                               str(tmp_path / "base"), *(f"tests/pipeline/{one}" for one in TESTS)],
                              cwd=ROOT, env=environ, stdout=file, stderr=file, check=False)
    assert done.returncode == 0, f"the whole output is in {output}; its end:\n{output.read_text()[-6000:]}"
