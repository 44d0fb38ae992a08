"""The heads of one stream's blocks, for work that needs some of them, or all.

Owns: how many are loaded side by side, in number and in bytes, and what becomes of blocks that leave meanwhile.
Does not own: the cache and the loads (storage.reader), what is done with the rows.

    of(block)       one
    all_of(blocks)  a few at once; the caller keeps them below ``HEADS_AT_ONCE`` (``at_once`` cuts a list to that)
    each(blocks)    any number, one after the other, loaded ahead within the same bounds

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
"""Of heads that one operation loads ahead or holds, as they are in memory; a single one may be larger."""

_ROWS_AT_ONCE = 4096
"""Passed in one turn of the loop where all is in memory."""

_BYTES_OF_ROW = 40
"""A message in a head has five columns at most."""


class Heads:
    """The heads of one stream."""

    def __init__(self, live: Live, reader: BlockReader) -> None:
        self._live = live
        self._reader = reader
        self.walks = 0
        """Loads and walks under way of blocks as they were: none of them may be replaced meanwhile."""

    async def of(self, block: LiveBlock, *, neighbours: bool = False) -> Rows | None:
        """The rows of a block; None when it has left the stream, and its object the store. ``neighbours``: other streams will soon
        ask for theirs of the same object.

        Raises: NotFound when a block of the stream has no object; StoreError; FormatError.
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
        loading = asyncio.ensure_future(self.of(block))
        loading.add_done_callback(_retrieve_exception)
        return loading

    async def all_of(self, blocks: Iterable[LiveBlock]) -> list[Rows | None]:
        """``of`` each of a few blocks, side by side."""
        self.walks += 1
        try:
            return list(await asyncio.gather(*map(self.of, blocks)))
        finally:
            self.walks -= 1

    async def each(self, blocks: Iterable[LiveBlock], *, slow_start: bool = False
                   ) -> AsyncGenerator[tuple[LiveBlock, Rows], None]:
        """Blocks with their rows, in order; those that have left the stream meanwhile are passed over.

        ``slow_start``: one at first, then more and more ahead, for a caller that may need only the first one.
        To be closed by the caller (``contextlib.aclosing``) if it stops before the end.
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
                block, coming, bytes_of = ahead[0]
                if isinstance(coming, asyncio.Task):
                    rows, passed = await coming, 0
                else:
                    rows, passed = coming, passed + block.count
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
            for _, coming, _ in ahead:
                if isinstance(coming, asyncio.Task):
                    coming.cancel()


def _retrieve_exception(loading: asyncio.Task[Rows | None]) -> None:
    """A walk that ends early, perhaps by the error of an earlier block, does not await those loaded ahead."""
    if not loading.cancelled():
        loading.exception()


def at_once(blocks: Iterable[LiveBlock]) -> list[LiveBlock]:
    """As many of ``blocks``, from the first on, as may be loaded side by side."""
    few: list[LiveBlock] = []
    size = 0
    for block in islice(blocks, HEADS_AT_ONCE):
        size += _bytes_of(block)
        if few and size > BYTES_AT_ONCE:
            break
        few.append(block)
    return few


def blocks_from(live: Live, seq: int, end: int) -> Iterator[LiveBlock]:
    """The blocks with live messages within seq..end, found one by one: the stream may change between two."""
    while (i := live.index_at(seq)) < len(live.blocks):
        block = live.blocks[i]
        if block.first_seq > end:
            return
        seq = block.last_seq + 1
        if block.live_msgs:
            yield block


def blocks_back(live: Live, seq: int, start: int = 0) -> Iterator[LiveBlock]:
    """The blocks with live messages within start..seq, from the last one back."""
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
