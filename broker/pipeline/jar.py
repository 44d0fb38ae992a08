"""The jar with ``jetblock.spark.JetblockSource``, for ``spark-submit --jars``, compiled for the installed Spark.

It uses classes of Spark that are public but not a stable API, so it is compiled against the Spark that will run it: an
incompatible version fails here, at once. Compiling needs a JDK (``javac``); running the jar does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from broker.pipeline.errors import PipelineError

__all__ = ["NAME", "write_jar"]

NAME = "jetblock"
"""The Python source's name. Spark prefers the class of that name, so queries need no change."""

_SOURCE = Path(__file__).parent / "spark" / "jvm" / "JetblockSource.java"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_RELEASE = "17"
"""The oldest Java that Spark 4 runs on."""
_SECONDS = 300
_TIME = (1980, 1, 1, 0, 0, 0)


def write_jar(out: IO[bytes], name: str = NAME) -> str:
    """Compile and write the jar; return the version of Spark for which it was compiled.

    Args: name is the source's name in queries; under a name other than the Python source's, both can be used.
    Raises: PipelineError without a JDK or Spark, or with the compiler's output.
    """
    if not name.isidentifier():
        raise PipelineError(f"{name!r} is no name for a source: letters, digits and _ are")
    jars = _spark_jars()
    with tempfile.TemporaryDirectory(prefix="jetblock-jar-") as place:
        classes, source = Path(place, "classes"), Path(place, _SOURCE.name)
        text = _SOURCE.read_text()
        source.write_text(text.replace(f'SHORT_NAME = "{NAME}"', f'SHORT_NAME = "{name}"'))
        command = [_javac(), "-proc:none", "-nowarn", "-encoding", "UTF-8", "--release", _RELEASE, "-cp", f"{jars}/*",
                   "-d", str(classes), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PipelineError(f"{command[0]} cannot compile: {error}") from None
        if done.returncode:
            raise PipelineError(f"{_SOURCE.name} does not compile with the jars of {jars}; without a jar the source "
                                f"works as before, with all columns and pushdown=true for single "
                                f"scans:\n{done.stderr[-2000:]}")
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _TIME), "Manifest-Version: 1.0\n")
            archive.writestr(zipfile.ZipInfo(_SERVICE, _TIME), "jetblock.spark.JetblockSource\n")
            for path in sorted(classes.rglob("*.class")):
                archive.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _TIME), path.read_bytes())
    return _version(jars)


def _javac() -> str:
    home = os.environ.get("JAVA_HOME")
    beside = Path(home, "bin", "javac") if home else None
    found = str(beside) if beside is not None and beside.is_file() else shutil.which("javac")
    if found is None:
        raise PipelineError(f"no javac on PATH or below JAVA_HOME: the jar is compiled by a JDK of Java {_RELEASE} or "
                            f"newer (a JRE is enough to run it)")
    return found


def _spark_jars() -> Path:
    home = os.environ.get("SPARK_HOME")
    spec = find_spec("pyspark")
    places = [Path(home)] if home else []
    places += [Path(place) for place in spec.submodule_search_locations or ()] if spec is not None else []
    for place in places:
        if any((place / "jars").glob("spark-sql_*.jar")):
            return place / "jars"
    raise PipelineError("no Spark here: install pyspark, or set SPARK_HOME to the Spark that will run the jar")


def _version(jars: Path) -> str:
    [jar, *_] = jars.glob("spark-sql_*.jar")
    return jar.stem.rpartition("-")[2]
