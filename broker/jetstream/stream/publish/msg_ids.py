"""Maintains a stream's window of message ids: loads it after a restart, and lets it expire.

Owns: reading what checkpoints and blocks have of the window, the expiry timer. Does not own: the ids (dedupe), what is in which
page and what in blocks alone (storage.state.ids), what happens to a duplicate (duplicates), the records that store ids (stream).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.storage.format.block import BlockPlace
from broker.storage.format.errors import FormatError
from broker.storage.format.id_rows import IdRows
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.live import Live
    from broker.storage.read.reader import BlockReader
    from broker.storage.state.ids import IdPart
    from broker.storage.state.stream import StreamState

__all__ = ["MsgIds"]

_log = logging.getLogger(__name__)

_PAGES_AT_ONCE = 4
"""Pages of ids read in parallel after a restart: publishes wait for them."""

_IDS_BLOCKS_AT_ONCE = 24
"""The same of blocks, where the ids are in no page: a busy window has thousands."""

_IDS_AT_ONCE = 65_536
"""Messages in those blocks together, unless a single one has more: while they load, their ids are in memory twice."""

_IDS_A_TURN = 2048
"""Ids loaded or forgotten per turn of the loop: about 2 ms."""

_ONE_TIME_NS = 100_000_000
"""If a block spans at most this time, all its ids count from its last message's time."""

_last_time: Callable[[LiveBlock], int] = attrgetter("last_time_ns")
_first_seq: Callable[[LiveBlock], int] = attrgetter("first_seq")
_part_first_seq: Callable[[IdPart], int] = attrgetter("first_seq")


