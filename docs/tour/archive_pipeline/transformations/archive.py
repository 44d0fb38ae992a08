"""The sink ARCHIVE, and the flow of orders into it. Each run stores what was published since the last one, once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
store, nats = spark.conf.get("jetblock.store"), spark.conf.get("jetblock.nats")

dp.create_sink("archive", "jetblock", {"store": store, "stream": "ARCHIVE", "nats": nats})


@dp.append_flow(target="archive", name="orders")
def orders() -> DataFrame:
    rows = spark.readStream.format("jetblock").options(store=store, stream="ORDERS").load()
    return rows.selectExpr("'archive.' || subject AS subject", "data", "headers", "ts")
