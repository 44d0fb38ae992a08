"""The index of a stream's subjects: the number of live messages of each subject, and its last sequence.

Owns: counts and last sequences by subject, and, in a *tracked* stream, the sequences themselves.
Does not own: the times of lookups, and reading the messages of blocks that are not in memory (``subject_state``).

There are two kinds of index; the stream's limits decide which one is needed:

    plain     subject → row; count[row], last[row]. Removing the last message of a subject leaves its ``last`` unknown
              (the caller finds the one before and calls ``set_last``).
    tracked   (max_msgs_per_subject > 0) also size[row] of the last message, and for subjects with two messages or more
              an array of all (seq, size) pairs. So a publish that replaces a message reads nothing from the store.

In a tracked stream, messages that leave at the stream's front need no update: everything below ``first_seq`` is gone,
and each subject drops those messages at its next lookup (``sweep`` visits all subjects).

Memory for 1 M subjects of 21 bytes: about 190 bytes for each subject with one message (dictionary and name 150, columns
24).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from broker.jetstream.stream.state.subject_order import SubjectOrder

__all__ = ["UNKNOWN", "SubjectIndex"]

UNKNOWN = -1
"""Stands for a last sequence that must be found again."""
_UNKNOWN = 0
"""Stands in column ``last`` for a sequence that must be found again. No message has sequence 0."""


class SubjectIndex:
    """Counts and last sequences of a stream's subjects, for the messages at or below ``merged_seq``."""

    __slots__ = ("_counts", "_free", "_history", "_lasts", "_rows", "_sizes", "merged_seq", "order", "swept_seq",
                 "tracked")

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.merged_seq = 0
        """Live messages up to this sequence are in the index; later ones are not yet."""
        self.swept_seq = 0
        """Tracked: no subject has messages below this sequence."""
        self.order: SubjectOrder | None = None
        """The subjects in order; made once a search reads few of many subjects."""
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
        """Remove all messages; ``merged_seq`` and ``swept_seq`` stay."""
        self._rows = {}
        self._history = {}
        self._free = []
        self._counts, self._lasts, self._sizes = array("I"), array("Q"), array("I")
        self.order = None

    # --- looking up ---------------------------------------------------------------------------------------------------

    def count(self, subject: bytes, first_seq: int) -> int:
        """Return the number of live messages of ``subject``; ``first_seq`` is the stream's."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        if self.tracked and not self._trim(subject, row, first_seq):
            return 0
        return self._counts[row]

    def last(self, subject: bytes, first_seq: int) -> int | None:
        """Return the last live sequence of ``subject``; 0 if it has none, None if it must be found again."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        last = self._lasts[row]
        if last == _UNKNOWN:
            return None
        return last if last >= first_seq else 0

    def counts(self, subjects: Sequence[bytes], first_seq: int) -> list[int]:
        """Return ``count`` for each of ``subjects``."""
        self.sweep(subjects, first_seq)
        counts = self._counts
        return [0 if row is None else counts[row] for row in map(self._rows.get, subjects)]

    def alive(self, subjects: Sequence[bytes], first_seq: int) -> list[bytes]:
        """Return the ``subjects`` that have live messages."""
        self.sweep(subjects, first_seq)
        rows = self._rows
        return [subject for subject in subjects if subject in rows]

    def lasts(self, subjects: Sequence[bytes], first_seq: int) -> list[int]:
        """Return ``last`` for each of ``subjects``; ``UNKNOWN`` if it must be found again."""
        lasts = self._lasts
        found = [0 if row is None else lasts[row] or UNKNOWN for row in map(self._rows.get, subjects)]
        if found and min(found) < first_seq:
            return [last if last >= first_seq or last == UNKNOWN else 0 for last in found]
        return found

    def first(self, subject: bytes, first_seq: int) -> tuple[int, int]:
        """Return (sequence, size) of the first live message of ``subject`` in a tracked stream; (0, 0) if it has
        none."""
        row = self._rows.get(subject)
        if row is None or not self._trim(subject, row, first_seq):
            return 0, 0
        history = self._history.get(row)
        return (self._lasts[row], self._sizes[row]) if history is None else (history[0], history[1])

    def messages(self, subject: bytes, first_seq: int) -> list[tuple[int, int]]:
        """Return (sequence, size) of all live messages of ``subject`` in a tracked stream, oldest first."""
        row = self._rows.get(subject)
        if row is None or not self._trim(subject, row, first_seq):
            return []
        history = self._history.get(row)
        if history is None:
            return [(self._lasts[row], self._sizes[row])]
        return list(zip(history[::2], history[1::2], strict=True))

    def next(self, subject: bytes, seq: int) -> int:
        """Return the first live message of ``subject`` at or after ``seq`` in a tracked stream; 0 if there is none.

        ``seq`` is not below the stream's first sequence.
        """
        row = self._rows.get(subject)
        if row is None or self._lasts[row] < seq:
            return 0
        history = self._history.get(row)
        if history is None:
            return self._lasts[row]
        return history[2 * _place(history, seq)]

    def seqs(self, subject: bytes, first_seq: int, last_seq: int, most: int) -> list[int]:
        """Return the first ``most`` live messages of ``subject`` within first_seq..last_seq, in a tracked stream.

        ``first_seq`` is not below the stream's first sequence.
        """
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
        """Return how many messages ``seqs`` would return without ``most``."""
        row = self._rows.get(subject)
        if row is None:
            return 0
        history = self._history.get(row)
        if history is None:
            return int(first_seq <= self._lasts[row] <= last_seq)
        return max(0, _place(history, last_seq + 1) - _place(history, first_seq))

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, subject: bytes, seq: int, size: int) -> int:
        """Add message ``seq``, later than all others; return how many messages the subject has now.

        In a tracked stream the result may include messages below the stream's first_seq; ``count`` excludes them.
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
        """Add messages from ``seq`` on, and remove the oldest of each subject beyond ``limit`` messages; tracked only.

        Returns: (sequence, size) of the removed messages that are at or above ``first_seq``, the stream's.
        """
        if not self.tracked:
            raise ValueError("only a tracked index knows the messages that new ones replace")
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
        """Add ``count`` messages, later than all others and the last of them at ``last_seq``; plain only."""
        row = self._rows.get(subject)
        if row is None:
            self._insert(subject, count, last_seq, 0)
        else:
            self._counts[row] += count
            self._lasts[row] = last_seq

    def merge_all(self, subjects: Iterable[bytes], counts: Iterable[int], last_seqs: Iterable[int]) -> None:
        """Call ``merge`` for many subjects."""
        rows, counted, lasts, insert = self._rows, self._counts, self._lasts, self._insert
        for subject, count, last_seq in zip(subjects, counts, last_seqs, strict=True):
            row = rows.get(subject)
            if row is None:
                insert(subject, count, last_seq, 0)
            else:
                counted[row] += count
                lasts[row] = last_seq

    def remove(self, subject: bytes, seq: int) -> None:
        """Remove one message, if the index has it: a tracked subject may have dropped it before."""
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
        """Remove ``count`` messages, the last of them at ``last_seq``; plain only."""
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
        """Set the last message of ``subject``, which was found again; plain only."""
        row = self._rows.get(subject)
        if row is not None and self._lasts[row] == _UNKNOWN:
            self._lasts[row] = seq

    def sweep(self, subjects: Iterable[bytes], first_seq: int) -> None:
        """Remove messages below ``first_seq`` of ``subjects``, and the subjects that have no others; tracked only."""
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
        """Remove messages below ``first_seq``; False if none is left and the row is removed. Tracked only."""
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
        """Update a row's columns from its shortened history."""
        n = len(history) >> 1
        if not n:
            self._drop(subject, row)
            return
        self._counts[row] = n
        self._lasts[row], self._sizes[row] = history[-2], history[-1]
        if n == 1:
            del self._history[row]


def _place(history: Sequence[int], seq: int) -> int:
    """Return how many messages of a subject's history, (sequence, size) pairs, are below ``seq``."""
    return bisect_left(range(len(history) >> 1), seq, key=lambda i: history[2 * i])
