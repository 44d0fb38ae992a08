"""Keeps a stream's subject index up to date with its live state, only when it is needed.

Owns: when the index is built, how far it has merged the stream's messages, and removals it has yet to take in.
Does not own: the index (subject_index), which subjects match (subject_search), the messages (live), the loading of heads
(heads).

A stream that never asks for its subjects has no index and pays nothing. Once asked, everything up to ``merged_seq`` is in
it, and what came later is merged at the next question: from the open block's lists, from a block's short list of subjects,
from its head, or from a checkpoint's page that has the subjects of very many blocks. A tracked stream
(max_msgs_per_subject) merges each message as it is sequenced.

Removals below ``merged_seq`` are taken out at once where their rows are in memory. Otherwise they are a *debt*, settled
at the next question; if debts become too many, or a head is gone, the index is dropped and rebuilt when asked for.

    _update ─┬─ up to date ───────> the index
            ├─ out of time ──────> go on in the next turn of the loop
            ├─ needs these heads > load them, hold them, go on: each of them is merged before it is released
            └─ needs this page ──> the same; it serves block after block, as far as its messages still live
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.decision import Stuck
from broker.jetstream.stream.state.heads import Heads, at_once, blocks_back
from broker.jetstream.stream.state.live import Live, LiveBlock, Removal
from broker.jetstream.stream.state.rows import NotLoaded, OpenRows, Rows
from broker.jetstream.stream.state.subject_index import SubjectIndex
from broker.jetstream.stream.state.subject_pages import SubjectPages
from broker.storage.format.index import Head
from broker.storage.format.subject_rows import SubjectRows
from broker.storage.state.subjects import SubjectPage

__all__ = ["SubjectState"]

_DEFERRED_MAX = 64
_FEW = 16
"""Subjects that are looked up one by one."""
_ROWS_AT_ONCE = 4096
"""Merged in one go: about 2 ms of the loop."""
_COUNTED_UNASKED_MAX = 10_000
"""Messages, or subjects, that may be counted for a page of which nobody may have asked for the count."""
_COUNTS_WORTH = 8
"""Counts by a stream's blocks that take as long as building its index: they skip blocks, and look for a few names only."""
_COUNTED_BEFORE = _COUNTS_WORTH * _ROWS_AT_ONCE
"""So that an index which lacks little is used at once."""
_EXAMINED_AT_ONCE = 64
"""Blocks examined at once for heads to load side by side."""
_VAIN_MAX = 16
"""Consecutive loads that may be made useless by messages that leave."""


class _Deferred(NamedTuple):
    """Messages first..last of a block left the stream, and the index does not know it yet."""

    block: LiveBlock
    first: int
    last: int


