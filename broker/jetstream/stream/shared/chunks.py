"""Finds the chunk that a reader of one stream needs next, and loads it.

Owns: the next block and the place in it, and the cache of a block's matches. Does not own: loading and caching
(storage.read), loading ahead (read_ahead), the subjects (subject_state), the readers' cursors.

Readers are consumers and backups: they see messages at or below ``safe_seq``. The newest of these may be in blocks that
still grow: a reader gets a chunk of such a block as it is now.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from broker.jetstream.filters import Filters
from broker.jetstream.stream.shared.read_ahead import ReadAhead
from broker.jetstream.stream.state.live import LiveBlock
from broker.jetstream.stream.state.matching import EXCLUDED_AT_ONCE, listed_match, matching_ordinals, may_match
from broker.jetstream.stream.state.rows import OpenRows
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.frame import Chunk
from broker.storage.format.index import Head
from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_state import SubjectState
    from broker.jetstream.stream.state.tasks import Tasks
    from broker.storage.log.open_block import OpenBlock
    from broker.storage.read.reader import BlockReader

__all__ = ["Chunks", "Loading"]

_MATCHES_MAX = 64
"""Maximum number of blocks whose matches are cached, for all filtered readers of a stream together."""


class Loading:
    """A chunk or a head that is being loaded from the store. Several callers may await ``ready``, and then ask again.

    The loaded data stays in memory as long as this object is referenced, however small the cache, so the repeated call
    finds it. There is no match below ``seq``: ask from there on, so that skipped blocks are not needed again.
    """

    __slots__ = ("ready", "seq")

    def __init__(self, ready: Awaitable[object], seq: int) -> None:
        self.ready = ready
        self.seq = seq

    async def wait(self) -> None:
        """Wait until it is loaded. Raises: ApiError 10059 if the stream was deleted meanwhile; StoreError;
        FormatError."""
        try:
            await self.ready
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The load was cancelled with its stream, not this task.
            raise ApiError(ApiErrors.STREAM_NOT_FOUND) from None


class Chunks:
    """The chunks of one stream."""

    def __init__(self, live: Live, subjects: SubjectState, reader: BlockReader, tasks: Tasks) -> None:
        self._live = live
        self._subjects = subjects
        self._reader = reader
        self._tasks = tasks
        self._ahead = ReadAhead(live, reader, listed_match)
        self._matches: OrderedDict[tuple[Filters, LiveBlock], Sequence[int]] = OrderedDict()

    def blocks_unloaded(self) -> None:
        """Drop the cached matches, because the stream unloads its blocks."""
        self._matches.clear()

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, LiveBlock, int] | Loading | None:
        """Return the chunk with the first persisted live match at or after ``seq``, its block, and the match's place in
        the chunk.

        Returns a Loading if something must be loaded first; None if there is no match up to ``safe_seq``. Later
        messages of the chunk may be dead (``block.dead``) or not match.
        """
        live = self._live
        if seq < live.first_seq:
            seq = live.first_seq
        if seq > live.safe_seq:
            return None
        if filters is not None and (known := self._subjects.next(filters, seq)) is not None:
            if not 0 < known <= live.safe_seq:
                return None
            seq = known
            block = live.find(known)
            if block is not None and block.gapless and (chunk := self._resident(block, known)) is not None:
                return chunk, block, known - block.first_seq - chunk.start
        blocks, excluded = live.blocks, 0
        for i in range(live.index_at(seq), len(blocks)):
            block = blocks[i]
            if block.first_seq > live.safe_seq:
                return None
            if not block.live_msgs or (filters is not None and not listed_match(block, filters)):
                continue
            first = seq if seq > block.first_seq else block.first_seq
            if block.open is not None:
                place = self._next_in_open(block, first, filters)
                if place < 0:
                    continue
                growing = self._growing(block, place)
                return growing, block, place - growing.start
            if filters is not None or block.dead is not None or not block.gapless:
                ordinal = self.next_ordinal(block, first, filters)
                if ordinal is None:
                    if filters is not None and excluded < EXCLUDED_AT_ONCE and not may_match(block, filters):
                        excluded += 1
                        continue
                    return self._loading(block, None, first, filters)
                if ordinal < 0:
                    continue
            else:
                ordinal = first - block.first_seq
            chunk = self.cached(block, ordinal)
            if chunk is None:
                return self._loading(block, ordinal, first, filters)
            return chunk, block, ordinal - chunk.start
        return None

    def known_seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """Return the first ``most`` persisted live matches at or after ``seq``; None: they are not known without
        the heads of blocks."""
        return self._subjects.seqs(filters, seq, most)

    def chunk_of(self, seq: int) -> tuple[Chunk, LiveBlock, int] | None:
        """Return the same as ``next_chunk`` for a live ``seq`` if its chunk is in memory; otherwise use
        ``next_chunk``."""
        block = self._live.find(seq)
        if block is None or not block.gapless or (chunk := self._resident(block, seq)) is None:
            return None
        return chunk, block, seq - block.first_seq - chunk.start

    def next_ordinal(self, block: LiveBlock, seq: int, filters: Filters | None) -> int | None:
        """Return the ordinal of a persisted block's first live match at or after ``seq``; -1: none; None: needs the
        head."""
        live = self._live
        if block.gapless and (filters is None or (block.subjects is not None and len(block.subjects) == 1)):
            seq = live.next_live(block, seq)
            return seq - block.first_seq if seq <= block.last_seq else -1
        rows = live.resident(block)
        if rows is None:
            return None
        assert isinstance(rows, Head)
        start = rows.ordinal_of(seq)
        ordinals: Sequence[int] = range(block.count) if filters is None else self.matches_in(block, rows, filters)
        dead = block.dead
        for at in range(bisect_left(ordinals, start), len(ordinals)):
            ordinal = ordinals[at]
            if dead is None or rows.seq_of(ordinal) not in dead:
                return ordinal
        return -1

    def matches_in(self, block: LiveBlock, head: Head, filters: Filters) -> Sequence[int]:
        """Return the ordinals of the matching messages of ``block``; cached, because a reader calls again for each
        chunk."""
        key = filters, block
        ordinals = self._matches.get(key)
        if ordinals is not None:
            self._matches.move_to_end(key)
            return ordinals
        ordinals = matching_ordinals(head, filters)
        self._matches[key] = ordinals
        if len(self._matches) > _MATCHES_MAX:
            self._matches.popitem(last=False)
        return ordinals

    def cached(self, block: LiveBlock, ordinal: int) -> Chunk | None:
        """Return the chunk with message ``ordinal`` of a persisted block if it is in memory."""
        if block.unread is not None:
            block.seal()
        if block.chunks is not None:
            assert block.starts is not None
            return block.chunks[bisect_right(block.starts, ordinal) - 1]
        return self._reader.cached_chunk(block, ordinal)

    def _resident(self, block: LiveBlock, seq: int) -> Chunk | None:
        """Return the chunk with ``seq``, which is safe, of a block without gaps if it is in memory."""
        ordinal = seq - block.first_seq
        return self.cached(block, ordinal) if block.open is None else self._growing(block, ordinal)

    # --- blocks that are not persisted --------------------------------------------------------------------------------

    def _growing(self, block: LiveBlock, ordinal: int) -> Chunk:
        """Return a chunk with message ``ordinal`` of a block that is not persisted, and safe messages after it.

        Readers that are at the same place share the chunk. Later messages of the block will be in other chunks.
        """
        chunk = block.tail
        if chunk is None or not 0 <= ordinal - chunk.start < len(chunk):
            assert block.open is not None
            chunk = block.tail = block.open.chunk(ordinal, self._safe_end(block.open))
        return chunk

    def _safe_end(self, opened: OpenBlock[Any]) -> int:
        """Return the number of the block's messages that are safe: its first ones."""
        safe_seq = self._live.safe_seq
        return opened.count if opened.last_seq <= safe_seq else OpenRows(opened).ordinal_of(safe_seq + 1)

    def _next_in_open(self, block: LiveBlock, seq: int, filters: Filters | None) -> int:
        """Return the ordinal of the first safe live match at or after ``seq`` in a block that is not persisted; -1:
        none."""
        opened = block.open
        assert opened is not None
        rows, subjects, dead = OpenRows(opened), opened.subjects, block.dead
        start, end = rows.ordinal_of(seq), self._safe_end(opened)
        if filters is not None and filters.literal and end - start > 1 and filters.literals.isdisjoint(
                subjects[start:end]):
            return -1
        for at in range(start, end):
            if (filters is None or filters.match(subjects[at])) and (dead is None or rows.seq_of(at) not in dead):
                return at
        return -1

    def _loading(self, block: LiveBlock, ordinal: int | None, seq: int, filters: Filters | None) -> Loading:
        return Loading(self._tasks.start(self._load(block, ordinal, seq, filters), "read"), seq)

    async def _load(self, block: LiveBlock, ordinal: int | None, seq: int,
                    filters: Filters | None) -> tuple[object, ...]:
        """Load a head, and the chunk with message ``ordinal`` or with the first match; the caller keeps the result."""
        reader, begun = self._reader, self._ahead.on_begun(block, seq, filters)
        try:
            head = await reader.head(block, begun if filters is None else None)
            if ordinal is None:
                ordinal = self.next_ordinal(block, seq, filters)
            if ordinal is None or ordinal < 0:
                return head, None
            # Frames that are loaded ahead are decoded, too. That pays only if each of them has matching messages.
            sparse = filters is not None and len(self.matches_in(block, head, filters)) < len(head.frames)
            return head, await reader.chunk(block, ordinal, None if sparse else begun)
        except NotFound:
            if self._live.holds(block):
                raise
            return ()
