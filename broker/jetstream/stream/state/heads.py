"""Loads the heads of one stream's blocks, for work that needs some or all of them.

Owns: the limits on concurrent loads, in number and in bytes, and the handling of blocks that leave in the meantime.
Does not own: the cache and the loads (storage.read.reader), and the use of the rows.

    load(block)        loads one head
    load_all(blocks)   loads a few concurrently; the caller passes at most ``HEADS_AT_ONCE`` (see ``at_once``)
    walk(blocks)       loads any number, one after the other, ahead of their use and within the same limits

Rows that a caller holds stay valid: the cache frees nothing that is still in use.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.rows import Rows
    from broker.storage.read.reader import BlockReader

__all__ = ["BYTES_AT_ONCE", "HEADS_AT_ONCE", "Heads", "at_once", "blocks_back", "blocks_from"]

HEADS_AT_ONCE = 16
BYTES_AT_ONCE = 8 << 20
"""Size in memory of the heads that one operation loads ahead or holds; a single head may be larger."""

_ROWS_AT_ONCE = 4096
"""Rows that ``walk`` yields in one turn of the loop if all heads are in memory."""

_BYTES_OF_ROW = 40
"""Estimated bytes of one message in a head, which has five columns at most."""


class Heads:
    """The heads of one stream."""

    def __init__(self, live: Live, reader: BlockReader) -> None:
        self._live = live
        self._reader = reader
        self.walks = 0
        """Number of running operations that rely on the present blocks: compaction must not replace these meanwhile."""

    async def load(self, block: LiveBlock, *, neighbours: bool = False) -> Rows | None:
        """Return the rows of a block; None if it has left the stream and its object has left the store.

        Args: ``neighbours``: other streams will soon ask for their blocks of the same object.
        Raises: NotFound if a block that is part of the stream has no object; StoreError; FormatError.
        """
        rows = self._live.resident(block)
        if rows is None:
            self.walks += 1
            try:
                rows = await self._reader.head(block, neighbours=neighbours)
            except NotFound:
                if self._live.holds(block):
                    raise
            finally:
                self.walks -= 1
        return rows

    def _begin(self, block: LiveBlock) -> asyncio.Task[Rows | None]:
        loading = asyncio.ensure_future(self.load(block))
        loading.add_done_callback(_retrieve_exception)
        return loading

    async def load_all(self, blocks: Iterable[LiveBlock]) -> list[Rows | None]:
        """Return ``load`` for each of a few blocks, loaded concurrently."""
        self.walks += 1
        try:
            return list(await asyncio.gather(*map(self.load, blocks)))
        finally:
            self.walks -= 1

    async def walk(self, blocks: Iterable[LiveBlock], *, slow_start: bool = False
                   ) -> AsyncGenerator[tuple[LiveBlock, Rows], None]:
        """Yield blocks with their rows, in order, without the blocks that have left the stream in the meantime.

        A caller that stops before the end must close the generator (``contextlib.aclosing``).

        Args: ``slow_start``: load one head first, then more and more ahead, for a caller that may need only the first.
        """
        live, source = self._live, iter(blocks)
        ahead: deque[tuple[LiveBlock, Rows | asyncio.Task[Rows | None], int]] = deque()
        window, size, passed = 1 if slow_start else HEADS_AT_ONCE, 0, 0
        self.walks += 1
        try:
            while True:
                while len(ahead) < window and (not ahead or size < BYTES_AT_ONCE):
                    block = next(source, None)
                    if block is None:
                        break
                    bytes_of = _bytes_of(block)
                    size += bytes_of
                    ahead.append((block, live.resident(block) or self._begin(block), bytes_of))
                if not ahead:
                    return
                block, load, bytes_of = ahead[0]
                if isinstance(load, asyncio.Task):
                    rows, passed = await load, 0
                else:
                    rows, passed = load, passed + block.count
                    if passed >= _ROWS_AT_ONCE:
                        passed = 0
                        await asyncio.sleep(0)
                ahead.popleft()
                size -= bytes_of
                window = min(2 * window, HEADS_AT_ONCE)
                if rows is not None and live.holds(block):
                    yield block, rows
        finally:
            self.walks -= 1
            for _, load, _ in ahead:
                if isinstance(load, asyncio.Task):
                    load.cancel()


def _retrieve_exception(loading: asyncio.Task[Rows | None]) -> None:
    """Mark the error of a load as retrieved: a walk that ends early does not await the heads loaded ahead."""
    if not loading.cancelled():
        loading.exception()


def at_once(blocks: Iterable[LiveBlock]) -> list[LiveBlock]:
    """Return as many of ``blocks``, from the first on, as may be loaded concurrently."""
    few: list[LiveBlock] = []
    size = 0
    for block in islice(blocks, HEADS_AT_ONCE):
        size += _bytes_of(block)
        if few and size > BYTES_AT_ONCE:
            break
        few.append(block)
    return few


def blocks_from(live: Live, seq: int, end: int) -> Iterator[LiveBlock]:
    """Yield the blocks with live messages within seq..end; the stream may change between two of them."""
    while (i := live.index_at(seq)) < len(live.blocks):
        block = live.blocks[i]
        if block.first_seq > end:
            return
        seq = block.last_seq + 1
        if block.live_msgs:
            yield block


def blocks_back(live: Live, seq: int, start: int = 0) -> Iterator[LiveBlock]:
    """Yield the blocks with live messages within start..seq, from the last one to the first."""
    while (i := min(live.index_at(seq), len(live.blocks) - 1)) >= 0:
        block = live.blocks[i]
        if block.first_seq > seq:
            if not i:
                return
            block = live.blocks[i - 1]
        if block.last_seq < start:
            return
        seq = block.first_seq - 1
        if block.live_msgs:
            yield block
        if seq < 0:
            return


def _bytes_of(block: LiveBlock) -> int:
    return _BYTES_OF_ROW * block.count
