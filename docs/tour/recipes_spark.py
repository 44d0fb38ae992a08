"""Recipes for Spark with streams and key-value buckets; docs/SPARK.md explains them.

    copy_stream       one stream copied to another, each message once
    bucket_table      a key-value bucket as a table of keys and values, for joins
    publish_totals    a stream joined with a bucket, and the result published, once for each version
    publish_paid      two streams joined while they grow, and the pairs published, each once
    publish_counts    any table of names and numbers published as a key-value bucket
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["bucket_table", "copy_stream", "publish_counts", "publish_paid", "publish_totals"]


def copy_stream(spark: SparkSession, store: str, nats: str, checkpoint: str) -> StreamingQuery:
    """Copy the messages of ORDERS that earlier queries with this checkpoint did not copy to ARCHIVE.

    Subjects get the prefix ``archive.``; headers, payloads and times stay. ARCHIVE must have no later times of others.
    """
    rows = spark.readStream.format("jetblock").options(store=store, stream="ORDERS").load()
    return (rows.select(F.concat(F.lit("archive."), "subject").alias("subject"), "headers", "data", "ts")
            .writeStream.format("jetblock").options(store=store, stream="ARCHIVE", nats=nats)
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())


def bucket_table(spark: SparkSession, store: str, bucket: str) -> DataFrame:
    """Return the keys of a bucket with their newest values; deleted and purged keys are left out."""
    entries = spark.read.format("jetblock").options(store=store, stream=f"KV_{bucket}", view="kv").load()
    return entries.where("operation = 'PUT'").select("key", F.col("value").cast("string").alias("value"), "revision")


def publish_totals(spark: SparkSession, store: str, nats: str, version: int) -> None:
    """Publish the total of the orders of each country to the stream TOTALS, as ``totals.COUNTRY``.

    ORDERS has messages ``orders.CUSTOMER`` with an amount each, and the bucket ``customers`` has their countries.
    Args: version ascends; a version that the stream has already is not stored again.
    """
    orders = (spark.read.format("jetblock").options(store=store, stream="ORDERS").load()
              .select(F.element_at(F.split("subject", "[.]"), 2).alias("key"),
                      F.col("data").cast("string").cast("bigint").alias("amount")))
    totals = (orders.join(bucket_table(spark, store, "customers"), "key")
              .groupBy("value").agg(F.sum("amount").cast("string").alias("data")).orderBy("value")
              .select(F.concat(F.lit("totals."), "value").alias("subject"), "data"))
    (totals.write.format("jetblock").mode("append")
     .options(store=store, stream="TOTALS", nats=nats, txnAppId="totals", txnVersion=version).save())


def publish_paid(spark: SparkSession, store: str, nats: str, checkpoint: str) -> StreamingQuery:
    """Publish a message to PAID, as ``paid.ID``, when both ``orders.ID`` and ``payments.ID`` were published.

    An order and its payment may come in either order, an hour apart. A new query with this checkpoint continues.
    """
    def newest(stream: str) -> DataFrame:
        rows = spark.readStream.format("jetblock").options(store=store, stream=stream).load()
        return rows.withWatermark("ts", "1 hour").select(
            F.element_at(F.split("subject", "[.]"), 2).alias("id"), "ts", F.col("data").cast("string").alias("data"))

    orders, payments = newest("ORDERS").alias("o"), newest("PAYMENTS").alias("p")
    pairs = orders.join(payments, F.expr(
        "o.id = p.id AND p.ts BETWEEN o.ts - INTERVAL 1 HOUR AND o.ts + INTERVAL 1 HOUR"))
    return (pairs.selectExpr("'paid.' || o.id AS subject", "o.data || ' paid by ' || p.data AS data")
            .writeStream.format("jetblock").options(store=store, stream="PAID", nats=nats)
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())


def publish_counts(counts: DataFrame, store: str, nats: str, bucket: str, version: int) -> None:
    """Put each row's ``value`` under its ``key`` into a bucket that exists, once for each version."""
    (counts.select(F.concat(F.lit(f"$KV.{bucket}."), "key").alias("subject"),
                   F.col("value").cast("string").alias("data"))
     .write.format("jetblock").mode("append")
     .options(store=store, stream=f"KV_{bucket}", nats=nats, txnAppId="counts", txnVersion=version).save())
