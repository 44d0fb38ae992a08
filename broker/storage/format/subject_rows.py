"""The body of a SUBJECTS page: subjects, sequences and sizes of successive messages of one stream.

    [first_seq, last_seq, messages, seqs, subject ids, sizes, name lengths, names]      a column: [base, width, cells]

A page stays valid even if messages are removed or their blocks are merged: a sequence never gets another subject. Only
the block table knows which of the messages are live. The page has all messages of the stream within
first_seq..last_seq, except those that were dead when it was made.

``seqs`` without cells (width 0) ascend by one from the base. Names are the distinct subjects in order of their bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import accumulate, chain, compress, islice, pairwise
from operator import add, ge
from typing import Any

from broker.storage.format.columns import Column, Misfit, compact, read_column
from broker.storage.format.index import Head
from broker.storage.format.message_size import HEADERS_BYTES, ROW_BYTES

__all__ = ["SubjectRows", "SubjectRowsWriter"]

_ROWS_MAX = 1 << 24
"""The most messages that a reader accepts; writers stay far below."""
_SIZE_MAX = (1 << 32) - 1
_AT_ONCE = 4096
"""Messages or names for one call of a C function, about 2 ms: it holds the GIL and so stops other threads."""

Span = tuple[int, int]
"""The first and the last sequence, both included."""


class SubjectRows:
    """The messages ``first_seq`` to ``last_seq`` of one stream, by ordinal. Immutable.

    ``seqs`` None: sequences ascend by one from ``begin``.
    """

    __slots__ = ("begin", "count", "first_seq", "ids", "last_seq", "names", "seqs", "sizes")

    def __init__(self, first_seq: int, last_seq: int, begin: int, seqs: Sequence[int] | None, ids: Sequence[int],
                 sizes: Sequence[int], names: Sequence[bytes]) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.begin = begin
        self.seqs = seqs
        self.ids = ids
        self.sizes = sizes
        self.names = names
        self.count = len(ids)

    def ordinal_of(self, seq: int) -> int:
        """Return the ordinal of the first message at or after ``seq``; ``count`` if there is none."""
        if self.seqs is not None:
            return bisect_left(self.seqs, seq)
        return min(max(seq - self.begin, 0), self.count)

    def seq_of(self, ordinal: int) -> int:
        """Return the sequence of message ``ordinal``."""
        return self.begin + ordinal if self.seqs is None else self.seqs[ordinal]

    def subject_of(self, ordinal: int) -> bytes:
        """Return the subject of message ``ordinal``."""
        return self.names[self.ids[ordinal]]

    def size_of(self, ordinal: int) -> int:
        """Return the size of message ``ordinal`` as its stream's ``bytes`` counts it."""
        return self.sizes[ordinal]

    def between(self, start: int, end: int) -> tuple[Sequence[bytes], Sequence[int], Sequence[int]]:
        """Return subject, 1 and sequence of each of the messages ``start`` to ``end`` (half open), as columns."""
        seqs = range(self.begin + start, self.begin + end) if self.seqs is None else self.seqs[start:end]
        return list(map(self.names.__getitem__, self.ids[start:end])), [1] * (end - start), seqs

    def pack(self) -> list[Any]:
        """Return the rows as a value for a page."""
        seqs = Column(self.begin, 0, b"") if self.seqs is None else Column.of(self.seqs, base=self.begin)
        return [self.first_seq, self.last_seq, self.count, list(seqs), list(Column.of(self.ids)),
                list(Column.of(self.sizes)),
                list(Column.of(list(map(len, self.names)))), len(self.names), b"".join(self.names)]

    @classmethod
    def unpack(cls, packed: Any) -> SubjectRows:
        """Return the rows that ``pack`` packed. Raises: TypeError or ValueError for any other value."""
        first_seq, last_seq, count, seqs, ids, sizes, lengths, names_count, names_bytes = packed
        if (not 0 <= first_seq <= last_seq or not 0 < count <= min(_ROWS_MAX, last_seq - first_seq + 1)
                or not 0 < names_count <= count):
            raise Misfit("the counts of a page of subjects are out of bounds")
        begin = seqs[0]
        seq_cells = _cells(seqs, count)
        id_cells, size_cells = _filled(ids, count), _filled(sizes, count)
        ends = list(accumulate(_filled(lengths, names_count), initial=0))
        if ends[-1] != len(names_bytes):
            raise Misfit("the names of a page of subjects do not add up")
        names = [names_bytes[start:end] for start, end in pairwise(ends)]
        low, high = (begin, begin + count - 1) if seq_cells is None else (seq_cells[0], seq_cells[-1])
        if (low < first_seq or high > last_seq or max(id_cells) >= names_count or max(size_cells) > _SIZE_MAX
                or any(name >= after for name, after in pairwise(names))
                or (seq_cells is not None and any(map(ge, seq_cells, seq_cells[1:])))):
            raise Misfit("the rows of a page of subjects are out of bounds")
        return cls(first_seq, last_seq, begin, seq_cells, id_cells, size_cells, names)


