"""The first rows of a task reach Spark at once, through Spark's own serializer and a buffer as its worker has."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from broker.pipeline.spark.batch import _at_once

SCHEMA = pa.schema([("seq", pa.int64())])


class Pipe(io.RawIOBase):
    """The bytes that have left the buffer."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        more = bytes(data)  # type: ignore[call-overload]
        self.data += more
        return len(more)

    def rows(self) -> int:
        """The rows that a reader has so far."""
        found = 0
        try:
            for batch in pa.ipc.open_stream(self.data):
                found += batch.num_rows
        except pa.ArrowInvalid:
            pass  # the stream has not ended
        return found


def test_the_first_rows_leave_the_worker_before_more_is_read() -> None:
    """Each batch reaches the other side when the next one is requested, until the buffer's size has been written; from
    then on the buffer decides."""
    pipe = Pipe()
    seen: list[int] = []
    closed = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for count in (1, 4, 16, 10_000, 10):
                seen.append(pipe.rows())
                yield pa.record_batch([pa.array(range(count), pa.int64())], schema=SCHEMA)
            seen.append(pipe.rows())
        finally:
            closed.append(True)

    stream = io.BufferedWriter(pipe, 64 << 10)
    ArrowStreamSerializer().dump_stream(_at_once(batches()), stream)
    assert seen[:4] == [0, 1, 5, 21]
    assert seen[4] == 10_021
    assert closed == [True]
    stream.flush()
    assert pipe.rows() == 10_031


def test_a_task_that_is_stopped_closes_what_it_reads() -> None:
    closed = []

    def endless() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)
        finally:
            closed.append(True)

    batches = _at_once(endless())
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert closed == [True]
