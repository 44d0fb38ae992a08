"""Searches a stream's subjects: all matching ones, a page of them in order, or their number.

Owns: how many subjects are compared in one turn of the loop, and when it pays to make an order of them. Does not own:
the index and its updates (subject_state), the order (subject_order).

    literal filters ──> looked up in the index
    few subjects ─────> all are compared
    many subjects ────> once many were compared in vain: only those between a filter's bounds, in the order
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
"""Subjects compared in one turn of the loop: about 2 ms."""

_IN_VAIN = 4
"""Number of comparisons per matching subject that do not count as in vain."""
_ORDER_WORTH = 3
"""Comparisons in vain, per subject of the index, that cost as much as sorting all subjects."""
_UNORDERED_MAX = 16_384
"""Up to this number of subjects are sorted again for each page."""


class SubjectSearch:
    """The search for subjects of one stream that have live messages."""

    def __init__(self, live: Live, subjects: SubjectState) -> None:
        self._live = live
        self._subjects = subjects
        self._ordering = asyncio.Lock()
        self._in_vain = 0
        """Number of comparisons in vain since an order was last used."""

    async def matching(self, filters: Filters) -> list[bytes]:
        """Return all matching subjects, in no order; takes as many turns of the loop as needed."""
        index = await self._subjects.build()
        first_seq = self._live.first_seq
        if filters.literal:
            return index.alive(list(filters.literals), first_seq)
        parts: list[Part] = []
        enough_in_vain = self._in_vain > _ORDER_WORTH * max(len(index), _NAMES_AT_ONCE)
        if filters.spans and (index.order is not None or enough_in_vain):
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
        """Return up to ``limit`` matching subjects in order, after the first ``offset`` ones, and the number of all."""
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
        """Return the number of subjects that have live messages."""
        index = await self._subjects.build()
        if self._subjects.tracked and index.swept_seq < self._live.first_seq:
            return len(await self.matching(Filters()))
        return len(index)

    async def _select(self, index: SubjectIndex, parts: Sequence[Part], filters: Filters) -> list[bytes]:
        """Return the subjects in ``parts`` that have live messages and match."""
        found: list[bytes] = []
        compared = 0
        for names, start, end in parts:
            for at in range(start, end, _NAMES_AT_ONCE):
                if compared >= _NAMES_AT_ONCE:
                    compared = 0
                    await asyncio.sleep(0)
                some = names[at:min(at + _NAMES_AT_ONCE, end)]
                compared += len(some)
                found += index.alive(filters.select(some), self._live.first_seq)
        return found

    async def _ordered(self, index: SubjectIndex, *, complete: bool = False) -> SubjectOrder:
        """Return the order of the subjects, merged as needed.

        A few of the newest subjects may be unsorted; ``complete``: only those added during this call.
        """
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
