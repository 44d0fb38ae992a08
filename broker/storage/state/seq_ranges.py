"""A set of sequences as ascending ranges: the sequences that an erasure is about."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["SeqRanges"]

_RANGES_MAX = 1 << 20
"""More ranges than any erasure has: a damaged value must not fill the memory."""


class SeqRanges:
    """Sequences, as (first, last) in ascending order, neither overlapping nor adjacent. Immutable."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    @classmethod
    def of(cls, seqs: Iterable[int]) -> SeqRanges:
        """Return the set of these sequences, in any order."""
        return cls((seq, seq) for seq in seqs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeqRanges) and (self._firsts, self._lasts) == (other._firsts, other._lasts)

    def __hash__(self) -> int:
        return hash((tuple(self._firsts), tuple(self._lasts)))

    def __repr__(self) -> str:
        return f"SeqRanges({list(self)!r})"

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and self._lasts[at] >= seq

    def __or__(self, other: SeqRanges) -> SeqRanges:
        return SeqRanges([*self, *other])

    def __sub__(self, other: SeqRanges) -> SeqRanges:
        left: list[tuple[int, int]] = []
        for first, last in self:
            at = first
            for low, high in other.within(first, last):
                if low > at:
                    left.append((at, low - 1))
                at = high + 1
            if at <= last:
                left.append((at, last))
        return SeqRanges(left)

    @property
    def count(self) -> int:
        """The number of sequences."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges that overlap first..last, cut to it."""
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                return
            yield max(first, self._firsts[at]), min(last, self._lasts[at])

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any of first..last is in the set."""
        return next(self.within(first, last), None) is not None

    def text(self) -> str:
        """Return the sequences as requests and reports have them: ``5,7-9``."""
        return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in self)

    def parts(self, ranges: int) -> Iterator[SeqRanges]:
        """Yield the set in parts of at most so many ranges."""
        for at in range(0, len(self), ranges):
            yield SeqRanges(zip(self._firsts[at:at + ranges], self._lasts[at:at + ranges], strict=True))

    def pack(self) -> list[int]:
        """Return the set as a list for msgpack: for each range its distance from the one before, and its length."""
        packed: list[int] = []
        at = 0
        for first, last in self:
            packed += (first - at, last - first)
            at = last
        return packed

    @classmethod
    def unpack(cls, packed: object) -> SeqRanges:
        """Return the set that ``pack`` packed. Raises: ValueError for anything else."""
        if (not isinstance(packed, list | tuple) or len(packed) % 2 or len(packed) > 2 * _RANGES_MAX
                or not all(type(value) is int and value >= 0 for value in packed)):
            raise ValueError("the sequences of an erasure are not a list of ranges")
        ranges, at = [], 0
        for skipped, more in zip(packed[::2], packed[1::2], strict=True):
            ranges.append((at + skipped, at + skipped + more))
            at += skipped + more
        return cls(ranges)
