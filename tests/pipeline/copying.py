"""A separate Spark driver that copies a stream to another one by the sink, for tests that kill it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(store: str, nats: str, folder: str, messages: str) -> None:
    spark = SparkSession.builder.master("local[2,3]").config(map={
        "spark.driver.memory": "1g", "spark.local.dir": f"{folder}/local",
    }).getOrCreate()
    print(spark.sparkContext._gateway.proc.pid, flush=True)
    rows = spark.readStream.format("jetblock").options(store=store, stream="IN", maxMessagesPerTrigger=messages).load()
    query = (rows.selectExpr("regexp_replace(subject, '^IN', 'OUT') subject", "data", "headers")
             .writeStream.format("jetblock").options(store=store, stream="OUT", nats=nats)
             .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start())
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
