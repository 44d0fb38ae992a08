"""A Spark session with streams in it: reads that stay at one snapshot, and what a read will cost.

All of it works with Spark Connect, too: the store is looked into where Spark runs, not where the client does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.pipeline.spark.errors import plainly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["builder_conf", "explain_read", "read", "read_stream", "register"]


def builder_conf() -> dict[str, str]:
    """What lets ``pushdown=true`` be asked for: ``SparkSession.builder.config(map=builder_conf())``.

    The option alone decides; ``broker.pipeline.spark.batch`` says why. What no setting can say: the environment variable
    PYSPARK_PYTHON names the interpreter of planner and workers, ``python3`` where it is not set.
    """
    return {"spark.sql.python.filterPushdown.enabled": "true"}


def register(spark: SparkSession) -> None:
    """Make the source ``jetblock`` and the SQL functions known to this session.

    The source needs it where jetblock is not installed and a zip brings it (``spark-submit --py-files``,
    ``sc.addPyFile``, ``spark.addArtifacts(zip, pyfile=True)``): Spark looks for sources among what is installed. With Spark
    Connect, following a stream needs more: jetblock, or the zip, on the server's PYTHONPATH.
    """
    from broker.pipeline.spark.functions import register_functions
    from broker.pipeline.spark.source import JetblockSource

    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        _lay_out_for_streams()
    spark.dataSource.register(JetblockSource)
    register_functions(spark)


def _lay_out_for_streams() -> None:
    """Put the zip that this module comes from, if it is one of Spark's, where Spark's planner for streams looks for it.

    That is a subdirectory of the driver's files in which Spark 4.3 puts nothing, and a streaming query would end with
    "No module named 'broker'".
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
    """``spark.read.format("jetblock")`` with these options, at the snapshot of this call.

    Spark plans a DataFrame anew for each that is derived from it, so that two counts may differ while a broker runs;
    here ``asOf`` is set to the log's position now, unless it is given. What is deleted later goes missing all the same.
    Args: options by their names (``store=…, stream=…, subjects=[…], startTime=datetime(…)``); schema names columns.
    """
    given = _texts(options)
    if "asof" not in given and given.get("view", "messages") not in ("streams", "consumers"):
        given["asof"] = _ask(spark, "position", given)
    reader = spark.read.format("jetblock").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(spark: SparkSession, *, schema: StructType | str | None = None, **options: Any) -> DataFrame:
    """``spark.readStream.format("jetblock")`` with these options.

    ``startingOffsets="latest"`` begins after what is there at this call, and not when the query comes to start.
    """
    given = _texts(options)
    if given.get("startingoffsets", "").strip().lower() == "latest":
        given["startingoffsets"] = _ask(spark, "latest", given)
    reader = spark.readStream.format("jetblock").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def explain_read(spark: SparkSession, **options: Any) -> dict[str, Any]:
    """How many blocks, messages and bytes a query with these options will read, as ``query.forecast`` says it."""
    return dict(json.loads(_ask(spark, "forecast", _texts(options))))


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark has them: lower case, text."""
    return {name.lower(): _text(value) for name, value in options.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(value) if isinstance(value, (list, tuple, set, frozenset)) else str(value)


def _ask(spark: SparkSession, what: str, given: dict[str, str]) -> str:
    """Put a question about the store to one task."""
    from pyspark.sql.functions import lit, udf

    # Without Arrow, which would want pandas.
    answer = udf(_ANSWERS[what], "string", useArrow=False)
    row = spark.range(1).select(answer(lit(json.dumps(given)))).head()
    assert row is not None
    return str(row[0])


# What follows runs in a task.


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
