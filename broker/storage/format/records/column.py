"""Columns of integers in msgpack: in records of consumers' state, and in the pages of a checkpoint.

    up to 8      [1, 2, 3]
    more         bytes, little-endian signed 64-bit integers

Every number is within 64 bits. Earlier versions wrote a few numbers without a check: times after the year 2262, which
clients had asked for. Such a number is read as the nearest one in range.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["PackedColumn", "pack_column", "packed_bytes", "unpack_column"]

PackedColumn = list[int] | bytes

_LOWEST: Final = -1 << 63
_HIGHEST: Final = (1 << 63) - 1

_LISTED_MAX: Final = 8
"""The most numbers of a column that is a list. For more, bytes are faster to pack, and about as short."""


def pack_column(numbers: Sequence[int]) -> PackedColumn:
    """Return ``numbers`` as a list or as bytes, depending on their count. Raises: OverflowError."""
    return array("q", numbers).tolist() if len(numbers) <= _LISTED_MAX else packed_bytes(numbers)


def packed_bytes(numbers: Iterable[int]) -> bytes:
    """Return ``numbers`` as bytes, whatever their count. Raises: OverflowError."""
    values = array("q", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_column(column: object) -> list[int]:
    """Return the numbers of a column that ``pack_column`` packed. Raises: TypeError, ValueError."""
    if type(column) is list:
        if type(sum(column)) is not int:  # a sum is an int only if all numbers are
            raise TypeError("a column has something other than integers")
        if column and (max(column) > _HIGHEST or min(column) < _LOWEST):
            return [min(max(number, _LOWEST), _HIGHEST) for number in column]
        return column
    if type(column) is not bytes:
        raise TypeError("not a column")
    values = array("q")
    values.frombytes(column)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
