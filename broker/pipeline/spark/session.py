"""Helpers for a Spark session: reads pinned to one snapshot, and the cost of a read.

These helpers also work with Spark Connect: the store is accessed where Spark runs, not from the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.pipeline.plan.options import as_texts
from broker.pipeline.spark.errors import plainly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["builder_conf", "explain_read", "read", "read_stream", "register"]


def builder_conf() -> dict[str, str]:
    """Return settings for a session: ``SparkSession.builder.config(map=builder_conf())``.

    ``pushdown=true`` requires the first one. Only the option turns pushdown on; ``broker.pipeline.spark.batch`` says
    why. With the second one, rows pass between Spark's JVM and its Python workers through Unix sockets instead of TCP,
    which takes a fifth of a scan's processor time; Spark older than 4.1 ignores it. No setting names the interpreter of
    planner and workers: that is the environment variable PYSPARK_PYTHON, by default ``python3``.
    """
    return {"spark.sql.python.filterPushdown.enabled": "true", "spark.python.unix.domain.socket.enabled": "true"}


def register(spark: SparkSession) -> None:
    """Register the source ``jetblock`` and the SQL functions with this session.

    The source needs it if jetblock comes in a zip (``spark-submit --py-files``, ``sc.addPyFile``,
    ``spark.addArtifacts(zip, pyfile=True)``), since Spark discovers only installed sources. With Spark Connect,
    streaming also needs jetblock, or the zip, on the server's PYTHONPATH.
    """
    from broker.pipeline.spark.functions import register_functions
    from broker.pipeline.spark.source import JetblockSource

    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        _lay_out_for_streams()
    spark.dataSource.register(JetblockSource)
    register_functions(spark)


def _lay_out_for_streams() -> None:
    """Link the zip, if Spark brought this module in one, into the folder from which Spark's streaming planner imports.

    Spark 4.3 leaves this subdirectory of the driver's files empty. A streaming query would then end with "No module
    named 'broker'".
    """
    from pyspark import SparkFiles

    folder = Path(SparkFiles.getRootDirectory())
    for archive in Path(__file__).parents:
        if archive.parent == folder and archive.is_file():
            place = folder / "streaming_job" / archive.name
            place.parent.mkdir(exist_ok=True)
            if not place.exists():
                place.symlink_to(archive)


def read(spark: SparkSession, *, schema: StructType | str | None = None, **options: Any) -> DataFrame:
    """Return ``spark.read.format("jetblock")`` with these options, pinned to the time of this call.

    Spark plans a DataFrame again for each one derived from it, so two counts may differ while a broker runs. Therefore
    ``asOf`` is set to the current log position, unless it is given. Messages deleted later disappear nevertheless.
    Args: options by their names (``store=…, stream=…, subjects=[…], startTime=datetime(…)``); schema names columns.
    """
    given = as_texts(options)
    if "asof" not in given and given.get("view", "messages") not in ("streams", "consumers"):
        given["asof"] = _ask(spark, "position", given)
    reader = spark.read.format("jetblock").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(spark: SparkSession, *, schema: StructType | str | None = None, **options: Any) -> DataFrame:
    """Return ``spark.readStream.format("jetblock")`` with these options.

    ``startingOffsets="latest"`` means the end of the streams at this call, not when the query starts.
    """
    given = as_texts(options)
    if given.get("startingoffsets", "").strip().lower() == "latest":
        given["startingoffsets"] = _ask(spark, "latest", given)
    reader = spark.readStream.format("jetblock").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def explain_read(spark: SparkSession, **options: Any) -> dict[str, Any]:
    """Estimate the blocks, messages and bytes that a query with these options will read; see ``query.forecast``."""
    return dict(json.loads(_ask(spark, "forecast", as_texts(options))))


def _ask(spark: SparkSession, what: str, given: dict[str, str]) -> str:
    """Run one of ``_ANSWERS`` in a task, and return its answer about the store."""
    from pyspark.sql.functions import lit, udf

    # Arrow would require pandas.
    answer = udf(_ANSWERS[what], "string", useArrow=False)
    row = spark.range(1).select(answer(lit(json.dumps(given)))).head()
    assert row is not None
    return str(row[0])


# The functions below run in a task.


@plainly
def _position(given: str) -> str:
    from broker.pipeline.read.query import position

    return position(json.loads(given))


@plainly
def _latest(given: str) -> str:
    from broker.pipeline.plan.offsets import Offsets
    from broker.pipeline.plan.options import Options
    from broker.pipeline.plan.progress import Progress
    from broker.pipeline.store.objects import open_object_client

    options = Options.parse(json.loads(given), streaming=True)
    now = Progress(open_object_client(options.store), options).initial()
    return json.dumps(Offsets.of(now.streams).to_json())


@plainly
def _forecast(given: str) -> str:
    from broker.pipeline.read.query import forecast

    return json.dumps(forecast(json.loads(given)))


_ANSWERS: dict[str, Callable[[str], str]] = {"position": _position, "latest": _latest, "forecast": _forecast}
