"""The state of one stream as JetStream's API shows it.

Source: nats-server, server/store.go, StreamState.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from broker.base.gotime import ZERO_TIME, format_time
from broker.jetstream.filters import Filters
from broker.jetstream.settings import SUBJECTS_PAGE
from broker.jetstream.stream.state.decision import decide
from broker.jetstream.stream.state.heads import blocks_from
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["StreamInfo", "SubjectCounts"]

_COUNTED_AT_ONCE = 4096

_DELETED_MAX = 4_000_000
"""Maximum length of a list of deleted sequences: 40 MB of JSON, and four times as much while it is made."""

_LISTED_AT_ONCE = 65_536
"""Sequences added to that list in one turn of the loop: about 2 ms."""

_log = logging.getLogger(__name__)


class SubjectCounts(dict[str, int]):
    """A page of matching subjects, in order, with their messages; ``total``: number of matching subjects."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total


class StreamInfo:
    """Reads the live state, whose blocks the caller has loaded, and loads data for an answer from the store."""

    def __init__(self, parts: StreamParts) -> None:
        self._name, self._live, self._heads = parts.name, parts.live, parts.heads
        self._subjects, self._search = parts.subjects, parts.search

    async def state(self, deleted_details: bool, subjects_filter: bytes, subjects_offset: int) -> dict[str, Any]:
        """Return StreamState as JSON values without ``consumer_count``. Raises: StoreError; FormatError.

        Values that only a damaged or lost object contains are omitted or estimated, so that the stream can be shown all
        the same; details that were requested raise.
        """
        live = self._live
        subjects, first_time_ns = 0, live.first_time[0]
        try:
            first_time_ns = await decide(live, self._heads, self._first_time)
            subjects = await self._search.distinct()
        except (FormatError, NotFound) as error:
            _log.warning("stream %s: its subjects cannot be counted: %s", self._name, error)
        counts = await self._subject_counts(Filters((subjects_filter,)), subjects_offset) if subjects_filter else None
        first, last, deleted = live.first_seq, live.last_seq, 0
        shown: dict[str, Any] = {
            "messages": live.msgs, "bytes": live.size_bytes,
            "first_seq": first, "first_ts": format_time(first_time_ns) if live.msgs else ZERO_TIME,
            "last_seq": last,
            "last_ts": format_time(live.last_time_ns) if live.last_time_ns else ZERO_TIME}
        if subjects:
            shown["num_subjects"] = subjects
        if counts is not None:
            shown["subjects"] = counts
        if live.msgs:
            deleted = last - first + 1 - live.msgs
        if deleted:
            shown["num_deleted"] = deleted
            if deleted_details:
                shown["deleted"] = listed = await self._deleted(deleted, first, last)
                # Messages may have been removed while the others were listed.
                shown["num_deleted"], shown["messages"] = len(listed), last - first + 1 - len(listed)
        return shown

    def _first_time(self) -> int:
        """Return the time of the first live message. Raises: NotLoaded."""
        live = self._live
        first_time_ns, exact = live.first_time
        if not exact:
            raise NotLoaded("the time of the first message", (live.blocks[live.index_at(live.first_seq)],))
        return first_time_ns

    async def _subject_counts(self, filters: Filters, offset: int) -> SubjectCounts:
        names, total = await self._search.page(filters, offset, SUBJECTS_PAGE)
        index = await self._subjects.build()
        counts = SubjectCounts(total)
        for at in range(0, len(names), _COUNTED_AT_ONCE):
            if at:
                await asyncio.sleep(0)
            some = names[at:at + _COUNTED_AT_ONCE]
            for name, count in zip(some, index.counts(some, self._live.first_seq), strict=True):
                if count:
                    counts[name.decode("utf-8", "replace")] = count
        return counts

    async def _deleted(self, count: int, first: int, last: int) -> list[int]:
        """Return the sequences between ``first`` and ``last`` that have no message; ``count`` of them are known
        already.

        Messages that are stored meanwhile have later sequences. Messages that are removed meanwhile may be listed or
        not.
        Raises: ApiError 10023 if they are too many to list. A mirror has a gap of any size if its origin was purged up
            to a sequence of the client's choice.
        """
        if count > _DELETED_MAX:
            raise ApiError(ApiErrors.INSUFFICIENT_RESOURCES)
        live = self._live
        deleted: list[int] = []
        at = first
        async with aclosing(self._heads.walk(blocks_from(live, at, last))) as walk:
            async for block, rows in walk:
                for seq in live.live_seqs(block, rows, at, min(block.last_seq, last)):
                    if seq > at:
                        await _extend(deleted, at, seq)
                    at = seq + 1
        await _extend(deleted, at, last + 1)
        return deleted


async def _extend(deleted: list[int], start: int, end: int) -> None:
    """Add the sequences from ``start`` to ``end``, exclusive, in turns of the loop if they are many.

    Raises: ApiError 10023 if the list becomes too long.
    """
    if len(deleted) + end - start > _DELETED_MAX:
        raise ApiError(ApiErrors.INSUFFICIENT_RESOURCES)
    for at in range(start, end, _LISTED_AT_ONCE):
        deleted.extend(range(at, min(at + _LISTED_AT_ONCE, end)))
        if end - at > _LISTED_AT_ONCE:
            await asyncio.sleep(0)
