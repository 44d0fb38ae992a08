"""The job ``export``: copies a stream to Parquet, Delta or Iceberg, and continues where its last run ended.

A run is a streaming query with the trigger ``availableNow``. Each batch is written whole:

    parquet   to TARGET/batch=NNNNNNNN/, which a repeated batch replaces. Every reader of Parquet then sees each
              message once. Spark's own streaming sink leaves files of failed attempts, which only Spark ignores.
    others    by the format's own streaming sink, which ignores a repeated batch

If the target of ``parquet`` is a local directory, and payloads stay bytes, the tasks write the files themselves
(``spark.files``), below TARGET/_jetblock/written. The driver then moves those of a batch to their place. Otherwise
Spark writes the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.errors import BadOption
from broker.pipeline.jobs.failures import plain_failures
from broker.pipeline.jobs.payloads import inferred_schema, parsed_schema, with_json_columns
from broker.pipeline.jobs.target import Target
from broker.pipeline.spark.session import explain_read, read_stream
from broker.pipeline.write.parquet_names import CODECS, DAY, TOKEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["FORMATS", "PAYLOADS", "Exported", "export"]

FORMATS: Final = ("parquet", "delta", "iceberg")
PAYLOADS: Final = ("bytes", "json")
_COLUMNS: Final = "seq LONG, subject STRING, ts TIMESTAMP, headers BINARY, data BINARY"
_BATCH: Final = "batch"
_WRITTEN: Final = "written"
"""The name under which Spark reports the number of messages in the files of a batch."""
_POLL_SECONDS: Final = 1
_MAX_BYTES: Final = "2g"
"""Bytes of messages in one batch, about. A run that is interrupted repeats one batch at most."""

Report = Callable[[int, int], object]
"""Receives the number of sequences done, and their number in all."""


@dataclass(frozen=True)
class Exported:
    """The result of one run. next_seq: by ``ACCOUNT/STREAM``, where the next run begins."""

    target: str
    format: str
    batches: int
    messages: int
    seconds: float
    next_seq: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@plain_failures()
def export(spark: SparkSession, *, store: str, stream: str, to: str, format: str = "parquet", account: str = "$G",
           subjects: str | Iterable[str] = (), partition_by: str | Iterable[str] = (DAY,), payload: str = "bytes",
           schema: str | StructType | None = None, state: str | None = None,
           max_bytes_per_trigger: str | int = _MAX_BYTES, fail_on_data_loss: bool = True,
           report: Report | None = None) -> Exported:
    """Copy the messages of a stream that earlier runs did not copy, each exactly once.

    Args:
        to: directory, or URL that Spark writes to; for ``iceberg``, the name of a table.
        subjects: NATS subjects; one must match.
        partition_by: ``day`` (UTC) and ``token1``, ``token2``, … (of the subject), in the order of the directories.
        payload: ``bytes``, or ``json``: a column for each field.
        schema: the fields of JSON payloads as Spark's DDL; inferred by the first run unless given.
        state: directory for the job's own files; by default below ``to``. A table has no directory, so it needs one.
    Raises: PipelineError if the options differ from those of the first run, if another job writes there, or if the
        stream cannot be read; pyspark's errors if the target cannot be written.
    """
    columns = _partition_columns(partition_by)
    _check(format, payload, schema, state)
    source = {"store": store, "stream": stream, "account": account,
              "subjects": subjects if isinstance(subjects, str) else ",".join(subjects)}
    selected = {name: text for name, text in source.items() if text}
    explain_read(spark, **selected)  # A missing stream or a wrong option fails here, and leaves nothing at the target.
    rows_at = to if format == "iceberg" else Target(to).url
    place = Target(state or to)
    with place.locked():
        fields = parsed_schema(schema) if isinstance(schema, str) else schema
        recorded = place.recorded(spark)
        if recorded is None:
            if format == "parquet":
                Target(to).check_unused(spark, f"{_BATCH}=*")
            if payload == "json" and fields is None:
                fields = inferred_schema(spark, spark.read.format("jetblock").options(**selected)
                                         .schema("data BINARY").load())
        chosen = place.agree(spark, recorded, {
            "job": "export", **source, "to": rows_at, "format": format, "partition_by": columns, "payload": payload,
            "schema": None if fields is None else fields.json()})
        reading = {**selected, "maxBytesPerTrigger": max_bytes_per_trigger, "failOnDataLoss": fail_on_data_loss,
                   "startingOffsets": "earliest"}
        codec = spark.conf.get("spark.sql.parquet.compression.codec") or ""
        local = Target(to).local if format == "parquet" and payload == "bytes" and codec in CODECS else None
        began = time.monotonic()
        if local is not None:
            with _written_files(local) as folder:
                query = _started_with_files(spark, reading, local, folder, columns, CODECS[codec],
                                            place.checkpoint())
                batches, messages, next_seq = _followed(query, report)
        else:
            rows = read_stream(spark, schema=_COLUMNS, **reading)
            if payload == "json":
                rows = with_json_columns(rows, _schema_of(chosen["schema"]), (*columns, _BATCH))
            query = _started(rows.withColumns({name: _partition_value(name) for name in columns}), format, rows_at,
                             columns, place.checkpoint())
            batches, messages, next_seq = _followed(query, report)
        return Exported(rows_at, format, batches, messages, round(time.monotonic() - began, 3), next_seq)


def _check(format: str, payload: str, schema: object, state: str | None) -> None:
    if format not in FORMATS:
        raise BadOption(f"format {format!r} is none of {', '.join(FORMATS)}")
    if payload not in PAYLOADS:
        raise BadOption(f"payload {payload!r} is none of {', '.join(PAYLOADS)}")
    if schema is not None and payload != "json":
        raise BadOption("a schema is for JSON payloads: leave it out, or set payload to json")
    if format == "iceberg" and state is None:
        raise BadOption("a table has no directory for the job's own files: name one with state")


def _partition_columns(given: str | Iterable[str]) -> list[str]:
    """Return the names of the partition columns. Raises: BadOption."""
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given) if name.strip()]
    for name in names:
        number = name.removeprefix(TOKEN)
        if name != DAY and not (number != name and number.isdecimal() and number.isascii() and number[0] != "0"):
            raise BadOption(f"partition {name!r} is neither {DAY} nor {TOKEN}1, {TOKEN}2, … for a subject's tokens")
    if len(set(names)) < len(names):
        raise BadOption(f"partition {','.join(names)}: a column is named twice")
    return names


def _partition_value(name: str) -> Column:
    from pyspark.sql import functions as F

    if name == DAY:
        # Not to_date(ts), which depends on the session's time zone.
        return F.expr("date_from_unix_date(CAST(floor(unix_micros(ts) / 86400000000D) AS INT))")
    return F.try_element_at(F.split("subject", "[.]", -1), F.lit(int(name.removeprefix(TOKEN))))


def _schema_of(recorded: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(recorded))


def _started(rows: DataFrame, format: str, to: str, columns: list[str], checkpoint: str) -> StreamingQuery:
    """Start the query that copies everything that is in the streams now."""
    writer = _copying(rows, checkpoint)
    if format == "parquet":
        def write(batch: DataFrame, number: int) -> None:
            # By default, Spark writes INT96, which other readers take for local times.
            batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            batch.write.mode("overwrite").partitionBy(*columns).parquet(f"{to}/{_BATCH}={number:08d}")

        return writer.foreachBatch(write).start()
    writer = writer.format(format).partitionBy(*columns)
    if format == "iceberg":
        return writer.option("fanout-enabled", "true").toTable(to)
    return writer.start(to)


def _copying(rows: DataFrame, checkpoint: str) -> DataStreamWriter:
    return rows.writeStream.queryName("jetblock export").trigger(availableNow=True).option("checkpointLocation",
                                                                                           checkpoint)


@contextmanager
def _written_files(target: Path) -> Iterator[Path]:
    """Yield the folder for the files of tasks; it is removed at the end, with files that a killed run left there."""
    written = target / "_jetblock" / "written"
    shutil.rmtree(written, ignore_errors=True)
    try:
        yield written / str(uuid.uuid4())
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _started_with_files(spark: SparkSession, reading: Mapping[str, Any], target: Path, folder: Path,
                        columns: list[str], codec: str | None, checkpoint: str) -> StreamingQuery:
    """Start the query whose tasks write files."""
    from pyspark.sql import functions as F

    from broker.pipeline.spark.files import written_files

    def publish(batch: DataFrame, number: int) -> None:
        name = f"{_BATCH}={number:08d}"
        for path in [row[0] for row in batch.select("path").collect()]:
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder / path, place)
        shutil.rmtree(target / name, ignore_errors=True)
        if (folder / name).is_dir():
            os.rename(folder / name, target / name)

    files = written_files(spark, folder, columns, codec, **reading)
    return _copying(files.observe(_WRITTEN, F.sum("messages").alias("messages")), checkpoint).foreachBatch(
        publish).start()


def _followed(query: StreamingQuery, report: Report | None) -> tuple[int, int, dict[str, int]]:
    """Wait for the end of a query; return its batches, messages, and the next sequence by stream."""
    done: dict[int, Mapping[str, Any]] = {}
    began: dict[str, int] | None = None
    try:
        while True:
            ended = query.awaitTermination(_POLL_SECONDS)
            for progress in query.recentProgress:
                done.setdefault(progress["batchId"], progress)
            if done and report is not None:
                source = done[max(done)]["sources"][0]
                if began is None:
                    began = _places(done[min(done)]["sources"][0]["startOffset"])
                now, latest = _places(source["endOffset"]), _places(source["latestOffset"])
                report(*(sum(places.get(name, 0) - began.get(name, 1) for name in places) for places in (now, latest)))
            if ended:
                break
    finally:
        query.stop()
    batches = [one for _, one in sorted(done.items()) if one["numInputRows"]]
    end = _places(batches[-1]["sources"][0]["endOffset"]) if batches else {}
    return len(batches), sum(map(_messages, batches)), end


def _messages(progress: Mapping[str, Any]) -> int:
    written = progress["observedMetrics"].get(_WRITTEN)
    return int(progress["numInputRows"] if written is None else written["messages"] or 0)


def _places(offset: str | None) -> dict[str, int]:
    value = (json.loads(offset) if offset else None) or {}
    return {name: place["next"] for name, place in value.get("streams", {}).items()}


