"""The Spark session that a command starts for its job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness import ROOT

KILLED = """
import os, signal, socketserver, sys, time
from pathlib import Path

from broker.pipeline.errors import PipelineError
from broker.pipeline.jobs.session import session

written = socketserver.BaseServer.handle_error


def written_late(*given):
    time.sleep(0.3)
    written(*given)


socketserver.BaseServer.handle_error = written_late
try:
    with session("test", "local[1]", {}, Path(sys.argv[1])) as spark:
        context = spark.sparkContext
        total = context.accumulator(0)
        context.parallelize(range(10), 1).foreach(lambda number: total.add(number))
        assert total.value == 45
        os.kill(context._gateway.proc.pid, signal.SIGKILL)
        spark.range(3).count()
except PipelineError as error:
    print(error, file=sys.stderr)
time.sleep(1)
"""
"""A job whose JVM is killed while pyspark's thread for accumulators is connected to it. That thread writes a traceback,
here a moment late."""


@pytest.mark.soak
def test_a_killed_jvm_is_one_line(spark_environ: Mapping[str, str], tmp_path: Path) -> None:
    """The error of a killed JVM is the last line on standard error; pyspark's tracebacks are in the log only."""
    job = subprocess.run([sys.executable, "-c", KILLED, f"{tmp_path}/log"], cwd=ROOT, capture_output=True, text=True,
                         env={**os.environ, **spark_environ}, timeout=200, check=False)
    assert job.returncode == 0, job.stderr
    assert job.stderr.splitlines()[-1].startswith("Spark's JVM ended while the job ran")
    assert "EOFError" in (tmp_path / "log").read_text()
