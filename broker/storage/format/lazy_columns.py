"""Columns of an index that this process has written or checked before: values are cut on demand.

A read of a few messages of a block of thousands needs two or three of its names and times. Making all of them, and
comparing them with each other, costs ten times as much as the rest of that read. The index's checksum is compared each
time.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, overload

from broker.storage.format.columns import ARRAYS, NAMES_DIFFER, Misfit, read_cells, read_column

__all__ = ["KNOWN", "Known", "Names", "Shifted"]


class Names(Sequence[bytes]):
    """Names in order of their bytes, side by side in ``data``; ``ends`` are where each begins and the last one ends."""

    __slots__ = ("_all", "_data", "_ends")

    def __init__(self, data: bytes, ends: list[int]) -> None:
        self._data = data
        self._ends = ends
        self._all: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, i: int) -> bytes: ...
    @overload
    def __getitem__(self, i: slice) -> list[bytes]: ...
    def __getitem__(self, i: int | slice) -> bytes | list[bytes]:
        if self._all is not None:
            return self._all[i]
        data, ends = self._data, self._ends
        if isinstance(i, slice):
            start, stop, step = i.indices(len(self))
            return [data[ends[at]:ends[at + 1]] for at in range(start, stop, step)]
        return data[ends[i]:ends[i + 1]] if i >= 0 else self._listed()[i]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._listed())

    def pick(self, places: Sequence[int]) -> tuple[list[bytes], int]:
        """Return the names at ``places``, each made once, and the memory of the new ones in bytes."""
        if self._all is not None or len(places) >= len(self) // 2:
            return list(map(self._listed().__getitem__, places)), 0
        data, ends = self._data, self._ends
        made = {i: data[ends[i]:ends[i + 1]] for i in set(places)}
        return list(map(made.__getitem__, places)), sum(map(sys.getsizeof, made.values()))

    @property
    def text_bytes(self) -> int:
        """The length of all names together."""
        return self._ends[-1] - self._ends[0]

    def _listed(self) -> list[bytes]:
        if self._all is None:
            data = self._data
            self._all = [data[start:end] for start, end in pairwise(self._ends)]
        return self._all


class Shifted(Sequence[int]):
    """The sums of ``base`` and each of ``cells``."""

    __slots__ = ("_base", "_cells")

    def __init__(self, base: int, cells: array[int]) -> None:
        self._base = base
        self._cells = cells

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> array[int]: ...
    def __getitem__(self, i: int | slice) -> int | array[int]:
        base = self._base
        return array("Q", [base + cell for cell in self._cells[i]]) if isinstance(i, slice) else base + self._cells[i]

    def __iter__(self) -> Iterator[int]:
        base = self._base
        return (base + cell for cell in self._cells)


class Known:
    """The ``Values`` for such an index."""

    def read(self, data: bytes, at: int, base: int, width: int, count: int) -> tuple[Sequence[int] | None, int]:
        if not base or not width:
            return read_column(data, at, base, width, count)
        cells, end = read_cells(data, at, width, count)
        return Shifted(base, cells), end

    def filled(self, value: int, count: int) -> array[int]:
        return ARRAYS.filled(value, count)

    def times(self, values: Any) -> Any:
        return values

    def names(self, data: bytes, at: int, lens: Sequence[int]) -> Names:
        ends = list(accumulate(lens, initial=at))
        if ends[-1] != len(data):
            raise Misfit(NAMES_DIFFER)
        return Names(data, ends)


KNOWN: Final = Known()
