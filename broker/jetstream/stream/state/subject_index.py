"""What a stream knows of its subjects: how many live messages each has, and which is its last.

Owns: counts and last sequences by subject, and, in a *tracked* stream, the sequences themselves.
Does not own: when they are looked up, or how messages of blocks not in memory get here (``subject_state``).

Two ways to keep them, by what the stream's limits need:

    plain     subject → row; count[row], last[row]. Removing the last message of a subject leaves its ``last`` unknown
              (the caller finds the one before and calls ``set_last``).
    tracked   (max_msgs_per_subject > 0) also size[row] of the last message, and for subjects with two messages or more
              an array of all (seq, size) pairs, so that a publish which replaces a message reads nothing from the store.

Messages that leave at the stream's front need no update in a tracked stream: whatever is below ``first_seq`` is gone,
and each subject drops it when it is next looked at (``sweep`` visits all).

Memory of 1 M subjects of 21 bytes: about 190 bytes each while they have one message (dictionary and name 150, columns 24).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from broker.jetstream.stream.state.subject_order import SubjectOrder

__all__ = ["UNKNOWN", "SubjectIndex"]

UNKNOWN = -1
"""Instead of a sequence: it must be found again."""
_UNKNOWN = 0
"""In ``last``: to be found again. No message has sequence 0."""


class SubjectIndex:
    """Counts and last sequences of a stream's subjects, for the messages at or below ``merged_seq``."""

    __slots__ = ("_counts", "_free", "_history", "_lasts", "_rows", "_sizes", "merged_seq", "order", "swept_seq", "tracked")

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.merged_seq = 0
        """Live messages up to this sequence are in the index; those after it are not yet."""
        self.swept_seq = 0
        """Tracked: no subject has messages below this sequence."""
        self.order: SubjectOrder | None = None
        """The subjects in order, where somebody asks for few of many."""
        self._rows: dict[bytes, int] = {}
        self._counts = array("I")
        self._lasts = array("Q")
        self._sizes = array("I")
        self._history: dict[int, array[int]] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._rows

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def clear(self) -> None:
        """Forget every message; what was merged stays merged."""
        self._rows = {}
        self._history = {}
        self._free = []
        self._counts, self._lasts, self._sizes = array("I"), array("Q"), array("I")
        self.order = None

    # --- looking up ---------------------------------------------------------------------------------------------------

    def count(self, subject: bytes, first_seq: int) -> int:
        """Live messages of ``subject``; ``first_seq`` is the stream's."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        if self.tracked and not self._trim(subject, row, first_seq):
            return 0
        return self._counts[row]

    def last(self, subject: bytes, first_seq: int) -> int | None:
        """Sequence of the last live message of ``subject``, 0 when it has none, None when it must be found again."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        last = self._lasts[row]
        if last == _UNKNOWN:
            return None
        return last if last >= first_seq else 0

    def counts(self, subjects: Sequence[bytes], first_seq: int) -> list[int]:
        """``count`` of each of ``subjects``."""
        self.sweep(subjects, first_seq)
        counts = self._counts
        return [0 if row is None else counts[row] for row in map(self._rows.get, subjects)]

    def alive(self, subjects: Sequence[bytes], first_seq: int) -> list[bytes]:
        """Those of ``subjects`` that have live messages."""
        self.sweep(subjects, first_seq)
        rows = self._rows
        return [subject for subject in subjects if subject in rows]

    def lasts(self, subjects: Sequence[bytes], first_seq: int) -> list[int]:
        """``last`` of each of ``subjects``; ``UNKNOWN`` where it must be found again."""
        lasts = self._lasts
        found = [0 if row is None else lasts[row] or UNKNOWN for row in map(self._rows.get, subjects)]
        if found and min(found) < first_seq:
            return [last if last >= first_seq or last == UNKNOWN else 0 for last in found]
        return found

    def first(self, subject: bytes, first_seq: int) -> tuple[int, int]:
        """(sequence, size) of the first live message of ``subject`` in a tracked stream; (0, 0) when it has none."""
        row = self._rows.get(subject)
        if row is None or not self._trim(subject, row, first_seq):
            return 0, 0
        history = self._history.get(row)
        return (self._lasts[row], self._sizes[row]) if history is None else (history[0], history[1])

    def messages(self, subject: bytes, first_seq: int) -> list[tuple[int, int]]:
        """(sequence, size) of all live messages of ``subject`` in a tracked stream, oldest first."""
        row = self._rows.get(subject)
        if row is None or not self._trim(subject, row, first_seq):
            return []
        history = self._history.get(row)
        if history is None:
            return [(self._lasts[row], self._sizes[row])]
        return list(zip(history[::2], history[1::2], strict=True))

    def next(self, subject: bytes, seq: int) -> int:
        """The first live message of ``subject`` at or after ``seq``, which is not below the stream's first, in a tracked stream;
        0 when there is none."""
        row = self._rows.get(subject)
        if row is None or self._lasts[row] < seq:
            return 0
        history = self._history.get(row)
        if history is None:
            return self._lasts[row]
        return history[2 * _place(history, seq)]

    def seqs(self, subject: bytes, first_seq: int, last_seq: int, most: int) -> list[int]:
        """The first ``most`` live messages of ``subject`` from ``first_seq``, which is not below the stream's first, up to
        ``last_seq``, in a tracked stream."""
        row = self._rows.get(subject)
        if row is None or self._lasts[row] < first_seq:
            return []
        history = self._history.get(row)
        if history is None:
            last = self._lasts[row]
            return [last] if last <= last_seq else []
        at = _place(history, first_seq)
        found = history[2 * at:2 * (at + most):2].tolist()
        return found[:bisect_right(found, last_seq)]

    def count_within(self, subject: bytes, first_seq: int, last_seq: int) -> int:
        """How many messages ``seqs`` has, without a bound."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        history = self._history.get(row)
        if history is None:
            return int(first_seq <= self._lasts[row] <= last_seq)
        return max(0, _place(history, last_seq + 1) - _place(history, first_seq))

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, subject: bytes, seq: int, size: int) -> int:
        """Add the message ``seq``, later than all others; returns how many the subject has now.

        In a tracked stream that number may count messages below the stream's first_seq: ask ``count`` where it matters.
        """
        row = self._rows.get(subject)
        if row is None:
            self._insert(subject, 1, seq, size)
            return 1
        if self.tracked:
            history = self._history.get(row)
            if history is None:
                history = self._history[row] = array("Q", (self._lasts[row], self._sizes[row]))
            history.append(seq)
            history.append(size)
            self._sizes[row] = size
        self._lasts[row] = seq
        self._counts[row] += 1
        return self._counts[row]

    def add_run(self, subjects: Sequence[bytes], sizes: Iterable[int], seq: int, limit: int,
                first_seq: int) -> list[tuple[int, int]]:
        """Tracked: ``add`` messages from ``seq`` on, and take out the oldest of each subject beyond ``limit`` of them.

        Returns: (sequence, size) of those taken out that are at or above ``first_seq``, the stream's.
        """
        if not self.tracked:
            raise ValueError("what one message is replaced by is known of tracked subjects only")
        rows, counts, lasts, of_last, histories = self._rows, self._counts, self._lasts, self._sizes, self._history
        find, out = rows.get, list[tuple[int, int]]()
        for subject, size in zip(subjects, sizes, strict=True):
            row = find(subject)
            if row is None:
                self._insert(subject, 1, seq, size)
            elif limit == 1 and row not in histories:
                before = lasts[row]
                if before >= first_seq:
                    out.append((before, of_last[row]))
                lasts[row] = seq
                of_last[row] = size
            else:
                history = histories.get(row)
                if history is None:
                    history = histories[row] = array("Q", (lasts[row], of_last[row]))
                history.append(seq)
                history.append(size)
                lasts[row] = seq
                of_last[row] = size
                count = counts[row] + 1
                if count > limit:
                    start = 0
                    while count > limit:
                        if history[start] >= first_seq:
                            out.append((history[start], history[start + 1]))
                        start += 2
                        count -= 1
                    del history[:start]
                    if count == 1:
                        del histories[row]
                counts[row] = count
            seq += 1
        self.merged_seq = seq - 1
        return out

    def merge(self, subject: bytes, count: int, last_seq: int) -> None:
        """Plain: add ``count`` messages, later than all others, the last of them at ``last_seq``."""
        row = self._rows.get(subject)
        if row is None:
            self._insert(subject, count, last_seq, 0)
        else:
            self._counts[row] += count
            self._lasts[row] = last_seq

    def merge_all(self, subjects: Iterable[bytes], counts: Iterable[int], last_seqs: Iterable[int]) -> None:
        """``merge`` many subjects."""
        rows, counted, lasts, insert = self._rows, self._counts, self._lasts, self._insert
        for subject, count, last_seq in zip(subjects, counts, last_seqs, strict=True):
            row = rows.get(subject)
            if row is None:
                insert(subject, count, last_seq, 0)
            else:
                counted[row] += count
                lasts[row] = last_seq

    def remove(self, subject: bytes, seq: int) -> None:
        """Take out one message. Unknown ones are no error: a tracked subject may have dropped them before."""
        row = self._rows.get(subject)
        if row is None:
            return
        if not self.tracked:
            self.subtract(subject, 1, seq)
            return
        history = self._history.get(row)
        if history is None:
            if self._lasts[row] == seq:
                self._drop(subject, row)
            return
        n = len(history) >> 1
        at = bisect_left(range(n), seq, key=lambda i: history[2 * i])
        if at < n and history[2 * at] == seq:
            del history[2 * at:2 * at + 2]
            self._update_columns(subject, row, history)

    def subtract(self, subject: bytes, count: int, last_seq: int) -> None:
        """Plain: take out ``count`` messages, the last of them at ``last_seq``."""
        row = self._rows.get(subject)
        if row is None:
            return
        left = self._counts[row] - count
        if left <= 0:
            self._drop(subject, row)
            return
        self._counts[row] = left
        if last_seq >= self._lasts[row]:
            self._lasts[row] = _UNKNOWN

    def set_last(self, subject: bytes, seq: int) -> None:
        """Plain: the last message of ``subject``, found again."""
        row = self._rows.get(subject)
        if row is not None and self._lasts[row] == _UNKNOWN:
            self._lasts[row] = seq

    def sweep(self, subjects: Iterable[bytes], first_seq: int) -> None:
        """Tracked: forget what ``subjects`` have below ``first_seq``, and those of them that have nothing else."""
        if not self.tracked or first_seq <= self.swept_seq:
            return
        find, lasts, history = self._rows.get, self._lasts, self._history.get
        reaching = [(subject, row) for subject in subjects if (row := find(subject)) is not None
                    and (lasts[row] < first_seq or ((one := history(row)) is not None and one[0] < first_seq))]
        for subject, row in reaching:
            self._trim(subject, row, first_seq)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _insert(self, subject: bytes, count: int, last_seq: int, size: int) -> None:
        if self._free:
            row = self._free.pop()
            self._counts[row], self._lasts[row] = count, last_seq
            if self.tracked:
                self._sizes[row] = size
        else:
            row = len(self._counts)
            self._counts.append(count)
            self._lasts.append(last_seq)
            if self.tracked:
                self._sizes.append(size)
        self._rows[subject] = row
        if self.order is not None:
            self.order.add(subject)

    def _drop(self, subject: bytes, row: int) -> None:
        del self._rows[subject]
        self._history.pop(row, None)
        self._free.append(row)
        if self.order is not None:
            self.order.drop(subject)

    def _trim(self, subject: bytes, row: int, first_seq: int) -> bool:
        """Tracked: forget messages below ``first_seq``; False when none is left and the row is gone."""
        if self._lasts[row] < first_seq:
            self._drop(subject, row)
            return False
        history = self._history.get(row)
        if history is not None and history[0] < first_seq:
            n = len(history) >> 1
            del history[:2 * bisect_left(range(n), first_seq, key=lambda i: history[2 * i])]
            self._update_columns(subject, row, history)
        return True

    def _update_columns(self, subject: bytes, row: int, history: array[int]) -> None:
        """Bring a row's columns in line with its shortened history."""
        n = len(history) >> 1
        if not n:
            self._drop(subject, row)
            return
        self._counts[row] = n
        self._lasts[row], self._sizes[row] = history[-2], history[-1]
        if n == 1:
            del self._history[row]


def _place(history: Sequence[int], seq: int) -> int:
    """How many of the messages of a subject, as (sequence, size), are below ``seq``."""
    return bisect_left(range(len(history) >> 1), seq, key=lambda i: history[2 * i])
