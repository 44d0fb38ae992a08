"""Where the front of a stream is cut, and how much leaves there: for limits, purges and roll-ups.

Most cuts remove a block or two. Thousands of blocks are removed in slices (``slice_below``), or, if most of all blocks
leave, at once. Where nobody has to know which messages of which block leave, those of a slice or of all are counted, not
listed one by one (``whole_front``).

Decides nothing and changes nothing; what needs the rows of a block that is not in memory raises ``NotLoaded``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.jetstream.stream.state.live_seqs import GAPLESS
from broker.jetstream.stream.state.removal import Front, Removal
from broker.jetstream.stream.state.rows import size_between, sizes

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.live import Live

__all__ = ["after_bytes", "after_msgs", "listed_front", "many_leave", "most_leave", "slice_below", "whole_front"]

_REMOVED_AT_ONCE = 1024
"""Blocks removed in one turn of the loop: about 2 ms."""
_WHOLE_AT_ONCE = 4096
"""… if they are counted, not listed: about a millisecond."""
_MANY = _REMOVED_AT_ONCE // 4

_live_bytes: Callable[[LiveBlock], int] = attrgetter("live_bytes")
_live_msgs: Callable[[LiveBlock], int] = attrgetter("live_msgs")


def after_msgs(live: Live, count: int) -> int:
    """The sequence below which the first ``count`` live messages are, ``count <= msgs``. Raises: NotLoaded."""
    return _after(live, count, live.msgs, _live_msgs, _after_msgs_in)


def after_bytes(live: Live, size: int) -> int:
    """The sequence below which the fewest first messages of at least ``size`` user bytes are. Raises: NotLoaded."""
    return _after(live, size, live.size_bytes, _live_bytes, _after_bytes_in)


def _after(live: Live, amount: int, total: int, held_by: Callable[[LiveBlock], int],
           after_in: Callable[[Live, LiveBlock, int], int]) -> int:
    """The sequence below which the first messages of ``amount`` are, of the ``total`` that the stream has.

    Args: held_by says how much of it a block holds, after_in where that is cut within a block that holds more than is left.
    """
    blocks = live.blocks
    if 2 * amount > total:
        # From the end, where fewer are: the first block that still holds some of what stays.
        keep, i = total - amount, len(blocks)
        while i and keep >= held_by(blocks[i - 1]):
            i -= 1
            keep -= held_by(blocks[i])
        if not i:
            return live.first_seq
        block = blocks[i - 1]
        return after_in(live, block, held_by(block) - keep) if keep > 0 else block.last_seq + 1
    for block in blocks:
        held = held_by(block)
        if amount >= held:
            amount -= held
            if amount <= 0:
                return block.last_seq + 1
            continue
        return after_in(live, block, amount)
    return live.last_seq + 1


def _after_msgs_in(live: Live, block: LiveBlock, count: int) -> int:
    """The sequence of the live message of ``block`` that follows its first ``count``. Raises: NotLoaded."""
    start = max(block.first_seq, live.first_seq)
    if block.gapless and block.dead is None:
        return start + count
    rows = GAPLESS if block.gapless else live.rows(block)
    return live.live_seqs(block, rows, start, block.last_seq)[count]


def _after_bytes_in(live: Live, block: LiveBlock, size: int) -> int:
    """As ``after_bytes``, of one block, which has more of them. Raises: NotLoaded."""
    rows = live.rows(block)
    start = rows.ordinal_of(max(block.first_seq, live.first_seq))
    for at, one in enumerate(sizes(rows, start, block.count), start):
        seq = rows.seq_of(at)
        if block.dead is not None and seq in block.dead:
            continue
        size -= one
        if size <= 0:
            return seq + 1
    return block.last_seq + 1


def slice_below(live: Live, end_seq: int, *, listed: bool) -> int:
    """``end_seq``, or where a slice of the blocks below it ends, if they are so many that they must leave in slices.

    The slice begins at the first live message: dead blocks that are not persisted yet may still precede it. ``listed``: what
    leaves of each block must be known.
    """
    blocks, end = live.blocks, live.index_at(live.first_seq) + (_REMOVED_AT_ONCE if listed else _WHOLE_AT_ONCE)
    if end < len(blocks) and blocks[end].first_seq < end_seq and not most_leave(live, end_seq):
        return blocks[end].first_seq
    return end_seq


def many_leave(live: Live, end_seq: int) -> bool:
    """Whether so many blocks are wholly below ``end_seq`` that ``whole_front`` is better than a list."""
    return live.index_at(end_seq) > _MANY


def most_leave(live: Live, end_seq: int) -> bool:
    """Whether many blocks are wholly below ``end_seq``, and no more beyond."""
    whole = live.index_at(end_seq)
    return whole > _MANY and len(live.blocks) - whole <= whole


def listed_front(live: Live, end_seq: int) -> list[Removal]:
    """What leaves of each block when everything below ``end_seq`` does. Raises: NotLoaded."""
    gone = []
    for block in live.blocks:
        if block.first_seq >= end_seq:
            break
        if block.last_seq < end_seq:
            if block.live_msgs:
                gone.append(Removal(block, max(block.first_seq, live.first_seq), block.last_seq, block.live_msgs, block.live_bytes))
            continue
        part = _part(live, block, end_seq)
        if part is not None:
            gone.append(part)
        break
    return gone


def whole_front(live: Live, end_seq: int) -> tuple[Front, Removal]:
    """The removal of all below ``end_seq`` as one, counted where fewer blocks are; and of its last block. Raises: NotLoaded."""
    blocks, whole = live.blocks, live.index_at(end_seq)
    part = None
    if whole < len(blocks) and blocks[whole].first_seq < end_seq:
        part = _part(live, blocks[whole], end_seq)
    if 2 * whole < len(blocks):
        gone = blocks[:whole]
        msgs, size = sum(map(_live_msgs, gone)), sum(map(_live_bytes, gone))
    else:
        stay = blocks[whole:]
        msgs, size = live.msgs - sum(map(_live_msgs, stay)), live.size_bytes - sum(map(_live_bytes, stay))
    if part is not None:
        msgs, size = msgs + part.msgs, size + part.size
    last = part
    while last is None:
        whole -= 1
        block = blocks[whole]
        if block.live_msgs or not whole:
            last = Removal(block, max(block.first_seq, live.first_seq), block.last_seq, block.live_msgs, block.live_bytes)
    return Front(min(end_seq, live.last_seq + 1), msgs, size, part), last


def _part(live: Live, block: LiveBlock, end_seq: int) -> Removal | None:
    """The live messages of ``block`` below ``end_seq``, which is within it. Raises: NotLoaded."""
    rows = live.rows(block)
    seqs = live.live_seqs(block, rows, block.first_seq, end_seq - 1)
    if not seqs:
        return None
    start, end = rows.ordinal_of(seqs[0]), rows.ordinal_of(seqs[-1]) + 1
    if end - start == len(seqs):
        size = size_between(rows, start, end)
    else:
        size = sum(rows.size_of(rows.ordinal_of(seq)) for seq in seqs)
    return Removal(block, seqs[0], seqs[-1], len(seqs), size)
