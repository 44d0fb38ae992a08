"""What leaves a stream, as values: the messages of one block, or all below a sequence.

Does not own: where the front is cut (front), nor how the state changes (live).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock

__all__ = ["Front", "Removal", "joined"]


class Removal(NamedTuple):
    """Messages that are about to leave one block: ``msgs`` live ones of ``size`` user bytes within first..last."""

    block: LiveBlock
    first: int
    last: int
    msgs: int
    size: int


class Front(NamedTuple):
    """All below ``end_seq``: ``msgs`` live messages of ``size`` user bytes, ``part`` of them in the block at the edge."""

    end_seq: int
    msgs: int
    size: int
    part: Removal | None


def joined(gone: Sequence[Removal]) -> list[tuple[int, int, int]]:
    """(first, last, messages) of what left, neighbours without a gap as one, so that notifications are few."""
    ranges: list[tuple[int, int, int]] = []
    for _, first, last, msgs, _ in gone:
        if ranges and msgs == last - first + 1:
            before, end, count = ranges[-1]
            if end + 1 == first and count == end - before + 1:
                ranges[-1] = before, last, count + msgs
                continue
        ranges.append((first, last, msgs))
    return ranges
