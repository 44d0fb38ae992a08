"""Streams for Spark, read where they lie: no broker on the path.

    spark.read.format("jetblock").option("store", "s3://bucket/prefix").option("stream", "orders").load()

Batch and streaming reads, the same on one machine and on a cluster: what Python needs there is this package with the
codec and the replay it stands on (``jetblock pipeline zip`` makes one file of them), msgpack, zstandard, numpy, pyarrow
and obstore. Only ``source``, ``batch``, ``stream``, ``session`` and ``functions`` know Spark; the rest runs without it.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["builder_conf", "explain_read", "read", "read_stream", "register"]


def __getattr__(name: str) -> Any:
    # Late, since Spark's planner and workers import this package for its modules: none of them needs a session.
    if name in __all__:
        return getattr(importlib.import_module("broker.pipeline.spark.session"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
