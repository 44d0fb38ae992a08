"""The part of one stream that a streaming query has not read yet, and how far a limit of messages or bytes reaches.

A limit is applied to block references alone, so nothing is read. Dead messages cost nothing, and neither do blocks
whose subject summary or filter rules them out. An index is read only where a limit ends inside a block whose sequences
have gaps.

The count is exact or too high, so a batch never exceeds its limit. Bytes are those of the stream's state; within a
block each message counts as the mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from broker.pipeline.plan.selection import Selection
from broker.storage.state.table import BlockEntry

__all__ = ["StreamBacklog"]


class StreamBacklog:
    """The messages from ``next_seq`` up to but not including ``end_seq``.

    Args: entries are the stream's blocks from ``next_seq`` on, in order; seqs reads the sequences of a block.
    """

    def __init__(self, entries: Iterator[BlockEntry], next_seq: int, end_seq: int, selection: Selection,
                 seqs: Callable[[BlockEntry], Sequence[int]]) -> None:
        self.next_seq = next_seq
        self.end_seq = end_seq
        self._entries = entries
        self._entry = next(entries, None)
        self._selection = selection if selection.needs_subject() else None
        self._seqs = seqs

    @property
    def done(self) -> bool:
        """Return whether everything has been taken."""
        return self.next_seq >= self.end_seq

    def advance(self, rows: int, size: int) -> tuple[int, int]:
        """Advance ``next_seq`` past as many messages as fit into ``rows`` and ``size`` bytes; returns their cost."""
        used_rows = used_size = 0
        while not self.done:
            entry = self._entry
            if entry is None or entry.ref.first_seq >= self.end_seq:
                self.next_seq = self.end_seq
                break
            ref = entry.ref
            first, last = max(self.next_seq, ref.first_seq), min(ref.last_seq, self.end_seq - 1)
            live, wanted = self._count(entry, first, last)
            each = max(1, ref.bytes // ref.count)
            if wanted <= rows - used_rows and wanted * each <= size - used_size:
                used_rows, used_size = used_rows + wanted, used_size + wanted * each
                self.next_seq = last + 1
                if last == ref.last_seq:
                    self._entry = next(self._entries, None)
                continue
            some = min(rows - used_rows, (size - used_size) // each, live)
            if some > 0:
                self.next_seq = self._after(entry, first, some)
                used_rows, used_size = used_rows + some, used_size + some * each
            break
        return used_rows, used_size

    def _count(self, entry: BlockEntry, first: int, last: int) -> tuple[int, int]:
        """Count the live messages of a block from ``first`` to ``last``, and those of them that may be wanted."""
        ref = entry.ref
        whole = first == ref.first_seq and last == ref.last_seq
        if whole:
            live = max(0, ref.count - entry.dead_count)
        elif entry.ref.gapless:
            live = last - first + 1 - sum(min(b, last) - max(a, first) + 1 for a, b in _dead(entry)
                                          if b >= first and a <= last)
        else:
            live = sum(1 for _ in self._live(entry, first, last))
        if self._selection is None:
            return live, live
        if (summary := ref.subjects) is None:
            excluded = ref.subject_filter is not None and not self._selection.may_be_in(ref.subject_filter)
            return live, 0 if excluded else live
        return live, min(live, sum(n for _, n, a, b in self._selection.rows_of(summary) if b >= first and a <= last))

    def _after(self, entry: BlockEntry, first: int, count: int) -> int:
        """Return the sequence that follows ``count`` live messages, counted from ``first``."""
        if not entry.ref.gapless:
            for seq in self._live(entry, first, entry.ref.last_seq):
                count -= 1
                if not count:
                    return seq + 1
            return entry.ref.last_seq + 1
        at = first
        for a, b in _dead(entry):
            if b < at:
                continue
            if a - at >= count:
                break
            count -= max(0, a - at)
            at = b + 1
        return at + count

    def _live(self, entry: BlockEntry, first: int, last: int) -> Iterator[int]:
        seqs = self._seqs(entry)
        for i in range(bisect_left(seqs, first), len(seqs)):
            if seqs[i] > last:
                return
            if not entry.is_dead(seqs[i]):
                yield seqs[i]


def _dead(entry: BlockEntry) -> Iterator[tuple[int, int]]:
    return iter(()) if entry.dead is None else entry.dead.seqs()
