"""Message ids with sequences and times, in few bytes: the body of a DEDUPE page.

    chunk        [count, seqs, times, id lengths, ids]                        a column: [base, width, cells]
    page body    [first_seq, last_seq, count, [chunk, …]]                     each chunk as the bytes of its msgpack

Sequences ascend. A column without cells (width 0) has ascending sequences from its base on in ``seqs``, and the base
for each row in other columns. Ids are side by side.

An id has its message's sequence, even after the message is removed. A chunk is made once, as a block recorded it, and
stays packed; chunks are joined without unpacking. Only small ones are merged into one when a page is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import ge, gt
from typing import Any, Final, NamedTuple

from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.columns import Column, Misfit, read_column

__all__ = ["IdRows", "joined", "pack_body", "pack_ids", "unpack_body", "unpack_chunks"]

_IDS_MAX: Final = 1 << 24
"""The most ids of a chunk that a reader accepts; writers stay far below."""
_SMALL: Final = 128
"""Successive chunks with fewer ids are merged into one, of up to ``_JOINED`` ids."""
_JOINED: Final = 1024


class IdRows(NamedTuple):
    """Ids of messages, with their sequences and times, both in ascending order; times may repeat."""

    seqs: Sequence[int]
    times: Sequence[int]
    ids: Sequence[bytes]


def pack_ids(first_seq: int, ordinals: Sequence[int], time_ns: int | Sequence[int], ids: Sequence[bytes]) -> bytes:
    """Return a chunk of at least one id: message ``first_seq + ordinals[i]`` has ``ids[i]``; ordinals ascend.

    Args: ``time_ns`` is the time of all messages, or one time for each.
    """
    count = len(ids)
    begin = ordinals[0]
    if ordinals[-1] - begin == count - 1:
        seqs = Column(first_seq + begin, 0, b"")
    else:
        cells = Column.of(ordinals)
        seqs = Column(first_seq, cells.width, cells.cells)
    times = Column(time_ns, 0, b"") if isinstance(time_ns, int) else Column.of(time_ns, base=time_ns[0])
    return pack_value([count, list(seqs), list(times), list(Column.of(list(map(len, ids)))), b"".join(ids)])


def _unpack_ids(chunk: bytes) -> IdRows:
    """Return the ids of a chunk. Raises: ValueError or TypeError if ``pack_ids`` did not make it."""
    count, seqs, times, lengths, text = unpack_value(chunk)
    if not (type(count) is int and 0 < count <= _IDS_MAX and type(text) is bytes):
        raise Misfit("the counts of a chunk of ids are out of bounds")
    begin, seq_cells = _column(seqs, count)
    time_ns, time_cells = _column(times, count)
    length, length_cells = _column(lengths, count)
    if seq_cells is not None and any(map(ge, seq_cells, seq_cells[1:])):
        raise Misfit("the sequences of a chunk of ids do not ascend")
    if time_cells is not None and any(map(gt, time_cells, time_cells[1:])):
        raise Misfit("the times of a chunk of ids descend")
    if length_cells is None and length * count != len(text):
        raise Misfit("the ids of a chunk do not add up")
    ends = list(range(0, len(text) + 1, length) if length_cells is None and length else
                accumulate(length_cells or (0,) * count, initial=0))
    if ends[-1] != len(text):
        raise Misfit("the ids of a chunk do not add up")
    return IdRows(range(begin, begin + count) if seq_cells is None else seq_cells,
                  (time_ns,) * count if time_cells is None else time_cells,
                  [text[start:end] for start, end in pairwise(ends)])


def _column(column: Any, count: int) -> tuple[int, Sequence[int] | None]:
    base, width, cells = column
    if type(base) is not int or base < 0 or type(cells) is not bytes:
        raise Misfit("a column of a chunk of ids has other types")
    values, end = read_column(cells, 0, base, width, count)
    if end != len(cells):
        raise Misfit("a column of a chunk of ids has other cells")
    return base, values


def joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Iterate over chunks with the same ids in order, small ones merged. Raises: ValueError or TypeError."""
    small: list[bytes] = []
    count = 0
    for chunk in chunks:
        size = _count(chunk)
        if small and (size >= _SMALL or count + size > _JOINED):
            yield _as_one(small)
            small, count = [], 0
        if size >= _SMALL:
            yield chunk
        else:
            small.append(chunk)
            count += size
    if small:
        yield _as_one(small)


def _count(chunk: bytes) -> int:
    """Return how many ids a chunk has, at most ``_SMALL``, by the second byte of its msgpack."""
    return chunk[1] if chunk[1] < _SMALL else _SMALL


def _as_one(chunks: Sequence[bytes]) -> bytes:
    if len(chunks) == 1:
        return chunks[0]
    seqs: list[int] = []
    times: list[int] = []
    ids: list[bytes] = []
    for chunk in chunks:
        rows = _unpack_ids(chunk)
        seqs += rows.seqs
        times += rows.times
        ids += rows.ids
    first = seqs[0]
    return pack_ids(first, [seq - first for seq in seqs], times, ids)


def pack_body(first_seq: int, last_seq: int, count: int, chunks: Sequence[bytes]) -> bytes:
    """Return the body of a page. Damaged chunks are stored unchanged: a reader of the page detects them."""
    try:
        packed = list(joined(chunks))
    except (ValueError, TypeError, IndexError):
        packed = list(chunks)
    return pack_value([first_seq, last_seq, count, packed])


def unpack_body(body: Any, first_seq: int, last_seq: int, count: int) -> tuple[list[bytes], list[IdRows]]:
    """Return the chunks of a page, packed and unpacked.

    Raises: ValueError or TypeError unless it has exactly ``count`` ids of the messages first_seq..last_seq.
    """
    *numbers, chunks = body
    if numbers != [first_seq, last_seq, count]:
        raise Misfit("it does not match the directory")
    return chunks, unpack_chunks(chunks, first_seq, last_seq, count)


def unpack_chunks(chunks: Iterable[bytes], first_seq: int, last_seq: int, count: int) -> list[IdRows]:
    """Unpack successive chunks with ``count`` ids of the messages first_seq..last_seq. Raises: as ``unpack_body``."""
    found: list[IdRows] = []
    at, time_ns = first_seq - 1, 0
    for chunk in chunks:
        rows = _unpack_ids(chunk)
        if rows.seqs[0] <= at or rows.times[0] < time_ns:
            raise Misfit("the chunks of ids are not in order")
        at, time_ns = rows.seqs[-1], rows.times[-1]
        count -= len(rows.ids)
        found.append(rows)
    if at > last_seq or count:
        raise Misfit("the chunks of ids do not add up")
    return found
