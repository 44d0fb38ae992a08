"""The block table of one stream: its blocks in sequence order, and their dead messages.

The table has pages of 1024 entries, as in a checkpoint. Only the last page gets new blocks, and a changed page is
marked, so that a round writes only changed pages. A block leaves if all of it is dead, or below the stream's first
sequence.

Every change may be applied twice with the same result: a block is added only once, and dead messages stay dead. So a
replay may apply blocks again to a page that was copied a little later than its stream.

A block of a run may replace successive blocks (``swap``). Only this change is neither at the end nor a removal. Applied
again it changes nothing, since the run's block is there already.

There may be millions of blocks. A page's unchanged part stays packed as in a checkpoint until it is changed
(``packed``). New blocks follow it, each as its packed reference: a tuple of numbers and names, which the garbage
collector ignores. A ``BlockEntry`` is made of it on demand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from broker.storage.format.block import FIRST_SEQ, BlockPlace, PackedRef
from broker.storage.state.entry import BlockEntry, Kept, RunKey, as_entry, first_of, last_of, log_keys, run_keys
from broker.storage.state.packed import Packed

__all__ = ["PAGE_ENTRIES", "BlockEntry", "BlockTable", "Kept", "RunKey", "TablePage", "log_keys", "pages_of",
           "run_keys"]

PAGE_ENTRIES = 1024
_STAGED = int(BlockPlace.STAGED)


class TablePage:
    """Up to 1024 successive blocks. ``place`` is the checkpoint's page that has them; None: changed since."""

    __slots__ = ("_added", "packed", "place", "room")

    def __init__(self, packed: Packed | None = None) -> None:
        self.packed = packed
        """The blocks that are unchanged since a checkpoint."""
        self._added: list[Kept] = []
        """The blocks after the packed ones; all blocks if none are packed."""
        self.room = PAGE_ENTRIES
        self.place: Any = None

    @classmethod
    def of(cls, entries: list[Kept]) -> TablePage:
        """Return a page with these blocks, none of them packed."""
        page = cls()
        page._added = entries
        return page

    def __len__(self) -> int:
        return len(self._added) + (0 if self.packed is None else self.packed.count)

    @property
    def first_seq(self) -> int:
        return first_of(self._added[0]) if self.packed is None else self.packed.first_seq

    @property
    def last_seq(self) -> int:
        return last_of(self._added[-1]) if self._added or self.packed is None else self.packed.last_seq

    @property
    def front_last_seq(self) -> int:
        """The last sequence of the first block."""
        return last_of(self._added[0]) if self.packed is None else self.packed.front_last_seq

    @property
    def entries(self) -> Sequence[Kept]:
        """All blocks; do not change the list. Raises: Corrupt."""
        if self.packed is None:
            return self._added
        entries = self.packed.entries()
        return entries + self._added if self._added else entries

    def near(self, seq: int) -> Sequence[Kept]:
        """Return some of the blocks, including the last one that begins at or before ``seq``, if any.

        Raises: Corrupt.
        """
        added = self._added
        return added if self.packed is None or (added and first_of(added[0]) <= seq) else self.packed.entries()

    def change(self) -> list[Kept]:
        """Return all blocks as a list to be changed. No checkpoint has the page from now on. Raises: Corrupt."""
        self.place = None
        if self.packed is not None:
            self._added = self.packed.detach_entries() + self._added
            self.packed = None
        return self._added

    def replace(self, entries: list[Kept]) -> None:
        """Replace all blocks by ``entries``."""
        self.place = self.packed = None
        self._added = entries

    def append(self, ref: PackedRef) -> None:
        """Add a block after the others."""
        self.place = None
        self.room -= 1
        self._added.append(ref)

    def pack(self) -> Packed:
        """Return the page packed in its present state: see ``Packed.made``."""
        return Packed.made(self.room, self._added, self.packed) if self._added or self.packed is None else self.packed

    def keep(self, packed: Packed) -> None:
        """Store the result of ``pack`` instead of the blocks themselves; nothing may have changed since."""
        self.packed = packed
        self._added = []

    def log_keys(self) -> Iterator[int]:
        """Iterate over the ``position_key`` of the blocks' segments, one for each block that is not in a run."""
        return log_keys(self._added) if self.packed is None else chain(self.packed.log_keys(), log_keys(self._added))

    def run_counts(self, stream_id: int) -> Iterable[tuple[RunKey, int]]:
        """Iterate over the runs, with the number of blocks in each; a run may occur twice."""
        added = Counter(run_keys(stream_id, self._added)).items()
        return added if self.packed is None else chain(self.packed.run_counts(stream_id), added)

    @property
    def staged(self) -> bool:
        """True if a block is a staged one."""
        return (self.packed is not None and self.packed.staged) or any(
            (kept[0] if type(kept) is tuple else kept.ref.place) == _STAGED  # type: ignore[union-attr]
            for kept in self._added)


