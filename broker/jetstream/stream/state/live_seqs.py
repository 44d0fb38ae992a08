"""Live sequences of one block: functions that build, skip and list its set of dead sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from broker.storage.state.dead import DeadSet

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["GAPLESS", "alive", "dead_set", "next_live", "over_gaps", "ranges"]


class _Gapless:
    """A stand-in for the rows of a block without gaps: its sequences are known without them."""

    def ordinal_of(self, seq: int) -> int:
        raise AssertionError("a gapless block needs no rows for this")

    seq_of = ordinal_at = time_of = subject_of = size_of = ordinal_of


GAPLESS: Any = _Gapless()


def dead_set(block: LiveBlock) -> DeadSet:
    """Return the block's set of dead sequences, with room for all it has; an open block gets room to grow into."""
    dead = block.dead
    if dead is not None and dead.last_seq >= block.last_seq:
        return dead
    last_seq = block.last_seq
    if not block.persisted:
        last_seq += max(8192, block.last_seq - block.first_seq)
    grown = block.dead = DeadSet(block.first_seq, last_seq, last_seq - block.first_seq + 1)
    if dead is not None:
        for first, last in dead.seqs():
            grown.add(first, last)
    return grown


_ALIVE = [bytes(1 - (byte >> bit & 1) for bit in range(8)) for byte in range(256)]


def alive(dead: DeadSet, seqs: range) -> Sequence[int]:
    """Return the sequences of ``seqs`` that are not dead; all of ``seqs`` are within the block."""
    if dead.bits is None:
        return [seq for seq in seqs if seq not in dead]
    at = seqs.start - dead.first_seq
    low = at >> 3
    mask = b"".join(map(_ALIVE.__getitem__, dead.bits[low:(seqs.stop - dead.first_seq + 7) >> 3]))
    return list(compress(seqs, mask[at - (low << 3):]))


def _past_dead(dead: DeadSet, seq: int) -> int:
    """Return the first sequence at or after ``seq`` that is not dead; it may be beyond the block."""
    bits = dead.bits
    if bits is None:
        i = bisect_right(dead.ranges, (seq, 1 << 64)) - 1
        return dead.ranges[i][1] + 1 if i >= 0 and dead.ranges[i][1] >= seq else seq
    at = seq - dead.first_seq
    low = at >> 3
    if low >= len(bits):
        return seq
    alive = ~bits[low] & 0xff & (0xff << (at & 7))
    if not alive:
        rest = bits[low + 1:]
        left = rest.lstrip(b"\xff")
        low += 1 + len(rest) - len(left)
        if not left:
            return dead.first_seq + (low << 3)
        alive = ~left[0] & 0xff
    return dead.first_seq + (low << 3) + (alive & -alive).bit_length() - 1


def ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return rising sequences as (first, last) runs of neighbours."""
    if isinstance(seqs, range) or seqs[-1] - seqs[0] + 1 == len(seqs):
        return [(seqs[0], seqs[-1])]
    ranges = []
    first = last = seqs[0]
    for seq in seqs[1:]:
        if seq != last + 1:
            ranges.append((first, last))
            first = seq
        last = seq
    ranges.append((first, last))
    return ranges


def over_gaps(removed: Sequence[tuple[int, int, int]], block: LiveBlock, rows: Rows) -> list[tuple[int, int, int]]:
    """Extend each range of ``removed``, (first, last, messages), up to the block's next message.

    The first live message after a gap is then found without the rows.
    """
    extended: list[tuple[int, int, int]] = []
    for first, last, msgs in removed:
        at = rows.ordinal_of(last + 1)
        last = rows.seq_of(at) - 1 if at < block.count else block.last_seq
        if extended and extended[-1][1] + 1 == first:
            before, _, count = extended.pop()
            first, msgs = before, count + msgs
        extended.append((first, last, msgs))
    return extended


def next_live(block: LiveBlock, seq: int, hot: Callable[[LiveBlock], Rows | None]) -> int:
    """Return the first live sequence of ``block`` at or after ``seq``; one beyond its last if there is none.

    In a block with gaps whose head is not in memory, the result may be a sequence in a gap before that message. In any
    case no live message of the block is between ``seq`` and the result.
    """
    dead = block.dead
    if dead is not None:
        seq = _past_dead(dead, seq)
    if block.gapless or seq > block.last_seq:
        return seq
    rows = hot(block)
    if rows is None:
        return seq
    at = rows.ordinal_of(seq)
    while at < block.count:
        seq = rows.seq_of(at)
        if dead is None or seq not in dead:
            return seq
        at += 1
    return block.last_seq + 1
