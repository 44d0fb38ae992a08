"""Temporarily sets the environment of Spark's planner and workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from broker.pipeline.spark.source import JetblockSource

__all__ = ["environment"]


@contextlib.contextmanager
def environment(spark: Any, environ: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for planner and workers: the source passes on the current environment."""
    kept = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(environ)
    spark.dataSource.register(JetblockSource)
    try:
        yield
    finally:
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(kept)
        spark.dataSource.register(JetblockSource)
