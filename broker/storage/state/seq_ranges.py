"""A set of sequences as ascending ranges: the sequences that an erasure is about."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise
from operator import sub

__all__ = ["SeqRanges"]

_RANGES_MAX = 1 << 20
"""More ranges than any erasure has: a damaged value must not fill the memory."""


class SeqRanges:
    """Sequences, as (first, last) in ascending order, neither overlapping nor adjacent. Immutable."""

    __slots__ = ("_firsts", "_lasts", "_text")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._text = ""
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

    @classmethod
    def union(cls, sets: Iterable[SeqRanges]) -> SeqRanges:
        """Return all sequences of several sets. It is fast if these do not interleave, as parts of one set do not."""
        ordered = sorted(filter(None, sets), key=lambda one: one._firsts[0])
        if any(after._firsts[0] <= before._lasts[-1] + 1 for before, after in pairwise(ordered)):
            return cls(chain.from_iterable(ordered))
        return cls._of(list(chain.from_iterable(one._firsts for one in ordered)),
                       list(chain.from_iterable(one._lasts for one in ordered)))

    @classmethod
    def _of(cls, firsts: list[int], lasts: list[int]) -> SeqRanges:
        made = cls()
        made._firsts, made._lasts = firsts, lasts
        return made

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
        return self.union((self, other))

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
        """Iterate over the ranges that overlap first..last, cut to it; over none if last is below first."""
        if last < first:
            return
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                return
            yield max(first, self._firsts[at]), min(last, self._lasts[at])

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any of first..last is in the set."""
        return next(self.within(first, last), None) is not None

    def text(self) -> str:
        """Return the sequences as requests and reports have them: ``5,7-9``. It is made once."""
        if not self._text:
            self._text = ",".join([f"{first}-{last}" if last > first else f"{first}" for first, last in self])
        return self._text

    def cut(self, first: int, last: int) -> SeqRanges:
        """Return the sequences among first..last; none if last is below first."""
        if last < first:
            return self._of([], [])
        start, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        firsts, lasts = self._firsts[start:end], self._lasts[start:end]
        if firsts:
            firsts[0], lasts[-1] = max(firsts[0], first), min(lasts[-1], last)
        return self._of(firsts, lasts)

    def parts(self, ranges: int) -> Iterator[SeqRanges]:
        """Yield the set in parts of at most so many ranges."""
        for at in range(0, len(self), ranges):
            yield self._of(self._firsts[at:at + ranges], self._lasts[at:at + ranges])

    def pack(self) -> list[int]:
        """Return the set as a list for msgpack: for each range its distance from the one before, and its length."""
        packed = [0] * (2 * len(self))
        packed[::2] = map(sub, self._firsts, [0, *self._lasts[:-1]])
        packed[1::2] = map(sub, self._lasts, self._firsts)
        return packed

    @classmethod
    def unpack(cls, packed: object) -> SeqRanges:
        """Return the set that ``pack`` packed. Raises: ValueError for anything else."""
        if (not isinstance(packed, list | tuple) or len(packed) % 2 or len(packed) > 2 * _RANGES_MAX
                or set(map(type, packed)) - {int} or min(packed, default=0) < 0):
            raise ValueError("the sequences of an erasure are not a list of ranges")
        at = list(accumulate(packed))
        if min(packed[2::2], default=2) > 1:
            return cls._of(at[::2], at[1::2])
        return cls(zip(at[::2], at[1::2], strict=True))
