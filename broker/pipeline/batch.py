"""The batch reader: planned once, in Spark's planner, then read by tasks.

Spark's setting ``spark.sql.python.filterPushdown.enabled`` is off unless somebody turns it on, and while it is off Spark
refuses a reader that overrides ``pushFilters``. A reader is made before it can know: the planner has no session, and
Spark calls ``pushFilters`` only where the setting is on and there is something to push. So the usual reader overrides
nothing; its ``pushFilters`` is an attribute that says of itself to be the inherited one, and does more when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.pipeline import query
from broker.pipeline.edge import plainly, plainly_each, settle
from broker.pipeline.options import Options
from broker.pipeline.schema import requested

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "StrictReader", "reader"]


def reader(options: Options, schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises: PipelineError for columns that the view does not have."""
    wanted = requested(options.view, schema)
    if options.pushdown:
        return StrictReader(options, wanted)
    made = BatchReader(options, wanted)
    if options.pushdown is None:
        made.pushFilters = _Pushed(made)  # type: ignore[method-assign]
    return made


class _Part(InputPartition):
    """Picklable, and small: tasks are sent their part of the plan."""

    def __init__(self, part: query.Part) -> None:
        super().__init__(None)
        self.part = part


class BatchReader(DataSourceReader):
    """Reads a view without filters of Spark's, unless they are handed to ``take``."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._selection = options.selection()

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Narrow what is read by filters that must all hold; returns those that Spark has to apply itself."""
        left = []
        for one in filters:
            self._selection, whole = self._selection.narrowed(one)
            if not whole:
                left.append(one)
        return left

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Reads the store's catalogue once: all partitions are of one moment."""
        return [_Part(part) for part in query.partitions(self._options, self._selection, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark's stand-in for an empty list
            return iter(())
        settle()
        return plainly_each(query.read(self._options, self._selection, self._schema, partition.part))


class StrictReader(BatchReader):
    """For ``pushdown=true``: Spark refuses it, naming its setting, where filters are not pushed down."""

    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.take(filters)


class _Pushed:
    """A reader's ``pushFilters`` that Spark takes for the one that readers inherit."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return plainly(self._reader.take)(filters)
