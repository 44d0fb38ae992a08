"""Columns of unsigned integers at their least width: 0, 1, 2, 4 or 8 bytes a cell, little-endian.

    value[i] = base + cell[i];   width 0: no cells at all, every value is the base

The fixed part of a column's section has its description (base and width), and the section's body has its cells. A
reader of single messages gets the values in ``array``s; a reader of whole columns supplies its own ``Values``. One
decoder, with one set of checks, serves both.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import ge, gt
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["ARRAYS", "COLUMN", "NAMES_DIFFER", "TOO_HIGH", "Arrays", "CheckedValues", "Column", "Misfit", "Values",
           "compact", "read_cells", "read_column"]

_TYPECODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
assert all(array(code).itemsize == width for width, code in _TYPECODES.items())
_SWAPPED: Final = sys.byteorder == "big"

COLUMN: Final = struct.Struct("<QB")
"""The description of a column: base, width."""


def compact(values: Sequence[int], high: int) -> array[int]:
    """Return ``values``, none above ``high``, in an array of the least width; unchanged if they are one."""
    code = "B" if high < 1 << 8 else "H" if high < 1 << 16 else "I" if high < 1 << 32 else "Q"
    return values if isinstance(values, array) and values.typecode == code else array(code, values)


TOO_HIGH: Final = "a value is out of bounds"
NAMES_DIFFER: Final = "the subjects' names do not add up"


class Misfit(ValueError):
    """A column that exceeds its section, or has values out of bounds."""


class Column(NamedTuple):
    """A column ready to be written."""

    base: int
    width: int
    cells: bytes

    @classmethod
    def of(cls, values: Sequence[int], low: int | None = None, high: int | None = None, base: int = 0) -> Column:
        """Compact ``values``, all at or above ``base`` and below 2^64.

        Args: low and high are the bounds of the values, if known. A base other than 0 costs a subtraction for each
            value, so it is for columns that would otherwise need 8 bytes a cell.
        """
        if not values:
            return cls(base, 0, b"")
        low = min(values) if low is None else low
        high = max(values) if high is None else high
        if low == high:
            return cls(low, 0, b"")
        if base:
            values, high = [value - base for value in values], high - base
        cells = compact(values, high)
        width = cells.itemsize
        if _SWAPPED:
            cells = cells[:]
            cells.byteswap()
        return cls(base, width, cells.tobytes())

    @property
    def description(self) -> bytes:
        """9 bytes: base, width."""
        return COLUMN.pack(self.base, self.width)


def read_column(data: bytes, at: int, base: int, width: int, count: int) -> tuple[Sequence[int] | None, int]:
    """Read the cells of one column that begin at ``at``.

    Returns: the values (None: every one is ``base``), and where the column ends.
    Raises: Misfit if the width is invalid, cells are missing, or a value is 2^64 or more.
    """
    if width == 0:
        return None, at
    cells, end = read_cells(data, at, width, count)
    if not base:
        return cells, end
    if base + (1 << 8 * width) > 1 << 64 and base + max(cells) >= 1 << 64:
        raise Misfit(TOO_HIGH)
    return [base + cell for cell in cells], end


def read_cells(data: bytes, at: int, width: int, count: int) -> tuple[array[int], int]:
    """Read the cells of a column that has some, without adding the base; otherwise like ``read_column``."""
    code = _TYPECODES.get(width)
    if code is None:
        raise Misfit(f"a column is {width} bytes wide")
    end = at + width * count
    if end > len(data):
        raise Misfit("a column is longer than its section")
    cells = array(code)
    cells.frombytes(data[at:end])
    if _SWAPPED:
        cells.byteswap()
    return cells, end


class Values(Protocol):
    """The interface by which a decoder makes columns. A column has a length and can be indexed."""

    def read(self, data: bytes, at: int, base: int, width: int, count: int) -> tuple[Any, int]:
        """Read a column, as ``read_column`` does."""

    def filled(self, value: int, count: int) -> Any:
        """Return a column of ``count`` times ``value``."""

    def times(self, values: Any) -> Any:
        """Return a column of values below 2^63 as signed integers."""

    def names(self, data: bytes, at: int, lens: Any) -> Any:
        """Cut the rest of ``data`` from ``at`` on into names of these lengths.

        Raises: Misfit unless they fill it exactly, and are in ascending order of their bytes.
        """


class CheckedValues(Values, Protocol):
    """The checks of a decoder on columns that it cannot rely on."""

    def highest(self, values: Any) -> int:
        """Return the highest value of a column that is not empty."""

    def total(self, values: Any) -> int:
        """Return the sum of a column, however high."""

    def rising(self, values: Any) -> bool:
        """Return whether each value is above the previous one."""

    def in_order(self, times: Any) -> bool:
        """Return whether no time is below the previous one."""

    def clipped(self, times: Any, low: int, high: int) -> Any:
        """Return ``times``, with lower ones raised to ``low`` and higher ones reduced to ``high``."""

    def within(self, lows: Any, highs: Any) -> bool:
        """Return whether no value of ``lows`` is above the value of ``highs`` at the same index."""


class Arrays:
    """Columns as arrays or lists of ints, names as a list of bytes."""

    def read(self, data: bytes, at: int, base: int, width: int, count: int) -> tuple[Sequence[int] | None, int]:
        return read_column(data, at, base, width, count)

    def filled(self, value: int, count: int) -> array[int]:
        return array("Q", (value,)) * count

    def times(self, values: Sequence[int]) -> array[int]:
        return array("q", values)

    def highest(self, values: Sequence[int]) -> int:
        return max(values)

    def total(self, values: Sequence[int]) -> int:
        return sum(values)

    def rising(self, values: Sequence[int]) -> bool:
        return not any(map(ge, values, values[1:]))

    def in_order(self, times: Sequence[int]) -> bool:
        return not any(map(gt, times, times[1:]))

    def clipped(self, times: Sequence[int], low: int, high: int) -> array[int]:
        return array("q", [min(max(time_ns, low), high) for time_ns in times])

    def within(self, lows: Sequence[int], highs: Sequence[int]) -> bool:
        return not any(map(gt, lows, highs))

    def names(self, data: bytes, at: int, lens: Sequence[int]) -> list[bytes]:
        ends = list(accumulate(lens, initial=at))
        if ends[-1] != len(data):
            raise Misfit(NAMES_DIFFER)
        names = [data[start:end] for start, end in pairwise(ends)]
        if any(map(ge, names, names[1:])):
            raise Misfit("the subjects are not in order")
        return names


ARRAYS: Final = Arrays()
