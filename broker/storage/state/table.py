"""The blocks of one stream, in sequence order, and which of their messages are dead.

Kept in pages of 1024 entries, as a checkpoint keeps them: only the last page gets new blocks, and a page that changed
is marked so that a round writes just those. A block that is all dead, or is below the stream's first sequence,
leaves.

Everything here may be applied twice with the same result: blocks are only added once, and what is dead stays dead. A
page that was copied a little later than its stream may therefore be replayed over.

A block of a run may take the place of neighbours (``swap``): the one change that is neither at the end nor a removal.
Applied again it changes nothing, since a block that is there already is left alone.

A block with nothing dead is kept as its packed reference alone, a tuple of numbers and names: there may be
millions, and the garbage collector untracks those. A ``BlockEntry`` is made of it on demand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from broker.storage.format.block import FIRST_SEQ, LAST_SEQ, BlockPlace, BlockRef, PackedRef
from broker.storage.format.header import NUMBER_BITS, position_key
from broker.storage.state.dead import DeadSet

__all__ = ["PAGE_ENTRIES", "BlockEntry", "BlockTable", "Kept", "RunKey", "TablePage", "log_keys", "run_keys"]

PAGE_ENTRIES = 1024

RunKey = tuple[int, int, int, int]
"""Epoch, number and id of a run, and the stream that it belongs to alone, or 0."""

_LOG = int(BlockPlace.LOG)
_STREAM_RUN = int(BlockPlace.STREAM_RUN)
_STAGED = int(BlockPlace.STAGED)


class BlockEntry:
    """One persisted block that still has a live message."""

    __slots__ = ("dead", "dead_bytes", "dead_count", "ref")

    def __init__(self, ref: BlockRef) -> None:
        self.ref = ref
        self.dead: DeadSet | None = None
        self.dead_count = 0
        """Messages removed by sequence; exact, except in blocks with gaps, where it may be too low."""
        self.dead_bytes = 0
        """Their user size; an estimate where a removed range ended within the block."""

    @property
    def first_seq(self) -> int:
        return self.ref.first_seq

    @property
    def last_seq(self) -> int:
        return self.ref.last_seq

    @property
    def live_msgs(self) -> int:
        """Messages that were not removed by sequence."""
        return self.ref.count - self.dead_count

    def is_dead(self, seq: int) -> bool:
        """Whether the message at ``seq``, which is in this block, was removed (the stream's first_seq left aside)."""
        return self.dead is not None and seq in self.dead

    def remove(self, first: int, last: int, msgs: int, size: int) -> bool:
        """Mark what this block holds of first..last; returns whether anything is new.

        Args: msgs and size are the range's own, so they are exact where the range is within the block.
        """
        ref = self.ref
        within = first >= ref.first_seq and last <= ref.last_seq
        low, high = max(first, ref.first_seq), min(last, ref.last_seq)
        if low == ref.first_seq and high == ref.last_seq:
            changed = self.dead_count < ref.count
            self.dead_count, self.dead_bytes = ref.count, ref.bytes
            return changed
        if self.dead is None:
            self.dead = DeadSet(ref.first_seq, ref.last_seq, ref.count)
        new = self.dead.add(low, high)
        if not new:
            return False
        if within:
            self.dead_count += min(msgs, new)
            self.dead_bytes += size
        elif ref.gapless:
            self.dead_count += new
            self.dead_bytes = min(ref.bytes, self.dead_bytes + ref.bytes * new // ref.count)
        return True

    def pack(self) -> list[Any]:
        ref = self.ref.pack()
        return [ref] if self.dead is None else [ref, self.dead.pack(), self.dead_count, self.dead_bytes]

    @classmethod
    def unpack(cls, packed: Any, unpack_ref: Callable[[Any], BlockRef] = BlockRef.unpack) -> BlockEntry:
        """Raises: ValueError, TypeError or Corrupt when ``packed`` is not what ``pack`` gives."""
        entry = cls(unpack_ref(packed[0]))
        if len(packed) > 1:
            _, dead, entry.dead_count, entry.dead_bytes = packed
            entry.dead = DeadSet(entry.ref.first_seq, entry.ref.last_seq, entry.ref.count)
            entry.dead.load(dead)
        return entry


Kept = PackedRef | BlockEntry
"""How a page keeps a block: as a reference while nothing of it is dead, or as an entry."""


def run_keys(stream_id: int, blocks: Iterable[Kept]) -> Iterator[RunKey]:
    """The run that each of ``blocks`` is stored in, except those in segments."""
    for kept in blocks:
        ref = kept if type(kept) is tuple else kept.ref.pack()  # type: ignore[union-attr]
        if ref[0] != _LOG:
            yield ref[1], ref[2], ref[3], stream_id if ref[0] >= _STREAM_RUN else 0


def log_keys(blocks: Iterable[Kept]) -> Iterator[int]:
    """The ``position_key`` of the segment that each of ``blocks`` is stored in, except those in runs."""
    for kept in blocks:
        if isinstance(kept, BlockEntry):
            ref = kept.ref
            if ref.place == BlockPlace.LOG:
                yield position_key(ref.position)
        elif kept[0] == _LOG:
            yield kept[1] << NUMBER_BITS | kept[2]


class TablePage:
    """Up to 1024 neighbouring entries. ``place`` says where a checkpoint keeps them; None: changed since."""

    __slots__ = ("entries", "place", "room")

    def __init__(self) -> None:
        self.entries: list[Kept] = []
        self.room = PAGE_ENTRIES
        self.place: Any = None

    def pack(self) -> list[Any]:
        """Each entry for a checkpoint's page, as ``BlockEntry.pack`` gives it."""
        return [(kept,) if type(kept) is tuple else kept.pack() for kept in self.entries]  # type: ignore[union-attr]

    @property
    def filters(self) -> bool:
        """Whether a block has a subject filter."""
        return any(type(kept[-1]) is bytes if type(kept) is tuple else kept.ref.subject_filter is not None  # type: ignore[union-attr]
                   for kept in self.entries)

    @property
    def staged(self) -> bool:
        """Whether a block is a staged one."""
        return any((kept[0] if type(kept) is tuple else kept.ref.place) == _STAGED  # type: ignore[union-attr]
                   for kept in self.entries)


class BlockTable:
    """The live blocks of one stream."""

    __slots__ = ("_count", "pages", "swaps")

    def __init__(self) -> None:
        self.pages: list[TablePage] = []
        """No page is empty."""
        self.swaps = 0
        """How often blocks gave way to another: who walks the table in slices then begins again."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[BlockEntry]:
        for page in self.pages:
            yield from map(_entry, page.entries)

    def steady(self) -> Iterator[BlockEntry]:
        """As ``iter``, while blocks may be appended, but none leave."""
        p = i = 0
        while p < len(self.pages):
            entries = self.pages[p].entries
            while i < len(entries):
                yield _entry(entries[i])
                i += 1
            p, i = p + 1, 0

    @property
    def last_seq(self) -> int:
        """The last sequence of the last block; 0 when there is none."""
        return _last(self.pages[-1].entries[-1]) if self.pages else 0

    def append(self, ref: PackedRef) -> bool:
        """Add a block; False when the table has it, or anything later, already (a replay over a newer page)."""
        if ref[FIRST_SEQ] <= self.last_seq:
            return False
        if not self.pages or not self.pages[-1].room:
            self.pages.append(TablePage())
        page = self.pages[-1]
        page.entries.append(ref)
        page.room -= 1
        page.place = None
        self._count += 1
        return True

    def find(self, seq: int) -> BlockEntry | None:
        """The block whose range holds ``seq``; the sequence itself may be dead or in a gap."""
        p = bisect_right(self.pages, seq, key=_page_first) - 1
        if p < 0:
            return None
        entries = self.pages[p].entries
        i = bisect_right(entries, seq, key=_first) - 1
        return _entry(entries[i]) if i >= 0 and _last(entries[i]) >= seq else None

    def since(self, seq: int) -> Iterator[BlockEntry]:
        """The blocks that hold ``seq`` or a later sequence, in order; those before are not looked at."""
        p = max(0, bisect_right(self.pages, seq, key=_page_first) - 1)
        for page in self.pages[p:p + 1]:
            i = max(0, bisect_right(page.entries, seq, key=_first) - 1)
            yield from (_entry(kept) for kept in page.entries[i:] if _last(kept) >= seq)
        for page in self.pages[p + 1:]:
            yield from map(_entry, page.entries)

    def remove(self, first: int, last: int, msgs: int, size: int) -> list[Kept]:
        """Mark a removed range dead; returns the blocks that left."""
        left: list[Kept] = []
        p = max(0, bisect_right(self.pages, first, key=_page_first) - 1)
        emptied = False
        while p < len(self.pages) and _first(self.pages[p].entries[0]) <= last:
            page = self.pages[p]
            entries = page.entries
            i = max(0, bisect_right(entries, first, key=_first) - 1)
            gone: set[int] = set()
            while i < len(entries) and _first(entries[i]) <= last:
                if _last(entries[i]) >= first:
                    entry = _entry(entries[i])
                    if entry.remove(first, last, msgs, size):
                        page.place = None
                        entries[i] = entry
                        if entry.dead_count >= entry.ref.count:
                            gone.add(i)
                            left.append(entry)
                i += 1
            if len(gone) == 1:
                del entries[gone.pop()]
                emptied = emptied or not entries
            elif gone:
                page.entries = [kept for i, kept in enumerate(entries) if i not in gone]
                emptied = emptied or not page.entries
            p += 1
        self._count -= len(left)
        if emptied:
            self.pages = [page for page in self.pages if page.entries]
        return left

    def follows(self, first_seq: int, next_seq: int) -> bool:
        """Whether the blocks that begin with these sequences are here, one directly after the other."""
        p = bisect_right(self.pages, first_seq, key=_page_first) - 1
        if p < 0:
            return False
        entries = self.pages[p].entries
        i = bisect_right(entries, first_seq, key=_first) - 1
        if _first(entries[i]) != first_seq:
            return False
        if i + 1 < len(entries):
            return _first(entries[i + 1]) == next_seq
        return p + 1 < len(self.pages) and _page_first(self.pages[p + 1]) == next_seq

    def within(self, first: int, last: int) -> list[BlockEntry]:
        """The blocks that lie in first..last. Raises: ValueError for one that does so in part."""
        found: list[BlockEntry] = []
        for entry in self.since(first):
            if entry.first_seq > last:
                break
            if entry.first_seq < first or entry.last_seq > last:
                raise ValueError(f"{entry.ref!r} lies in {first}..{last} in part")
            found.append(entry)
        return found

    def swap(self, parts: Sequence[BlockEntry], entry: BlockEntry | None) -> None:
        """Put ``entry`` in the place of ``parts``, which are what ``within`` gave; None: nothing takes it."""
        first, last = parts[0].first_seq, parts[-1].last_seq
        start = p = bisect_right(self.pages, first, key=_page_first) - 1
        new: list[Kept] = [] if entry is None else [entry if entry.dead is not None else entry.ref.pack()]
        while p < len(self.pages) and _first(self.pages[p].entries[0]) <= last:
            page = self.pages[p]
            i = bisect_left(page.entries, first, key=_first)
            page.entries[i:bisect_right(page.entries, last, key=_first)] = new if p == start else []
            page.place = None
            p += 1
        self._count += len(new) - len(parts)
        self.swaps += 1
        self._join_pages(max(0, start - 1), p + 1)

    def _join_pages(self, start: int, end: int) -> None:
        """Of neighbours that fill half a page together make one: else there would be as many pages as before."""
        joined: list[TablePage] = []
        for page in self.pages[start:end]:
            if not page.entries:
                continue
            if joined and len(joined[-1].entries) + len(page.entries) <= PAGE_ENTRIES // 2:
                before = joined[-1]
                before.entries = before.entries + page.entries
                before.place = None
                before.room = PAGE_ENTRIES - len(before.entries)
            else:
                joined.append(page)
        self.pages[start:end] = joined
        if self.pages and (newest := self.pages[-1]).place is None:
            newest.room = PAGE_ENTRIES - len(newest.entries)

    def trim(self, first_seq: int) -> list[list[Kept]]:
        """Drop the blocks that are wholly below ``first_seq``; returns them, page by page. Whole pages are not walked."""
        left: list[list[Kept]] = []
        whole = 0
        for page in self.pages:
            entries = page.entries
            if _last(entries[0]) >= first_seq:
                break
            keep = len(entries) if _last(entries[-1]) < first_seq else bisect_left(entries, first_seq, key=_last)
            self._count -= keep
            if keep == len(entries):
                left.append(entries)
                whole += 1
                continue
            left.append(entries[:keep])
            del entries[:keep]
            page.place = None
            break
        del self.pages[:whole]
        return left

    def clear(self) -> list[list[Kept]]:
        """Drop all blocks; returns them, page by page."""
        left = [page.entries for page in self.pages]
        self.pages = []
        self._count = 0
        return left

    def load(self, page: TablePage) -> None:
        """Add a page as a checkpoint had it. Raises: ValueError when it does not follow the one before."""
        if page.entries:
            if _first(page.entries[0]) <= self.last_seq:
                raise ValueError("the pages of a block table overlap")
            self.pages.append(page)
            self._count += len(page.entries)


def _entry(kept: Kept) -> BlockEntry:
    return kept if isinstance(kept, BlockEntry) else BlockEntry(BlockRef.of(kept))


def _first(kept: Kept) -> int:
    return kept.ref.first_seq if isinstance(kept, BlockEntry) else kept[FIRST_SEQ]


def _last(kept: Kept) -> int:
    return kept.ref.last_seq if isinstance(kept, BlockEntry) else kept[LAST_SEQ]


def _page_first(page: TablePage) -> int:
    return _first(page.entries[0])
