"""Keeps the blocks of a memory stream few and free of dead messages, as compaction does for stored streams.

A memory stream gets a block in each turn of the loop; a publisher that waits for each PubAck causes one block per
message. While nothing reads them, new messages are appended to the block before theirs, up to a size. A block that was
read never changes, since readers share its chunks. Eight neighbours of one size class are joined into one block of the
next class, so a message is copied at most three times. A block of which less than half is live is rewritten, a few
blocks in each turn of the loop. Joined blocks hold live messages only, so their sequences may have gaps.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from broker.jetstream.stream.state.live import LiveBlock
from broker.storage.format.frame import FRAME_BYTES
from broker.storage.log.open_block import OpenBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.removal import Removal

__all__ = ["MemoryBlocks"]

_JOINED_AT_ONCE = 8
_CLASSES = 3
"""Size classes: blocks of 8, 64 and 512 messages or more; blocks of the last class are not joined."""

_UNREAD_MSGS = 1024
_UNREAD_BYTES = FRAME_BYTES
"""The most messages and bytes of a block that grows. Then its lists become tuples, which the garbage collector
ignores."""

_COPIED_AT_ONCE = 4096
"""Messages copied into rewritten blocks between two turns of the loop: about 10 ms; a single block may have more."""

_HELD_SECONDS = 0.1
"""Delay until blocks are rewritten that an operation had pinned."""


class MemoryBlocks:
    """Joins and rewrites the blocks of one memory stream.

    Args: ``held``: returns True while an operation relies on the present blocks, which must not be replaced then.
    """

    def __init__(self, live: Live, held: Callable[[], bool]) -> None:
        self._live = live
        self._held = held
        self._shrunk: dict[int, LiveBlock] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def untidy(self) -> bool:
        """True if blocks that lost messages have not been checked yet."""
        return bool(self._shrunk)

    def removed(self, gone: Iterable[Removal]) -> None:
        """Record the blocks that lost messages."""
        self._shrunk.update((id(removal.block), removal.block) for removal in gone)

    def tidy(self) -> None:
        """Rewrite and join blocks where that is worthwhile. Call this when a block was added."""
        self.close()
        held = self._held()
        if not held and not self._rewrite() and not self._merge_newest():
            self._join_small()
        if self._shrunk:
            # Set a timer instead of waiting for the next publish, which may never come.
            self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS if held else 0, self.tidy)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _merge_newest(self) -> bool:
        """Append the newest block to the one before it, if nothing has read or removed messages of them; return whether
        it was."""
        blocks = self._live.blocks
        newest = blocks[-1] if blocks else None
        if newest is None or newest.unread is None:
            return False
        before = blocks[-2] if len(blocks) > 1 else None
        if before is not None and before.unread is not None:
            if (before.dead is None and newest.dead is None and before.last_seq + 1 == newest.first_seq
                    and before.count + newest.count <= _UNREAD_MSGS
                    and before.unread.raw_bytes + newest.unread.raw_bytes <= _UNREAD_BYTES):
                self._live.merge(before, newest)
                return True
            before.seal()
        if newest.count >= _UNREAD_MSGS or newest.unread.raw_bytes >= _UNREAD_BYTES:
            newest.seal()
        return False

    def _join_small(self) -> None:
        """Join the newest persisted blocks as long as eight of them are in one size class."""
        live = self._live
        while True:
            end = len(live.blocks)
            while end and not live.blocks[end - 1].persisted:
                end -= 1
            start = end
            while start and end - start < _JOINED_AT_ONCE and _size_class(live.blocks[start - 1]) == _size_class(
                    live.blocks[end - 1]):
                start -= 1
            if end - start < _JOINED_AT_ONCE or _size_class(live.blocks[end - 1]) == _CLASSES:
                return
            _replace(live, live.blocks[start:end])

    def _rewrite(self) -> bool:
        """Rewrite some of the blocks less than half of which is live; return whether blocks remain to be checked."""
        live, shrunk, copied = self._live, self._shrunk, 0
        while shrunk and copied < _COPIED_AT_ONCE:
            _, block = shrunk.popitem()
            if block.persisted and 0 < block.live_msgs < block.count // 2 and live.holds(block):
                copied += block.live_msgs
                _replace(live, [block])
        return bool(shrunk)


def _size_class(block: LiveBlock) -> int:
    return min((max(block.live_msgs, 1).bit_length() - 1) // 3, _CLASSES)


def _replace(live: Live, blocks: Sequence[LiveBlock]) -> None:
    joined: OpenBlock[Any] = OpenBlock(0, None)
    for block in blocks:
        _copy(live, block, joined)
    if not joined.count:
        return
    new = LiveBlock.of_open(joined)
    new.open, new.unread = None, joined
    new.seal()
    live.replace_blocks(blocks, new)


def _copy(live: Live, block: LiveBlock, joined: OpenBlock[Any]) -> None:
    """Append the live messages of ``block`` to ``joined``."""
    block.seal()
    assert block.chunks is not None
    for chunk in block.chunks:
        count, start = len(chunk), 0
        while start < count:
            seq = chunk.seq(start)
            if not live.is_live(block, seq):
                start += 1
                continue
            # Extend the run while the next messages arrived at the same time and are live.
            end, time_ns = start + 1, chunk.times[start]
            while end < count and chunk.times[end] == time_ns and chunk.seq(end) == seq + end - start and live.is_live(
                    block, seq + end - start):
                end += 1
            joined.append_run(seq, chunk.subjects[start:end], None if chunk.hlens is None else chunk.hlens[start:end],
                              chunk.bodies[start:end], time_ns)
            start = end
