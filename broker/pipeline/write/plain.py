"""Rows that have only a subject and data, from Arrow batches to the columns of blocks, without an object for each row.

    batches ──> subjects, lengths, bytes ──> cut where a block is full ──> PlainColumns ──> RunWriter.add_columns
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.storage.staging.writer import PlainColumns, RunWriter

__all__ = ["PlainRows"]

_Numbers = npt.NDArray[Any]

_CODES = {1: "B", 2: "H", 4: "I"}


class PlainRows:
    """Rows that wait for a block of ``writer``."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._begin()

    def _begin(self) -> None:
        self._places: dict[bytes, int] = {}
        """The subjects, in the order in which they came."""
        self._ids: list[_Numbers] = []
        self._lens: list[_Numbers] = []
        self._bodies: list[memoryview] = []
        self._rows = self._bytes = 0

    def add(self, subjects: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Add rows, at least one, without NULLs. Raises: RowRefused; then none of them was added."""
        coded = subjects.dictionary_encode()
        names, ids = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        offsets = np.frombuffer(data.buffers()[1], np.int32, len(data) + 1, 4 * data.offset)
        lens = np.diff(offsets)
        self._writer.check(names, int(lens.max()))
        body = memoryview(data.buffers()[2] or b"")
        start, count = 0, len(data)
        while start < count:
            first = int(offsets[start])
            end = int(np.searchsorted(offsets, first + self._writer.block_bytes - self._bytes, "right")) - 1
            end = min(end, start + self._writer.block_messages - self._rows, count)
            if end <= start and self._rows:
                self.flush()
                continue
            end = max(end, start + 1)  # a message larger than a block has one of its own
            last = int(offsets[end])
            places = np.asarray([self._places.setdefault(name, len(self._places)) for name in names])
            self._ids.append(places[ids[start:end]])
            self._lens.append(lens[start:end])
            self._bodies.append(body[first:last])
            self._rows += end - start
            self._bytes += last - first
            start = end

    def flush(self) -> None:
        """Make a block of the waiting rows."""
        if not self._rows:
            return
        ids, lens = np.concatenate(self._ids), np.concatenate(self._lens)
        counts = np.bincount(ids)
        names = list(self._places)
        order = sorted(np.flatnonzero(counts).tolist(), key=names.__getitem__)
        rank = np.zeros(len(names), np.int64)
        rank[order] = np.arange(len(order))
        ids = rank[ids]
        firsts, lasts = np.empty((2, len(order)), np.int64)
        ordinals = np.arange(self._rows)
        firsts[ids[::-1]] = ordinals[::-1]  # with several values for one place, the last one wins
        lasts[ids] = ordinals
        self._writer.add_columns(PlainColumns(
            [names[at] for at in order], _array(ids, len(order) - 1), counts[order].tolist(), firsts.tolist(),
            lasts.tolist(), _array(lens, int(lens.max())), b"".join(self._bodies)))
        self._begin()


def _array(values: _Numbers, high: int) -> array[int]:
    """Return values up to ``high`` in an array of the least width."""
    width = 1 if high < 1 << 8 else 2 if high < 1 << 16 else 4
    cells: Any = values.astype(f"u{width}")
    found = array(_CODES[width])
    found.frombytes(cells.tobytes())
    return found
