"""Messages of one consumer that are delivered and not answered: the lowest of them, and whose wait is over next.

Messages delivered together share one ``PendingRun``: at hundreds of thousands of messages a second an object for each is
what costs, so ``pending`` maps a sequence to the run that last carried it, and a run knows its sequences in
ascending order.

    pending   seq -> the run that last carried it       answered: the entry goes, and nothing else is touched
    order     first deliveries, as they went               its front has the lowest pending sequence: no search
    lanes     one for each wait, in step with time         its front is the next to expire
    late      a heap: waits that a NAK's delay set

A sequence in order, lane or heap whose ``pending`` entry is not that run is *stale*, and passed over. What becomes of
a message is not decided here, nor what is stored of it: see delivery.py.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["PendingAcks", "PendingRun"]

_STALE_MAX = 8192
"""Sequences kept beyond four times the pending ones before runs are rewritten: bounds memory while one message holds
the floor back and others stream by."""

_DELAY_MAX_NS = 86_400_000_000_000
"""The longest delay of a NAK that a restart believes: what is stored is a delivery in the future, and a wall clock that
went back looks the same."""

_NO_LANE = -1
"""Stands for the wait of what has expired: it is in the queue for its next delivery."""


class PendingRun:
    """Messages delivered at one instant with one ack wait.

    ``seqs`` ascend; ``cseqs[i]`` is the consumer sequence of the *first* delivery of ``seqs[i]``, which is what floors
    are counted in. ``known``: the store may hold an entry for these, so their end must be recorded.
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
    """All runs of one consumer. Whoever answers for a message takes it out of ``pending``."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingRun] = {}
        self._order: deque[Sequence[int]] = deque()
        self._order_at = 0
        self._lanes: dict[int, deque[PendingRun]] = {}
        self._late: list[tuple[int, int, PendingRun]] = []
        self._late_n = 0
        self._kept = 0
        """Sequences in lanes and heap, stale ones included."""

    def delivered(self, run: PendingRun, wait_ns: int) -> None:
        """A first delivery, of sequences beyond all before."""
        seqs = run.seqs
        self.pending.update(dict.fromkeys(seqs, run))
        self._order.append(seqs)
        self._lane(wait_ns).append(run)
        self._kept += len(seqs)

    def replace(self, run: PendingRun, wait_ns: int | None) -> None:
        """Pending sequences wait anew; ``wait_ns`` None: not in step with any lane."""
        self.pending.update(dict.fromkeys(run.seqs, run))
        self._stand(run, wait_ns)
        self._kept += len(run.seqs)

    def restore(self, run: PendingRun) -> None:
        """What a restart found pending; it stands nowhere until the next ``rewrite``."""
        self.pending.update(dict.fromkeys(run.seqs, run))

    def clear(self) -> None:
        """Nothing is pending: let go of all that is stale."""
        self._order.clear()
        self._order_at = 0
        self._lanes.clear()
        self._late.clear()
        self._kept = 0

    @property
    def crowded(self) -> bool:
        """Whether so much is stale that a ``rewrite`` pays."""
        return self._kept > 4 * len(self.pending) + _STALE_MAX

    def lowest(self) -> int:
        """The lowest pending sequence, letting go of what lies before it in the order of delivery."""
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
        # Only a purge that raised `delivered` past pending messages could bring us here.
        self._order.append(sorted(pending))
        return self._order[0][0]

    def upto(self, seq: int) -> list[int]:
        """Pending sequences up to ``seq``, ascending, from the order of delivery rather than from all of ``pending``."""
        found: list[int] = []
        pending, i = self.pending, self._order_at
        for seqs in self._order:
            if seqs[0] > seq:
                break
            found += [s for s in seqs[i:bisect_right(seqs, seq, i)] if s in pending]
            i = 0
        return found

    def prune(self, floor_seq: int) -> None:
        """Let go of runs that lie wholly at or below the floor."""
        for lane in self._lanes.values():
            while lane and lane[0].seqs[-1] <= floor_seq:
                self._kept -= len(lane.popleft().seqs)

    # ---- time

    @property
    def next_due_ns(self) -> int | None:
        """Monotonic time of the next wait to end; may be earlier than needed, never later."""
        due_ns = self._late[0][0] if self._late else None
        for lane in self._lanes.values():
            if lane and (due_ns is None or lane[0].due_ns < due_ns):
                due_ns = lane[0].due_ns
        return due_ns

    @property
    def last_due_ns(self) -> int | None:
        """Monotonic time of the last wait to end of what is pending; None when nothing is."""
        dues = [lane[-1].due_ns for lane in self._lanes.values() if lane]
        dues += [due for due, _, _ in self._late]
        return max(dues, default=None) if self.pending else None

    def expired(self, mono_ns: int) -> list[int]:
        """The pending sequences whose wait is over, ascending; they stand in no lane any more."""
        found: list[int] = []
        for lane in self._lanes.values():
            while lane and lane[0].due_ns <= mono_ns:
                found += self._still_pending(lane.popleft())
        while self._late and self._late[0][0] <= mono_ns:
            found += self._still_pending(heapq.heappop(self._late)[2])
        found.sort()
        return found

    def rewrite(self, wait_of: Callable[[int], int] | None = None, at_ns: int = 0,
                mono_ns: int = 0) -> list[tuple[PendingRun, PendingRun]]:
        """Write order and lanes anew from what is still pending; with ``wait_of`` by present waits, at the time given.

        Returns: each run that had something pending, with one that replaces it; a run may come apart.
        """
        groups: dict[PendingRun, list[int]] = {}
        ordered = sorted(self.pending)
        for seq in ordered:
            groups.setdefault(self.pending[seq], []).append(seq)
        stood: dict[PendingRun, int | None] = {run: wait for wait, lane in self._lanes.items() for run in lane}
        stood.update((run, None) for _, _, run in self._late)
        self._order = deque([ordered] if ordered else [])
        self._order_at = 0
        self._lanes, self._late = {}, []
        self._kept = len(ordered)
        replaced: list[tuple[PendingRun, PendingRun]] = []
        moved: list[tuple[PendingRun, int | None]] = []
        for old, seqs in groups.items():
            parts: dict[int | None, list[int]] = {}
            if wait_of is None:
                parts[stood.get(old, _NO_LANE)] = seqs
            else:
                for seq in seqs:
                    parts.setdefault(wait_of(seq), []).append(seq)
            for wait, part in parts.items():
                due_ns, lane = old.due_ns, wait
                if wait_of is not None and wait is not None:
                    due_ns = mono_ns + wait + min(old.at_ns - at_ns, _DELAY_MAX_NS)
                    if old.at_ns > at_ns:
                        lane = None  # a NAK's delay: later than what is delivered from now on, so out of step
                new = PendingRun(part, [old.cseq_of(s) for s in part], old.at_ns, due_ns, old.known)
                self.pending.update(dict.fromkeys(part, new))
                replaced.append((old, new))
                if lane != _NO_LANE:
                    moved.append((new, lane))
        moved.sort(key=lambda item: item[0].due_ns)
        for run, lane in moved:
            self._stand(run, lane)
        return replaced

    # ---- parts

    def _lane(self, wait_ns: int) -> deque[PendingRun]:
        lane = self._lanes.get(wait_ns)
        if lane is None:
            lane = self._lanes[wait_ns] = deque()
        return lane

    def _stand(self, run: PendingRun, wait_ns: int | None) -> None:
        """Into the lane of its wait, or into the heap."""
        if wait_ns is None:
            self._late_n += 1
            heapq.heappush(self._late, (run.due_ns, self._late_n, run))
        else:
            self._lane(wait_ns).append(run)

    def _still_pending(self, run: PendingRun) -> list[int]:
        """What of a run that has left its lane is still pending."""
        self._kept -= len(run.seqs)
        pending = self.pending
        return [seq for seq in run.seqs if pending.get(seq) is run]
