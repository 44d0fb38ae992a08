"""The module by which Spark finds the data source ``jetblock``: Spark imports modules named ``pyspark_*`` and uses
their ``DefaultSource``.

Every Spark session where jetblock is installed imports this once, so it imports nothing but the class itself.
"""

from broker.pipeline.spark.source import JetblockSource as DefaultSource

__all__ = ["DefaultSource"]
