"""The environment of a process that starts Spark in a test, so that its JVM costs half of its usual processor time.

A session in a test lives for seconds. Most of its processor time is needed to load and compile classes, so its JVM

    uses the first compiler only, and the simplest collector;
    maps the classes of Spark from an archive (class data sharing): 9 s of processor time instead of 16 for a short one.

Java writes such an archive when a program ends, for the JVM and the jars that the program used. ``spark_environ`` makes
it when it is first needed, by a session that touches what tests use, for 40 s of processor time. It is kept beside
the package pyspark; where Java cannot use it, Java ignores it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

from tests.real import parts

__all__ = ["spark_environ"]

ROOT = Path(__file__).resolve().parents[2]
TRAINING_SECONDS = 240
"""Below the timeout of a test with Spark, so that the first one can still start its session."""
OPTIONS = ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Dspark.ui.enabled=false "
           "-Dspark.ui.showConsoleProgress=false -Dspark.sql.shuffle.partitions=2 -Dspark.driver.host=127.0.0.1 "
           "-Dspark.driver.bindAddress=127.0.0.1")
"""Options of each JVM of a test. Spark reads its settings from such properties, too. Without ``-Xlog:disable`` Java
prints to standard output that it cannot use the archive."""


def spark_environ() -> dict[str, str]:
    """Return the variables of a process that starts Spark with this interpreter's package. Raises: PartMissing without
    Java."""
    home = parts.java()
    options = OPTIONS
    if (archive := _archive(home)).exists():
        options += f" -XX:SharedArchiveFile={archive}"
    return {"JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": options}


def _archive(home: Path) -> Path:
    """Return the archive for this Java and this Spark. It does not exist if Java cannot make one."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    release = home / "release"
    java = zlib.crc32(release.read_bytes() if release.exists() else bytes(home))
    archive = jars.parents[1] / f"pyspark-{java:08x}.jsa"
    with parts.only_one(f"jvm-{zlib.crc32(bytes(archive)):08x}"):
        if not archive.exists() or archive.stat().st_mtime < jars.stat().st_mtime:
            archive.unlink(missing_ok=True)
            _make(archive, home)
    return archive


def _make(archive: Path, home: Path) -> None:
    """Let Java write the archive. If it cannot, or the machine is too busy, tests do without."""
    new = archive.with_name(f"{archive.name}.{os.getpid()}")
    environ = {"JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
               "JDK_JAVA_OPTIONS": f"{OPTIONS} -XX:ArchiveClassesAtExit={new}"}
    training = subprocess.Popen([sys.executable, "-m", "tests.real.jvm"], cwd=ROOT, env={**os.environ, **environ},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        training.wait(TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(training.pid, signal.SIGKILL)  # its JVM, too
        training.wait()
        new.unlink(missing_ok=True)
    if new.exists():
        new.replace(archive)


def _train() -> None:
    """Use what tests use of Spark, so that the archive has its classes."""
    import tempfile

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    gateway = SparkContext._gateway
    assert gateway is not None
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(100).selectExpr("id", "concat('a.', id % 7) text", "timestamp_seconds(id) ts")
        rows.write.partitionBy("text").parquet(f"{folder}/rows")
        found = spark.read.parquet(f"{folder}/rows").groupBy("text").count().orderBy("text")
        found.select(udf(str.upper, "string", useArrow=False)("text")).collect()
        query = (spark.readStream.schema("id LONG").parquet(f"{folder}/rows").writeStream.format("parquet")
                 .option("path", f"{folder}/copy").option("checkpointLocation", f"{folder}/checkpoint")
                 .trigger(availableNow=True).start())
        query.awaitTermination()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # Java writes the archive now.


if __name__ == "__main__":
    _train()
