"""Columns of an index as numpy arrays, for readers of whole columns.

Mostly views of the index's own bytes; subject names are one Arrow array. The checks are those of the shared decoder
(``storage.format.index``).
"""

from __future__ import annotations

from operator import ge, le
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.storage.format.columns import TOO_HIGH, Misfit

__all__ = ["NUMPY", "Numbers"]

Numbers = npt.NDArray[Any]

_FEW: Final = 64
_LESS: Final = pc.get_function("less")
"""The function itself, because pyarrow's wrapper costs as much as comparing the names of a small block."""
_TYPES: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class Numpy:
    """Values (``storage.format.columns``) as unsigned numpy arrays of any width; times are of int64."""

    def read(self, data: bytes, at: int, base: int, width: int, count: int) -> tuple[Numbers | None, int]:
        if width == 0:
            return None, at
        if width not in _TYPES:
            raise Misfit(f"a column is {width} bytes wide")
        end = at + width * count
        if end > len(data):
            raise Misfit("a column is longer than its section")
        cells: Numbers = np.frombuffer(data, _TYPES[width], count, at)
        if not cells.flags.aligned:
            cells = cells.copy()
        if base:
            if base + (1 << 8 * width) > 1 << 64 and base + int(cells.max()) >= 1 << 64:
                raise Misfit(TOO_HIGH)
            cells = cells + np.uint64(base)
        return cells, end

    def filled(self, value: int, count: int) -> Numbers:
        return np.full(count, value, np.uint64)

    def times(self, values: Numbers) -> Numbers:
        return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)

    # Blocks of a slow stream have few messages each; for such short columns a numpy call costs more than a Python loop.

    def highest(self, values: Numbers) -> int:
        return int(values.max()) if len(values) > _FEW else max(values.tolist())

    def total(self, values: Numbers) -> int:
        if len(values) > _FEW and (values.itemsize <= 4 or int(values.max()) * len(values) < 1 << 64):
            return int(values.sum(dtype=np.uint64))
        return sum(values.tolist())

    def rising(self, values: Numbers) -> bool:
        return bool((values[1:] > values[:-1]).all())

    def in_order(self, times: Numbers) -> bool:
        return bool((times[1:] >= times[:-1]).all())

    def clipped(self, times: Numbers, low: int, high: int) -> Numbers:
        return np.clip(times, low, high)

    def within(self, lows: Numbers, highs: Numbers) -> bool:
        if len(lows) > _FEW:
            return bool((lows <= highs).all())
        return all(map(le, lows.tolist(), highs.tolist()))

    def names(self, data: bytes, at: int, lens: Numbers) -> pa.BinaryArray:
        if self.total(lens) != len(data) - at:
            raise Misfit("the subjects' names do not add up")
        if len(lens) == 1:
            return pa.array([data[at:]], pa.binary())
        offsets = np.empty(len(lens) + 1, np.int32)
        offsets[0] = at
        np.cumsum(lens, out=offsets[1:], dtype=np.int32)
        offsets[1:] += at
        names = pa.BinaryArray.from_buffers(pa.binary(), len(lens), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        if len(lens) > _FEW:
            rising = _LESS.call([names[:-1], names[1:]]).false_count == 0
        else:
            listed = names.to_pylist()
            rising = not any(map(ge, listed, listed[1:]))
        if not rising:
            raise Misfit("the subjects are not in order")
        return names


NUMPY: Final = Numpy()