def _cells(column: Any, count: int) -> Sequence[int] | None:
    base, width, cells = column
    values, end = read_column(cells, 0, base, width, count)
    if end != len(cells):
        raise Misfit("a column of a page of subjects has other cells")
    return values


def _filled(column: Any, count: int) -> Sequence[int]:
    values = _cells(column, count)
    return array("Q", (column[0],)) * count if values is None else values


class SubjectRowsWriter:
    """Collects live messages in the order of their sequences, from blocks' heads and earlier pages."""

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.names_bytes = 0
        self._ids: dict[bytes, int] = {}
        self._seqs = array("Q")
        self._row_ids = array("I")
        self._sizes = array("I")

    def __len__(self) -> int:
        return len(self._row_ids)

    def add_head(self, head: Head, first: int, last: int, dead: Iterable[Span]) -> None:
        """Add the messages ``first`` to ``last`` of a block, except those in ``dead``, which are ascending."""
        names = head.subjects if isinstance(head.subjects, list) else list(head.subjects)
        count = head.count
        lengths = [ROW_BYTES + len(name) for name in names]
        ids = head.subject_ids if head.subject_ids is not None else array("I", bytes(4)) * count
        bodies = head.body_lens if head.body_lens is not None else array("Q", (head.body_len,)) * count
        sizes = list(map(add, map(lengths.__getitem__, ids), bodies))
        if head.hlens is not None:
            sizes = [size + HEADERS_BYTES if hlen else size for size, hlen in zip(sizes, head.hlens, strict=True)]
        elif head.hlen:
            sizes = [size + HEADERS_BYTES for size in sizes]
        seqs = head.seqs if head.seqs is not None else range(head.first_seq, head.first_seq + count)
        self._add(names, seqs, ids, sizes, first, last, dead)

    def add_rows(self, rows: SubjectRows, first: int, last: int, dead: Iterable[Span]) -> None:
        """Add messages of a page, as ``add_head`` does for a block."""
        seqs = rows.seqs if rows.seqs is not None else range(rows.begin, rows.begin + rows.count)
        self._add(rows.names, seqs, rows.ids, rows.sizes, first, last, dead)

    def _add(self, names: Sequence[bytes], seqs: Sequence[int], ids: Sequence[int], sizes: Sequence[int], first: int,
             last: int, dead: Iterable[Span]) -> None:
        mine = self._ids
        known = len(mine)
        place = [mine.setdefault(name, len(mine)) for name in names]
        self.names_bytes += sum(len(name) for name in islice(reversed(mine), len(mine) - known))
        at, end = bisect_left(seqs, first), bisect_left(seqs, last + 1)
        for gone, until in chain(dead, [(last + 1, last + 1)]):
            stop = min(max(at, bisect_left(seqs, gone)), end)
            for start in range(at, stop, _AT_ONCE):
                some = slice(start, min(start + _AT_ONCE, stop))
                self._seqs.extend(iter(seqs[some]))
                self._row_ids.extend(map(place.__getitem__, ids[some]))
                self._sizes.extend(iter(sizes[some]))
            at = min(max(stop, bisect_left(seqs, until + 1)), end)
        self.last_seq = last

    def rows(self) -> SubjectRows | None:
        """Return all messages; None if there are none."""
        if not self._row_ids:
            return None
        listed, mine = list(self._ids), self._ids
        used = bytearray(len(listed))
        for i in self._row_ids:
            used[i] = 1
        names = _in_order(list(compress(listed, used)))
        place = [0] * len(listed)
        for i, name in enumerate(names):
            place[mine[name]] = i
        ids = compact([place[i] for i in self._row_ids], len(names))
        seqs, count = self._seqs, len(self._seqs)
        gapless = seqs[-1] - seqs[0] == count - 1
        return SubjectRows(self.first_seq, self.last_seq, seqs[0], None if gapless else seqs, ids, self._sizes, names)


def _in_order(names: Sequence[bytes]) -> list[bytes]:
    """Return ``sorted(names)``, computed in slices."""
    return list(merge(*[sorted(names[at:at + _AT_ONCE]) for at in range(0, len(names), _AT_ONCE)]))