class MsgIds:
    """The stored ids of one stream. ``stored`` gives its applied state, which a restart found as far as ``last_seq``."""

    def __init__(self, dedupe: Dedupe, live: Live, reader: BlockReader, clock: Clock, stored: Callable[[], StreamState | None],
                 last_seq: int) -> None:
        self._dedupe = dedupe
        self._live = live
        self._reader = reader
        self._clock = clock
        self._stored = stored
        self._last_seq = last_seq
        self._with_ids: list[LiveBlock] = []
        """Blocks that may have ids of the window which are nowhere else."""
        self._timer: asyncio.TimerHandle | None = None
        self.loading = False

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def blocks_loaded(self, blocks: Sequence[LiveBlock]) -> None:
        """Take note of persisted blocks, as the stream loads their entries in order."""
        if self._dedupe.known:
            return
        parts = [part for part in reversed(self._sources()) if part.in_blocks]
        blocks = [block for block in blocks if _has_ids(block, parts)] if parts else ()
        if not blocks:
            return
        # Immediately, since a message may be removed before its id is looked up.
        since_ns, noted = self._since_ns, self._with_ids
        if noted and noted[-1].last_time_ns <= since_ns:
            noted.clear()  # of the blocks that are too old, only the last one matters
        noted += blocks[bisect_right(blocks, since_ns, key=_last_time):] or blocks[-1:]

    @property
    def has_deferred(self) -> bool:
        """Whether ids of the window are still to be read from a block that has left the stream. The blocks are loaded."""
        since_ns, holds = self._since_ns, self._live.holds
        return any(block.last_time_ns > since_ns and not holds(block) for block in self._with_ids)

    def blocks_unloaded(self) -> None:
        """The blocks are let go, and noted again when they are loaded again: nothing is removed before that. None is owed."""
        self._with_ids.clear()

    def blocks_replaced(self, old: Sequence[LiveBlock], new: LiveBlock | None) -> None:
        """``new`` has the ids of ``old`` that may still be asked for."""
        noted = self._with_ids
        if noted and (places := [at for at, block in enumerate(noted) if block in old]):
            noted[places[0]:places[-1] + 1] = [] if new is None else [new]

    @property
    def _since_ns(self) -> int:
        return self._clock.now_ns() - self._dedupe.window_ns

    def _sources(self) -> list[IdPart]:
        """Where the ids of what the restart found are, the newest first."""
        state = self._stored()
        return [] if state is None else state.ids.sources(self._last_seq)

    async def load(self) -> None:
        """Load the ids of the window, and that of the last message: newest first, as many as may be held, a slice per turn of the
        loop."""
        self.loading = True
        try:
            await self._load()
        finally:
            self.loading = False

    async def _load(self) -> None:
        live, dedupe = self._live, self._dedupe
        await live.load_blocks()
        more = True
        async with aclosing(self._back()) as found:
            async for rows, staged in found:
                if dedupe.last_id is None and rows.ids:
                    dedupe.last_id = rows.ids[-1] if rows.seqs[-1] == live.last_seq else b""
                if staged and rows.ids:
                    dedupe.restore_staged(rows.seqs[0], rows.seqs[-1])
                for end in range(len(rows.ids), 0, -_IDS_A_TURN):
                    some = slice(max(0, end - _IDS_A_TURN), end)
                    times = live.ahead.all_stored_at(rows.seqs[some], rows.times[some])
                    more = more and dedupe.restore(list(zip(rows.seqs[some], rows.ids[some], times, strict=True)),
                                                   self._clock.now_ns())
                    await asyncio.sleep(0)
                if not more:
                    break
        if dedupe.last_id is None:
            dedupe.last_id = b""
        dedupe.restored()
        self._with_ids = []
        self.expire_later()

    async def _back(self) -> AsyncGenerator[tuple[IdRows, bool], None]:
        """The ids of the window and, if it is not known, that of the last message before it, in the order in which they are
        restored; and whether their messages were staged."""
        below = self._last_seq + 1
        while parts := self._next(below):
            if parts[0].in_blocks:
                async with aclosing(self._of_blocks(parts[0], below)) as found:
                    async for of_block in found:
                        yield of_block
                below = parts[0].first_seq
                continue
            for part, chunks in zip(parts, await asyncio.gather(*map(self._of_part, parts)), strict=True):
                if chunks is None:
                    break
                for rows in reversed(chunks):
                    yield _between(rows, 0, below - 1), False
                below = part.first_seq

    def _next(self, below: int) -> list[IdPart]:
        """The parts to read next of messages before ``below``, the newest first: one in blocks, or some others."""
        found: list[IdPart] = []
        for part in self._sources():
            if part.first_seq >= below:
                continue
            if (part.last_time_ns <= self._since_ns and (found or self._dedupe.last_id is not None)) or (
                    found and (part.in_blocks or len(found) == _PAGES_AT_ONCE)):
                break
            found.append(part)
            if part.in_blocks:
                break
        return found

    async def _of_part(self, part: IdPart) -> list[IdRows] | None:
        """The ids of a part that is not in blocks; None: it has gone, or it cannot be used, and the blocks are to be read instead.
        Raises: StoreError."""
        try:
            return await self._reader.ids(part)
        except (NotFound, FormatError) as error:
            state = self._stored()
            if state is not None and state.ids.replace([part], part.lost()):  # otherwise another took its place meanwhile
                _log.warning("a page with the message ids of stream %s/%s cannot be used; its blocks are read instead: %s",
                             state.account, state.name, error)
                state.dirty = True
                found = {*self._with_ids, *self._live.within(part.first_seq, part.last_seq)}
                self._with_ids = sorted((block for block in found if block.ref is not None), key=_first_seq)
            return None

    async def _of_blocks(self, part: IdPart, below: int) -> AsyncGenerator[tuple[IdRows, bool], None]:
        """The ids in the cores of blocks, as ``_back``."""
        last_seq = min(part.last_seq, below - 1)
        since_ns = self._since_ns
        blocks = [block for block in self._with_ids if part.first_seq <= block.last_seq and block.first_seq <= last_seq
                  and (block.last_time_ns > since_ns or self._dedupe.last_id is None)]
        while blocks:
            some, count = [blocks[-1]], blocks[-1].count
            while len(some) < min(_IDS_BLOCKS_AT_ONCE, len(blocks)) and count + blocks[-1 - len(some)].count <= _IDS_AT_ONCE:
                some.append(blocks[-1 - len(some)])
                count += some[-1].count
            for block, rows in zip(some, await asyncio.gather(*map(self._ids_of, some)), strict=True):
                yield _between(rows, part.first_seq, last_seq), block.ref is None or block.ref.place is not BlockPlace.LOG
            del blocks[-len(some):]

    async def _ids_of(self, block: LiveBlock) -> IdRows:
        """The ids that a block records; none if the block has been removed meanwhile."""
        ordinals: list[int] = []
        ids: list[bytes] = []
        try:
            core = await self._reader.core(block)
            for record in core.records:
                if record.kind == MessageIds.KIND:
                    record_ids = MessageIds.decode(record.body)
                    ordinals += record_ids.ordinals
                    ids += record_ids.ids
            if not ids:
                return IdRows((), (), ())
            if block.gapless and block.last_time_ns - block.first_time_ns <= _ONE_TIME_NS:
                # The ids stay in the window slightly longer, which saves reading each block's index.
                return IdRows([block.first_seq + at for at in ordinals], (block.last_time_ns,) * len(ids), ids)
            rows = self._live.resident(block) or await self._reader.head(block)
        except NotFound:
            if self._live.holds(block):
                raise
            return IdRows((), (), ())
        return IdRows([rows.seq_of(at) for at in ordinals], [rows.time_of(at) for at in ordinals], ids)

    def expire_later(self) -> None:
        due_ns = self._dedupe.next_expiry_ns
        if self._timer is None and due_ns is not None:
            delay_ns = max(due_ns - self._clock.now_ns(), 5_000_000 if self._dedupe.behind else 50_000_000)
            self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._dedupe.expire(self._clock.now_ns(), _IDS_A_TURN)
        self.expire_later()


def _has_ids(block: LiveBlock, parts: Sequence[IdPart]) -> bool:
    """Whether one of the parts, which rise, has messages of the block. There may be hundreds of parts, and thousands of blocks in
    a turn. Of several, the last one has the highest time."""
    at = bisect_right(parts, block.last_seq, key=_part_first_seq) - 1
    return at >= 0 and block.first_seq <= parts[at].last_seq and block.first_time_ns <= parts[at].last_time_ns


def _between(rows: IdRows, first_seq: int, last_seq: int) -> IdRows:
    """Those of the messages first_seq..last_seq."""
    seqs = rows.seqs
    if not seqs or (seqs[0] >= first_seq and seqs[-1] <= last_seq):
        return rows
    some = slice(bisect_left(seqs, first_seq), bisect_right(seqs, last_seq))
    return IdRows(seqs[some], rows.times[some], rows.ids[some])
