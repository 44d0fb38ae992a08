"""The removed messages of one block: a set of sequences that only grows.

The set has a bit for each sequence between the block's first and last, and is made at the first removal. Blocks of a
mirror may have gaps far wider than their messages. If the bits would cost more than ``_SPARSE`` for each message, the
set has sorted ranges instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["DeadSet"]

_SPARSE = 64
"""The number of sequences for each message above which ranges take less memory than bits."""
_PIECE = 64
"""Bytes of the bits that are scanned together."""


class DeadSet:
    """The dead sequences among ``first_seq`` to ``last_seq`` of a block of ``count`` messages."""

    __slots__ = ("bits", "first_seq", "last_seq", "ranges")

    def __init__(self, first_seq: int, last_seq: int, count: int) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        span = last_seq - first_seq + 1
        self.bits: bytearray | None = bytearray((span + 7) >> 3) if span <= _SPARSE * count + 4096 else None
        """Bit ``seq - first_seq``, lowest bit of a byte first; None if ``ranges`` are used."""
        self.ranges: list[tuple[int, int]] = []

    def __contains__(self, seq: int) -> bool:
        if self.bits is not None:
            at = seq - self.first_seq
            return bool(self.bits[at >> 3] >> (at & 7) & 1)
        i = bisect_right(self.ranges, (seq, 1 << 64)) - 1
        return i >= 0 and self.ranges[i][1] >= seq

    def add(self, first: int, last: int) -> int:
        """Mark ``first`` to ``last``, which are within the block. Returns: how many were not yet marked."""
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

    def merge(self, bits: bytes) -> int:
        """Mark the sequences whose bits are set in ``bits``, which has the same length as the block's own.

        Returns: the number of sequences that were not yet marked.
        """
        if self.bits is None or len(bits) != len(self.bits):
            raise ValueError("the dead messages of a block do not fit it")
        before = int.from_bytes(self.bits, "little")
        after = before | int.from_bytes(bits, "little")
        self.bits[:] = after.to_bytes(len(bits), "little")
        return after.bit_count() - before.bit_count()

    def join(self, other: DeadSet) -> None:
        """Mark what ``other``, a set of the same block, marks."""
        if self.bits is not None and other.bits is not None:
            self.merge(bytes(other.bits))
        else:
            for first, last in other.seqs():
                self.add(first, last)

    def keep(self, other: DeadSet) -> None:
        """Keep only what ``other``, a set of the same block, marks too."""
        if self.bits is not None and other.bits is not None:
            both = int.from_bytes(self.bits, "little") & int.from_bytes(other.bits, "little")
            self.bits[:] = both.to_bytes(len(self.bits), "little")
        else:
            theirs = SeqRanges(other.seqs())
            self.ranges = [one for first, last in self.ranges for one in theirs.within(first, last)]

    def moved(self, first_seq: int) -> DeadSet:
        """Return a copy for a block whose first sequence is ``first_seq``."""
        shift = first_seq - self.first_seq
        copy = DeadSet.__new__(DeadSet)
        copy.first_seq, copy.last_seq = first_seq, self.last_seq + shift
        copy.bits = None if self.bits is None else bytearray(self.bits)
        copy.ranges = [(first + shift, last + shift) for first, last in self.ranges]
        return copy

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last sequence that are not dead. Not defined if all are dead."""
        if self.bits is None:
            first, last = self.first_seq, self.last_seq
            for low, high in self.ranges:
                first = high + 1 if low <= first <= high else first
            for low, high in reversed(self.ranges):
                last = low - 1 if low <= last <= high else last
            return first, last
        alive = int.from_bytes(self.bits, "little") ^ ((1 << (self.last_seq - self.first_seq + 1)) - 1)
        return self.first_seq + (alive & -alive).bit_length() - 1, self.first_seq + alive.bit_length() - 1

    def seqs(self) -> Iterator[tuple[int, int]]:
        """Iterate over the dead as (first, last), ascending and joined. They may include a block's gaps."""
        if self.bits is None:
            yield from self.ranges
            return
        first = end = self.first_seq
        # In pieces: shifting all bits for each of many ranges would take quadratic time.
        for offset in range(0, len(self.bits), _PIECE):
            value = int.from_bytes(self.bits[offset:offset + _PIECE], "little")
            at = self.first_seq + 8 * offset
            while value:
                zeros = (value & -value).bit_length() - 1
                value >>= zeros
                at += zeros
                ones = (~value & (value + 1)).bit_length() - 1
                if at != end:
                    if first < end:
                        yield first, end - 1
                    first = at
                value >>= ones
                end = at = at + ones
        if first < end:
            yield first, end - 1

    def pack(self) -> Any:
        """Return the set as a value for a page: bytes, or a list of ranges."""
        return bytes(self.bits) if self.bits is not None else [list(r) for r in self.ranges]

    def load(self, packed: Any) -> None:
        """Load the value that ``pack`` returned. Raises: ValueError if it does not fit the block."""
        if self.bits is not None and isinstance(packed, bytes) and len(packed) == len(self.bits):
            self.bits[:] = packed
        elif self.bits is None and isinstance(packed, (list, tuple)):
            self.ranges = [(int(first), int(last)) for first, last in packed]
        else:
            raise ValueError("the dead messages of a block do not fit it")

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
