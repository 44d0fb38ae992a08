"""The list of sequences with which a consumer of the last message of each subject begins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

__all__ = ["Listed"]

_FREED_AT_ONCE = 16_384
"""The number of delivered sequences that are freed at a time."""


class Listed:
    """Ascending sequences that are delivered before all others. There may be a million."""

    __slots__ = ("_at", "_seqs")

    def __init__(self, seqs: Sequence[int] = ()) -> None:
        self._seqs = seqs if isinstance(seqs, list) else list(seqs)
        self._at = 0

    def __len__(self) -> int:
        return len(self._seqs) - self._at

    @property
    def first(self) -> int:
        """The next sequence; there must be one."""
        return self._seqs[self._at]

    def below(self, seq: int) -> int:
        """Return how many sequences are below ``seq``."""
        return bisect_left(self._seqs, seq, self._at) - self._at

    def up_to(self, last_seq: int, most: int) -> list[int]:
        """Return the next ``most`` sequences that are not above ``last_seq``."""
        at = self._at
        return self._seqs[at:bisect_right(self._seqs, last_seq, at, min(at + most, len(self._seqs)))]

    def drop(self, n: int) -> int:
        """Remove the next ``n`` sequences, at least one; returns the last of them."""
        self._at += n
        last = self._seqs[self._at - 1]
        if self._at >= _FREED_AT_ONCE or self._at == len(self._seqs):
            del self._seqs[:self._at]
            self._at = 0
        return last

    def drop_below(self, seq: int) -> None:
        """Remove the sequences below ``seq``."""
        if n := self.below(seq):
            self.drop(n)
