"""The blocks of one stream, in sequence order, and which of their messages are dead.

Kept in pages of 1024 entries, as a checkpoint keeps them: only the last page gets new blocks, and a page that changed
is marked so that a round writes just those. A block that is all dead, or is below the stream's first sequence,
leaves.

Everything here may be applied twice with the same result: blocks are only added once, and what is dead stays dead. A
page that was copied a little later than its stream may therefore be replayed over.

A block of a run may take the place of neighbours (``swap``): the one change that is neither at the end nor a removal.
Applied again it changes nothing, since a block that is there already is left alone.

There may be millions. What a checkpoint has of a page stays packed until it is changed (``packed``); new blocks stand behind
that, each as its packed reference, a tuple of numbers and names, which the garbage collector untracks. A ``BlockEntry`` is
made of it on demand.
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

__all__ = ["PAGE_ENTRIES", "BlockEntry", "BlockTable", "Kept", "RunKey", "TablePage", "log_keys", "pages_of", "run_keys"]

PAGE_ENTRIES = 1024
_STAGED = int(BlockPlace.STAGED)


class TablePage:
    """Up to 1024 neighbouring blocks. ``place`` says where a checkpoint keeps them; None: changed since."""

    __slots__ = ("_added", "packed", "place", "room")

    def __init__(self, packed: Packed | None = None) -> None:
        self.packed = packed
        """Those that did not change since a checkpoint had them."""
        self._added: list[Kept] = []
        """Those behind; all of them, where nothing is packed."""
        self.room = PAGE_ENTRIES
        self.place: Any = None

    @classmethod
    def of(cls, entries: list[Kept]) -> TablePage:
        """A page with these blocks, as one that nothing is packed of."""
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
        """All blocks; not to be changed. Raises: Corrupt."""
        if self.packed is None:
            return self._added
        entries = self.packed.entries()
        return entries + self._added if self._added else entries

    def near(self, seq: int) -> Sequence[Kept]:
        """Some of the blocks: among them the last one that begins at or before ``seq``, if any does. Raises: Corrupt."""
        added = self._added
        return added if self.packed is None or (added and first_of(added[0]) <= seq) else self.packed.entries()

    def change(self) -> list[Kept]:
        """All blocks, to be changed: nothing of them is in a checkpoint from now on. Raises: Corrupt."""
        self.place = None
        if self.packed is not None:
            self._added = self.packed.take() + self._added
            self.packed = None
        return self._added

    def replace(self, entries: list[Kept]) -> None:
        """Have these blocks instead."""
        self.place = self.packed = None
        self._added = entries

    def append(self, ref: PackedRef) -> None:
        """Add a block behind the others."""
        self.place = None
        self.room -= 1
        self._added.append(ref)

    def pack(self) -> Packed:
        """The page packed, as it is now: see ``Packed.made``."""
        return Packed.made(self.room, self._added, self.packed) if self._added or self.packed is None else self.packed

    def keep(self, packed: Packed) -> None:
        """Keep what ``pack`` gave instead of the blocks themselves: nothing changed since."""
        self.packed = packed
        self._added = []

    def log_keys(self) -> Iterator[int]:
        """The ``position_key`` of the segment that each block is stored in, except those in runs."""
        return log_keys(self._added) if self.packed is None else chain(self.packed.log_keys(), log_keys(self._added))

    def run_counts(self, stream_id: int) -> Iterable[tuple[RunKey, int]]:
        """How many of the blocks are stored in each run; a run may come twice."""
        added = Counter(run_keys(stream_id, self._added)).items()
        return added if self.packed is None else chain(self.packed.run_counts(stream_id), added)

    @property
    def staged(self) -> bool:
        """Whether a block is a staged one."""
        return (self.packed is not None and self.packed.staged) or any(
            (kept[0] if type(kept) is tuple else kept.ref.place) == _STAGED for kept in self._added)  # type: ignore[union-attr]


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
            yield from map(as_entry, page.entries)

    def steady(self) -> Iterator[BlockEntry]:
        """As ``iter``, while blocks may be appended, but none leave."""
        p = i = 0
        while p < len(self.pages):
            page = self.pages[p]
            entries = page.entries
            while i < len(entries):
                yield as_entry(entries[i])
                i += 1
            if i == len(page):  # it may have got more meanwhile
                p, i = p + 1, 0

    @property
    def last_seq(self) -> int:
        """The last sequence of the last block; 0 when there is none."""
        return self.pages[-1].last_seq if self.pages else 0

    def append(self, ref: PackedRef) -> bool:
        """Add a block; False when the table has it, or anything later, already (a replay over a newer page)."""
        if ref[FIRST_SEQ] <= self.last_seq:
            return False
        if not self.pages or not self.pages[-1].room:
            self.pages.append(TablePage())
        self.pages[-1].append(ref)
        self._count += 1
        return True

    def find(self, seq: int) -> BlockEntry | None:
        """The block whose range holds ``seq``; the sequence itself may be dead or in a gap."""
        p = bisect_right(self.pages, seq, key=_page_first) - 1
        if p < 0:
            return None
        entries = self.pages[p].near(seq)
        i = bisect_right(entries, seq, key=first_of) - 1
        return as_entry(entries[i]) if i >= 0 and last_of(entries[i]) >= seq else None

    def since(self, seq: int) -> Iterator[BlockEntry]:
        """The blocks that hold ``seq`` or a later sequence, in order; those before are not looked at."""
        p = max(0, bisect_right(self.pages, seq, key=_page_first) - 1)
        for page in self.pages[p:p + 1]:
            entries = page.entries
            i = max(0, bisect_right(entries, seq, key=first_of) - 1)
            yield from (as_entry(kept) for kept in entries[i:] if last_of(kept) >= seq)
        for page in self.pages[p + 1:]:
            yield from map(as_entry, page.entries)

    def remove(self, first: int, last: int, msgs: int, size: int) -> list[Kept]:
        """Mark a removed range dead; returns the blocks that left."""
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
                    if not reached and (first < entry.first_seq or last > entry.last_seq) and not self._reaches(last, p, i + 1):
                        # All that it removed is here. The stream named it by a block that a run's has taken the place of, and
                        # which ended later by messages that were dead.
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
        """``remove`` each of ``removed``, which takes less time where many of them are in one block."""
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
                entry = None  # ``find`` has made it of a reference, so it is not the table's own
        return left

    def _reaches(self, last: int, p: int, i: int) -> bool:
        """Whether the block at place ``i`` of page ``p``, or the first one of the next page, begins at or before ``last``."""
        entries = self.pages[p].entries
        if i < len(entries):
            return first_of(entries[i]) <= last
        return p + 1 < len(self.pages) and self.pages[p + 1].first_seq <= last

    def mark(self, first: int, last: int, bits: bytes, size: int) -> None:
        """Mark scattered messages of the block first..last dead, ``size`` bytes in all; at least one of it is not.

        A table that has no such block, or another one there since a merge, had them marked (a replay over a newer page).
        Raises: ValueError when the bits are not as many as the block's sequences.
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
        """Whether the blocks that begin with these sequences are here, one directly after the other."""
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
        while p < len(self.pages) and (p == start or self.pages[p].first_seq <= last):
            entries = self.pages[p].change()
            i = bisect_left(entries, first, key=first_of)
            entries[i:bisect_right(entries, last, key=first_of)] = new if p == start else []
            p += 1
        self._count += len(new) - len(parts)
        self.swaps += 1
        self._join_pages(max(0, start - 1), p + 1)

    def _join_pages(self, start: int, end: int) -> None:
        """Of neighbours that fill half a page together make one: else there would be as many pages as before."""
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
        """Drop the blocks that are wholly below ``first_seq``; returns them, page by page. Whole pages are not walked."""
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
        """Drop all blocks; returns them, page by page."""
        left, self.pages = self.pages, []
        self._count = 0
        return left

    def load(self, page: TablePage) -> None:
        """Add a page as a checkpoint had it. Raises: ValueError when it does not follow the one before."""
        if len(page):
            if page.first_seq <= self.last_seq:
                raise ValueError("the pages of a block table overlap")
            self.pages.append(page)
            self._count += len(page)


def pages_of(blocks: Sequence[Kept]) -> list[TablePage]:
    """Pages with these blocks, in their order."""
    return [TablePage.of(list(blocks[at:at + PAGE_ENTRIES])) for at in range(0, len(blocks), PAGE_ENTRIES)]


def _page_first(page: TablePage) -> int:
    return page.first_seq
