"""Writes by Spark beside Parquet zstd, in one session: wall and CPU seconds, as one JSON line.

    python -m bench.spark_writes STORE PORT DIR [--scale 1.0] [--repeat N] [--only sink export save trigger]

A broker serves STORE on PORT. The measurements:

    sink       a cached table written to a stream and to Parquet, in turns: 1 M rows of 100 B, 60 k rows of 2 kB
    export     the first stream exported to Parquet, and the files of that export copied by Spark, in turns
    save       ``save()`` of ten rows, with ``nats``
    trigger    a streaming query from stream to stream, 1500 rows in each micro-batch

Payloads are hexadecimal text. CPU seconds are those of the JVM and of all Python processes below it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import nats
from pyspark.sql import DataFrame, SparkSession

from bench.spark_driver import cpu_seconds
from jetblock.spark import export

__all__: list[str] = []

CASES = ("sink", "export", "save", "trigger")
SIZES = {"100 B": (1_000_000, 100), "2 kB": (60_000, 2000)}
TRIGGER_ROWS = 1500


class Bench:
    """One session, and the store and folder that it writes to."""

    def __init__(self, spark: SparkSession, store: str, port: int, folder: pathlib.Path, scale: float,
                 repeat: int) -> None:
        self.spark, self.store, self.nats = spark, store, f"nats://127.0.0.1:{port}"
        self.folder, self.scale, self.repeat = folder, scale, repeat

    def make_stream(self, name: str) -> None:
        async def make() -> None:
            client = await nats.connect(self.nats)
            await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
            await client.close()

        asyncio.run(make())

    def write(self, frame: DataFrame, stream: str, **options: Any) -> None:
        (frame.write.format("jetblock").mode("append")
         .options(store=self.store, stream=stream, nats=self.nats, **options).save())

    def rows(self, count: int, size: int, stream: str) -> DataFrame:
        """Return a cached table of messages; it is in memory when this returns."""
        digits = "||".join(f"sha2(cast(id * {n + 1} as string), 256)" for n in range((size + 63) // 64))
        frame = (self.spark.range(0, int(count * self.scale), 1, 2)
                 .selectExpr(f"concat('{stream}.', id % 100) subject",
                             f"cast(substr({digits}, 1, {size}) as binary) data").cache())
        frame.count()
        return frame

    def in_turns(self, **works: Callable[[], object]) -> dict[str, dict[str, float]]:
        """Run the works in turns; return for each one the run with the least wall time."""
        best: dict[str, dict[str, float]] = {}
        for _ in range(self.repeat):
            for name, work in works.items():
                wall, cpu = time.perf_counter(), cpu_seconds()
                work()
                wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
                if name not in best or wall < best[name]["wall"]:
                    best[name] = {"wall": round(wall, 3), "cpu": round(cpu, 2)}
        return best

    def parquet(self, frame: DataFrame) -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self.folder / "parquet"))

    def sink(self) -> dict[str, Any]:
        found = {}
        for at, (name, (count, size)) in enumerate(SIZES.items()):
            stream = f"SINK{at}"
            self.make_stream(stream)
            frame = self.rows(count, size, stream)
            took = self.in_turns(jetblock=lambda frame=frame, stream=stream: self.write(frame, stream),  # type: ignore[misc]
                                 parquet=lambda frame=frame: self.parquet(frame))  # type: ignore[misc]
            found[name] = _compared(took, count * self.scale, size)
            frame.unpersist()
        return found

    def export(self) -> dict[str, Any]:
        found = {}
        for at, (name, (count, size)) in enumerate(SIZES.items()):
            stream, count = f"EXPORT{at}", 4 * count
            self.make_stream(stream)
            for _ in range(4):
                frame = self.rows(count // 4, size, stream)
                self.write(frame, stream)
                frame.unpersist()
            took = self._exported_and_copied(stream)
            found[name] = _compared(took, count * self.scale, size)
        return found

    def _exported_and_copied(self, stream: str) -> dict[str, dict[str, float]]:
        targets: list[str] = []

        def copied_stream() -> None:
            targets.append(str(self.folder / f"exported{len(targets)}-{stream}"))
            export(self.spark, store=self.store, stream=stream, to=targets[-1])

        def copied_parquet() -> None:
            (self.spark.read.parquet(targets[-1]).write.mode("overwrite").partitionBy("day")
             .parquet(str(self.folder / "copy")))

        return self.in_turns(jetblock=copied_stream, parquet=copied_parquet)

    def save(self) -> dict[str, Any]:
        self.make_stream("SAVE")
        frame = self.spark.range(0, 10, 1, 1).selectExpr("'SAVE.x' subject", "cast(id as string) data")
        return {"median": self._median(lambda: self.write(frame, "SAVE"), 3 + 4 * self.repeat, skip=3)}

    def trigger(self) -> dict[str, Any]:
        self.make_stream("FROM")
        self.make_stream("TO")
        batches = 5 + 4 * self.repeat
        self.write(self.spark.range(0, TRIGGER_ROWS * batches, 1, 1).selectExpr("'FROM.x' subject",
                                                                                "cast(id as string) data"), "FROM")
        rows = self.spark.readStream.format("jetblock").options(store=self.store, stream="FROM",
                                                                maxMessagesPerTrigger=TRIGGER_ROWS).load()
        query = (rows.selectExpr("'TO.x' subject", "data").writeStream.format("jetblock")
                 .options(store=self.store, stream="TO", nats=self.nats)
                 .option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start())
        query.awaitTermination()
        took = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][5:]
        return {"median": round(statistics.median(one["triggerExecution"] for one in took) / 1000, 3),
                "parts_ms": {name: statistics.median(one.get(name, 0) for one in took) for name in took[-1]}}

    @staticmethod
    def _median(work: Callable[[], object], count: int, skip: int) -> float:
        took = []
        for _ in range(count):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return round(statistics.median(took[skip:]), 3)


def _compared(took: dict[str, dict[str, float]], rows: float, size: int) -> dict[str, Any]:
    """Return the figures with the rates of jetblock, and its speed as a multiple of Parquet's."""
    ours, theirs = took["jetblock"], took["parquet"]
    return {**took, "rows": round(rows), "ratio": round(theirs["wall"] / ours["wall"], 3),
            "cpu_ratio": round(theirs["cpu"] / ours["cpu"], 3), "rows_s": round(rows / ours["wall"]),
            "mb_s": round(rows * size / ours["wall"] / 1e6, 1)}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("store")
    p.add_argument("port", type=int)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--only", choices=CASES, nargs="+", default=CASES)
    args = p.parse_args()
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "4g")
             .config("spark.sql.shuffle.partitions", "2").config("spark.sql.parquet.compression.codec", "zstd")
             .config("spark.sql.session.timeZone", "UTC").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    bench = Bench(spark, args.store, args.port, args.folder, args.scale, args.repeat)
    got = {case: getattr(bench, case)() for case in args.only}
    spark.stop()
    shutil.rmtree(args.folder, ignore_errors=True)
    print(json.dumps(got))
    return 0


if __name__ == "__main__":
    sys.exit(main())
