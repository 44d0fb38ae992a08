"""Changes of one consumer's ack state that are not stored yet, for its next ``ConsumerDelta`` record.

    pending       new, delivered again, or acked ahead of `delivered`
    dropped       no longer any of these
    redelivered   the count of deliveries after the first has changed

A message delivered and acked between two records appears in none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import compress, repeat

from broker.jetstream.consumer.acks.pending import PendingRun
from broker.storage.format.records.consumer_state import ConsumerDelta, PendingColumns

__all__ = ["AckDelta"]

_FRESH_MAX = 64
"""The number of runs for the next record above which those acked meanwhile are dropped."""


class AckDelta:
    """The changes since the last record: collected by the ack state, moved out when the stream's block is sealed.

    Attributes:
        ``fresh``: runs that are not stored yet, of ``fresh_msgs`` messages at most.
        ``dropped``: sequences that may be stored and no longer should be.
        ``recounted``: sequences whose count of redeliveries changed.
        ``ahead``: sequences newly acked ahead.
    """

    __slots__ = ("ahead", "dropped", "fresh", "fresh_msgs", "recounted")

    def __init__(self) -> None:
        self.fresh: list[PendingRun] = []
        self.fresh_msgs = 0
        self.dropped: list[int] = []
        self.recounted: set[int] = set()
        self.ahead: list[int] = []

    def clear(self) -> None:
        """Forget all changes."""
        self.dropped, self.recounted, self.ahead = [], set(), []
        self.forget_fresh()

    def add(self, run: PendingRun) -> None:
        """Add a run that was delivered, or delivered again."""
        self.fresh.append(run)
        self.fresh_msgs += len(run.seqs)

    def forget_fresh(self) -> None:
        """Forget all runs: none of them is pending any more."""
        self.fresh, self.fresh_msgs = [], 0

    def prune(self, floor_seq: int) -> None:
        """Drop runs at or below the floor, if there are many runs."""
        fresh = self.fresh
        if len(fresh) > _FRESH_MAX and fresh[0].seqs[-1] <= floor_seq:
            self.fresh = [run for run in fresh if run.seqs[-1] > floor_seq]
            self.fresh_msgs = sum([len(run.seqs) for run in self.fresh])

    def rewritten(self, replaced: Iterable[tuple[PendingRun, PendingRun]]) -> None:
        """Replace fresh runs by their replacements."""
        fresh = set(self.fresh)
        self.fresh = [new for old, new in replaced if old in fresh]

    def move_into(self, delta: ConsumerDelta, pending: Mapping[int, PendingRun], floor_seq: int, ahead: Collection[int],
             redelivered: Mapping[int, int]) -> None:
        """Move all changes into ``delta``, by the current state; they then count as stored."""
        seqs: list[int] = []
        cseqs: list[int] = []
        times: list[int] = []
        for run in self.fresh:
            run.known = True
            if run.seqs[-1] <= floor_seq:
                continue
            holders = list(map(pending.get, run.seqs))
            if holders.count(run) == len(holders):
                seqs += run.seqs
                cseqs += run.cseqs
            else:
                current = [holder is run for holder in holders]
                seqs += compress(run.seqs, current)
                cseqs += compress(run.cseqs, current)
            times += [run.at_ns] * (len(seqs) - len(times))
        for seq in self.ahead:
            if seq in ahead:
                seqs.append(seq)
                cseqs.append(0)
                times.append(0)
        if seqs:
            delta.pending = PendingColumns(seqs, cseqs, times)
        if self.dropped:
            delta.dropped = self.dropped
        if self.recounted:
            recounted = sorted(self.recounted)
            delta.redelivered = dict(zip(recounted, map(redelivered.get, recounted, repeat(0)), strict=False))
        self.clear()
