"""Columns of integers in msgpack: in records of consumers' state, and in the pages of a checkpoint.

    a few        [1, 2, 3]
    many         bytes, little-endian signed 64-bit integers
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["PackedColumn", "pack_column", "packed_bytes", "unpack_column"]

PackedColumn = list[int] | bytes

_LISTED_MAX: Final = 8
"""Numbers in a column that is a list. Beyond these, bytes are faster to pack, and about as short."""


def pack_column(numbers: Sequence[int]) -> PackedColumn:
    """``numbers`` as a list or as bytes, whichever suits their count."""
    return list(numbers) if len(numbers) <= _LISTED_MAX else packed_bytes(numbers)


def packed_bytes(numbers: Iterable[int]) -> bytes:
    """``numbers`` as bytes, however many there are."""
    values = array("q", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_column(column: object) -> list[int]:
    """Undo ``pack_column``. Raises: TypeError, ValueError."""
    if type(column) is list:
        if type(sum(column)) is not int:  # as every one of them then is
            raise TypeError("a column of something else than integers")
        return column
    if type(column) is not bytes:
        raise TypeError("not a column")
    values = array("q")
    values.frombytes(column)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
