"""Keeps a stream's subject index up to date with its live state, but only while the index is needed.

Owns: when the index is built, up to which message it is merged, and the removals that are not applied to it yet.
Does not own: the index (subject_index), the search for subjects (subject_search), the messages (live), the loading of
heads (heads).

A stream whose subjects are never needed has no index and pays nothing. Otherwise everything up to ``merged_seq`` is in
the index. Later messages are merged at the next access, from the cheapest source: the open block's lists, a block's
short list of subjects, its head, or a checkpoint's page with the subjects of very many blocks. A tracked stream
(max_msgs_per_subject) merges each message when it is sequenced.

Removals below ``merged_seq`` are subtracted at once if the rows of their block are in memory. Otherwise they are
*deferred* until the next access. If there are too many deferred removals, or a head is gone, the index is dropped and
built again when it is needed.

    _update ─┬─ up to date ───────> the index
             ├─ out of time ──────> continue in the next turn of the loop
             ├─ needs these heads > load and keep them, continue: each of them is merged before it is released
             └─ needs this page ──> load it, continue: it serves block after block, as long as their messages are live
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
"""Maximum number of subjects that are looked up one by one."""
_ROWS_AT_ONCE = 4096
"""Messages merged in one turn of the loop: about 2 ms."""
_COUNTED_UNASKED_MAX = 10_000
"""Messages or subjects that may be counted for a monitoring page whose reader may not need the count."""
_COUNTS_WORTH = 8
"""Counts by blocks that take as long as building the index: they skip blocks and search for a few names only."""
_COUNTED_BEFORE = _COUNTS_WORTH * _ROWS_AT_ONCE
"""Initial value of the counted messages, so that an index that lacks few messages is used at once."""
_EXAMINED_AT_ONCE = 64
"""Blocks examined at once for heads that can be loaded concurrently."""
_VAIN_MAX = 16
"""Maximum number of consecutive loads that removals made useless."""


class _Deferred(NamedTuple):
    """Messages first..last of a block that have left the stream and are not subtracted from the index yet."""

    block: LiveBlock
    first: int
    last: int


class SubjectState:
    """The subjects of one stream.

    ``ready`` returns an index that is up to date, or raises ``NotLoaded``; ``build`` waits until there is one.
    """

    def __init__(self, live: Live, heads: Heads, tracked: bool, pages: SubjectPages | None = None) -> None:
        self._live = live
        self._heads = heads
        self._pages = pages
        self.tracked = tracked
        self._index: SubjectIndex | None = None
        self._forgotten = 0
        """Number of times that the index was dropped."""
        self._steps = 0
        """Counter that rises with each merged block and each deferred removal that is applied."""
        self._deferred: list[_Deferred] = []
        self._counted = _COUNTED_BEFORE
        """Number of messages in the blocks that counts without the index had to read."""
        self._building: asyncio.Lock = asyncio.Lock()

    @property
    def index(self) -> SubjectIndex | None:
        """The index, which may not be up to date; None if there is none."""
        return self._index

    @property
    def has_deferred(self) -> bool:
        """True if removals have not been subtracted yet; they need their blocks."""
        return bool(self._deferred)

    def set_tracked(self, tracked: bool) -> None:
        """Set whether the stream limits messages by subject from now on."""
        if tracked != self.tracked:
            self.tracked = tracked
            self.forget()

    # --- queries ------------------------------------------------------------------------------------------------------

    def ready(self) -> SubjectIndex:
        """Return the index with every live message in it. Raises: NotLoaded."""
        index = self._update()
        if not isinstance(index, SubjectIndex):
            raise NotLoaded("the index of subjects", work=self.build, mark=self._forgotten)
        return index

    async def build(self) -> SubjectIndex:
        """Return the same as ``ready``, in as many turns of the loop as needed.

        Raises: StoreError; FormatError; Stuck.
        """
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
            # Each round must make progress. The exception: after a round without time, heads may be next; and between
            # two loads, removals may have led to other heads.
            if found:
                overtaken = overtaken + 1 if self._steps == loaded else 0
                wanted: list[LiveBlock | SubjectPage] = [found] if isinstance(found, SubjectPage) else [*found]
                if overtaken and (overtaken > _VAIN_MAX or wanted == asked):
                    raise Stuck("the index of subjects makes no progress")
                loaded, asked = self._steps, wanted
            elif self._steps == paused:
                raise Stuck("the index of subjects makes no progress")
            else:
                paused = self._steps
            if isinstance(found, SubjectPage):
                if self._pages is not None:
                    await self._pages.load(found)
            elif found:
                held = await self._heads.load_all(found)
                if None in held:
                    # The block left the stream, and its object left the store, before it was subtracted.
                    self._steps += 1
                    if self._deferred:
                        self.forget()
            else:
                await asyncio.sleep(0)

    def _update(self) -> SubjectIndex | Sequence[LiveBlock] | SubjectPage:
        """Update the index for a few milliseconds.

        Returns: the index if it is up to date; the page that is needed next; or the blocks whose heads are needed next,
            which are none if only time ran out.
        """
        live, index = self._live, self._index
        live.ensure_blocks()  # a decision removes messages that the index names, and must find their blocks
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
        """Drop the index; the next access builds it again."""
        self._index = None
        self._counted = _COUNTED_BEFORE
        self._forgotten += 1
        self._deferred.clear()

    def index_is_worthwhile(self, seq: int) -> bool:
        """Return whether to count by the index, after bringing it up to ``seq``, instead of by the blocks.

        A caller that gets False counts by the blocks. Once such counts together took as long as building the index
        would, the index is built instead.
        """
        merged_seq = 0 if self._index is None else self._index.merged_seq
        behind = seq - max(merged_seq, self._live.first_seq - 1)
        if behind <= self._counted // _COUNTS_WORTH:
            return True
        self._counted += behind
        return False

    def last(self, subject: bytes) -> int:
        """Return the sequence of the last live message of ``subject``, or 0. Raises: NotLoaded."""
        index = self.ready()
        last = index.last(subject, self._live.first_seq)
        if last is None:
            last = self._find_last(subject)
            index.set_last(subject, last)
        return last

    def next(self, filters: Filters, seq: int) -> int | None:
        """Return the first live message at or after ``seq`` of a few literal subjects, or 0.

        Returns None if the answer is not known without reading blocks.
        """
        index = self._exact(filters, _FEW)
        if index is None:
            return None
        seq = max(seq, self._live.first_seq)
        return min(filter(None, (index.next(subject, seq) for subject in filters.literals)), default=0)

    def seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """Return the first ``most`` persisted live messages at or after ``seq`` of one literal subject; None: as
        ``next``."""
        index, live = self._exact(filters, 1), self._live
        if index is None:
            return None
        return index.seqs(filters.subjects[0], max(seq, live.first_seq), live.safe_seq, most)

    def count_from(self, filters: Filters, seq: int) -> int | None:
        """Return the number of persisted live messages at or after ``seq`` of one literal subject; None: as
        ``next``."""
        index, live = self._exact(filters, 1), self._live
        if index is None:
            return None
        return index.count_within(filters.subjects[0], max(seq, live.first_seq), live.safe_seq)

    def _exact(self, filters: Filters, most: int) -> SubjectIndex | None:
        """Return the index if it has exactly the persisted live messages, and ``filters`` are few literal subjects.

        ``most`` is the maximum number of subjects. Returns None otherwise.
        """
        index = self._index
        if (index is None or not index.tracked or self._deferred or index.merged_seq < self._live.safe_seq
                or not filters.literal or len(filters.literals) > most):
            return None
        return index

    def count(self, subject: bytes) -> int:
        """Return the number of live messages of ``subject``. Raises: NotLoaded."""
        return self.ready().count(subject, self._live.first_seq)

    def known_count(self) -> int | None:
        """Return how many subjects have live messages; None if that needs loading or much counting."""
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
        """Search the blocks from the end for the last message of ``subject``. Raises: NotLoaded."""
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
        """Do the same as ``_find_last`` with blocks that are not in memory, and store the result in the index."""
        live = self._live
        blocks = (block for block in blocks_back(live, live.last_seq) if _may_hold(block, subject))
        async with aclosing(self._heads.walk(blocks, slow_start=True)) as found:
            async for block, rows in found:
                # If a newer message came in the meantime, the index has it already and ignores this one.
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
        """True if ``removing_front`` needs a list of removals; tracked subjects drop what is below first_seq by
        themselves."""
        return self._index is not None and not self.tracked

    def removing_front(self, gone: Iterable[Removal]) -> None:
        """Subtract messages that are about to be removed at the front; the live state still has them."""
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
        """Subtract one removed message; earlier ones may still be in the stream."""
        index = self._index
        if index is not None and seq <= index.merged_seq:
            index.remove(subject, seq)

    # --- updates ------------------------------------------------------------------------------------------------------

    def _emptied(self, index: SubjectIndex) -> None:
        if len(index):
            index.clear()
        self._deferred.clear()
        index.merged_seq = self._live.last_seq
        index.swept_seq = index.merged_seq + 1

    def _apply_deferred(self, index: SubjectIndex) -> Sequence[LiveBlock] | None:
        """Subtract the deferred removals. Returns: None if none is left; otherwise as ``_update``."""
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

        ``first`` is at or above the stream's first_seq at the time of the removal, and no message of the range was
        removed one by one since then. Returns: the next sequence to subtract; None if all are subtracted.
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
        """Merge messages up to the stream's end. Returns: None if all are merged; otherwise as ``_update``."""
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
        """Yield block ``i``, which is in no page, and the following blocks up to the next one that is in a page."""
        blocks, pages = self._live.blocks, self._pages
        yield blocks[i]
        for block in blocks[i + 1:i + _EXAMINED_AT_ONCE]:
            if pages is not None and pages.covering(block.first_seq) is not None:
                return
            yield block

    def _whole(self, block: LiveBlock, index: SubjectIndex) -> bool:
        """Return whether all messages that a block ever had are to be merged, as its numbers show."""
        return (not index.tracked and block.live_msgs == block.count
                and block.first_seq >= max(index.merged_seq + 1, self._live.first_seq))

    def _summarized(self, block: LiveBlock, index: SubjectIndex) -> bool:
        """Return whether a merge needs nothing of a block except its short list of subjects."""
        return block.subjects is not None and self._whole(block, index)

    def _merge_rows(self, index: SubjectIndex, block: LiveBlock, rows: Rows | SubjectRows, start: int) -> int:
        """Merge up to ``_ROWS_AT_ONCE`` messages of one block one by one, as far as ``rows`` has them.

        Returns: the cost, in units of merged messages.
        """
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
    """Return whether only its rows show which subjects some messages of a block have."""
    return block.subjects is None or len(block.subjects) > 1 or not block.gapless or block.dead is not None


def _may_hold(block: LiveBlock, subject: bytes) -> bool:
    return block.subjects is None or any(subject == one[0] for one in block.subjects)


def _places(rows: Rows, block: LiveBlock, subject: bytes) -> list[int]:
    """Return the ordinals of the messages of ``subject`` in a block."""
    if isinstance(rows, Head):
        subject_id = rows.subject_id(subject)
        return [] if subject_id is None else rows.postings(subject_id)
    assert isinstance(rows, OpenRows)
    return [at for at, one in enumerate(rows.block.subjects) if one == subject]
