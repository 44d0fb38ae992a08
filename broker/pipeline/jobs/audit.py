"""The job ``audit``: gaps, repeated message IDs, clock steps, sizes and rates of one stream, from one snapshot.

    TARGET/gaps             ranges of sequences without a message
    TARGET/duplicates       message IDs that several messages have
    TARGET/clock_steps      messages that share one time, although the broker read its clock several times
    TARGET/sizes, rates     histograms: payloads by powers of two, messages by time
    TARGET/audit.html       the same as one page, with the longest lists cut

The tables are Parquet. A second run replaces all of them.

A stream never stores an earlier time than its last one. If the broker's clock is set back, messages get the last time
until the clock has caught up. Staged messages with earlier times get it, too. So a clock step shows as one time in
several blocks. Compaction joins blocks; therefore very many messages of one time count as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.jobs.audit_page import audit_page
from broker.pipeline.jobs.failures import plain_failures
from broker.pipeline.jobs.target import Target
from broker.pipeline.spark.functions import header
from broker.pipeline.spark.session import explain_read, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TABLES", "Audited", "audit"]

_COLUMNS: Final = "seq LONG, ts_ns LONG, headers BINARY, data BINARY, block STRING"
TABLES: Final = ("gaps", "duplicates", "clock_steps", "sizes", "rates")
_ORDER: Final = {"gaps": "missing DESC, first_seq", "duplicates": "messages DESC, first_seq",
                 "clock_steps": "held_ns DESC, first_seq", "sizes": "from_bytes", "rates": "from_time"}
"""The order of each table on the page."""
_LISTED: Final = 100
"""Rows of each list on the page; the histograms are shown whole."""
_CHUNK: Final = 1_000_000
"""Sequences that are compared in one task; the last message of each chunk is carried into the next one."""
_AT_ONE_TIME: Final = 5000
"""More messages of one time than any single read of the clock serves."""
_INTERVALS: Final = 200
_WIDTHS_S: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Widths of an interval of the rates; the first one that gives at most _INTERVALS of them."""
_STEPS: Final = 2 + len(TABLES)

Report = Callable[[int, int], object]
"""Receives the number of steps done, and their number in all."""


@dataclass(frozen=True)
class Audited:
    """The result of one run. missing: sequences in all gaps. held_ns: the longest clock step; 0 without one."""

    target: str
    page: str
    account: str
    stream: str
    messages: int
    bytes: int
    first_seq: int | None
    last_seq: int | None
    first_time_ns: int | None
    last_time_ns: int | None
    gaps: int
    missing: int
    duplicate_ids: int
    clock_steps: int
    held_ns: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@plain_failures()
def audit(spark: SparkSession, *, store: str, stream: str, to: str, account: str = "$G", page: str | None = None,
          report: Report | None = None) -> Audited:
    """Write the tables and the page of one stream.

    Args: to is a directory, or a URL that Spark writes to; page is a local file, by default ``audit.html`` in ``to``.
    Raises: PipelineError if the stream cannot be read or another job writes there; pyspark's errors if the target
        cannot be written.
    """
    began = time.monotonic()
    place = Target(to)
    if page is None and place.local is None:
        raise BadOption(f"the page is a local file, and {to} is not on this machine: name one with page")
    page_at = Path(page) if page is not None else Path(str(place.local), "audit.html")
    given = {"store": store, "stream": stream, "account": account}
    streams = explain_read(spark, **given)["streams"]
    if len(streams) != 1:
        raise BadOption(f"{stream!r} names {len(streams)} streams, whose sequences are separate: audit them one by one")
    show = report or (lambda done, of: None)
    with place.locked(), _times_in_micros(spark):
        recorded = place.recorded(spark)
        if recorded is None:
            place.check_unused(spark, "{" + ",".join(TABLES) + "}")
        place.agree(spark, recorded, {"job": "audit", **given})
        messages = _messages(read(spark, schema=_COLUMNS, **given)).persist()
        try:
            totals = messages.selectExpr("count(*) messages", "coalesce(sum(size), 0) bytes", "min(seq) first_seq",
                                         "max(seq) last_seq", "min(ts_ns) first_time_ns",
                                         "max(ts_ns) last_time_ns").collect()[0].asDict()
            show(1, _STEPS)
            tables = _tables(messages, totals, int(streams[0]["last_seq"]))
            for number, name in enumerate(TABLES, 2):
                tables[name].write.mode("overwrite").parquet(f"{place.url}/{name}")
                show(number, _STEPS)
        finally:
            messages.unpersist()
        written = {name: spark.read.parquet(f"{place.url}/{name}") for name in TABLES}
        [gaps] = written["gaps"].selectExpr("count(*) gaps", "coalesce(sum(missing), 0) missing").collect()
        [steps] = written["clock_steps"].selectExpr("count(*) clock_steps", "coalesce(max(held_ns), 0) held_ns"
                                                    ).collect()
        done = Audited(place.url, str(page_at), streams[0]["account"], streams[0]["stream"], **totals, **gaps.asDict(),
                       duplicate_ids=written["duplicates"].count(), **steps.asDict(),
                       seconds=round(time.monotonic() - began, 3))
        rows = {name: [row.asDict() for row in _shown(name, table).collect()] for name, table in written.items()}
        _write(page_at, audit_page(done.to_json(), rows, store, _LISTED))
        show(_STEPS, _STEPS)
        return done


