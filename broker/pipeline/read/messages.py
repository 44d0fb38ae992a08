"""The rows of the view ``messages``: columns of many blocks, assembled in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from broker.pipeline.errors import PipelineError
from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.schema import PAIRS
from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.bodies import Bodies, Slice
from broker.pipeline.read.columns import Numbers
from broker.pipeline.read.decode import Block, parse_headers, readable
from broker.pipeline.read.sections import as_array

__all__ = ["SEQ_MAX", "Messages"]

SEQ_MAX: Final = (1 << 63) - 1


class Messages:
    """Makes the rows of slices, as a ``scan.Maker``."""

    by_row = True

    def __init__(self, schema: pa.Schema, selection: Selection) -> None:
        """Args: schema is from ``schema.requested``, with any columns in any order."""
        self.schema = schema
        self._fields = [(field.name.lower(), field.type) for field in schema]
        names = {name for name, _ in self._fields}
        self.bodies = not names.isdisjoint({"headers", "data"})
        self._index = (self.bodies or not names.isdisjoint({"subject", "ts", "ts_ns"}) or selection.needs_subject()
                       or selection.needs_time())
        self._selection = selection

    def from_ref(self, task: ScanTask) -> Block | None:
        """Return the block without its index, if the columns need no index: a block whose sequences have no gaps."""
        ref = task.ref
        if self._index or ref.last_seq - ref.first_seq + 1 != ref.count:
            return None
        return Block(ref, None, task.key)

    def make(self, slices: Sequence[Slice]) -> pa.RecordBatch:
        bodies = Bodies(slices) if self.bodies else None
        return pa.RecordBatch.from_arrays([self._column(name, kind, slices, bodies) for name, kind in self._fields],
                                          schema=self.schema)

    def _column(self, name: str, kind: pa.DataType, slices: Sequence[Slice], bodies: Bodies | None) -> pa.Array:
        if name == "seq":
            return pa.array(_numbers(slices, _seq))
        if name == "data":
            assert bodies is not None
            return bodies.payloads()
        if name == "headers":
            assert bodies is not None
            headers = bodies.headers()
            return parse_headers(headers, kind) if kind == PAIRS else headers
        if name == "subject":
            return _subjects(slices, kind)
        if name == "ts":
            times = _numbers(slices, _time_ns) // 1000  # rounded down
            return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times)])
        if name == "ts_ns":
            return pa.array(_numbers(slices, _time_ns))
        if name == "pos":
            return pa.array(_numbers(slices, lambda one: as_array(one.rows)).astype(np.int32))
        values = [{"stream": one.task.stream, "account": one.task.account, "block": one.task.key}[name]
                  for one in slices]
        texts = pa.array([value.encode("utf-8", "replace").decode() for value in values], kind)
        return texts.take(pa.array(np.repeat(np.arange(len(slices)), [len(one.rows) for one in slices])))


def _numbers(slices: Sequence[Slice], of: Callable[[Slice], Numbers]) -> Numbers:
    return of(slices[0]) if len(slices) == 1 else np.concatenate([of(one) for one in slices])


def _seq(one: Slice) -> Numbers:
    last = one.block.ref.last_seq
    if last > SEQ_MAX:
        raise PipelineError(f"stream {one.task.account}/{one.task.stream}: sequences up to {last} do not fit into "
                            f"Spark's LONG; leave out the column seq")
    return one.block.seq(one.rows)


def _time_ns(one: Slice) -> Numbers:
    return one.block.time_ns(one.rows)


def _subjects(slices: Sequence[Slice], kind: pa.DataType) -> pa.Array:
    """Subjects as ``kind``: string (bytes that are not UTF-8 become U+FFFD) or binary."""
    names = [one.block.names for one in slices]
    together = names[0] if len(names) == 1 else pa.concat_arrays(names)
    if kind != pa.binary():
        together = readable(together)
    if len(together) == 1:
        return pa.repeat(together[0], len(slices[0].rows))
    ids = np.empty(sum(len(one.rows) for one in slices), np.int32)
    at = base = 0
    for one, own in zip(slices, names, strict=True):
        # Columns of ids have the narrowest type that the block's number of names allows.
        np.add(one.block.subject_ids(one.rows), base, out=ids[at:(at := at + len(one.rows))], casting="unsafe",
               dtype=np.int32)
        base += len(own)
    return together.take(pa.array(ids))
