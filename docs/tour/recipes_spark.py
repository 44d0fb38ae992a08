"""Recipes for Spark with streams and key-value buckets; docs/SPARK.md explains them.

    bucket_table      a key-value bucket as a table of keys and values, for joins
    publish_totals    two sources joined, and the result published to a stream, once for each version
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["bucket_table", "publish_totals"]


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
