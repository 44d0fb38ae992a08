"""Columns of unsigned integers at the least width that holds them: 0, 1, 2, 4 or 8 bytes a cell, little-endian.

    value[i] = base + cell[i];   width 0: no cells at all, every value is the base

A column's description (base and width) is in its section's fixed part, its cells in the section's body.
A reader of single messages gets the values in ``array``s; a reader of whole columns brings its own ``Values``. One
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
"""How a section describes one of its columns: base, width."""


def compact(values: Sequence[int], high: int) -> array[int]:
    """``values``, none above ``high``, in an array of the least width; ``values`` itself where it already is that."""
    code = "B" if high < 1 << 8 else "H" if high < 1 << 16 else "I" if high < 1 << 32 else "Q"
    return values if isinstance(values, array) and values.typecode == code else array(code, values)


TOO_HIGH: Final = "a value is out of bounds"
NAMES_DIFFER: Final = "the subjects' names do not add up"


class Misfit(ValueError):
    """A column that its section does not hold, or whose values are out of bounds."""


class Column(NamedTuple):
    """A column ready to be written."""

    base: int
    width: int
    cells: bytes

    @classmethod
    def of(cls, values: Sequence[int], low: int | None = None, high: int | None = None, base: int = 0) -> Column:
        """Compact ``values``, all at or above ``base`` and below 2^64.

        Args: low and high are their bounds where the caller has them. A base other than 0 costs a subtraction for each
            value, so it is for columns that would need 8 bytes a cell otherwise.
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
    Raises: Misfit when the width is not one, the cells are not all there, or a value is 2^64 or more.
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
    """As ``read_column``, of a column that has cells, without the base."""
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
    """What a decoder makes of columns. A column of it has a length and can be indexed; only what made it knows more."""

    def read(self, data: bytes, at: int, base: int, width: int, count: int) -> tuple[Any, int]:
        """As ``read_column``."""

    def filled(self, value: int, count: int) -> Any:
        """A column of ``count`` times ``value``."""

    def times(self, values: Any) -> Any:
        """A column whose values are below 2^63, as signed integers."""

    def names(self, data: bytes, at: int, lens: Any) -> Any:
        """The rest of ``data`` from ``at`` on, cut into names of these lengths.

        Raises: Misfit unless they are exactly the rest, and each comes after the one before in order of bytes.
        """


class CheckedValues(Values, Protocol):
    """The few things that a decoder must find out about columns that it cannot rely on."""

    def highest(self, values: Any) -> int:
        """The highest value of a column that is not empty."""

    def total(self, values: Any) -> int:
        """The sum of a column, however high it is."""

    def rising(self, values: Any) -> bool:
        """Whether each value is above the one before."""

    def in_order(self, times: Any) -> bool:
        """Whether no time is below the one before."""

    def clipped(self, times: Any, low: int, high: int) -> Any:
        """``times`` with ``low`` for what is below it, and ``high`` for what is above."""

    def within(self, lows: Any, highs: Any) -> bool:
        """Whether no value of ``lows`` is above its neighbour of ``highs``."""


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
