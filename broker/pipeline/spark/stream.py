"""The streaming reader: one object in Spark's planner for the life of a query, and one in each task.

For each batch Spark calls ``latestOffset``, which reads the store, then ``partitions``. After a restart Spark calls
``initialOffset`` if no batch was committed, and only ``partitions`` for a recorded batch. It guarantees neither
``commit`` nor ``stop``, so nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from broker.pipeline.read import query
from broker.pipeline.spark.errors import freeze_imports, plainly, plainly_each
from broker.pipeline.store.objects import open_object_client

__all__ = ["StreamReader"]


class _Part(InputPartition):
    """A part of a batch; small and picklable, because it is sent to the task."""

    def __init__(self, part: query.Part) -> None:
        super().__init__(None)
        self.part = part


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams. Spark creates it twice for each query, to pickle for tasks and to plan; so creating it does no
    I/O.

    Raises: BadOption for malformed ``startingOffsets``.
    """

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        Start.parse(options.startingoffsets)
        self._options = options
        self._schema = schema
        self._progress_made: Progress | None = None
        self._initial: dict[str, Any] | None = None

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice when a query starts, and the streams may grow in between.
        if self._initial is None:
            self._initial = self._progress.initial().to_json()
        return self._initial

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Offsets.parse(start)
        rows = size = None
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            # Spark returns the one limit that ``getDefaultReadLimit`` named, but both options apply.
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
        self._progress.stop_at_present_end()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = self._progress.tasks(Offsets.parse(start), Offsets.parse(end))
        return [_Part(part) for part in query.packed(found, self._options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        freeze_imports()
        return plainly_each(query.read(self._options, self._options.selection(), self._schema, partition.part,
                                       following=True))

    @property
    def _progress(self) -> Progress:
        if self._progress_made is None:
            self._progress_made = Progress(open_object_client(self._options.store), self._options)
        return self._progress_made
