"""Removals from a stream, as values: live messages of one block, or everything below a sequence.

Does not own: where the front is cut (front), and the change of the state (live).
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
    """The removal of everything below ``end_seq``.

    Attributes: ``msgs``: number of live messages; ``size``: their user bytes; ``part``: the removal from the block that
        ``end_seq`` cuts, which is included in both.
    """

    end_seq: int
    msgs: int
    size: int
    part: Removal | None


def joined(gone: Sequence[Removal]) -> list[tuple[int, int, int]]:
    """Return ``gone`` as (first, last, messages), with gapless neighbours as one range, so that there are few
    notifications."""
    ranges: list[tuple[int, int, int]] = []
    for _, first, last, msgs, _ in gone:
        if ranges and msgs == last - first + 1:
            before, end, count = ranges[-1]
            if end + 1 == first and count == end - before + 1:
                ranges[-1] = before, last, count + msgs
                continue
        ranges.append((first, last, msgs))
    return ranges
