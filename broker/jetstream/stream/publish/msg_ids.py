"""Maintains a stream's window of message ids: loads it after a restart, and lets it expire.

Owns: reading the window from checkpoints and blocks, the expiry timer. Does not own: the ids (dedupe), places of
stored ids in pages and blocks (storage.state.ids), handling of a duplicate (duplicates), the records of ids (stream).
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
"""Blocks read in parallel if their ids are in no page: a busy window has thousands of blocks."""

_IDS_AT_ONCE = 65_536
"""Messages in the blocks read in parallel, unless one block has more: their ids are in memory twice while they load."""

_IDS_A_TURN = 2048
"""Ids loaded or removed in one turn of the loop: about 2 ms."""

_ONE_TIME_NS = 100_000_000
"""Maximum time span of a block for which the last message's time is used for all its ids."""

_last_time: Callable[[LiveBlock], int] = attrgetter("last_time_ns")
_first_seq: Callable[[LiveBlock], int] = attrgetter("first_seq")
_part_first_seq: Callable[[IdPart], int] = attrgetter("first_seq")


class MsgIds:
    """The stored ids of one stream.

    Args: ``stored`` returns its applied state; ``last_seq`` is the stream's last sequence when it was restored.
    """

    def __init__(self, dedupe: Dedupe, live: Live, reader: BlockReader, clock: Clock,
                 stored: Callable[[], StreamState | None], last_seq: int) -> None:
        self._dedupe = dedupe
        self._live = live
        self._reader = reader
        self._clock = clock
        self._stored = stored
        self._last_seq = last_seq
        self._with_ids: list[LiveBlock] = []
        """Blocks that may have ids of the window which are stored nowhere else."""
        self._timer: asyncio.TimerHandle | None = None
        self.loading = False

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def blocks_loaded(self, blocks: Sequence[LiveBlock]) -> None:
        """Select the blocks whose ids may be needed; called while the stream loads its persisted blocks, in order."""
        if self._dedupe.known:
            return
        parts = [part for part in reversed(self._sources()) if part.in_blocks]
        blocks = [block for block in blocks if _has_ids(block, parts)] if parts else ()
        if not blocks:
            return
        # Select at once, because a message may be removed before its id is looked up.
        since_ns, selected = self._since_ns, self._with_ids
        if selected and selected[-1].last_time_ns <= since_ns:
            selected.clear()  # of the blocks that are too old, only the last one matters
        selected += _since(blocks, since_ns)

    @property
    def has_deferred(self) -> bool:
        """True if ids of the window must still be read from a block that has left the stream. The blocks are loaded."""
        since_ns, holds = self._since_ns, self._live.holds
        return any(block.last_time_ns > since_ns and not holds(block) for block in self._with_ids)

    def blocks_unloaded(self) -> None:
        """Drop the selected blocks when the stream unloads its blocks. They are selected again when they are loaded
        again.

        ``has_deferred`` must be False. No message is removed while the blocks are not loaded.
        """
        self._with_ids.clear()

    def blocks_replaced(self, old: Sequence[LiveBlock], new: LiveBlock | None) -> None:
        """Replace ``old`` by ``new``, which has those of their ids that may still be needed."""
        selected = self._with_ids
        if selected and (places := [at for at, block in enumerate(selected) if block in old]):
            selected[places[0]:places[-1] + 1] = [] if new is None else [new]

    @property
    def _since_ns(self) -> int:
        return self._clock.now_ns() - self._dedupe.window_ns

    def _sources(self) -> list[IdPart]:
        """Return the parts in which the restored ids are stored, the newest first."""
        state = self._stored()
        return [] if state is None else state.ids.sources(self._last_seq)

    async def load(self) -> None:
        """Load the ids of the window and the last message's id, a slice per turn of the loop.

        The newest ids are loaded first, as many as fit into the memory bound.
        """
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
        """Yield the ids of the window in the order in which they are restored, and whether their messages were staged.

        If the last message's id is not known, the ids before the window are included as far as needed.
        """
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
        """Return the next parts to read, of messages before ``below``, the newest first: one in blocks, or some in
        pages."""
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
        """Read the ids of a part that is not in blocks. Raises: StoreError.

        Returns None if the page is gone or cannot be used; then the blocks must be read instead.
        """
        try:
            return await self._reader.ids(part)
        except (NotFound, FormatError) as error:
            state = self._stored()
            if state is not None and state.ids.replace([part], part.lost()):  # otherwise another page has replaced it
                _log.warning("a page with the message ids of stream %s/%s cannot be used; its blocks are read instead: "
                             "%s", state.account, state.name, error)
                state.dirty = True
                self._select(part)
            return None

    def _select(self, part: IdPart) -> None:
        """Select the loaded blocks of a part that was in a page when they were loaded, and is in blocks now: the page
        is damaged, or an erasure has left its ids to the blocks."""
        found = [block for block in self._live.within(part.first_seq, part.last_seq) if block.ref is not None]
        self._with_ids = sorted({*self._with_ids, *_since(found, self._since_ns)}, key=_first_seq)

    async def _of_blocks(self, part: IdPart, below: int) -> AsyncGenerator[tuple[IdRows, bool], None]:
        """Yield the ids in the cores of blocks, as ``_back`` does."""
        last_seq = min(part.last_seq, below - 1)
        since_ns = self._since_ns
        self._select(part)
        blocks = [block for block in self._with_ids if part.first_seq <= block.last_seq and block.first_seq <= last_seq
                  and (block.last_time_ns > since_ns or self._dedupe.last_id is None)]
        while blocks:
            some, count = [blocks[-1]], blocks[-1].count
            ids_blocks_max = min(_IDS_BLOCKS_AT_ONCE, len(blocks))
            while len(some) < ids_blocks_max and count + blocks[-1 - len(some)].count <= _IDS_AT_ONCE:
                some.append(blocks[-1 - len(some)])
                count += some[-1].count
            for block, rows in zip(some, await asyncio.gather(*map(self._ids_of, some)), strict=True):
                staged = block.ref is None or block.ref.place is not BlockPlace.LOG
                yield _between(rows, part.first_seq, last_seq), staged
            del blocks[-len(some):]

    async def _ids_of(self, block: LiveBlock) -> IdRows:
        """Return the ids that a block records; none if the block has been removed in the meantime."""
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
                # The ids stay in the window slightly longer, but the block's index need not be read.
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


def _since(blocks: Sequence[LiveBlock], since_ns: int) -> Sequence[LiveBlock]:
    """Return the blocks of a stream, in order, that end after ``since_ns``; if none does, the last one, which may have
    the last message's id."""
    return blocks[bisect_right(blocks, since_ns, key=_last_time):] or blocks[-1:]


def _has_ids(block: LiveBlock, parts: Sequence[IdPart]) -> bool:
    """Return whether one of the parts, which are in order, has messages of the block.

    There may be hundreds of parts, and thousands of blocks in one turn. Of several parts, the last has the highest
    time.
    """
    at = bisect_right(parts, block.last_seq, key=_part_first_seq) - 1
    return at >= 0 and block.first_seq <= parts[at].last_seq and block.first_time_ns <= parts[at].last_time_ns


def _between(rows: IdRows, first_seq: int, last_seq: int) -> IdRows:
    """Return the rows of the messages first_seq..last_seq."""
    seqs = rows.seqs
    if not seqs or (seqs[0] >= first_seq and seqs[-1] <= last_seq):
        return rows
    some = slice(bisect_left(seqs, first_seq), bisect_right(seqs, last_seq))
    return IdRows(seqs[some], rows.times[some], rows.ids[some])