class BlockTable:
    """The live blocks of one stream."""

    __slots__ = ("_count", "pages", "swaps")

    def __init__(self) -> None:
        self.pages: list[TablePage] = []
        """The pages, none of them empty."""
        self.swaps = 0
        """The number of swaps so far. Code that walks the table in slices begins again if it changes."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[BlockEntry]:
        for page in self.pages:
            yield from map(as_entry, page.entries)

    def steady(self) -> Iterator[BlockEntry]:
        """Iterate over the blocks while blocks may be appended, but none leave."""
        p = i = 0
        while p < len(self.pages):
            page = self.pages[p]
            entries = page.entries
            while i < len(entries):
                yield as_entry(entries[i])
                i += 1
            if i == len(page):  # blocks may have been appended meanwhile
                p, i = p + 1, 0

    @property
    def last_seq(self) -> int:
        """The last sequence of the last block; 0: there is none."""
        return self.pages[-1].last_seq if self.pages else 0

    def append(self, ref: PackedRef) -> bool:
        """Add a block. Returns: False if the table has it, or a later one, already (a replay over a newer page)."""
        if ref[FIRST_SEQ] <= self.last_seq:
            return False
        if not self.pages or not self.pages[-1].room:
            self.pages.append(TablePage())
        self.pages[-1].append(ref)
        self._count += 1
        return True

    def find(self, seq: int) -> BlockEntry | None:
        """Return the block whose range contains ``seq``, or None; the sequence itself may be dead or in a gap."""
        p = bisect_right(self.pages, seq, key=_page_first) - 1
        if p < 0:
            return None
        entries = self.pages[p].near(seq)
        i = bisect_right(entries, seq, key=first_of) - 1
        return as_entry(entries[i]) if i >= 0 and last_of(entries[i]) >= seq else None

    def since(self, seq: int) -> Iterator[BlockEntry]:
        """Iterate over the blocks that have ``seq`` or a later sequence, in order, without reading earlier pages."""
        p = max(0, bisect_right(self.pages, seq, key=_page_first) - 1)
        for page in self.pages[p:p + 1]:
            entries = page.entries
            i = max(0, bisect_right(entries, seq, key=first_of) - 1)
            yield from (as_entry(kept) for kept in entries[i:] if last_of(kept) >= seq)
        for page in self.pages[p + 1:]:
            yield from map(as_entry, page.entries)

    def remove(self, first: int, last: int, msgs: int, size: int) -> list[Kept]:
        """Mark a removed range dead. Returns: the blocks that left."""
        left: list[Kept] = []
        p = max(0, bisect_right(self.pages, first, key=_page_first) - 1)
        emptied = reached = False
        while p < len(self.pages) and self.pages[p].first_seq <= last:
            page = self.pages[p]
            if page.last_seq < first:
                p += 1
                continue
            entries = page.change()
            i = max(0, bisect_right(entries, first, key=first_of) - 1)
            gone: set[int] = set()
            while i < len(entries) and first_of(entries[i]) <= last:
                if last_of(entries[i]) >= first:
                    entry = as_entry(entries[i])
                    if (not reached and (first < entry.first_seq or last > entry.last_seq)
                            and not self._reaches(last, p, i + 1)):
                        # The whole removed range is in this block. The stream named the range by a block which a run's
                        # block has replaced, and which had dead messages at its end.
                        first, last = max(first, entry.first_seq), min(last, entry.last_seq)
                    reached = True
                    if entry.remove(first, last, msgs, size):
                        entries[i] = entry
                        if entry.dead_count >= entry.ref.count:
                            gone.add(i)
                            left.append(entry)
                i += 1
            if len(gone) == 1:
                del entries[gone.pop()]
            elif gone:
                page.replace([kept for i, kept in enumerate(entries) if i not in gone])
            emptied = emptied or not len(page)
            p += 1
        self._count -= len(left)
        if emptied:
            self.pages = [page for page in self.pages if len(page)]
        return left

    def remove_all(self, removed: Iterable[tuple[int, int, int, int]]) -> list[Kept]:
        """Call ``remove`` for each of ``removed``; faster if many of these ranges are in one block."""
        left: list[Kept] = []
        entry: BlockEntry | None = None
        for first, last, msgs, size in removed:
            if (entry is not None and entry.first_seq <= first and last <= entry.last_seq
                    and entry.dead_count + msgs < entry.ref.count):
                entry.remove(first, last, msgs, size)
                continue
            left += self.remove(first, last, msgs, size)
            entry = self.find(first)
            if entry is not None and entry.dead is None:
                entry = None  # ``find`` has made it from a reference, so it is not in the table
        return left

    def _reaches(self, last: int, p: int, i: int) -> bool:
        """Return whether block ``i`` of page ``p``, or the first one of the next page, begins at or before ``last``."""
        entries = self.pages[p].entries
        if i < len(entries):
            return first_of(entries[i]) <= last
        return p + 1 < len(self.pages) and self.pages[p + 1].first_seq <= last

    def mark(self, first: int, last: int, bits: bytes, size: int) -> None:
        """Mark scattered messages of the block first..last dead, ``size`` bytes in all; at least one message stays
        live.

        If the table has no such block, or a merged one instead, the messages are marked already (a replay over a newer
        page).
        Raises: ValueError if the number of bits differs from the block's number of sequences.
        """
        p = bisect_right(self.pages, first, key=_page_first) - 1
        if p < 0:
            return
        entries = self.pages[p].change()
        i = bisect_left(entries, first, key=first_of)
        if i < len(entries) and first_of(entries[i]) == first and last_of(entries[i]) == last:
            entry = as_entry(entries[i])
            if entry.mark(bits, size):
                entries[i] = entry

    def follows(self, first_seq: int, next_seq: int) -> bool:
        """Return whether blocks that begin with these sequences are in the table, one directly after the other."""
        p = bisect_right(self.pages, first_seq, key=_page_first) - 1
        if p < 0:
            return False
        entries = self.pages[p].entries
        i = bisect_right(entries, first_seq, key=first_of) - 1
        if first_of(entries[i]) != first_seq:
            return False
        if i + 1 < len(entries):
            return first_of(entries[i + 1]) == next_seq
        return p + 1 < len(self.pages) and _page_first(self.pages[p + 1]) == next_seq

    def within(self, first: int, last: int) -> list[BlockEntry]:
        """Return the blocks within first..last. Raises: ValueError if a block is only partly within it."""
        found: list[BlockEntry] = []
        for entry in self.since(first):
            if entry.first_seq > last:
                break
            if entry.first_seq < first or entry.last_seq > last:
                raise ValueError(f"{entry.ref!r} is only partly within {first}..{last}")
            found.append(entry)
        return found

    def swap(self, parts: Sequence[BlockEntry], entry: BlockEntry | None) -> None:
        """Replace ``parts``, a result of ``within``, by ``entry``; None: by nothing."""
        first, last = parts[0].first_seq, parts[-1].last_seq
        start = p = bisect_right(self.pages, first, key=_page_first) - 1
        new: list[Kept] = [] if entry is None else [entry if entry.dead is not None else entry.ref.pack()]
        while p < len(self.pages) and (p == start or self.pages[p].first_seq <= last):
            entries = self.pages[p].change()
            i = bisect_left(entries, first, key=first_of)
            entries[i:bisect_right(entries, last, key=first_of)] = new if p == start else []
            p += 1
        self._count += len(new) - len(parts)
        self.swaps += 1
        self._join_pages(max(0, start - 1), p + 1)

    def _join_pages(self, start: int, end: int) -> None:
        """Join adjacent pages that fill half a page together; otherwise swaps would not reduce the number of pages."""
        joined: list[TablePage] = []
        for page in self.pages[start:end]:
            if not len(page):
                continue
            if joined and len(joined[-1]) + len(page) <= PAGE_ENTRIES // 2:
                before = joined[-1]
                before.change().extend(page.entries)
                before.room = PAGE_ENTRIES - len(before)
            else:
                joined.append(page)
        self.pages[start:end] = joined
        if self.pages and (newest := self.pages[-1]).place is None:
            newest.room = PAGE_ENTRIES - len(newest)

    def trim(self, first_seq: int) -> list[TablePage]:
        """Drop the blocks below ``first_seq``, and return them page by page. The blocks of whole pages are not read."""
        left: list[TablePage] = []
        whole = 0
        for page in self.pages:
            if page.last_seq < first_seq:
                self._count -= len(page)
                left.append(page)
                whole += 1
                continue
            if page.front_last_seq >= first_seq:
                break
            entries = page.change()
            keep = bisect_left(entries, first_seq, key=last_of)
            self._count -= keep
            left.append(TablePage.of(entries[:keep]))
            del entries[:keep]
            break
        del self.pages[:whole]
        return left

    def clear(self) -> list[TablePage]:
        """Drop all blocks, and return them page by page."""
        left, self.pages = self.pages, []
        self._count = 0
        return left

    def load(self, page: TablePage) -> None:
        """Add a page from a checkpoint. Raises: ValueError if it does not follow the previous page."""
        if len(page):
            if page.first_seq <= self.last_seq:
                raise ValueError("the pages of a block table overlap")
            self.pages.append(page)
            self._count += len(page)


def pages_of(blocks: Sequence[Kept]) -> list[TablePage]:
    """Return pages with these blocks, in their order."""
    return [TablePage.of(list(blocks[at:at + PAGE_ENTRIES])) for at in range(0, len(blocks), PAGE_ENTRIES)]


def _page_first(page: TablePage) -> int:
    return page.first_seq
