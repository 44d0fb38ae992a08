"""Small blocks to rows: messages as Python values, many blocks in one batch.

Numpy columns cost a block about 100 µs, however few messages it has. A stream with occasional publishes has a block
for each message; those are decoded as the broker decodes them, and share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.pipeline.errors import from_format_error
from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.schema import PAIRS
from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.decode import parse_headers
from broker.storage.format.errors import FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.index import decode_index

__all__ = ["SMALL_COUNT", "StoredBlock", "batch_of"]

SMALL_COUNT: Final = 16
"""The number of messages in a block up to which this module is faster."""


class StoredBlock(NamedTuple):
    """A block's index and frames as stored; no frames if bodies are not needed."""

    task: ScanTask
    head: memoryview
    frames: memoryview | None


class _Message(NamedTuple):
    task: ScanTask
    pos: int
    seq: int
    subject: bytes
    time_ns: int
    headers: bytes | None
    data: bytes


def batch_of(blocks: Sequence[StoredBlock], schema: pa.Schema, selection: Selection,
             wanted: Callable[[bytes], bool] | None, where: str) -> pa.RecordBatch:
    """The wanted messages of ``blocks``, in order.

    Args: wanted tests subjects. where is the store's URL, for errors. Raises: Damaged; Newer.
    """
    rows: list[_Message] = []
    for block in blocks:
        try:
            rows += _messages(block, selection, wanted)
        except FormatError as error:
            task = block.task
            raise from_format_error(error, f"{where}: stream {task.account}/{task.stream}", task.key) from None
    return pa.RecordBatch.from_arrays([_column(field.name.lower(), field.type, rows) for field in schema],
                                      schema=schema)


def _messages(block: StoredBlock, selection: Selection, wanted: Callable[[bytes], bool] | None) -> Iterator[_Message]:
    """Yield the wanted messages of one block. Raises: Corrupt; VersionUnknown."""
    task, index, frames = block
    head = decode_index(bytes(index), task.ref, task.key)
    low, high = selection.first_ns, selection.last_ns
    bodies: list[bytes] = []
    hlens: list[int] = []
    if frames is not None:
        for number, frame in enumerate(head.frames):
            stored = bytes(frames[frame.offset:frame.offset + frame.stored_bytes])
            chunk = decode_frame(head, number, stored, task.key)
            bodies += chunk.bodies
            hlens += chunk.hlens or (0,) * len(chunk)
    for pos in range(head.count):
        seq, time_ns, subject = head.seq_of(pos), head.time_of(pos), head.subject_of(pos)
        if not task.first_seq <= seq <= task.last_seq or (task.dead is not None and seq in task.dead):
            continue
        if (low is not None and time_ns < low) or (high is not None and time_ns > high):
            continue
        if wanted is not None and not wanted(subject):
            continue
        body, hlen = (bodies[pos], hlens[pos]) if bodies else (b"", 0)
        yield _Message(task, pos, seq, subject, time_ns, body[:hlen] if hlen else None, body[hlen:] if hlen else body)


def _column(name: str, kind: pa.DataType, rows: Sequence[_Message]) -> pa.Array:
    if name == "headers":
        headers = pa.array([row.headers for row in rows], pa.binary())
        return parse_headers(headers, kind) if kind == PAIRS else headers
    values: list[Any]
    if name == "subject":
        values = [row.subject for row in rows]
        if kind != pa.binary():
            values = [subject.decode("utf-8", "replace") for subject in values]
    elif name == "ts":
        values = [row.time_ns // 1000 for row in rows]
    elif name == "ts_ns":
        values = [row.time_ns for row in rows]
    elif name in ("seq", "data", "pos"):
        values = [getattr(row, name) for row in rows]
    else:
        field = "key" if name == "block" else name
        values = [getattr(row.task, field).encode("utf-8", "replace").decode() for row in rows]
    return pa.array(values, kind)
