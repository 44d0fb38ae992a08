"""The Spark session of a job that the command line starts, and the file that receives Spark's own log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.pipeline.errors import PipelineError
from broker.pipeline.spark.session import builder_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["log_file", "session"]

_CONF: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
                "spark.sql.session.timeZone": "UTC", **builder_conf()}

JVM_END_SECONDS: Final = 0.5


@contextmanager
def log_file(given: Path | None) -> Iterator[Path]:
    """Yield the file for Spark's log: the given one, or a temporary file that is removed unless the job fails."""
    if given is not None:
        yield given
        return
    handle, name = tempfile.mkstemp(prefix="jetblock-spark-", suffix=".log")
    os.close(handle)
    yield Path(name)
    with suppress(FileNotFoundError):
        os.unlink(name)


@contextmanager
def session(job: str, master: str, conf: Mapping[str, str], log: Path) -> Iterator[SparkSession]:
    """Yield a new session. Its JVM, its workers and pyspark write to ``log`` what they would write to standard error.

    Raises: PipelineError without Java, or if the JVM does not start, or ends while the session is used.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise PipelineError("Spark needs Java 17 or newer: install it, or set JAVA_HOME")
    # Workers must run this Python, not the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(f"jetblock {job}").config(map={**_CONF, **conf})
    try:
        with _standard_error_in(log):
            spark = builder.getOrCreate()
    except PySparkException as error:
        raise PipelineError(f"Spark does not start on {master}: {str(error).partition(chr(10))[0]}") from None
    # The JVM that ``getOrCreate`` started; an existing one may have been started by another program.
    jvm: subprocess.Popen[bytes] | None = getattr(spark.sparkContext._gateway, "proc", None)
    with open(log, "a", encoding="utf-8") as file, redirect_stderr(file):
        try:
            yield spark
        except Exception:
            if jvm is None or not _ends(jvm):
                raise
            # This ends pyspark's thread for accumulators, which would write a traceback below the caller's last line.
            spark.sparkContext._accumulatorServer.shutdown()
            raise PipelineError("Spark's JVM ended while the job ran: it was killed, perhaps for lack of memory, or it "
                                "failed; the same command continues the job") from None
        finally:
            if jvm is None or jvm.poll() is None:
                spark.stop()


def _ends(jvm: subprocess.Popen[bytes]) -> bool:
    """Return whether the JVM has ended. Its sockets may be closed a moment earlier."""
    try:
        jvm.wait(JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Let processes that are started meanwhile inherit ``log`` as their standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
