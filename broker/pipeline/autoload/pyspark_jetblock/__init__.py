"""Makes the data source ``jetblock`` known to Spark: it looks for modules named ``pyspark_*`` and takes ``DefaultSource``.

Every Spark session where jetblock is installed imports this once, so it imports nothing but the class itself.
"""

from broker.pipeline.spark.source import JetblockSource as DefaultSource

__all__ = ["DefaultSource"]
