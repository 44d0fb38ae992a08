"""Successive blocks of a table as the bytes of a checkpoint's page, and the facts about them that are needed most
often.

A block takes 300 to 500 bytes as a tuple or an object, and some 40 in a page. So unchanged blocks stay packed in
memory, and are unpacked on demand. A *summary* beside the page, which the checkpoint's directory has too, names the
objects that the blocks are stored in. Each start needs them to count the live blocks of each object, and so unpacks no
page for that.

    summary    [first_seq, last_seq of the first block, last_seq, blocks, live messages, their bytes, time of the first
                message, time of the last one, segments, runs]
    segments   [[epoch, number of the first, count, base, width, cells], …]   the numbers' differences, as a column
    runs       [[place, epoch, number, id, count], …]
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, groupby, pairwise, repeat
from typing import Any, Final

from broker.storage.format.block import BYTES, COUNT, FIRST_SEQ, FIRST_TIME_NS, LAST_SEQ, LAST_TIME_NS, BlockPlace
from broker.storage.format.codec import Undecodable, Unpackable, join_rows, unpack_tuples
from broker.storage.format.columns import Column, read_column
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import NUMBER_BITS, NUMBER_MAX, ObjectKind, object_name
from broker.storage.format.page import PageBody, PageRef
from broker.storage.format.subject_filter import check_filter
from broker.storage.state.entry import BlockEntry, Kept, RunKey, first_of, last_of, log_keys

__all__ = ["Packed", "rows_of"]

_RECENT_MAX: Final = 16_384
"""Blocks that stay unpacked after their last use: some 8 MB."""

_REF_FIELDS: Final = 18
_LOG: Final = int(BlockPlace.LOG)
_STREAM_RUN: Final = int(BlockPlace.STREAM_RUN)
_STAGED: Final = int(BlockPlace.STAGED)


_COUNT_MAX: Final = 1 << 16
"""No page has so many blocks. It bounds the counting at a start."""


class Packed:
    """A page's blocks in sequence order, at least one. Immutable."""

    __slots__ = ("_facts", "_runs", "_segments", "body", "count", "filters", "first_seq", "front_last_seq", "last_seq",
                 "source")

    def __init__(self, body: PageBody, summary: Sequence[Any], *, filters: bool) -> None:
        self.body = body
        """The body of a BLOCKS page: [room, [entry, …]]."""
        self.source: PageRef | None = None
        """The page that the body was read from."""
        self.filters = filters
        """True if a block may have a subject filter."""
        (self.first_seq, self.front_last_seq, self.last_seq, self.count, *self._facts, self._segments,
         self._runs) = summary

    @classmethod
    def of(cls, body: PageBody, entries: Sequence[Kept]) -> Packed:
        """Return the packed page; ``entries`` are the blocks in ``body``."""
        refs = [kept if type(kept) is tuple else kept.ref.pack() for kept in entries]  # type: ignore[union-attr]
        dead = [kept for kept in entries if isinstance(kept, BlockEntry)]
        runs = Counter([ref[:4] for ref in refs if ref[0] != _LOG])
        summary = (
            refs[0][FIRST_SEQ], refs[0][LAST_SEQ], refs[-1][LAST_SEQ], len(refs),
            sum([ref[COUNT] for ref in refs]) - sum(entry.dead_count for entry in dead),
            sum([ref[BYTES] for ref in refs]) - sum(entry.dead_bytes for entry in dead),
            refs[0][FIRST_TIME_NS], refs[-1][LAST_TIME_NS],
            _columns(log_keys(refs)), [(*run, count) for run, count in runs.items()])
        return cls(body, summary, filters=any(type(ref[-1]) is bytes for ref in refs))

    @classmethod
    def made(cls, room: int, entries: Sequence[Kept], before: Packed | None = None) -> Packed:
        """Return a page of ``entries`` after those of ``before``, which stay packed. The body is packed later."""
        rows = rows_of(entries)
        if before is None:
            return cls.of(PageBody.later(partial(join_rows, room, rows)), entries)
        body = before.body
        more = cls.of(PageBody.later(lambda: join_rows(room, rows, body.raw())), entries)
        msgs, size, first_time_ns, _ = before._facts
        more_msgs, more_size, _, last_time_ns = more._facts
        runs = Counter({tuple(run[:4]): run[4] for run in before._runs})
        runs.update({tuple(run[:4]): run[4] for run in more._runs})
        summary = (before.first_seq, before.front_last_seq, more.last_seq, before.count + more.count, msgs + more_msgs,
                   size + more_size, first_time_ns, last_time_ns, _columns(chain(before.log_keys(), more.log_keys())),
                   [(*run, count) for run, count in runs.items()])
        return cls(more.body, summary, filters=before.filters or more.filters)

    @classmethod
    def summarized(cls, body: PageBody, summary: Sequence[Any], *, filters: bool) -> Packed:
        """Return the packed page with a stored ``summary``. Raises: ValueError or TypeError if it is damaged."""
        first_seq, front_last_seq, last_seq, count, _, _, _, _, segments, runs = summary
        if not 0 < first_seq <= front_last_seq <= last_seq or not 0 < count <= _COUNT_MAX or count != (
                sum(group[2] for group in segments) + sum(run[4] for run in runs)):
            raise ValueError("the summary of a page of a block table does not add up")
        return cls(body, summary, filters=filters)

    @property
    def summary(self) -> list[Any]:
        """The page's summary for the directory."""
        return [self.first_seq, self.front_last_seq, self.last_seq, self.count, *self._facts, self._segments,
                self._runs]

    @property
    def staged(self) -> bool:
        """True if a block is a staged one."""
        return any(run[0] == _STAGED for run in self._runs)

    def entries(self) -> list[Kept]:
        """Return the blocks; do not change the list. Raises: Corrupt."""
        entries = _recent.get(self)
        if entries is None:
            try:
                entries = _unpacked(self.body)
                if (len(entries), first_of(entries[0]), last_of(entries[0]), last_of(entries[-1])) != (
                        self.count, self.first_seq, self.front_last_seq, self.last_seq):
                    raise ValueError("it does not match its summary")
            except (Corrupt, Undecodable, Unpackable, ValueError, TypeError, LookupError, AttributeError,
                    OverflowError) as error:
                name = "block table" if self.source is None else object_name(ObjectKind.PAGES, self.source.position)
                raise Corrupt(name, "page", 0 if self.source is None else self.source.offset, str(error)) from None
            _recent.put(self, entries)
        return entries

    def detach_entries(self) -> list[Kept]:
        """Return the blocks, as a list that belongs to the caller from now on. Raises: Corrupt."""
        entries = self.entries()
        _recent.drop(self)
        return entries

    def log_keys(self) -> Iterator[int]:
        """Iterate over the ``position_key`` of the blocks' segments, one for each block that is not in a run.

        Raises: ValueError or TypeError if the summary is damaged.
        """
        return chain.from_iterable(map(_keys, self._segments))

    def run_counts(self, stream_id: int) -> Iterator[tuple[RunKey, int]]:
        """Iterate over the runs, with the number of blocks in each. Raises: as ``log_keys``."""
        for place, epoch, number, run_id, count in self._runs:
            yield (epoch, number, run_id, stream_id if place >= _STREAM_RUN else 0), count


