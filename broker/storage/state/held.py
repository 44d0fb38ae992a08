"""The objects that an offline stream needs beside its block table: segments that could not be applied, and runs named
there.

A newer broker that repairs the stream applies these segments to it, so none of them is deleted before that. A block of
such a segment may contain records that this version does not understand. These records name only objects of the stream
itself: segments that have its blocks, and runs below its own prefix. Runs that several streams share are named only by
adoption records, which are in the shard's block and which every version understands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from broker.storage.format.header import Position, position_key
from broker.storage.state.entry import RunKey

__all__ = ["HeldPart", "held_parts"]

_PART = 1024


class HeldPart:
    """A part of these segments and runs, which leave the shard's counts like the blocks of a ``TablePage``."""

    __slots__ = ("_positions", "_runs")

    def __init__(self, positions: Sequence[Position], runs: Sequence[RunKey]) -> None:
        self._positions = positions
        self._runs = runs

    def __len__(self) -> int:
        return len(self._positions) + len(self._runs)

    def log_keys(self) -> Iterator[int]:
        """The ``position_key`` of each segment."""
        return map(position_key, self._positions)

    def run_counts(self, stream_id: int) -> Iterable[tuple[RunKey, int]]:
        """Return each run with the number of times that it is named."""
        return Counter(self._runs).items()


def held_parts(positions: Sequence[Position], runs: Sequence[RunKey]) -> list[HeldPart]:
    """Divide the segments and runs of a stream into parts, each counted in less than a millisecond."""
    return ([HeldPart(positions[at:at + _PART], ()) for at in range(0, len(positions), _PART)]
            + [HeldPart((), runs[at:at + _PART]) for at in range(0, len(runs), _PART)])
