"""The streaming reader, as Spark knows it: one object in Spark's planner for a query's life, and one in each task.

Spark calls, for each batch, ``latestOffset`` (which looks at the store), then ``partitions``; after a restart
``initialOffset`` where no batch was committed yet, and ``partitions`` alone for the batch that it has on record. It
guarantees neither ``commit`` nor ``stop``, so nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker.pipeline.errors import PipelineError
from broker.pipeline.plan.offsets import Offsets, Start
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.progress import Progress
from broker.pipeline.plan.schema import requested
from broker.pipeline.read import query
from broker.pipeline.spark.errors import plainly, plainly_each, settle
from broker.pipeline.store.objects import open_object_client

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]


class _Part(InputPartition):
    """Picklable, and small: tasks are sent their part of the batch."""

    def __init__(self, part: query.Part) -> None:
        super().__init__(None)
        self.part = part


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams. Made for each query twice: to be pickled for tasks, and to plan; so it begins without I/O.

    Raises: BadOption for columns that there are not, or ``startingOffsets`` that say nothing.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        Start.parse(options.startingoffsets)
        self._options = options
        self._schema = requested(options.view, schema)
        self._progress_made: Progress | None = None
        self._initial: dict[str, Any] | None = None

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        # Asked for twice when a query starts, and the streams grow meanwhile.
        if self._initial is None:
            self._initial = self._progress.initial().to_json()
        return self._initial

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Offsets.parse(start)
        rows = size = None
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            # Spark hands back the one limit that ``getDefaultReadLimit`` named; both options hold.
            rows, size = self._options.maxmessagespertrigger, self._options.maxbytespertrigger
            if isinstance(limit, ReadMaxRows):
                rows = limit.max_rows
            else:
                size = limit.max_bytes
        elif not isinstance(limit, ReadAllAvailable):
            raise PipelineError(f"Spark asks for a batch by {type(limit).__name__}, which jetblock cannot limit by")
        end = self._progress.latest(begin, rows, size)
        return start if end is begin else end.to_json()

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.maxmessagespertrigger is not None:
            return ReadMaxRows(self._options.maxmessagespertrigger)
        if self._options.maxbytespertrigger is not None:
            return ReadMaxBytes(self._options.maxbytespertrigger)
        return ReadAllAvailable()

    @plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._progress.newest()
        return None if newest is None else newest.to_json()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._progress.aim()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = self._progress.tasks(Offsets.parse(start), Offsets.parse(end))
        return [_Part(part) for part in query.packed(found, self._options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        settle()
        return plainly_each(query.read(self._options, self._options.selection(), self._schema, partition.part))

    @property
    def _progress(self) -> Progress:
        if self._progress_made is None:
            self._progress_made = Progress(open_object_client(self._options.store), self._options)
        return self._progress_made
