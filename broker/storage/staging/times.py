"""Counts the staged messages whose times are raised: those below the stream's last time, or below an earlier message's.

    the writer's times     run 1   09:01 09:02    run 2   09:00 09:03 09:05
    the stream's last      09:01
    in the stream                  09:01 09:02            09:02 09:03 09:05     1 raised

The stream's last time is known only when the messages join. It makes a difference to the blocks at the beginning of a
request, as long as no earlier block of the request has a later time. So it can be within the times of one block at
most, and only the index of this block is read again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.storage.format.block import BlockRef
    from broker.storage.format.index import Head

__all__ = ["StagedTimes", "times_below"]

_JOINING_NS: Final = 1 << 63
"""Stands for the time at which messages without times join: it is above all times that were given."""


class _BlockTimes(NamedTuple):
    """``below`` messages of the block have times below ``floor_ns``, the last time of all earlier blocks."""

    ref: BlockRef
    floor_ns: int
    below: int
    count_below: Callable[[int], Awaitable[int]]


class StagedTimes:
    """The times of the blocks of one request, in the order of the request."""

    def __init__(self) -> None:
        self._blocks: list[_BlockTimes] = []
        self._floor_ns = 0

    def add(self, ref: BlockRef, head: Head, count_below: Callable[[int], Awaitable[int]]) -> None:
        """Add a block. ``count_below(time_ns)`` reads its times again, and counts those below this one."""
        self._blocks.append(_BlockTimes(ref, self._floor_ns, times_below(ref, head, self._floor_ns), count_below))
        self._floor_ns = max(self._floor_ns, ref.last_time_ns or _JOINING_NS)

    def floor_ns(self, number: int, low_ns: int) -> int:
        """Return the time below which messages of block ``number`` are raised, if the stream's last time is
        ``low_ns``."""
        return max(low_ns, self._blocks[number].floor_ns)

    async def raised(self, low_ns: int) -> int:
        """Return the number of messages that are raised if the stream's last time is ``low_ns``.

        Raises: what ``count_below`` raises.
        """
        total = 0
        for ref, floor_ns, below, count_below in self._blocks:
            if low_ns <= floor_ns or low_ns <= ref.first_time_ns:
                total += below
            elif ref.last_time_ns < low_ns:
                total += ref.count if ref.last_time_ns else 0
            else:
                total += await count_below(low_ns)
        return total


def times_below(ref: BlockRef, head: Head, time_ns: int) -> int:
    """Return the number of messages of a staged block with times below ``time_ns``."""
    if not ref.last_time_ns or time_ns <= ref.first_time_ns:
        return 0
    return bisect_left(range(ref.count), time_ns, key=head.time_of)
