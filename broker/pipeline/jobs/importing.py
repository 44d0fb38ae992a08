"""The job ``import``: publishes the rows of a table to a stream, and continues where its last run ended.

A run is a streaming query with the trigger ``availableNow``, if Spark can follow the source; otherwise it is one batch.
Each batch is one write of the sink, under a writer's name that the first run draws. The stream remembers the last batch
of each writer, so a batch that is repeated after a kill is stored once.

    STATE/_jetblock/options       the source, the stream and the writer's name
    STATE/_jetblock/checkpoint/   Spark's record of the files, or offsets, of each batch
    STATE/_jetblock/imported/     exists after the whole import of a source that Spark cannot follow
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.errors import BadOption
from broker.pipeline.jobs.failures import plain_failures
from broker.pipeline.jobs.mapping import Shaped, shaped
from broker.pipeline.jobs.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TABLE", "Imported", "import_messages", "load_rows"]

TABLE: Final = "table"
"""The format of a source that is the name of a table."""
_FILES: Final = ("parquet", "json", "csv", "orc", "avro", "text", "xml")
_MAX_BYTES: Final = str(512 << 20)
"""Bytes of files in one batch, about. A run that is interrupted repeats one batch at most."""
_NEVER_TOO_OLD: Final = "36500d"
"""By default, Spark ignores new files that are a week older than the newest one."""
_DONE: Final = "imported"
_INFERENCE: Final = "spark.sql.streaming.schemaInference"

Report = Callable[[int, int], object]
"""Receives the number of rows done; the total is not known and 0."""


@dataclass(frozen=True)
class Imported:
    """The result of one run. rows: rows of its batches; the stream drops those whose message IDs it knows."""

    account: str
    stream: str
    source: str
    format: str
    batches: int
    rows: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@plain_failures()
def import_messages(spark: SparkSession, *, store: str, stream: str, source: str, state: str, format: str = "parquet",
                    account: str = "$G", columns: Mapping[str, str] | None = None, order_by: str | Iterable[str] = (),
                    schema: str | None = None, read_options: Mapping[str, str] | None = None,
                    report: Report | None = None, **sink: Any) -> Imported:
    """Publish the rows of a table that earlier runs did not publish, each exactly once.

    Args:
        source: directory or URL, or what else ``format`` loads; with the format ``table``, the name of a table.
        state: directory for the job's own files. The next run with it continues; one with another begins anew.
        columns: SQL expressions by a message's column: ``subject``, ``data``, ``headers``, ``msg_id``, ``ts``,
            ``ts_ns``. By default the columns with these names, or those of a table of Kafka's.
        order_by: SQL expressions; rows of one batch are published in this order. By default that of Kafka's timestamps,
            of sequences, or of ``ts``; rows that compare equal keep the order in which their files have them.
        schema: the columns of files, as Spark's DDL; inferred by each run unless given.
        read_options: options of Spark's reader.
        sink: options of the sink by their names (``nats``, ``times``, ``createStream``, …).
    Raises: PipelineError if the source or stream differs from that of the first run, if another import with this state
        runs, or if rows cannot be stored; pyspark's errors if the source cannot be read.
    """
    from broker.pipeline.write.options import WriteOptions

    began = time.monotonic()
    place = Target(state)
    wanted = {"store": store, "stream": stream, "account": account}
    with place.locked():
        recorded = place.recorded(spark)
        writer = (recorded or {}).get("writer") or f"import {uuid.uuid4()}"
        options = {**{name: str(value) for name, value in sink.items()}, **wanted, "txnAppId": writer}
        WriteOptions.parse({**options, "txnVersion": "0"})
        rows, follows = _opened(spark, source, format, dict(read_options or {}), schema)
        messages = shaped(rows, columns or {}, [order_by] if isinstance(order_by, str) else list(order_by),
                          of_files=format in _FILES)
        place.agree(spark, recorded, {"job": "import", **wanted, "source": source, "format": format, "writer": writer,
                                      "follows": follows})
        batches = _Batches(messages, options, report)
        if follows:
            query = (messages.rows.writeStream.queryName("jetblock import").trigger(availableNow=True)
                     .option("checkpointLocation", place.checkpoint()).foreachBatch(batches.write).start())
            try:
                query.awaitTermination()
            finally:
                query.stop()
        elif place.recorded(spark, _DONE) is not None:
            raise BadOption(f"{source} was imported with the state {place.url}, and Spark cannot tell which of its "
                            "rows are new: a run with another state stores all of them again")
        else:
            batches.write(messages.rows, 0)
            place.record(spark, {"rows": batches.rows}, _DONE)
        return Imported(account, stream, source, format, batches.count, batches.rows,
                        round(time.monotonic() - began, 3))


class _Batches:
    """Writes batches to the stream, and counts them."""

    def __init__(self, messages: Shaped, options: Mapping[str, str], report: Report | None) -> None:
        self._messages = messages
        self._options = options
        self._report = report
        self.count = 0
        self.rows = 0

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch, unless the stream has the one with this number."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        counted = Observation()
        (self._messages.in_order(batch).observe(counted, F.count(F.lit(1)).alias("rows"))
         .write.format("jetblock").mode("append").options(**self._options, txnVersion=number).save())
        self.count += 1
        self.rows += counted.get["rows"]
        if self._report is not None:
            self._report(self.rows, 0)


def _opened(spark: SparkSession, source: str, format: str, options: dict[str, str], schema: str | None
            ) -> tuple[DataFrame, bool]:
    """Return the rows of the source, and whether they are those of a streaming query."""
    if format in _FILES:
        if (file := Path(source)).is_file():  # A streaming query follows directories only.
            source = str(file.parent)
            options["pathGlobFilter"] = re.sub(r"([][{}*?\\])", r"\\\1", file.name)
        options.setdefault("maxFileAge", _NEVER_TOO_OLD)
        if not any(name.lower() in ("maxfilespertrigger", "maxbytespertrigger") for name in options):
            options["maxBytesPerTrigger"] = _MAX_BYTES
    kept = spark.conf.get(_INFERENCE)
    spark.conf.set(_INFERENCE, "true")
    try:
        return load_rows(spark.readStream, source, format, options, schema), True
    except Exception as error:  # Spark has several errors for a source that it cannot follow, without a common base.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        # If the source cannot be read at all, the error is raised here.
        return load_rows(spark.read, source, format, options, schema), False
    finally:
        if kept is not None:
            spark.conf.set(_INFERENCE, kept)


def load_rows(reader: Any, source: str, format: str, options: Mapping[str, str], schema: str | None) -> DataFrame:
    """Return the rows of a table, or of what else ``format`` loads."""
    if schema is not None:
        reader = reader.schema(schema)
    if format == TABLE:
        rows: DataFrame = reader.options(**options).table(source)
    else:
        rows = reader.format(format).options(**options).load(*([source] if source else []))
    return rows