def _messages(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select("seq", "ts_ns", header("headers", "Nats-Msg-Id").alias("msg_id"),
                       F.octet_length("data").cast("bigint").alias("size"), F.xxhash64("block").alias("block"))


def _tables(messages: DataFrame, totals: dict[str, Any], end_seq: int) -> dict[str, DataFrame]:
    """Return the tables. end_seq: the stream's last sequence, whose message may be removed."""
    compared = _with_previous(messages)
    gaps = compared.where("seq > previous.seq + 1").selectExpr(
        "previous.seq + 1 AS first_seq", "seq - 1 AS last_seq", "seq - previous.seq - 1 AS missing",
        f"{_time('previous.ts_ns')} AS time_before", f"{_time('ts_ns')} AS time_after")
    if totals["last_seq"] is not None and totals["last_seq"] < end_seq:
        gaps = gaps.union(messages.where(f"seq = {totals['last_seq']}").selectExpr(
            "seq + 1", f"CAST({end_seq} AS BIGINT)", f"{end_seq} - seq", _time("ts_ns"), "CAST(NULL AS TIMESTAMP)"))
    width_ns = _width_ns((totals["last_time_ns"] or 0) - (totals["first_time_ns"] or 0))
    return {
        "gaps": gaps,
        "duplicates": _duplicates(messages),
        "clock_steps": _clock_steps(messages, compared),
        # Not log2, which is not exact for powers of two.
        "sizes": messages.selectExpr("size", "if(size = 0, 0, shiftleft(1L, length(bin(size)) - 1)) AS from_bytes")
        .groupBy("from_bytes").agg(*_counts())
        .selectExpr("from_bytes", "if(from_bytes = 0, 1, 2 * from_bytes) AS to_bytes", "messages", "bytes"),
        "rates": messages.selectExpr("size", f"ts_ns div {width_ns} * {width_ns} AS from_ns")
        .groupBy("from_ns").agg(*_counts())
        .selectExpr(f"{_time('from_ns')} AS from_time", f"{width_ns // 10**9} AS seconds", "messages", "bytes"),
    }


def _with_previous(messages: DataFrame) -> DataFrame:
    """Add ``previous``, the sequence and time of the message before; NULL for the first one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rows = messages.select("seq", "ts_ns", F.expr(f"seq div {_CHUNK}").alias("chunk"))
    place = F.struct("seq", "ts_ns")
    before = F.lag(place).over(Window.partitionBy("chunk").orderBy("seq"))
    # One row for each chunk: few enough for one task.
    ends = rows.groupBy("chunk").agg(F.max(place).alias("end"))
    carried = ends.select("chunk", F.lag("end").over(Window.partitionBy(F.lit(0)).orderBy("chunk")).alias("carried"))
    return (rows.withColumn("before", before).join(F.broadcast(carried), "chunk")
            .select("seq", "ts_ns", F.coalesce("before", "carried").alias("previous")))


def _clock_steps(messages: DataFrame, compared: DataFrame) -> DataFrame:
    """Return the ranges of messages with one time, and how long it was until the next time: NULL for the last one."""
    from pyspark.sql import functions as F

    runs = (messages.groupBy("ts_ns").agg(F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                                          F.count("*").alias("messages"), F.min("block").alias("one"),
                                          F.max("block").alias("other"))
            .where(f"one != other OR messages > {_AT_ONE_TIME}"))
    following = compared.selectExpr("previous.seq AS last_seq", "ts_ns AS next_ns")
    return following.join(runs, "last_seq", "right").selectExpr(
        "first_seq", "last_seq", "messages", "next_ns - ts_ns AS held_ns", f"{_time('ts_ns')} AS time",
        f"{_time('next_ns')} AS next_time")


def _duplicates(messages: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    apart = F.col("ts_ns") - F.lag("ts_ns").over(Window.partitionBy("msg_id").orderBy("seq"))
    return (messages.where("msg_id IS NOT NULL").withColumn("apart_ns", F.abs(apart)).groupBy("msg_id")
            .agg(F.count("*").alias("messages"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                 F.min("apart_ns").alias("closest_ns"))
            .where("messages > 1"))


def _counts() -> tuple[Any, Any]:
    from pyspark.sql import functions as F

    return F.count("*").alias("messages"), F.sum("size").alias("bytes")


def _time(column: str) -> str:
    return f"timestamp_micros({column} div 1000)"


def _width_ns(span_ns: int) -> int:
    fitting = [width for width in _WIDTHS_S if width * 10**9 * _INTERVALS >= span_ns]
    return (fitting[0] if fitting else _WIDTHS_S[-1]) * 10**9


def _shown(name: str, table: DataFrame) -> DataFrame:
    ordered = table.selectExpr(*(f"CAST({column} AS STRING) AS {column}" if kind == "timestamp" else column
                                 for column, kind in table.dtypes))
    ordered = ordered.orderBy(*(_key(part) for part in _ORDER[name].split(", ")))
    return ordered if name in ("sizes", "rates") else ordered.limit(_LISTED)


def _key(part: str) -> Any:
    from pyspark.sql import functions as F

    name, _, direction = part.partition(" ")
    return F.col(name).desc() if direction else F.col(name)


@contextmanager
def _times_in_micros(spark: SparkSession) -> Iterator[None]:
    """Let Spark write times that every reader takes for UTC, and show them in UTC; by default it writes INT96."""
    wanted = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", "spark.sql.session.timeZone": "UTC"}
    kept = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in kept.items():
            if before is not None:
                spark.conf.set(name, before)


def _write(path: Path, text: str) -> None:
    """Write the page, whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, "utf-8")
        new.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror}") from None
    finally:
        new.unlink(missing_ok=True)
