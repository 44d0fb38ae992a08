"""Streams for Spark, read directly from the object store, with no broker in between.

    spark.read.format("jetblock").option("store", "s3://bucket/prefix").option("stream", "orders").load()

Batch and streaming reads work alike on one machine and on a cluster. Workers need this package with the codec and the
replay it uses (``jetblock pipeline zip`` packs them into one file), msgpack, zstandard, numpy, pyarrow and obstore.

    plan     options, snapshots of the store, selections, and the scan tasks of a query
    read     scan tasks to Arrow batches
    store    the object client
    spark    what Spark calls: source, readers, session helpers, SQL functions; the rest runs without Spark
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["builder_conf", "explain_read", "read", "read_stream", "register"]


def __getattr__(name: str) -> Any:
    # Imported lazily: Spark's planner and workers import this package for its modules and need no session.
    if name in __all__:
        return getattr(importlib.import_module("broker.pipeline.spark.session"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
