"""Searches a stream's subjects: those that match, all of them or a page in order, and how many there are.

Owns: how many subjects are looked at in one turn of the loop, and when an order of them is worth its making. Does not own: the
index and its being up to date (subject_state), the order (subject_order).

    literal filters ──> looked up
    few subjects ─────> all are looked at
    many ─────────────> once many were looked at in vain: those between a filter's bounds, in the order
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.in_turns import sorted_in_turns
from broker.jetstream.stream.state.subject_index import SubjectIndex
from broker.jetstream.stream.state.subject_order import Part, SubjectOrder

if TYPE_CHECKING:
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_state import SubjectState

__all__ = ["SubjectSearch"]

_NAMES_AT_ONCE = 4096
"""Subjects looked at in one go: about 2 ms of the loop."""

_IN_VAIN = 4
"""So many subjects may be looked at for each that matches."""
_ORDER_WORTH = 3
"""Subjects looked at in vain, for each that there is, that cost as much as to sort them."""
_UNORDERED_MAX = 16_384
"""So many are sorted for each page of them."""


class SubjectSearch:
    """The subjects of one stream that have live messages, by their names."""

    def __init__(self, live: Live, subjects: SubjectState) -> None:
        self._live = live
        self._subjects = subjects
        self._ordering = asyncio.Lock()
        self._in_vain = 0
        """Subjects that were looked at and did not match, since there is no order."""

    async def matching(self, filters: Filters) -> list[bytes]:
        """Those that match, in no order; in as many turns of the loop as it takes."""
        index = await self._subjects.build()
        first_seq = self._live.first_seq
        if filters.literal:
            return index.alive(list(filters.literals), first_seq)
        parts: list[Part] = []
        if filters.spans and (index.order is not None or self._in_vain > _ORDER_WORTH * max(len(index), _NAMES_AT_ONCE)):
            parts = (await self._ordered(index)).within(filters.spans)
        if not parts:
            names = list(index)
            parts = [(names, 0, len(names))]
        found = await self._select(index, parts, filters)
        if filters.all:
            index.swept_seq = max(index.swept_seq, first_seq)
        else:
            self._in_vain += max(0, sum(end - start for _, start, end in parts) - _IN_VAIN * len(found))
        return found

    async def page(self, filters: Filters, offset: int, limit: int) -> tuple[list[bytes], int]:
        """Up to ``limit`` of ``matching``, in order and after the first ``offset`` of them; and how many they all are."""
        index = await self._subjects.build()
        if filters.literal or (index.order is None and len(index) <= _UNORDERED_MAX):
            found = await sorted_in_turns(await self.matching(filters))
            return found[offset:offset + limit], len(found)
        order = await self._ordered(index, complete=True)
        parts = order.within(filters.spans)
        names, start, end = parts[0]
        swept = not self._subjects.tracked or index.swept_seq >= self._live.first_seq
        if filters.contiguous and swept and not order.stale and not order.unsorted:
            return names[start + offset:min(start + offset + limit, end)], end - start
        found = await sorted_in_turns(await self._select(index, parts, filters))
        return found[offset:offset + limit], len(found)

    async def distinct(self) -> int:
        """How many subjects have live messages."""
        index = await self._subjects.build()
        if self._subjects.tracked and index.swept_seq < self._live.first_seq:
            return len(await self.matching(Filters()))
        return len(index)

    async def _select(self, index: SubjectIndex, parts: Sequence[Part], filters: Filters) -> list[bytes]:
        """Those in ``parts``, of which there may be one for each filter, that have live messages and match."""
        found: list[bytes] = []
        looked_at = 0
        for names, start, end in parts:
            for at in range(start, end, _NAMES_AT_ONCE):
                if looked_at >= _NAMES_AT_ONCE:
                    looked_at = 0
                    await asyncio.sleep(0)
                some = names[at:min(at + _NAMES_AT_ONCE, end)]
                looked_at += len(some)
                found += index.alive(filters.select(some), self._live.first_seq)
        return found

    async def _ordered(self, index: SubjectIndex, *, complete: bool = False) -> SubjectOrder:
        """The subjects in order, but for those that came lately; ``complete``: but for those that come meanwhile."""
        async with self._ordering:
            order, names = index.order, list[bytes]()
            if order is None or order.worn:
                order, names = SubjectOrder(), list(index)
                index.order = order
            if names or order.due or (complete and order.unsorted):
                try:
                    await order.merge(names)
                except BaseException:
                    index.order = None
                    raise
            self._in_vain = 0
            return order
