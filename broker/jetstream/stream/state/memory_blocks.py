"""Keeps the blocks of a memory stream few, and free of dead messages: what compaction is for streams in the store.

A memory stream gets a block each time the loop turns: one for each message of a publisher that waits for each PubAck. Eight
neighbours of one size class are joined into one of the next, so a message is copied three times at most; a block less
than half of which is live is rewritten, some in each turn of the loop. Joined blocks hold live messages only, so their
sequences may have gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.jetstream.stream.state.live import LiveBlock
from broker.storage.format.header import Position
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import seal_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.jetstream.stream.state.live import Live

__all__ = ["join_small", "rewrite"]

_JOINED_AT_ONCE = 8
_CLASSES = 3
"""Blocks of 8, 64 and 512 messages or more; the last are left as they are."""

_COPIED_AT_ONCE = 4096
"""Messages of blocks rewritten between two turns of the loop: about 10 ms; a single block may have more."""


def join_small(live: Live) -> None:
    """Join the newest persisted blocks as long as eight of them are of one size."""
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


def rewrite(live: Live, shrunk: dict[int, LiveBlock]) -> bool:
    """Write some of ``shrunk`` anew, those of which less than half lives, and drop them there; returns whether some are left."""
    copied = 0
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
    sealed = seal_block(joined, Position(0, 0), stored=False)
    core = sealed.core
    new = LiveBlock(core.first_seq, core.last_seq, core.count, core.bytes, core.first_time_ns, core.last_time_ns)
    new.subjects, new.chunks, new.head = core.subjects, sealed.chunks, sealed.head
    new.starts = [chunk.start for chunk in sealed.chunks]
    live.replace_blocks(blocks, new)


def _copy(live: Live, block: LiveBlock, joined: OpenBlock[Any]) -> None:
    """Append the live messages of ``block``."""
    assert block.chunks is not None
    for chunk in block.chunks:
        count, start = len(chunk), 0
        while start < count:
            seq = chunk.seq(start)
            if not live.is_live(block, seq):
                start += 1
                continue
            # As far as its neighbours arrived with it and are live.
            end, time_ns = start + 1, chunk.times[start]
            while end < count and chunk.times[end] == time_ns and chunk.seq(end) == seq + end - start and live.is_live(
                    block, seq + end - start):
                end += 1
            joined.append_run(seq, chunk.subjects[start:end], None if chunk.hlens is None else chunk.hlens[start:end],
                              chunk.bodies[start:end], time_ns)
            start = end
