"""The place that a job writes to: its URL, the lock on it, and the record of the options of its first run.

    TARGET/                  rows, in files that other programs read
    TARGET/_jetblock/        the job's own files; Spark, DuckDB and pyarrow skip names with an underscore
        lock                 locked while a job runs, if TARGET is a local directory
        options/             the options of the first run, as one line of JSON
        checkpoint/          Spark's checkpoint of a streaming job

The kernel releases a lock when its process ends, even by SIGKILL. So a lock never has to be removed by hand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from broker.pipeline.errors import BadOption, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Target"]

_OPTIONS = "options"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


class Target:
    """A directory of any file system that Spark writes to. A path without a scheme is a local directory."""

    def __init__(self, place: str) -> None:
        if not place:
            raise BadOption("the target is empty: name a directory, or a URL that Spark can write to")
        local = _local(place)
        self.url = local.as_uri() if local is not None else place.rstrip("/")
        self.own = f"{self.url}/_jetblock"
        self.local = local
        """The directory, if it is on this machine."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the target's lock. Raises: PipelineError if another process of this machine holds it."""
        if self.local is not None:
            place = self.local / "_jetblock" / "lock"
        else:
            # Other machines do not see this lock. Spark's checkpoint refuses their second run of a batch.
            name = hashlib.sha256(self.url.encode()).hexdigest()[:32]
            place = Path(tempfile.gettempdir(), f"jetblock-{os.getuid()}-{name}.lock")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise PipelineError(f"{self.url}: another job writes there now; wait for its end, or choose "
                                        "another target") from None
                yield
        except OSError as error:
            raise PipelineError(f"{place}: {error.strerror}") from None

    def checkpoint(self) -> str:
        """Return the URL of Spark's checkpoint, ready to be used again.

        Spark writes the offsets of a batch to a hidden file, and renames it. If it was killed in between in the first
        batch, it would refuse the checkpoint for that file. On other file systems than this machine's, it still does.
        """
        if self.local is not None:
            offsets = self.local / "_jetblock" / "checkpoint" / "offsets"
            if offsets.is_dir() and not any(name.isdigit() for name in os.listdir(offsets)):
                shutil.rmtree(offsets)
        return f"{self.own}/checkpoint"

    def recorded(self, spark: SparkSession, name: str = _OPTIONS) -> dict[str, Any] | None:
        """Return a record of an earlier run, by default the options of the first one; None if there is no record.

        The jobs that Spark carries out ask for it first. Raises: BadOption for a session of Spark Connect.
        """
        from pyspark.errors import AnalysisException

        if "connect" in type(spark).__module__:
            # Files, locks and callbacks of a job would be on two machines.
            raise BadOption("jobs do not run through Spark Connect: run `jetblock pipeline` with --master on a machine "
                            "that reaches the cluster, or call the function in a session without Connect")
        try:
            rows = spark.read.text(f"{self.own}/{name}").collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        # A run that was killed before it recorded them leaves a folder without rows.
        return dict(json.loads(rows[0][0])) if rows else None

    def record(self, spark: SparkSession, values: Mapping[str, Any], name: str = _OPTIONS) -> None:
        """Write a record for later runs."""
        spark.createDataFrame([(json.dumps(values),)], "value STRING").coalesce(1).write.mode("overwrite").text(
            f"{self.own}/{name}")

    def check_unused(self, spark: SparkSession, names: str) -> None:
        """Check that a target without a record has no files that the job would overwrite. Raises: BadOption.

        Args: names is a pattern of the names that the job writes.
        """
        from pyspark.errors import AnalysisException

        try:
            spark.read.format("binaryFile").load(f"{self.url}/{names}")
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return
            raise
        raise BadOption(f"{self.url} has files that this job would overwrite, and no folder _jetblock that explains "
                        "them: empty it, or choose another target")

    def agree(self, spark: SparkSession, recorded: Mapping[str, Any] | None, options: Mapping[str, Any]
              ) -> Mapping[str, Any]:
        """Return the options of the first run; record ``options`` if this is the first one.

        Args: recorded is the result of ``recorded``. A value of None in ``options`` agrees with any recorded value.
        Raises: BadOption for a value that differs from the recorded one.
        """
        if recorded is None:
            self.record(spark, options)
            return options
        for name, value in options.items():
            if value is not None and value != recorded.get(name):
                raise BadOption(f"{self.url} was begun with {name}={_shown(recorded.get(name))}, not "
                                f"{_shown(value)}: use that value, or another target")
        return recorded


def _local(place: str) -> Path | None:
    if not _SCHEME.match(place):
        return Path(os.path.abspath(place))
    parts = urlsplit(place)
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path))
    return None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