def rows_of(entries: Iterable[Kept]) -> list[Any]:
    """Return each block in the form that a page has."""
    return [(kept,) if type(kept) is tuple else kept.pack() for kept in entries]  # type: ignore[union-attr]


def _columns(keys: Iterable[int]) -> list[tuple[int, int, int, int, int, bytes]]:
    """Return position keys as groups of one epoch each."""
    groups = []
    for epoch, some in groupby(sorted(keys), NUMBER_BITS.__rrshift__):
        numbers = list(some)
        column = Column.of([after - before for before, after in pairwise(numbers)])
        groups.append((epoch, numbers[0] & NUMBER_MAX, len(numbers), column.base, column.width, column.cells))
    return groups


def _keys(group: Sequence[Any]) -> Iterable[int]:
    """Return the position keys of one group of ``_columns``. Raises: ValueError."""
    epoch, number, count, base, width, cells = group
    first = epoch << NUMBER_BITS | number
    steps, end = read_column(cells, 0, base, width, count - 1)
    if end != len(cells):
        raise ValueError("the numbers of segments do not fill their column")
    if steps is not None:
        return accumulate(steps, initial=first)
    return range(first, first + base * count, base) if base else repeat(first, count)


def _unpacked(body: PageBody) -> list[Kept]:
    _, packed = unpack_tuples(body.raw())
    entries = [entry[0] if len(entry) == 1 else BlockEntry.unpack(entry) for entry in packed]
    for entry in entries:
        _check(entry.ref.pack() if isinstance(entry, BlockEntry) else entry)
    return entries


def _check(ref: Any) -> None:
    """Check that ``ref`` is a packed reference. Raises: ValueError or TypeError."""
    if type(ref) is not tuple or len(ref) != _REF_FIELDS or set(map(type, ref[:-1])) != _INTEGERS:
        raise ValueError("a block reference has other fields")
    if ref[0] not in _PLACES or not 0 < ref[FIRST_SEQ] <= ref[LAST_SEQ] or min(ref[1:FIRST_SEQ]) < 0 or not (
            0 < ref[COUNT] <= ref[LAST_SEQ] - ref[FIRST_SEQ] + 1):
        raise ValueError("a block reference's numbers are inconsistent")
    subjects = ref[-1]
    if type(subjects) is bytes:
        check_filter(subjects)
    elif subjects is not None and {tuple(map(type, subject)) for subject in subjects} - _SUBJECTS:
        raise ValueError("a subject summary has other fields")


_INTEGERS: Final = {int}
_PLACES: Final = frozenset(map(int, BlockPlace))
_SUBJECTS: Final = {(bytes, int, int, int)}


class _Recent:
    """A cache of the blocks that were unpacked last."""

    def __init__(self, entries_max: int) -> None:
        self._max = entries_max
        self._count = 0
        self._entries: OrderedDict[Packed, list[Kept]] = OrderedDict()

    def get(self, packed: Packed) -> list[Kept] | None:
        found = self._entries.get(packed)
        if found is not None:
            self._entries.move_to_end(packed)
        return found

    def drop(self, packed: Packed) -> None:
        self._count -= len(self._entries.pop(packed))

    def put(self, packed: Packed, entries: list[Kept]) -> None:
        self._entries[packed] = entries
        self._count += len(entries)
        while self._count > self._max and len(self._entries) > 1:
            self._count -= len(self._entries.popitem(last=False)[1])


_recent = _Recent(_RECENT_MAX)