class SubjectState:
    """The subjects of one stream.

    ``ready`` gives an index that is up to date, or raises ``NotLoaded``; ``build`` waits until there is one.
    """

    def __init__(self, live: Live, heads: Heads, tracked: bool, pages: SubjectPages | None = None) -> None:
        self._live = live
        self._heads = heads
        self._pages = pages
        self.tracked = tracked
        self._index: SubjectIndex | None = None
        self._forgotten = 0
        """How often the index was dropped."""
        self._steps = 0
        """Rises with all that is merged or settled."""
        self._deferred: list[_Deferred] = []
        self._counted = _COUNTED_BEFORE
        """Messages in the blocks by which others were counted."""
        self._building: asyncio.Lock = asyncio.Lock()

    @property
    def index(self) -> SubjectIndex | None:
        """The index as far as it has got, if there is one."""
        return self._index

    @property
    def has_deferred(self) -> bool:
        """Whether removals are still to be taken in, by their blocks."""
        return bool(self._deferred)

    def set_tracked(self, tracked: bool) -> None:
        """Whether the stream limits messages by subject, from now on."""
        if tracked != self.tracked:
            self.tracked = tracked
            self.forget()

    # --- asking -------------------------------------------------------------------------------------------------------

    def ready(self) -> SubjectIndex:
        """The index, with every live message in it. Raises: NotLoaded."""
        index = self._update()
        if not isinstance(index, SubjectIndex):
            raise NotLoaded("the index of subjects", work=self.build, mark=self._forgotten)
        return index

    async def build(self) -> SubjectIndex:
        """As ``ready``, in as many turns of the loop as it takes. Raises: StoreError; FormatError; Stuck."""
        await self._live.load_blocks()
        async with self._building:
            try:
                return await self._build()
            finally:
                if self._pages is not None:
                    self._pages.release()

    async def _build(self) -> SubjectIndex:
        loaded, paused, asked, overtaken = -1, -1, list[LiveBlock | SubjectPage](), 0
        held: Sequence[Rows | None] = ()
        while True:
            found = self._update()
            if isinstance(found, SubjectIndex):
                return found
            # Heads may be next where time ran out a turn before; between two loads something must be merged, or
            # messages that left meanwhile ask for other heads.
            if found:
                overtaken = overtaken + 1 if self._steps == loaded else 0
                wanted: list[LiveBlock | SubjectPage] = [found] if isinstance(found, SubjectPage) else [*found]
                if overtaken and (overtaken > _VAIN_MAX or wanted == asked):
                    raise Stuck("the index of subjects does not come on")
                loaded, asked = self._steps, wanted
            elif self._steps == paused:
                raise Stuck("the index of subjects does not come on")
            else:
                paused = self._steps
            if isinstance(found, SubjectPage):
                if self._pages is not None:
                    await self._pages.load(found)
            elif found:
                held = await self._heads.all_of(found)
                if None in held:
                    # It left the stream, and its object the store, before it was taken out.
                    self._steps += 1
                    if self._deferred:
                        self.forget()
            else:
                await asyncio.sleep(0)

    def _update(self) -> SubjectIndex | Sequence[LiveBlock] | SubjectPage:
        """Update the index, for a few milliseconds; if not done, the page that is next, or the blocks whose heads are (none: no
        time)."""
        live, index = self._live, self._index
        live.ensure_blocks()  # what an index says to remove is found there, in the middle of a decision
        if index is None:
            index = self._index = SubjectIndex(self.tracked)
            index.swept_seq = max(live.first_seq, 1)
        if not live.msgs:
            self._emptied(index)
        left: Sequence[LiveBlock] | SubjectPage | None = self._apply_deferred(index)
        if left is None and index.merged_seq < live.last_seq:
            left = self._merge(index)
        return index if left is None else left

    def forget(self) -> None:
        """Drop the index; the next question builds it again."""
        self._index = None
        self._counted = _COUNTED_BEFORE
        self._forgotten += 1
        self._deferred.clear()

    def index_is_worthwhile(self, seq: int) -> bool:
        """Whether counting by the index is worth what it takes to bring it up to ``seq``; else count by the blocks.

        A caller that is told no counts by the blocks. Told so again and again, all counts together would take longer than the
        index: it is built instead once they did.
        """
        merged_seq = 0 if self._index is None else self._index.merged_seq
        behind = seq - max(merged_seq, self._live.first_seq - 1)
        if behind <= self._counted // _COUNTS_WORTH:
            return True
        self._counted += behind
        return False

    def last(self, subject: bytes) -> int:
        """Sequence of the last live message of ``subject``, or 0. Raises: NotLoaded."""
        index = self.ready()
        last = index.last(subject, self._live.first_seq)
        if last is None:
            last = self._find_last(subject)
            index.set_last(subject, last)
        return last

    def next(self, filters: Filters, seq: int) -> int | None:
        """The first live message at or after ``seq`` of a few literal subjects, 0 when there is none; None: it is not known
        without a look at the blocks."""
        index = self._exact(filters, _FEW)
        if index is None:
            return None
        seq = max(seq, self._live.first_seq)
        return min(filter(None, (index.next(subject, seq) for subject in filters.literals)), default=0)

    def seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """The first ``most`` persisted live messages at or after ``seq`` of one literal subject; None: as ``next``."""
        index, live = self._exact(filters, 1), self._live
        if index is None:
            return None
        return index.seqs(filters.subjects[0], max(seq, live.first_seq), live.persisted_seq, most)

    def count_from(self, filters: Filters, seq: int) -> int | None:
        """How many persisted live messages at or after ``seq`` there are of one literal subject; None: as ``next``."""
        index, live = self._exact(filters, 1), self._live
        if index is None:
            return None
        return index.count_within(filters.subjects[0], max(seq, live.first_seq), live.persisted_seq)

    def _exact(self, filters: Filters, most: int) -> SubjectIndex | None:
        """The index, if it has each persisted live message of every subject, and no others, and ``filters`` are at most so many
        literal subjects."""
        index = self._index
        if (index is None or not index.tracked or self._deferred or index.merged_seq < self._live.persisted_seq
                or not filters.literal or len(filters.literals) > most):
            return None
        return index

    def count(self, subject: bytes) -> int:
        """Live messages of ``subject``. Raises: NotLoaded."""
        return self.ready().count(subject, self._live.first_seq)

    def known_count(self) -> int | None:
        """How many subjects have live messages; None if that is not known without loading or much counting."""
        index = self._index
        if index is None and self._live.msgs > _COUNTED_UNASKED_MAX:
            return None
        found = self._update()
        if not isinstance(found, SubjectIndex):
            return None
        first_seq = self._live.first_seq
        if not self.tracked or found.swept_seq >= first_seq:
            return len(found)
        if len(found) > _COUNTED_UNASKED_MAX:
            return None
        return sum(1 for subject in list(found) if found.count(subject, first_seq))

    def _find_last(self, subject: bytes) -> int:
        """BlockLoading through the blocks from the end. Raises: NotLoaded."""
        live = self._live
        for block in reversed(live.blocks):
            if not _may_hold(block, subject):
                continue
            rows = live.resident(block)
            if rows is None:
                raise NotLoaded(f"the last message of {subject!r}", work=partial(self._seek_last, subject))
            if seq := self._last_in(block, rows, subject):
                return seq
        return 0

    async def _seek_last(self, subject: bytes) -> None:
        """``_find_last`` through blocks that are not in memory, and remember it."""
        live = self._live
        blocks = (block for block in blocks_back(live, live.last_seq) if _may_hold(block, subject))
        async with aclosing(self._heads.each(blocks, slow_start=True)) as found:
            async for block, rows in found:
                # A message that came meanwhile has set its place in the index, and then this one is not needed.
                if (seq := self._last_in(block, rows, subject)) and self._index is not None:
                    self._index.set_last(subject, seq)
                    return

    def _last_in(self, block: LiveBlock, rows: Rows, subject: bytes) -> int:
        for at in reversed(_places(rows, block, subject)):
            if self._live.is_live(block, seq := rows.seq_of(at)):
                return seq
        return 0

    # --- notifications ------------------------------------------------------------------------------------------------

    @property
    def subtracts(self) -> bool:
        """Whether ``removing_front`` must list what leaves. Tracked subjects need no update: what is below first_seq is gone."""
        return self._index is not None and not self.tracked

    def removing_front(self, gone: Iterable[Removal]) -> None:
        """Messages are about to leave at the front; the live state still has them."""
        index = self._index
        if index is None or self.tracked:
            return
        for removal in gone:
            last = min(removal.last, index.merged_seq)
            if removal.first > last:
                continue
            first: int | None = removal.first
            if last - removal.first < _ROWS_AT_ONCE or not _needs_rows(removal.block):
                first = self._subtract(index, removal.block, removal.first, last)
            if first is not None:
                self._deferred.append(_Deferred(removal.block, first, last))
        if len(self._deferred) > _DEFERRED_MAX:
            self.forget()

    def removed(self, subject: bytes, seq: int) -> None:
        """One message was removed; earlier ones may still be there."""
        index = self._index
        if index is not None and seq <= index.merged_seq:
            index.remove(subject, seq)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _emptied(self, index: SubjectIndex) -> None:
        if len(index):
            index.clear()
        self._deferred.clear()
        index.merged_seq = self._live.last_seq
        index.swept_seq = index.merged_seq + 1

    def _apply_deferred(self, index: SubjectIndex) -> Sequence[LiveBlock] | None:
        """Settle the debts. Returns: None when there are none left; otherwise as ``_update``."""
        live, budget = self._live, _ROWS_AT_ONCE
        while self._deferred:
            if budget <= 0:
                return ()
            block, first, last = self._deferred[-1]
            if _needs_rows(block) and live.resident(block) is None:
                return at_once(one.block for one in reversed(self._deferred)
                               if _needs_rows(one.block) and live.resident(one.block) is None)
            self._deferred.pop()
            left = self._subtract(index, block, first, last)
            if left is not None:
                self._deferred.append(_Deferred(block, left, last))
            if left != first:
                self._steps += 1
            budget -= last - first + 1
        return None

    def _subtract(self, index: SubjectIndex, block: LiveBlock, first: int, last: int) -> int | None:
        """Subtract the live messages first..last of ``block``, a few thousand at most.

        ``first`` is at or above the first_seq of the time they left, and nothing in between has died since.
        Returns: the sequence that is next; None when all is done.
        """
        if block.subjects is not None and not _needs_rows(block):
            index.subtract(block.subjects[0][0], last - first + 1, last)
            return None
        rows = self._live.resident(block)
        if rows is None:
            return first
        start, end = rows.ordinal_of(first), rows.ordinal_of(last + 1)
        left = rows.seq_of(start + _ROWS_AT_ONCE) if end - start > _ROWS_AT_ONCE else None
        end = min(end, start + _ROWS_AT_ONCE)
        lasts: dict[bytes, int] = {}
        counts: Counter[bytes] = Counter()
        dead = block.dead
        for at in range(start, end):
            seq = rows.seq_of(at)
            if dead is None or seq not in dead:
                subject = rows.subject_of(at)
                counts[subject] += 1
                lasts[subject] = seq
        for subject, count in counts.items():
            index.subtract(subject, count, lasts[subject])
        return left

    def _merge(self, index: SubjectIndex) -> Sequence[LiveBlock] | SubjectPage | None:
        """Bring ``merged_seq`` up to the stream's end. Returns: None when it is there; otherwise as ``_update``."""
        live, pages, budget = self._live, self._pages, _ROWS_AT_ONCE
        while (i := live.index_at(index.merged_seq + 1)) < len(live.blocks):
            if budget <= 0:
                return ()
            block = live.blocks[i]
            start = max(index.merged_seq + 1, block.first_seq, live.first_seq)
            if self._summarized(block, index):
                subjects = block.subjects or ()
                for subject, count, _, last_seq in subjects:
                    index.merge(subject, count, last_seq)
                index.merged_seq = block.last_seq
                budget -= 4 * len(subjects)
            elif (rows := live.resident(block)) is None:
                paged = None if pages is None else pages.rows_at(start)
                if paged is not None:
                    budget -= self._merge_rows(index, block, paged, start)
                elif pages is not None and (page := pages.covering(start)) is not None:
                    return page
                else:
                    return at_once(block for block in self._unpaged(i)
                                   if not self._summarized(block, index) and live.resident(block) is None)
            elif self._whole(block, index) and isinstance(rows, Head) and len(rows.subjects) <= 2 * _ROWS_AT_ONCE:
                index.merge_all(rows.subjects, rows.subject_counts, map(rows.seq_of, rows.subject_lasts))
                index.merged_seq = block.last_seq
                budget -= len(rows.subjects)
            else:
                budget -= self._merge_rows(index, block, rows, start)
            self._steps += 1
        index.merged_seq = live.last_seq
        return None

    def _unpaged(self, i: int) -> Iterable[LiveBlock]:
        """Block ``i``, which no page has, and those after it up to the next that one has."""
        blocks, pages = self._live.blocks, self._pages
        yield blocks[i]
        for block in blocks[i + 1:i + _EXAMINED_AT_ONCE]:
            if pages is not None and pages.covering(block.first_seq) is not None:
                return
            yield block

    def _whole(self, block: LiveBlock, index: SubjectIndex) -> bool:
        """Whether all the messages that a block ever had are to be merged, by their numbers alone."""
        return (not index.tracked and block.live_msgs == block.count
                and block.first_seq >= max(index.merged_seq + 1, self._live.first_seq))

    def _summarized(self, block: LiveBlock, index: SubjectIndex) -> bool:
        """Whether its short list of subjects is all that a merge needs of a block."""
        return block.subjects is not None and self._whole(block, index)

    def _merge_rows(self, index: SubjectIndex, block: LiveBlock, rows: Rows | SubjectRows, start: int) -> int:
        """Merge up to ``_ROWS_AT_ONCE`` messages of one block one by one, of those that ``rows`` has."""
        dead, at, last, stop = block.dead, rows.ordinal_of(start), block.last_seq, block.count
        if isinstance(rows, SubjectRows):
            last = min(last, rows.last_seq)
            stop = rows.ordinal_of(last + 1)
        end = min(at + _ROWS_AT_ONCE, stop)
        index.merged_seq = rows.seq_of(end - 1) if end < stop else last
        if isinstance(rows, SubjectRows) and dead is None and not index.tracked:
            index.merge_all(*rows.between(at, end))
            return (end - at) // 2
        tracked, merged = index.tracked, 0
        for ordinal in range(at, end):
            seq = rows.seq_of(ordinal)
            if dead is None or seq not in dead:
                index.add(rows.subject_of(ordinal), seq, rows.size_of(ordinal) if tracked else 0)
                merged += 1
        return max(merged, (end - at) // 4)


def _needs_rows(block: LiveBlock) -> bool:
    """Whether the subjects of some of its messages are known from its rows alone."""
    return block.subjects is None or len(block.subjects) > 1 or not block.gapless or block.dead is not None


def _may_hold(block: LiveBlock, subject: bytes) -> bool:
    return block.subjects is None or any(subject == one[0] for one in block.subjects)


def _places(rows: Rows, block: LiveBlock, subject: bytes) -> list[int]:
    """Ordinals of the messages of ``subject`` in a block."""
    if isinstance(rows, Head):
        subject_id = rows.subject_id(subject)
        return [] if subject_id is None else rows.postings(subject_id)
    assert isinstance(rows, OpenRows)
    return [at for at, one in enumerate(rows.block.subjects) if one == subject]
