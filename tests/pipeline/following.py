"""A separate Spark driver that follows a stream into Parquet, for tests that kill it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(store: str, stream: str, folder: str, messages: str) -> None:
    spark = SparkSession.builder.master("local[2]").config(map={
        "spark.driver.memory": "1g", "spark.local.dir": f"{folder}/local",
    }).getOrCreate()
    print(spark.sparkContext._gateway.proc.pid, flush=True)
    frame = (spark.readStream.format("jetblock").options(store=store, stream=stream, maxMessagesPerTrigger=messages)
             .schema("seq LONG, data BINARY").load())
    query = (frame.writeStream.format("parquet").option("path", f"{folder}/rows")
             .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start())
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
