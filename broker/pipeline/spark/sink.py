"""The sinks that Spark calls: ``df.write.format("jetblock")`` and ``df.writeStream.format("jetblock")``.

Spark makes a writer in the planner and pickles it for the tasks. A batch write commits with a copy of the same writer;
a streaming one makes a new writer for ``commit``, so that a task's message has all that ``commit`` needs.

``abort`` does nothing. Spark calls it after a ``commit`` that raised, too, when the request may be in the inbox. Runs
that no request names are swept by the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from broker.pipeline.errors import BadOption
from broker.pipeline.spark.errors import freeze_imports, plainly
from broker.pipeline.store.objects import open_object_client
from broker.pipeline.write.columns import Columns
from broker.pipeline.write.commit import commit, plan
from broker.pipeline.write.options import WriteOptions
from broker.pipeline.write.stage import Result, Target, stage_batches
from broker.storage.format.request import Version

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchSink", "StreamSink"]

_QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark gives a task the ID of its streaming query."""


class _Write(NamedTuple):
    """A planned write; it is sent to the tasks."""

    options: WriteOptions
    columns: Columns
    target: Target

    @classmethod
    def planned(cls, options: WriteOptions, schema: StructType, *, brief: bool) -> _Write:
        """Plan a write; ``brief`` as for ``plan``. Raises: PipelineError."""
        columns = Columns.of(schema)
        return cls(options, columns, plan(open_object_client(options.store), options, brief=brief))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> _Staged:
        """Stage the rows of the current task."""
        freeze_imports()
        task = TaskContext.get()
        assert task is not None
        result = stage_batches(open_object_client(self.options.store), self.target, self.columns, task.partitionId(),
                               batches)
        result.writer = task.getLocalProperty(_QUERY_ID) or ""
        return _Staged(result, self.target)


class _Staged(WriterCommitMessage):
    """A task's result, and the stream for which it was staged."""

    def __init__(self, result: Result, target: Target) -> None:
        self.result = result
        self.target = target


class BatchSink(DataSourceArrowWriter):
    """Appends the rows of one DataFrame. Raises: PipelineError."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._write = _Write.planned(options, schema, brief=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.stage(iterator)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options, columns, target = self._write
        commit(open_object_client(options.store), options, target, columns, options.version, _results(messages))


class StreamSink(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch. Raises: PipelineError."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._write = _Write.planned(options, schema, brief=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.stage(iterator)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [one for one in messages if isinstance(one, _Staged)]
        if not staged:
            return
        options, columns, _ = self._write
        [target] = {one.target for one in staged}
        writer = options.txnappid or staged[0].result.writer
        if not writer:
            raise BadOption("Spark gives no ID of the query: set option txnAppId to a name that no other query uses")
        commit(open_object_client(options.store), options, target, columns, Version(writer, batchId),
               _results(messages))


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[Result]:
    return [one.result for one in messages if isinstance(one, _Staged)]
