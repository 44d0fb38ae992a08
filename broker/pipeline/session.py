"""A Spark session with streams in it: what to set, and reads that stay at one moment."""

from __future__ import annotations

__all__ = ["builder_conf"]


def builder_conf() -> dict[str, str]:
    """What is worth setting on a session that reads streams: ``SparkSession.builder.config(map=builder_conf())``.

    Reads work without it; filters are then applied by Spark, after everything was read.
    """
    return {"spark.sql.python.filterPushdown.enabled": "true"}
