"""Which messages of one block were removed: a set of sequences that only grows.

A bit for each sequence between the block's first and last, made at the first removal. Blocks of a mirror may have gaps
far wider than their messages; where the bits would cost more than ``_SPARSE`` for each message, sorted ranges are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

__all__ = ["DeadSet"]

_SPARSE = 64
"""With more sequences than this for each message, ranges are smaller than bits."""


class DeadSet:
    """Sequences ``first_seq`` to ``last_seq`` of a block of ``count`` messages, of which some are dead."""

    __slots__ = ("bits", "first_seq", "last_seq", "ranges")

    def __init__(self, first_seq: int, last_seq: int, count: int) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        span = last_seq - first_seq + 1
        self.bits: bytearray | None = bytearray((span + 7) >> 3) if span <= _SPARSE * count + 4096 else None
        """Bit ``seq - first_seq``, lowest bit of a byte first; None where ``ranges`` are kept."""
        self.ranges: list[tuple[int, int]] = []

    def __contains__(self, seq: int) -> bool:
        if self.bits is not None:
            at = seq - self.first_seq
            return bool(self.bits[at >> 3] >> (at & 7) & 1)
        i = bisect_right(self.ranges, (seq, 1 << 64)) - 1
        return i >= 0 and self.ranges[i][1] >= seq

    def add(self, first: int, last: int) -> int:
        """Mark ``first`` to ``last``, which are within the block; returns how many sequences were not yet marked."""
        if self.bits is None:
            return self._add_range(first, last)
        bits = self.bits
        at, end = first - self.first_seq, last - self.first_seq + 1
        if end - at == 1:
            bit = 1 << (at & 7)
            if bits[at >> 3] & bit:
                return 0
            bits[at >> 3] |= bit
            return 1
        low, high = at >> 3, (end + 7) >> 3
        mask = ((1 << (end - at)) - 1) << (at & 7)
        before = int.from_bytes(bits[low:high], "little")
        after = before | mask
        bits[low:high] = after.to_bytes(high - low, "little")
        return after.bit_count() - before.bit_count()

    def seqs(self) -> Iterator[tuple[int, int]]:
        """The dead as (first, last), rising, neighbours joined. Sequences in a block's gaps may be among them."""
        if self.bits is None:
            yield from self.ranges
            return
        value = int.from_bytes(self.bits, "little")
        at = self.first_seq
        while value:
            zeros = (value & -value).bit_length() - 1
            value >>= zeros
            at += zeros
            ones = (~value & (value + 1)).bit_length() - 1
            yield at, at + ones - 1
            value >>= ones
            at += ones

    def pack(self) -> Any:
        """For a page: bytes, or a list of ranges."""
        return bytes(self.bits) if self.bits is not None else [list(r) for r in self.ranges]

    def load(self, packed: Any) -> None:
        """Take what ``pack`` gave. Raises: ValueError when it does not fit the block."""
        if self.bits is not None and isinstance(packed, bytes) and len(packed) == len(self.bits):
            self.bits[:] = packed
        elif self.bits is None and isinstance(packed, (list, tuple)):
            self.ranges = [(int(first), int(last)) for first, last in packed]
        else:
            raise ValueError("the dead of a block do not fit it")

    def _add_range(self, first: int, last: int) -> int:
        ranges = self.ranges
        low = bisect_right(ranges, (first, 0))
        if low and ranges[low - 1][1] >= first - 1:
            low -= 1
        high = low
        covered = 0
        new_first, new_last = first, last
        while high < len(ranges) and ranges[high][0] <= last + 1:
            was_first, was_last = ranges[high]
            covered += max(0, min(was_last, last) - max(was_first, first) + 1)
            new_first, new_last = min(new_first, was_first), max(new_last, was_last)
            high += 1
        ranges[low:high] = [(new_first, new_last)]
        return last - first + 1 - covered
