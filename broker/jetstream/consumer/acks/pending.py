"""Messages of one consumer that are delivered but not acked: which is the lowest, and whose ack wait ends next.

Messages delivered together share one ``PendingRun``: at hundreds of thousands of messages a second, an object for each
costs too much. So ``pending`` maps a sequence to the run that last delivered it, and a run has its sequences in
ascending order.

    pending   seq -> the run that last delivered it        an ack removes the entry and touches nothing else
    order     first deliveries, in order                   its front has the lowest pending sequence: no search
    lanes     one for each wait, in order of time          its front is the next to expire
    late      a heap: waits set by a NAK's delay

A sequence in order, lane or heap whose ``pending`` entry is not that run is *stale*, and skipped. state.py decides what
happens to a message, and what is stored about it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

__all__ = ["PendingAcks", "PendingRun"]

_STALE_MAX = 8192
"""The number of sequences, beyond four times the pending ones, at which runs are rewritten.

It bounds memory while one unacked message holds the floor back.
"""

_DELAY_MAX_NS = 86_400_000_000_000
"""The longest NAK delay that a restart accepts.

A delay is stored as a delivery in the future, and a wall clock that was set back looks the same.
"""

_NO_LANE = -1
"""The wait of expired messages, which are queued for their next delivery."""


class PendingRun:
    """Messages delivered at one instant with one ack wait.

    ``seqs`` ascend; ``cseqs[i]`` is the consumer sequence of the *first* delivery of ``seqs[i]``, which floors count
    in.
    ``known``: the store may hold an entry for these, so their removal must be recorded.
    """

    __slots__ = ("at_ns", "cseqs", "due_ns", "known", "seqs")

    def __init__(self, seqs: Sequence[int], cseqs: Sequence[int], at_ns: int, due_ns: int, known: bool) -> None:
        self.seqs = seqs
        self.cseqs = cseqs
        self.at_ns = at_ns
        self.due_ns = due_ns
        self.known = known

    def cseq_of(self, seq: int) -> int:
        return self.cseqs[bisect_left(self.seqs, seq)]


class PendingAcks:
    """All runs of one consumer. The caller removes acked messages from ``pending``."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingRun] = {}
        self._order: deque[Sequence[int]] = deque()
        self._order_at = 0
        self._lanes: dict[int, deque[PendingRun]] = {}
        self._late: list[tuple[int, int, PendingRun]] = []
        self._late_n = 0
        self._kept = 0
        """The number of sequences in lanes and heap, stale ones included."""

    def delivered(self, run: PendingRun, wait_ns: int) -> None:
        """Add a first delivery, of sequences above all earlier ones."""
        seqs = run.seqs
        self.pending.update(dict.fromkeys(seqs, run))
        self._order.append(seqs)
        self._lane(wait_ns).append(run)
        self._kept += len(seqs)

    def replace(self, run: PendingRun, wait_ns: int | None) -> None:
        """Restart the wait of pending sequences; ``wait_ns`` None: it fits no lane."""
        self.pending.update(dict.fromkeys(run.seqs, run))
        self._enqueue(run, wait_ns)
        self._kept += len(run.seqs)

    def restore(self, run: PendingRun) -> None:
        """Add messages that a restart found pending; they are in no lane until the next ``rewrite``."""
        self.pending.update(dict.fromkeys(run.seqs, run))

    def clear(self) -> None:
        """Drop all stale entries, when nothing is pending."""
        self._order.clear()
        self._order_at = 0
        self._lanes.clear()
        self._late.clear()
        self._kept = 0

    @property
    def mostly_stale(self) -> bool:
        """True if enough sequences are stale for a ``rewrite`` to pay off."""
        return self._kept > 4 * len(self.pending) + _STALE_MAX

    def lowest(self) -> int:
        """Return the lowest pending sequence, after dropping those that precede it in the order of delivery."""
        order, pending, i = self._order, self.pending, self._order_at
        while order:
            seqs = order[0]
            n = len(seqs)
            while i < n and seqs[i] not in pending:
                i += 1
            if i < n:
                self._order_at = i
                return seqs[i]
            order.popleft()
            i = 0
        self._order_at = 0
        # Only reached after a purge that raised `delivered` past pending messages.
        self._order.append(sorted(pending))
        return self._order[0][0]

    def cseqs_of(self, seqs: Iterable[int]) -> list[int]:
        """Return the consumer sequences of the first deliveries of pending ``seqs``."""
        runs = map(self.pending.__getitem__, seqs)
        # Most first deliveries have consecutive sequences, where the index needs no search.
        return [run.cseqs[seq - run.seqs.start if type(run.seqs) is range else bisect_left(run.seqs, seq)]
                for seq, run in zip(seqs, runs, strict=True)]

    def first(self, most: int) -> list[int]:
        """Return the first ``most`` pending sequences, ascending."""
        found: list[int] = []
        i = self._order_at
        for seqs in self._order:
            found += islice(filter(self.pending.__contains__, islice(seqs, i, None)), most - len(found))
            if len(found) == most:
                break
            i = 0
        return found

    def upto(self, seq: int) -> list[int]:
        """Return the pending sequences up to ``seq``, ascending.

        They are found by delivery order rather than by scanning ``pending``.
        """
        found: list[int] = []
        pending, i = self.pending, self._order_at
        for seqs in self._order:
            if seqs[0] > seq:
                break
            found += [s for s in seqs[i:bisect_right(seqs, seq, i)] if s in pending]
            i = 0
        return found

    def prune(self, floor_seq: int) -> None:
        """Drop runs that are entirely at or below the floor."""
        for lane in self._lanes.values():
            while lane and lane[0].seqs[-1] <= floor_seq:
                self._kept -= len(lane.popleft().seqs)

    # ---- time

    @property
    def next_due_ns(self) -> int | None:
        """The monotonic time at which the next wait ends; may be earlier than that, never later."""
        due_ns = self._late[0][0] if self._late else None
        for lane in self._lanes.values():
            if lane and (due_ns is None or lane[0].due_ns < due_ns):
                due_ns = lane[0].due_ns
        return due_ns

    @property
    def last_due_ns(self) -> int | None:
        """The monotonic time at which the last wait of a pending message ends; None if nothing is pending."""
        dues = [lane[-1].due_ns for lane in self._lanes.values() if lane]
        dues += [due for due, _, _ in self._late]
        return max(dues, default=None) if self.pending else None

    def expired(self, mono_ns: int) -> list[int]:
        """Remove the pending sequences whose wait is over from the lanes; returns them, ascending."""
        found: list[int] = []
        for lane in self._lanes.values():
            while lane and lane[0].due_ns <= mono_ns:
                found += self._pending_of(lane.popleft())
        while self._late and self._late[0][0] <= mono_ns:
            found += self._pending_of(heapq.heappop(self._late)[2])
        found.sort()
        return found

    def rewrite(self, wait_of: Callable[[int], int] | None = None, at_ns: int = 0,
                mono_ns: int = 0) -> list[tuple[PendingRun, PendingRun]]:
        """Rebuild order and lanes from the pending messages; with ``wait_of``, by the current waits as of ``at_ns``.

        Returns: each run that had a pending message, with its replacement; a run may be split.
        """
        groups: dict[PendingRun, list[int]] = {}
        ordered = sorted(self.pending)
        for seq in ordered:
            groups.setdefault(self.pending[seq], []).append(seq)
        lane_of: dict[PendingRun, int | None] = {run: wait for wait, lane in self._lanes.items() for run in lane}
        lane_of.update((run, None) for _, _, run in self._late)
        self._order = deque([ordered] if ordered else [])
        self._order_at = 0
        self._lanes, self._late = {}, []
        self._kept = len(ordered)
        replaced: list[tuple[PendingRun, PendingRun]] = []
        moved: list[tuple[PendingRun, int | None]] = []
        for old, seqs in groups.items():
            parts: dict[int | None, list[int]] = {}
            if wait_of is None:
                parts[lane_of.get(old, _NO_LANE)] = seqs
            else:
                for seq in seqs:
                    parts.setdefault(wait_of(seq), []).append(seq)
            for wait, part in parts.items():
                due_ns, lane = old.due_ns, wait
                if wait_of is not None and wait is not None:
                    due_ns = mono_ns + wait + min(old.at_ns - at_ns, _DELAY_MAX_NS)
                    if old.at_ns > at_ns:
                        lane = None  # a NAK's delay: later than deliveries from now on, so out of order
                new = PendingRun(part, self.cseqs_of(part), old.at_ns, due_ns, old.known)
                self.pending.update(dict.fromkeys(part, new))
                replaced.append((old, new))
                if lane != _NO_LANE:
                    moved.append((new, lane))
        moved.sort(key=lambda item: item[0].due_ns)
        for run, lane in moved:
            self._enqueue(run, lane)
        return replaced

    # ---- parts

    def _lane(self, wait_ns: int) -> deque[PendingRun]:
        lane = self._lanes.get(wait_ns)
        if lane is None:
            lane = self._lanes[wait_ns] = deque()
        return lane

    def _enqueue(self, run: PendingRun, wait_ns: int | None) -> None:
        """Put a run into the lane of its wait, or into the heap."""
        if wait_ns is None:
            self._late_n += 1
            heapq.heappush(self._late, (run.due_ns, self._late_n, run))
        else:
            self._lane(wait_ns).append(run)

    def _pending_of(self, run: PendingRun) -> list[int]:
        """Return the pending sequences of a run that has left its lane."""
        self._kept -= len(run.seqs)
        pending = self.pending
        return [seq for seq in run.seqs if pending.get(seq) is run]
