"""Queries on one stream as blocks and as Parquet, in one Spark session: wall and CPU seconds, as one JSON line.

    python -m bench.spark_driver STORE PARQUET_DIR [--repeat N] [--scan-only] [--nats PORT]

``load.py events`` publishes the stream. The form READY is a Python source that has nothing to do
(``bench.spark_floor``). CPU seconds are those of the JVM and of all Python processes below it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.spark_floor import ready_batches
from jetblock.spark import builder_conf

STREAM = "BENCH"
READY = "ready batches"
NATS_MESSAGES = 300_000
"""Number of messages read through the server: enough for a rate, and they fit into memory."""


def cpu_seconds() -> float:
    """Return user and system time of this process and all its descendants, including ended ones."""
    tick = os.sysconf("SC_CLK_TCK")
    rows: dict[int, tuple[int, float]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        rows[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    below, total = {os.getpid()}, 0.0
    while more := {pid for pid, (parent, _) in rows.items() if parent in below} - below:
        below |= more
    for pid in below:
        total += rows[pid][1]
    return total


def measure(work: Callable[[], Any], repeat: int) -> dict[str, Any]:
    """Return the run with the least wall time, with its answer, so that results can be compared."""
    best: dict[str, Any] = {}
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), cpu_seconds()
        answer = work()
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        if not best or wall < best["wall"]:
            best = {"wall": wall, "cpu": cpu, "answer": answer}
    return best


def measure_in_turns(works: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, dict[str, Any]]:
    """Measure each work ``repeat`` times, in turns: the first ones run before the JVM has compiled what they need."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(repeat):
        for name, work in works.items():
            one = measure(work, 1)
            if name not in best or one["wall"] < best[name]["wall"]:
                best[name] = one
    return best


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def queries(messages: DataFrame, middle: tuple[Any, Any], load: Callable[[], DataFrame]
            ) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the queries, which are the same for each form of the data. load: ``messages`` loaded for a single scan,
    with filters pushed down."""
    start, end = middle

    def filtered(condition: str) -> Callable[[], Any]:
        return lambda: noop(load().where(condition))

    yield "count", lambda: messages.count()
    yield "subject prefix, 0.1 %", filtered("subject LIKE 'bench.alarm.%'")
    yield "subject prefix, 25 %", filtered("subject LIKE 'bench.orders.eu.%'")
    yield "one subject", filtered("subject = 'bench.orders.eu.17'")
    some = ", ".join(f"'bench.orders.eu.{i}'" for i in range(10, 38))
    yield "subjects, 7 %", filtered(f"subject IN ({some})")
    yield "time range, 10 %", filtered(f"ts >= TIMESTAMP'{start}' AND ts < TIMESTAMP'{end}'")


LAST = "SELECT count(*), sum(seq) FROM (SELECT subject, max(seq) AS seq FROM {} GROUP BY subject)"


def blocks_and_parquet(spark: SparkSession, store: str, parquet: pathlib.Path, repeat: int, scan_only: bool
                       ) -> dict[str, dict[str, Any]]:
    """Run all queries on both forms; return {form: {query: {wall, cpu, answer}}}."""
    def blocks(**options: str) -> Any:
        return spark.read.format("jetblock").options(store=store, stream=STREAM, **options)

    # Warm-up: the JVM compiles, Python workers start. Each form is then read several times.
    forms = {"jetblock": blocks().load()}
    for codec in ("zstd", "snappy"):
        path = str(parquet / codec)
        forms["jetblock"].write.option("compression", codec).parquet(path)
        forms[f"parquet {codec}"] = spark.read.parquet(path)
    forms[READY] = ready_batches(spark, store, STREAM, parquet / "ready")
    scans = measure_in_turns({form: partial(noop, df) for form, df in forms.items()}, repeat)
    got = {form: {"full scan to noop": scan} for form, scan in scans.items()}
    if scan_only:
        return got
    first, last = forms["parquet zstd"].selectExpr("min(ts)", "max(ts)").first()  # type: ignore[misc]
    span = last - first
    middle = (first + span * 0.45, first + span * 0.55)
    for form, df in forms.items():
        if form == READY:
            continue
        load = blocks(pushdown="true").load if form == "jetblock" else lambda df=df: df
        got[form] |= {name: measure(work, repeat) for name, work in queries(df, middle, load)}  # type: ignore[arg-type]
        view = form.replace(" ", "_")
        df.createOrReplaceTempView(view)
        got[form]["last sequence of each subject"] = measure(
            lambda view=view: tuple(spark.sql(LAST.format(view)).first()), repeat)  # type: ignore[misc, arg-type]
    blocks().schema("seq LONG").load().createOrReplaceTempView("seqs")
    got["jetblock"]["count without payloads"] = measure(lambda: spark.table("seqs").count(), repeat)
    blocks(view="subjects").load().createOrReplaceTempView("names")
    got["jetblock"]["last sequence of each subject, view subjects"] = measure(
        lambda: tuple(spark.sql("SELECT count(*), sum(seq) FROM (SELECT subject, max(last_seq) AS seq FROM names "
                                "GROUP BY subject)").first()), repeat)  # type: ignore[arg-type]
    return got


def stream(spark: SparkSession, store: str, checkpoint: pathlib.Path, per_trigger: int) -> dict[str, Any]:
    """Read micro-batches into the noop sink; the rate is that of all but the first, which starts the workers."""
    query = (spark.readStream.format("jetblock").options(store=store, stream=STREAM, startingOffsets="earliest",
                                                          maxMessagesPerTrigger=str(per_trigger)).load()
             .writeStream.format("noop").option("checkpointLocation",
                                                str(checkpoint)).trigger(availableNow=True).start())
    query.awaitTermination()
    batches = [(p["numInputRows"], p["durationMs"]["triggerExecution"]) for p in map(json.loads, (
        p.json for p in query.recentProgress)) if p["numInputRows"]]
    rows, millis = (sum(column) for column in zip(*batches[1:], strict=True))
    return {"batches": len(batches), "rows": sum(rows for rows, _ in batches), "rate": rows / millis * 1e3}


def through_the_server(spark: SparkSession, port: int) -> dict[str, Any]:
    """Read without blocks: a pull consumer in Python fills an Arrow table, written as a DataFrame to noop."""
    import nats
    import pyarrow as pa
    from nats.js.api import AckPolicy, ConsumerConfig

    async def fetch() -> pa.Table:
        nc = await nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 << 20)
        sub = await nc.jetstream().pull_subscribe("bench.>", stream=STREAM, durable=f"spark{time.monotonic_ns()}",
                                                  config=ConsumerConfig(ack_policy=AckPolicy.NONE),
                                                  pending_msgs_limit=-1, pending_bytes_limit=-1)
        seqs, subjects, times, data = [], [], [], []
        while len(seqs) < NATS_MESSAGES:
            for msg in await sub.fetch(min(10_000, NATS_MESSAGES - len(seqs)), timeout=30):
                seqs.append(msg.metadata.sequence.stream)
                times.append(msg.metadata.timestamp)
                subjects.append(msg.subject)
                data.append(msg.data)
        await nc.close()
        return pa.table({"seq": seqs, "subject": subjects, "ts": times, "data": data})

    def work() -> int:
        table = asyncio.run(fetch())
        noop(spark.createDataFrame(table))
        return int(table.num_rows)

    best = measure(work, 2)
    return {**best, "rate": best["answer"] / best["wall"]}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("store")
    p.add_argument("parquet", type=pathlib.Path)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--per-trigger", type=int, default=1_000_000)
    p.add_argument("--scan-only", action="store_true", help="measure the full scan and nothing else")
    p.add_argument("--nats", type=int, help="port of a nats-server with the same stream")
    args = p.parse_args()
    spark = (SparkSession.builder.master("local[2]").config(map=builder_conf()).config("spark.ui.enabled", "false")
             .config("spark.sql.shuffle.partitions", "2").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    got: dict[str, Any] = {"forms": blocks_and_parquet(spark, args.store, args.parquet, args.repeat, args.scan_only)}
    blocks = spark.read.format("jetblock").options(store=args.store, stream=STREAM, view="blocks").load()
    got["messages_of_a_block"] = blocks.selectExpr("avg(messages)").first()[0]  # type: ignore[index]
    if not args.scan_only:
        got["stream"] = stream(spark, args.store, args.parquet / "checkpoint", args.per_trigger)
    if args.nats:
        got["server"] = through_the_server(spark, args.nats)
    spark.stop()
    print(json.dumps(got, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
