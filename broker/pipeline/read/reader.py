"""Rows of streams for Python programs without Spark, as Arrow batches: ``jetblock.scan``.

DuckDB, polars, pandas and pyarrow read the returned reader themselves. The calling thread decodes; threads of the scan
read ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from broker.pipeline.errors import BadOption
from broker.pipeline.plan.options import Options, as_texts
from broker.pipeline.plan.schema import arrow_schema, named
from broker.pipeline.read import query

__all__ = ["scan"]


def scan(store: str, stream: str | Iterable[str], *, columns: Iterable[str] | None = None,
         subjects: str | Iterable[str] | None = None, **options: Any) -> pa.RecordBatchReader:
    """Return a reader of the live messages of a stream, in order of sequence, from the store at this URL.

    All rows are from one snapshot, made by this call. The bytes are read while the reader is consumed, so a program
    needs memory for some blocks only. Closing the reader ends it early.
    Args: ``columns``: names of the view's columns, without which payloads may not be read; None: the default ones.
        ``subjects``: NATS subjects, with wildcards, one of which must match. ``options``: those of a batch query, by
        their names: ``startSeq``, ``startTime=datetime(…)``, ``view``, ``headers``, …; docs/SPARK.md lists them.
    Raises: PipelineError, also from the reader: it names the option or object, and the remedy.
    """
    if isinstance(columns, str):
        raise BadOption(f"columns: write a list of names, [{columns!r}]")
    chosen = Options.parse(as_texts({
        "store": store, "stream": stream if isinstance(stream, str) else list(stream),
        "subjects": list(subjects) if subjects is not None and not isinstance(subjects, str) else subjects, **options}))
    schema = (arrow_schema(chosen.view, headers=chosen.headers) if columns is None
              else named(chosen.view, columns, headers=chosen.headers))
    selection = chosen.selection()
    parts = query.partitions(chosen, selection, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from query.read(chosen, selection, schema, part)

    return pa.RecordBatchReader.from_batches(schema, batches())
