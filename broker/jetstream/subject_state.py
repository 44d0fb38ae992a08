"""Keeps a stream's subject index in step with its live state, at the time it is needed and not before.

Owns: when the index is built, how far it has merged the stream's messages, and removals it has yet to take in.
Does not own: the index (subjects), the messages (live), the loading of heads (who catches ``Cold``).

A stream that never asks for its subjects has no index and pays nothing. Once asked, everything up to ``merged_seq`` is in
it, and what came later is merged at the next question: from the open block's lists, from a block's short list of subjects,
or from its head. A tracked stream (max_msgs_per_subject) merges each message as it is sequenced.

Removals below ``merged_seq`` are taken out at once where their rows are in memory. Else they are a *debt*, settled at the
next question; should the debts grow too many, or a head be gone, the index is dropped and built again when asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from broker.jetstream.filters import Filters
from broker.jetstream.live import Live, LiveBlock, Removal
from broker.jetstream.rows import Cold, OpenRows, Rows
from broker.jetstream.subjects import SubjectIndex
from broker.storage.format.index import Head

__all__ = ["SubjectState"]

Load = Callable[[Iterable[LiveBlock]], Awaitable[None]]
"""Brings the heads of blocks into memory."""

_DEBTS_MAX = 64
_ROWS_AT_ONCE = 4096
"""Merged in one go: about 2 ms of the loop."""
_LOADS_AT_ONCE = 16


class _Debt(NamedTuple):
    """Messages first..last of a block left the stream, and the index does not know it yet."""

    block: LiveBlock
    first: int
    last: int


class SubjectState:
    """The subjects of one stream.

    ``ready`` is the way in: it gives an index that is in step, or raises ``Cold``; then ``build`` (once the blocks that
    the exception names are loaded) does what ``ready`` would not do in one turn of the loop.
    """

    def __init__(self, live: Live, tracked: bool) -> None:
        self._live = live
        self.tracked = tracked
        self._index: SubjectIndex | None = None
        self._debts: list[_Debt] = []
        self._building: asyncio.Lock = asyncio.Lock()

    @property
    def index(self) -> SubjectIndex | None:
        """The index as far as it has got, if there is one."""
        return self._index

    def set_tracked(self, tracked: bool) -> None:
        """Whether the stream limits messages by subject, from now on."""
        if tracked != self.tracked:
            self.tracked = tracked
            self._index = None
            self._debts.clear()

    # --- asking -------------------------------------------------------------------------------------------------------

    def ready(self) -> SubjectIndex:
        """The index, with every live message in it. Raises: Cold."""
        live, index = self._live, self._index
        if index is None:
            index = self._index = SubjectIndex(self.tracked)
        if not live.msgs:
            self._emptied(index)
        if self._debts:
            self._settle()
        if index.merged_seq < live.last_seq:
            budget = _ROWS_AT_ONCE
            for cost in self._merge(index):
                budget -= cost
                if budget <= 0 and index.merged_seq < live.last_seq:
                    raise Cold
        return index

    async def build(self, load: Load) -> SubjectIndex:
        """As ``ready``, in as many turns of the loop as it takes; ``await load(blocks)`` brings heads into memory."""
        async with self._building:
            while True:
                try:
                    return self.ready()
                except Cold as cold:
                    if cold.blocks:
                        await load(cold.blocks)
                    else:
                        await asyncio.sleep(0)

    def forget(self) -> None:
        """Drop the index; the next question builds it again."""
        self._index = None
        self._debts.clear()

    def last(self, subject: bytes) -> int:
        """Sequence of the last live message of ``subject``, or 0. Raises: Cold."""
        index = self.ready()
        last = index.last(subject, self._live.first_seq)
        if last is None:
            last = self._find_last(subject)
            index.set_last(subject, last)
        return last

    def count(self, subject: bytes) -> int:
        """Live messages of ``subject``. Raises: Cold."""
        return self.ready().count(subject, self._live.first_seq)

    async def matching(self, filters: Filters, load: Load) -> list[bytes]:
        """The subjects that have live messages and match, in no order; in as many turns of the loop as it takes."""
        index = await self.build(load)
        if filters.literal:
            found = [subject for subject in filters.literals if subject in index]
        elif filters.all:
            found = list(index)
        else:
            found = []
            names = list(index)
            for at in range(0, len(names), _ROWS_AT_ONCE):
                found += filter(filters.decide, names[at:at + _ROWS_AT_ONCE])
                if at:
                    await asyncio.sleep(0)
        if not self.tracked:
            return found
        # Subjects whose messages all left at the front go when they are looked at.
        first_seq, alive = self._live.first_seq, []
        for at in range(0, len(found), _ROWS_AT_ONCE):
            alive += [subject for subject in found[at:at + _ROWS_AT_ONCE] if index.count(subject, first_seq)]
            if at:
                await asyncio.sleep(0)
        if filters.all:
            index.swept_seq = first_seq
        return alive

    async def distinct(self, load: Load) -> int:
        """How many subjects have live messages."""
        index = await self.build(load)
        if self.tracked and index.swept_seq < self._live.first_seq:
            return len(await self.matching(Filters(), load))
        return len(index)

    def _find_last(self, subject: bytes) -> int:
        """Look through the blocks from the end. Raises: Cold."""
        live = self._live
        for block in reversed(live.blocks):
            if block.subjects is not None and not any(subject == one[0] for one in block.subjects):
                continue
            rows = live.rows(block)
            for at in reversed(_places(rows, block, subject)):
                if live.is_live(block, seq := rows.seq_of(at)):
                    return seq
        return 0

    # --- being told ---------------------------------------------------------------------------------------------------

    def removing_front(self, gone: Iterable[Removal]) -> None:
        """Tell of messages that are about to leave at the front; the live state still has them."""
        index = self._index
        if index is None or self.tracked:
            # Tracked subjects notice by themselves: what is below first_seq is no more.
            return
        for removal in gone:
            last = min(removal.last, index.merged_seq)
            if removal.first > last:
                continue
            first: int | None = removal.first
            if last - removal.first < _ROWS_AT_ONCE or _one_subject(removal.block):
                first = self._take_out(index, removal.block, removal.first, last)
            if first is not None:
                self._debts.append(_Debt(removal.block, first, last))
        if len(self._debts) > _DEBTS_MAX:
            self.forget()

    def removed(self, subject: bytes, seq: int) -> None:
        """One message is no more, though others before it may be."""
        index = self._index
        if index is not None and seq <= index.merged_seq:
            index.remove(subject, seq)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _emptied(self, index: SubjectIndex) -> None:
        if len(index):
            index.clear()
        self._debts.clear()
        index.merged_seq = self._live.last_seq

    def _settle(self) -> None:
        index, live = self._index, self._live
        assert index is not None
        cold = [debt.block for debt in self._debts if live.hot(debt.block) is None and not _one_subject(debt.block)]
        if cold:
            raise Cold(cold[:_LOADS_AT_ONCE])
        budget = _ROWS_AT_ONCE
        while self._debts:
            block, first, last = self._debts.pop()
            left = self._take_out(index, block, first, last)
            if left is not None:
                self._debts.append(_Debt(block, left, last))
            budget -= last - first + 1
            if budget <= 0 and self._debts:
                raise Cold

    def _take_out(self, index: SubjectIndex, block: LiveBlock, first: int, last: int) -> int | None:
        """Subtract the live messages first..last of ``block``, a few thousand at most.

        ``first`` is at or above the first_seq of the time they left, and nothing in between has died since.
        Returns: the sequence that is next; None when all is done.
        """
        rows = self._live.hot(block)
        if _one_subject(block) and block.gapless and block.dead is None:
            assert block.subjects is not None
            index.subtract(block.subjects[0][0], last - first + 1, last)
            return None
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

    def _merge(self, index: SubjectIndex) -> Iterator[int]:
        """Bring ``merged_seq`` up to the stream's end, step by step; yields each step's rows. Raises: Cold."""
        live = self._live
        while (i := live.index_at(index.merged_seq + 1)) < len(live.blocks):
            block = live.blocks[i]
            start = max(index.merged_seq + 1, block.first_seq, live.first_seq)
            whole = start == block.first_seq and not index.tracked and block.live_msgs == block.count
            if whole and block.subjects is not None:
                for subject, count, _, last_seq in block.subjects:
                    index.merge(subject, count, last_seq)
                index.merged_seq = block.last_seq
                yield 4 * len(block.subjects)
                continue
            rows = live.hot(block)
            if rows is None:
                raise Cold(self._cold_from(i, index))
            if whole and isinstance(rows, Head) and len(rows.subjects) <= _ROWS_AT_ONCE // 4:
                for subject, count, last in zip(rows.subjects, rows.subject_counts, rows.subject_lasts, strict=True):
                    index.merge(subject, count, rows.seq_of(last))
                index.merged_seq = block.last_seq
                yield len(rows.subjects)
                continue
            yield self._merge_rows(index, block, rows, start)
        index.merged_seq = live.last_seq

    def _merge_rows(self, index: SubjectIndex, block: LiveBlock, rows: Rows, start: int) -> int:
        """Merge up to ``_ROWS_AT_ONCE`` messages of one block one by one."""
        dead, at = block.dead, rows.ordinal_of(start)
        end = min(at + _ROWS_AT_ONCE, block.count)
        tracked, merged = index.tracked, 0
        for ordinal in range(at, end):
            seq = rows.seq_of(ordinal)
            if dead is None or seq not in dead:
                index.add(rows.subject_of(ordinal), seq, rows.user_bytes(ordinal) if tracked else 0)
                merged += 1
        index.merged_seq = rows.seq_of(end - 1) if end < block.count else block.last_seq
        return max(merged, (end - at) // 4)

    def _cold_from(self, i: int, index: SubjectIndex) -> list[LiveBlock]:
        """The next blocks from place ``i`` on whose heads a merge needs."""
        live, cold = self._live, []
        for block in live.blocks[i:i + 4 * _LOADS_AT_ONCE]:
            known = block.subjects is not None and not index.tracked and block.live_msgs == block.count
            if not known and live.hot(block) is None:
                cold.append(block)
                if len(cold) == _LOADS_AT_ONCE:
                    break
        return cold


def _one_subject(block: LiveBlock) -> bool:
    return block.subjects is not None and len(block.subjects) == 1


def _places(rows: Rows, block: LiveBlock, subject: bytes) -> list[int]:
    """Ordinals of the messages of ``subject`` in a block."""
    if isinstance(rows, Head):
        subject_id = rows.subject_id(subject)
        return [] if subject_id is None else rows.postings(subject_id)
    assert isinstance(rows, OpenRows)
    return [at for at, one in enumerate(rows.block.subjects) if one == subject]
