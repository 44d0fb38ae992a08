"""Queries a live stream: single messages, counts and start positions.

Owns: finding the messages of a query in the live state. Does not own: chunks and the matches of their blocks (chunks),
loading and caching (storage.read), the subjects (subject_state).

Queries see the whole live stream, including the tail that is not safe yet. Only ``count_from``, for consumers, is
limited to safe messages.

If a block's object is deleted during a query, the reader raises NotFound. The block's messages have left the stream
then, so the query is repeated on the current state.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from broker.jetstream.filters import ALL, Filters
from broker.jetstream.stream.shared.chunks import Chunks
from broker.jetstream.stream.state.decision import decide
from broker.jetstream.stream.state.heads import blocks_back, blocks_from
from broker.jetstream.stream.state.in_turns import sorted_in_turns
from broker.jetstream.stream.state.live import LiveBlock
from broker.jetstream.stream.state.matching import (
    candidates,
    listed_match,
    matching_ids,
    matching_rows,
)
from broker.jetstream.stream.state.rows import NotLoaded, OpenRows, Rows
from broker.jetstream.stream.state.stored import (
    NO_MSGS,
    Gathering,
    StoredMsg,
    StoredMsgs,
    columns_of,
    from_chunk,
    from_open,
)
from broker.jetstream.stream.state.subject_index import UNKNOWN
from broker.protocol.subject import is_literal
from broker.storage.format.frame import Chunk
from broker.storage.format.index import Head
from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.jetstream.stream.state.heads import Heads
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_search import SubjectSearch
    from broker.jetstream.stream.state.subject_state import SubjectState
    from broker.storage.read.reader import BlockReader

__all__ = ["Queries"]

T = TypeVar("T")

_BLOCKS_AT_ONCE = 1024
"""Blocks whose subject lists are examined in one turn of the loop: about 3 ms."""

_SUBJECTS_AT_ONCE = 8192
"""Subjects looked up in one turn of the loop: about 3 ms."""

_TRIES = 5
"""Maximum number of tries: a message may be removed, and its block deleted, during a query; the next try sees that."""


class Queries:
    """The reading side of one stream."""

    def __init__(self, live: Live, heads: Heads, subjects: SubjectState, search: SubjectSearch,
                 reader: BlockReader, chunks: Chunks) -> None:
        self._live = live
        self._heads = heads
        self._subjects = subjects
        self._search = search
        self._reader = reader
        self._chunks = chunks

    # --- single messages ----------------------------------------------------------------------------------------------

    def peek(self, seq: int) -> StoredMsg | None:
        """Return the same as ``get``, from memory alone. Raises: NotLoaded."""
        block = self._live.find(seq)
        if block is None:
            return None
        if (rows := block.open or block.unread) is not None:
            return from_open(rows, seq)
        place = self._place(block, seq)
        return None if place is None else from_chunk(*place)

    def _place(self, block: LiveBlock, seq: int) -> tuple[Chunk, int] | None:
        """Return the chunk with the live message ``seq`` of a stored block, and its ordinal in the block; None: no such
        message. Raises: NotLoaded."""
        ordinal = seq - block.first_seq
        if not block.gapless:
            rows = self._live.rows(block)
            ordinal = rows.ordinal_of(seq)
            if ordinal >= block.count or rows.seq_of(ordinal) != seq:
                return None
        chunk = self._chunks.cached(block, ordinal)
        if chunk is None:
            raise NotLoaded("a message")
        return chunk, ordinal

    def peek_some(self, seqs: Sequence[int], bytes_max: int) -> tuple[StoredMsgs, Sequence[int], int]:
        """Return live messages from the first of ``seqs``, which ascend.

        It stops after about ``bytes_max`` bytes of bodies, or at the first message that is not in memory.
        Returns: the messages, the place of each in ``seqs``, and how many of ``seqs`` were examined.
        """
        live, found, places, at = self._live, Gathering(), list[int](), 0
        while at < len(seqs) and found.body_bytes < bytes_max:
            seq, end, before = seqs[at], at + 1, len(found)
            block = live.find(seq)
            if block is not None and block.open is not None:
                if (msg := from_open(block.open, seq)) is not None:
                    found.add(msg)
            elif block is not None:
                try:
                    there = self._place(block, seq)
                except NotLoaded:
                    break
                if there is not None:
                    chunk, ordinal = there
                    if block.gapless and block.dead is None and block.first_seq >= live.first_seq:
                        end = bisect_right(seqs, chunk.last_seq, at)  # no message of the chunk was removed
                    first = seq - (ordinal - chunk.start)
                    found.extend(chunk, seqs[at:end], [one - first for one in seqs[at:end]])
            places += range(at, at + len(found) - before)
            at = end
        return found.msgs(), places, at

    def peek_last(self, subject: bytes) -> StoredMsg | None:
        """Return the last live message of a literal ``subject``, from memory alone. Raises: NotLoaded."""
        seq = self._subjects.last(subject)
        return self.peek(seq) if seq else None

    async def get(self, seq: int) -> StoredMsg | None:
        """Return the live message ``seq``, or None."""
        live = self._live
        for _ in range(_TRIES):
            try:
                return self.peek(seq)
            except NotLoaded:
                block = live.find(seq)
            if block is None:
                return None
            try:
                rows = live.resident(block) or await self._reader.head(block)
                if (ordinal := rows.ordinal_of(seq)) >= block.count or rows.seq_of(ordinal) != seq:
                    return None
                return from_chunk(await self._reader.chunk(block, ordinal), ordinal)
            except NotFound:
                if live.holds(block):
                    raise
        return None

    async def get_last(self, wanted: bytes) -> StoredMsg | None:
        """Return the last live message whose subject matches ``wanted``, or None."""
        for _ in range(_TRIES):
            seq = await self.last_seq_of(Filters((wanted,)))
            if not seq:
                return None
            msg = await self.get(seq)
            if msg is not None:
                return msg
        return None

    async def get_next(self, wanted: bytes, seq: int, start_time_ns: int | None = None) -> StoredMsg | None:
        """Return the first live match of ``wanted`` at or after ``seq``, or at or after a time; or None."""
        if start_time_ns is not None:
            seq = await self.seq_at(start_time_ns)
        filters = Filters((wanted,))
        for _ in range(_TRIES):
            found = await self.next_seq(filters, seq)
            if not found:
                return None
            msg = await self.get(found)
            if msg is not None:
                return msg
            seq = found
        return None

    async def next_msgs(self, filters: Filters, seq: int, most: int) -> StoredMsgs:
        """Return up to ``most`` live matches, from the first one at or after ``seq`` on.

        They are from one chunk, or one open block; none if there is no match.
        """
        live = self._live
        for _ in range(_TRIES):
            seq = await self.next_seq(filters, seq)
            block = live.find(seq) if seq else None
            if block is None:
                if seq:
                    continue  # removed meanwhile
                return NO_MSGS
            if block.open is not None:
                found = (one for at in live.live_seqs(block, OpenRows(block.open), seq, block.last_seq)
                         if (one := from_open(block.open, at)) is not None and filters.match(one.subject))
                return StoredMsgs.of(list(islice(found, most)))
            try:
                head = live.resident(block) or await self._reader.head(block)
                ordinal = head.ordinal_of(seq)
                chunk = self._chunks.cached(block, ordinal) or await self._reader.chunk(block, ordinal)
            except NotFound:
                if live.holds(block):
                    raise
                continue
            end = chunk.start + len(chunk)
            places: Sequence[int] = range(ordinal, end)
            if not filters.all and isinstance(head, Head):
                places = self._chunks.matches_in(block, head, filters)
                places = places[bisect_left(places, ordinal):bisect_left(places, end)]
            if block.dead is not None or chunk.first_seq < live.first_seq:
                places = [at for at in places if live.is_live(block, chunk.seq(at - chunk.start))]
            if places:
                return columns_of(chunk, places[:most])
        return NO_MSGS

    # --- positions ----------------------------------------------------------------------------------------------------

    async def next_seq(self, filters: Filters, seq: int) -> int:
        """Return the first live match at or after ``seq``, or 0."""
        live = self._live
        seq = max(seq, live.first_seq)
        for block in blocks_from(live, seq, live.last_seq):
            found = self._next_in(block, max(seq, block.first_seq), filters)
            if found is None:
                return await self._next_cold(filters, max(seq, block.first_seq))
            if found:
                return found
        return 0

    async def _next_cold(self, filters: Filters, seq: int) -> int:
        """Do the same as ``next_seq``, and load the heads of blocks, which are not in memory."""
        live = self._live
        blocks = candidates(blocks_from(live, seq, live.last_seq), filters)
        async with aclosing(self._heads.walk(blocks, slow_start=True)) as walk:
            async for block, _ in walk:
                if found := self._next_in(block, max(seq, block.first_seq), filters):
                    return found
        return 0

    def _next_in(self, block: LiveBlock, first: int, filters: Filters) -> int | None:
        """Return the first live match of ``block`` at or after ``first``; 0: none; None: its head is needed."""
        live = self._live
        if not listed_match(block, filters):
            return 0
        if block.open is not None:
            rows: Rows = OpenRows(block.open)
            subjects = block.open.subjects
            for at in range(rows.ordinal_of(first), block.count):
                if filters.match(subjects[at]) and live.is_live(block, found := rows.seq_of(at)):
                    return found
            return 0
        ordinal = self._chunks.next_ordinal(block, first, None if filters.all else filters)
        if ordinal is None or ordinal < 0:
            return None if ordinal is None else 0
        return block.first_seq + ordinal if block.gapless else live.rows(block).seq_of(ordinal)

    async def first_seq_of(self, filters: Filters) -> int:
        """Return the first live match, or 0."""
        return await self.next_seq(filters, 0)

    async def last_seq_of(self, filters: Filters) -> int:
        """Return the last live match, or 0."""
        live, subjects = self._live, self._subjects
        if filters.all:
            return live.last_live()
        if len(filters.subjects) == 1 and is_literal(filters.subjects[0]):
            subject = filters.subjects[0]
            return await self._decided(lambda: subjects.last(subject))
        found = await self.last_seqs_by_subject(filters, live.last_seq)
        return found[-1] if found else 0

    async def last_seqs(self, filters: Filters | None) -> list[int]:
        """Return the last live match of any of ``filters``, in a list; an empty list if there is none."""
        last = await self.last_seq_of(filters or ALL)
        return [last] if last else []

    async def last_seqs_by_subject(self, filters: Filters, up_to_seq: int) -> list[int]:
        """Return the last live sequence at or below ``up_to_seq`` of each matching subject, ascending."""
        live, state = self._live, self._subjects
        names = await self._search.matching(filters)
        found: list[int] = []
        earlier: list[bytes] = []
        for at in range(0, len(names), _SUBJECTS_AT_ONCE):
            if at:
                await asyncio.sleep(0)
            some = names[at:at + _SUBJECTS_AT_ONCE]
            lasts = await self._decided(
                lambda some=some: state.ready().lasts(some, live.first_seq))  # type: ignore[misc]
            if lasts and (max(lasts) > up_to_seq or min(lasts) <= 0):
                for i, last in enumerate(lasts):
                    if last == UNKNOWN:
                        last = lasts[i] = await self._decided(partial(state.last, some[i]))
                    if last > up_to_seq:
                        earlier.append(some[i])
                lasts = [last for last in lasts if 0 < last <= up_to_seq]
            found += lasts
        if earlier:
            found += await self._last_below(frozenset(earlier), up_to_seq)
        found = await sorted_in_turns(found)
        return found[bisect_left(found, live.first_seq):]

    async def _last_below(self, subjects: frozenset[bytes], up_to_seq: int) -> list[int]:
        """Return the last message at or below ``up_to_seq`` of each of ``subjects``, found by reading the blocks."""
        live, found = self._live, []
        wanted = Filters(subjects)
        left = set(subjects)
        blocks = candidates(blocks_back(live, up_to_seq), wanted)
        async with aclosing(self._heads.walk(blocks, slow_start=True)) as walk:
            async for block, rows in walk:
                for seq, subject in reversed(matching_rows(rows, block, wanted)):
                    if seq <= up_to_seq and subject in left and live.is_live(block, seq):
                        left.discard(subject)
                        found.append(seq)
                if not left:
                    break
        return found

    async def seq_at(self, time_ns: int) -> int:
        """Return the first live sequence at or after a time; ``last_seq + 1`` if there is none."""
        live = self._live
        rows = None
        while True:
            blocks = live.blocks
            i = bisect_left(blocks, time_ns, key=lambda block: block.last_time_ns)
            while i < len(blocks) and not blocks[i].live_msgs:
                i += 1
            if i == len(blocks):
                return live.last_seq + 1
            block = blocks[i]
            first = max(block.first_seq, live.first_seq)
            if block.first_time_ns < time_ns:
                rows = live.resident(block)
                if rows is None:
                    # The variable ``rows`` keeps the head in memory until the next iteration, which finds it there.
                    rows = await self._heads.load(block)
                    continue
                at = rows.ordinal_at(time_ns)
                first = block.last_seq + 1 if at >= block.count else max(first, rows.seq_of(at))
            return await self.next_seq(ALL, first) or live.last_seq + 1

    # --- counts -------------------------------------------------------------------------------------------------------

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        """Return the number of safe live matches at or after ``seq``, and the ``safe_seq`` of that count.

        Messages removed during the count may or may not be included: consumers are notified of removals.
        """
        live = self._live
        if filters is not None and (known := self._subjects.count_from(filters, seq)) is not None:
            return known, live.safe_seq
        if filters is None or filters.all:
            total = await self._decided(lambda: live.live_from(max(seq, live.first_seq)))
            return total - self.tail_count(max(seq, live.safe_seq + 1), ALL), live.safe_seq
        if seq <= live.first_seq and self._subjects.index_is_worthwhile(live.safe_seq):
            total = await self.count(filters)
            return total - self.tail_count(max(seq, live.safe_seq + 1), filters), live.safe_seq
        total, end = 0, live.safe_seq
        not_loaded = []
        for n, block in enumerate(blocks_from(live, seq, end)):
            if n % _BLOCKS_AT_ONCE == _BLOCKS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if listed_match(block, filters):
                if (block.live_msgs == block.count and seq <= block.first_seq and block.last_seq <= end
                        and block.subjects is not None):
                    total += sum(count for subject, count, _, _ in block.subjects if filters.match(subject))
                else:
                    not_loaded.append(block)
        async with aclosing(self._heads.walk(candidates(not_loaded, filters))) as walk:
            async for block, rows in walk:
                if (block.live_msgs == block.count and seq <= block.first_seq and block.last_seq <= end
                        and isinstance(rows, Head)):
                    total += sum(map(rows.subject_counts.__getitem__, matching_ids(rows, filters)))
                else:
                    total += sum(1 for one, _ in matching_rows(rows, block, filters)
                                 if seq <= one <= end and live.is_live(block, one))
        return total, end

    async def count(self, filters: Filters) -> int:
        """Return the number of live matches, including the tail."""
        live, state = self._live, self._subjects
        if filters.all:
            return live.msgs
        while True:
            names = await self._search.matching(filters)
            index = await state.build()
            as_of = index, index.merged_seq, live.first_seq, live.msgs
            if len(names) == len(index):
                return live.msgs
            total = 0
            for at in range(0, len(names), _SUBJECTS_AT_ONCE):
                if at:
                    await asyncio.sleep(0)
                total += sum(index.counts(names[at:at + _SUBJECTS_AT_ONCE], live.first_seq))
            # Few subjects are counted in one turn; for many, the sum is consistent only if nothing changed.
            if len(names) <= _SUBJECTS_AT_ONCE or as_of == (state.index, index.merged_seq, live.first_seq, live.msgs):
                return total

    def tail_count(self, seq: int, filters: Filters) -> int:
        """Return the number of live matches at or after ``seq`` in blocks that are not persisted yet. Reads nothing."""
        return sum(self._tail_counts(seq, filters))

    def _tail_counts(self, seq: int, filters: Filters) -> list[int]:
        """Return the live matches at or after ``seq`` in each block that is not persisted yet."""
        live, counts = self._live, []
        for block in reversed(live.blocks):
            if block.open is None:
                break
            rows = OpenRows(block.open)
            if filters.all and block.first_seq >= seq:
                counts.append(block.live_msgs)
            else:
                subjects, match, start = block.open.subjects, filters.match, rows.ordinal_of(seq)
                if block.live_msgs == block.count:
                    counts.append(sum(map(match, subjects[start:block.count])))
                else:
                    counts.append(sum(1 for at in range(start, block.count)
                                      if match(subjects[at]) and live.is_live(block, rows.seq_of(at))))
        return counts

    async def _decided(self, ask: Callable[[], T]) -> T:
        """Return ``ask()``, after loading what it needs."""
        return await decide(self._live, self._heads, ask)
