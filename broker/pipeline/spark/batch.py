"""The batch readers: planned once, in Spark's planner, then read by tasks.

There are two, since Spark refuses a reader with ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled`` is
off, its default. The reader that takes filters is used only if ``pushdown=true`` asks for it, not whenever the setting
is on: Spark up to 4.3 caches the plan made under filters with the *relation*, not with the scan. Every other scan of
that DataFrame or view, in the same query or a later one, then gets the rows of those filters:

    orders.where("seq = 4").union(orders.where("seq = 5"))      both halves are seq 5
    orders.where("seq = 4").collect(); orders.count()           1

A reader cannot detect this. ``jvm/JetblockSource.java`` avoids it; without that, pushing filters is safe only for a
DataFrame loaded for a single scan. Options belong to the relation and hold for all its scans.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.pipeline.plan.options import Options
from broker.pipeline.plan.schema import requested
from broker.pipeline.read import query
from broker.pipeline.spark.errors import freeze_imports, plainly, plainly_each

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "FiltersReader", "PushdownReader", "reader"]

_SPARK_BUFFER_BYTES: Final = 64 << 10


def reader(options: Options, schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises: PipelineError for columns that the view does not have."""
    wanted = requested(options.view, schema)
    return (PushdownReader if options.pushdown else BatchReader)(options, wanted)


class _Part(InputPartition):
    """A part of a query; small and picklable, because it is sent to the task."""

    def __init__(self, part: query.Part) -> None:
        super().__init__(None)
        self.part = part


class BatchReader(DataSourceReader):
    """Reads the messages that the options select."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._selection = options.selection()

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Return the query's parts. Reads the store's catalogue once, so all partitions are from one snapshot."""
        return [_Part(part) for part in query.partitions(self._options, self._selection, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark's stand-in for an empty list
            return iter(())
        freeze_imports()
        return _at_once(plainly_each(query.read(self._options, self._selection, self._schema, partition.part)))


def _at_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` so that the first ones reach Spark before more is read.

    Spark's worker writes through a buffer that it flushes when full. Until rows have left it, LIMIT cannot end the
    task: on a stream of small blocks, ``limit(1)`` took a thousand gets.
    """
    written = 0
    with contextlib.closing(batches):  # type: ignore[type-var]  # a generator
        for batch in batches:
            yield batch
            if written < _SPARK_BUFFER_BYTES:
                written += batch.nbytes
                _flush_output()


def _flush_output() -> None:
    """Flush the output of the serializer that is reading from this source; pyspark gives a source no other way to
    it."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "dump_stream" and (flush := getattr(frame.f_locals.get("stream"), "flush", None)):
            flush()
            return
        frame = frame.f_back


class PushdownReader(BatchReader):
    """Reads the messages that the options and Spark's filters select."""

    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the selection by filters, all of which must hold; return those that Spark must apply itself."""
        left = []
        for one in filters:
            self._selection, whole = self._selection.narrowed(one)
            if not whole:
                left.append(one)
        return left


class FiltersReader(PushdownReader):
    """Reports which filters a PushdownReader handles, and plans nothing; ``jvm/JetblockSource.java`` calls it first."""

    OPTION = "planned"

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, requested(options.view, schema))

    def partitions(self) -> list[InputPartition]:
        return []
