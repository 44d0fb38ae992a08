"""Computes the messages that a cut at the front of a stream removes: for limits, purges and roll-ups.

Most cuts remove a block or two. A cut that removes thousands of blocks is made in slices (``slice_below``), or at once
if it removes most of all blocks. If no caller needs the removed messages of each block, only the totals of the cut are
counted (``whole_front``).

This module changes nothing. It raises ``NotLoaded`` if it needs the rows of a block that is not in memory.
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
"""Maximum number of blocks removed in one turn of the loop if they are listed: about 2 ms."""
_WHOLE_AT_ONCE = 4096
"""Maximum number of blocks removed in one turn if they are counted, not listed: about a millisecond."""
_MANY = _REMOVED_AT_ONCE // 4

_live_bytes: Callable[[LiveBlock], int] = attrgetter("live_bytes")
_live_msgs: Callable[[LiveBlock], int] = attrgetter("live_msgs")


def after_msgs(live: Live, count: int) -> int:
    """Return the sequence after the first ``count`` live messages, ``count <= msgs``. Raises: NotLoaded."""
    return _after(live, count, live.msgs, _live_msgs, _after_msgs_in)


def after_bytes(live: Live, size: int) -> int:
    """Return the sequence after the fewest first messages that have ``size`` user bytes or more. Raises: NotLoaded."""
    return _after(live, size, live.size_bytes, _live_bytes, _after_bytes_in)


def _after(live: Live, amount: int, total: int, held_by: Callable[[LiveBlock], int],
           after_in: Callable[[Live, LiveBlock, int], int]) -> int:
    """Return the sequence after the first messages that make up ``amount`` of the stream's ``total``.

    Args: ``held_by`` returns a block's share of the total. ``after_in`` finds the cut within a block whose share is
        larger than the rest of the amount.
    """
    blocks = live.blocks
    if 2 * amount > total:
        # Count from the end, because fewer messages stay than leave: find the first block with messages that stay.
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
    """Return the sequence of the live message of ``block`` that follows its first ``count``. Raises: NotLoaded."""
    start = max(block.first_seq, live.first_seq)
    if block.gapless and block.dead is None:
        return start + count
    rows = GAPLESS if block.gapless else live.rows(block)
    return live.live_seqs(block, rows, start, block.last_seq)[count]


def _after_bytes_in(live: Live, block: LiveBlock, size: int) -> int:
    """Return the same as ``after_bytes`` for one block that has more than ``size`` bytes. Raises: NotLoaded."""
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
    """Return ``end_seq``, or the end of the first slice if there are too many blocks below ``end_seq`` for one turn.

    The slice begins at the first live message, because dead blocks that are not persisted yet may precede it.
    ``listed``: the caller needs the removed messages of each block.
    """
    blocks, end = live.blocks, live.index_at(live.first_seq) + (_REMOVED_AT_ONCE if listed else _WHOLE_AT_ONCE)
    if end < len(blocks) and blocks[end].first_seq < end_seq and not most_leave(live, end_seq):
        return blocks[end].first_seq
    return end_seq


def many_leave(live: Live, end_seq: int) -> bool:
    """Return whether so many whole blocks are below ``end_seq`` that ``whole_front`` is faster than a list."""
    return live.index_at(end_seq) > _MANY


def most_leave(live: Live, end_seq: int) -> bool:
    """Return whether many whole blocks are below ``end_seq``, and at least half of all blocks."""
    whole = live.index_at(end_seq)
    return whole > _MANY and len(live.blocks) - whole <= whole


def listed_front(live: Live, end_seq: int) -> list[Removal]:
    """Return the removal of each block if everything below ``end_seq`` is removed. Raises: NotLoaded."""
    gone = []
    for block in live.blocks:
        if block.first_seq >= end_seq:
            break
        if block.last_seq < end_seq:
            if block.live_msgs:
                gone.append(Removal(block, max(block.first_seq, live.first_seq), block.last_seq, block.live_msgs,
                                    block.live_bytes))
            continue
        part = _part(live, block, end_seq)
        if part is not None:
            gone.append(part)
        break
    return gone


def whole_front(live: Live, end_seq: int) -> tuple[Front, Removal]:
    """Return the removal of everything below ``end_seq`` as one value, and the removal of its last block.

    The blocks that leave or the blocks that stay are counted, whichever are fewer. Raises: NotLoaded.
    """
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
            last = Removal(block, max(block.first_seq, live.first_seq), block.last_seq, block.live_msgs,
                           block.live_bytes)
    return Front(min(end_seq, live.last_seq + 1), msgs, size, part), last


def _part(live: Live, block: LiveBlock, end_seq: int) -> Removal | None:
    """Return the live messages of ``block`` below ``end_seq``, a sequence within it. Raises: NotLoaded."""
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
