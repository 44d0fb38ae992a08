"""The state of one consumer's deliveries: ack pending, floors, redelivery.

Owns the numbers of ConsumerInfo that acks change (``delivered``, ``ack_floor``, ack pending, redelivered), and the
queue of messages to redeliver. Also owns the net change of this state since it was last stored. It does not read
messages, send anything or read a clock: every call gets the time and returns the messages to act on.

    first delivery           +ACK, +TERM, removed                 ack_floor <= delivered <= stream last_seq
    ──────────────> pending ──────────────────────> gone          pending:  ack_floor < seq <= delivered
                     ^   │ ack_wait / backoff over, -NAK          queue:    pending, and waiting for its next delivery
                     │   v
                     └─ queue ── max_deliver reached ──> gone     redelivered[seq]: deliveries after the first

The times of deliveries and the order of their waits are in pending.py; the changes that are not stored yet, in
delta.py.

Source: nats-server consumer.go: trackPending, processAckMsgLocked, moveAckFloor, checkPending, processNak.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import Protocol

from broker.jetstream.consumer.acks.delta import AckDelta
from broker.jetstream.consumer.acks.pending import PendingAcks, PendingRun
from broker.jetstream.wire.numbers import INT64_MAX
from broker.storage.format.records.consumer_state import ConsumerDelta

__all__ = ["AckState", "StoredState"]


class StoredState(Protocol):
    """The stored state of a consumer that a restart restores (storage.state.consumer.ConsumerState)."""

    delivered_cseq: int
    delivered_sseq: int
    floor_cseq: int
    floor_sseq: int
    pending: dict[int, tuple[int, int]]
    redelivered: dict[int, int]
    last_active_ns: int
    last_ack_ns: int


class AckState:
    """The messages of one consumer that are delivered, unacked and to be redelivered.

    ``waits_ns`` is the ack wait after delivery 1, 2, …, the last one repeating: ``backoff``, or ``[ack_wait]``; empty
    when deliveries need no ack. ``at_ns`` is wall time (stored, so that waits continue after a restart), ``mono_ns``
    the monotonic clock.
    """

    def __init__(self, waits_ns: Sequence[int], max_deliver: int, start_seq: int) -> None:
        self.waits_ns = list(waits_ns)
        self.max_deliver = max_deliver
        self.delivered_cseq = 0
        self.delivered_sseq = start_seq - 1
        self.floor_cseq = 0
        self.floor_sseq = start_seq - 1
        self.last_active_ns = 0
        self.last_ack_ns = 0
        self._pending_acks = PendingAcks()
        self.pending = self._pending_acks.pending
        self.redelivered: dict[int, int] = {}
        self.queue: dict[int, None] = {}  # messages to redeliver; a dict for its order and cheap removal
        # Messages acked beyond `delivered`: deliveries lost in a crash. Stored as pending with consumer sequence 0.
        self.ahead: set[int] = set()
        self._ahead_order: list[int] = []  # a heap of `ahead`, including sequences removed meanwhile
        self._unsent: set[int] = set()  # messages queued because there was no receiver: that delivery does not count
        self._low = 0
        self._floor_outdated = False
        self.changed = False
        """True if ``pop_delta`` has something to return."""
        self._delta = AckDelta()

    # ---- deliveries

    def deliver_unacked(self, last_seq: int, count: int, at_ns: int) -> None:
        """Count ``count`` messages up to ``last_seq``, which were sent and need no ack (ack none), as acked."""
        self.delivered_cseq += count
        self.delivered_sseq = last_seq
        self.floor_cseq = self.delivered_cseq
        self.floor_sseq = last_seq
        self.last_active_ns = at_ns
        self.changed = True

    def deliver(self, seqs: Sequence[int], at_ns: int, mono_ns: int) -> None:
        """Record the first delivery of ``seqs`` (ascending,
        all beyond ``delivered``) under the next consumer sequences."""
        first = self.delivered_cseq + 1
        wait = self.waits_ns[0]
        run = PendingRun(seqs, range(first, first + len(seqs)), at_ns, mono_ns + wait, False)
        self._pending_acks.delivered(run, wait)
        self._delta.add(run)
        self.delivered_cseq += len(seqs)
        self.delivered_sseq = seqs[-1]
        self.last_active_ns = at_ns
        self.changed = True

    def next_counts(self, seqs: Iterable[int]) -> list[int]:
        """Return the delivery counts (2, 3, …) that queued ``seqs`` would have now;
        1 for messages that were never sent."""
        unsent, counts = self._unsent, self.redelivered.get
        if not unsent:
            return [count + 2 for count in map(counts, seqs, repeat(0))]
        return [counts(seq, 0) + (1 if seq in unsent else 2) for seq in seqs]

    def deliver_again(self, seqs: Sequence[int], at_ns: int, mono_ns: int) -> None:
        """Record a redelivery of queued ``seqs``. Each takes a consumer sequence,
        and keeps its first one for floors."""
        redelivered, unsent, waits = self.redelivered, self._unsent, self.waits_ns
        again = [seq for seq in seqs if seq not in unsent] if unsent else seqs
        unsent.difference_update(seqs)
        _drop(self.queue, seqs)
        redelivered.update(zip(again, [count + 1 for count in map(redelivered.get, again, repeat(0))], strict=True))
        self._delta.recounted.update(again)
        by_wait: dict[int, list[int]] = {}
        if len(waits) == 1:
            by_wait[waits[0]] = list(seqs)
        else:
            for seq in seqs:
                by_wait.setdefault(self._wait_of(seq), []).append(seq)
        for wait, group in by_wait.items():
            if group:
                self._resend(group, at_ns, mono_ns + wait, wait)
        self.delivered_cseq += len(seqs)
        self.last_active_ns = at_ns
        self.changed = True

    def not_sent(self, seqs: Iterable[int]) -> None:
        """Queue ``seqs`` of the last delivery, which had no receiver, and do not count that delivery.

        Source: nats-server consumer.go didNotDeliver.
        """
        for seq in seqs:
            if seq not in self.pending:
                continue
            self._unsent.add(seq)
            self.queue[seq] = None

    def within(self, first_seq: int, last_seq: int) -> list[int]:
        """Return the pending sequences from ``first_seq`` to ``last_seq``, ascending."""
        return _within(self.pending, first_seq, last_seq)

    def first(self, most: int) -> list[int]:
        """Return the first ``most`` pending sequences, ascending."""
        return self._pending_acks.first(most)

    def exhausted(self, first_seq: int, last_seq: int) -> list[int]:
        """Return the sequences from ``first_seq`` to ``last_seq`` that reached max_deliver and are not pending,
        ascending."""
        pending = self.pending
        return [seq for seq in _within(self.redelivered, first_seq, last_seq) if seq not in pending]

    def waits_for(self, seqs: Sequence[int], next_seq: int) -> Sequence[int]:
        """Return the ``seqs`` (ascending) that are not delivered yet (``next_seq`` comes next), or not acked.

        Includes messages that reached max_deliver without an ack. Source: nats-server consumer.go needAck.
        """
        floor, redelivered = self.floor_sseq, self.redelivered
        if seqs[-1] <= floor and not redelivered:
            return ()
        if seqs[0] >= next_seq and not self.ahead:
            return seqs
        pending, ahead = self.pending, self.ahead
        if seqs[-1] < next_seq and not redelivered:
            return [seq for seq in seqs if seq in pending] if pending else ()
        return [seq for seq in seqs
                if seq in pending or seq in redelivered or (seq >= next_seq and seq > floor and seq not in ahead)]

    # ---- answers

    def ack(self, seqs: Sequence[int], at_ns: int) -> int:
        """Ack each of ``seqs``; returns how many were pending. Call ``advance_floor`` after the batch."""
        before = len(self.pending)
        runs = list(map(self.pending.pop, seqs, repeat(None)))
        if any(run is not None and run.known for run in set(runs)):
            self._delta.dropped += [s for s, run in zip(seqs, runs, strict=True) if run is not None and run.known]
        if self.redelivered or self.queue:
            self._uncount(seqs)
        found = before - len(self.pending)
        self.last_ack_ns = at_ns  # also for a repeated ack
        self.changed = True
        if found:
            self._floor_outdated = True
        return found

    def ack_all(self, seq: int, cseq: int, at_ns: int) -> list[int]:
        """Ack everything up to ``seq``; returns the sequences of it that were pending, ascending.

        The floor becomes (``cseq``, ``seq``) as the client named them. Nothing happens at or below the floor.
        """
        if cseq <= self.floor_cseq or seq <= self.floor_sseq:
            return []
        low = self._pending_acks.upto(seq)
        self.ack(low, at_ns)
        self.floor_cseq, self.floor_sseq = cseq, seq
        self.last_ack_ns = at_ns
        self.changed = True
        self._prune()
        return low

    def ack_all_ahead(self, seq: int, cseq: int, at_ns: int) -> list[int]:
        """Ack everything up to ``seq``, whose delivery was lost in a crash, with the policy all.

        Returns: the sequences of it that were pending.
        """
        low = self.ack_all(seq, max(cseq, self.delivered_cseq, self.floor_cseq + 1), at_ns)
        self.delivered_cseq, self.delivered_sseq = self.floor_cseq, seq
        return low

    def ack_ahead(self, seq: int, at_ns: int) -> bool:
        """Keep an ack for a delivery lost in a crash, so that the cursor skips ``seq``. Returns whether it is new."""
        if seq in self.ahead:
            return False
        self.ahead.add(seq)
        heapq.heappush(self._ahead_order, seq)
        self._delta.ahead.append(seq)
        self.last_ack_ns = at_ns
        self.changed = True
        return True

    def nak(self, seqs: Iterable[int]) -> None:
        """Redeliver pending ``seqs`` now: append each to the queue unless it is there already."""
        self.queue.update(dict.fromkeys(seqs))

    def nak_later(self, seq: int, delay_ns: int, at_ns: int, mono_ns: int) -> None:
        """Redeliver pending ``seq`` after ``delay_ns``, measured as nats-server does: from one ack wait ago."""
        self.queue.pop(seq, None)
        shift = delay_ns - self.waits_ns[0]
        # The time of the delivery is stored: a delay of centuries must not take it out of its range.
        shifted_at_ns = min(max(at_ns + shift, 0), INT64_MAX)
        self._resend([seq], shifted_at_ns, mono_ns + shift + self._wait_of(seq), None)
        self.changed = True

    def progress(self, seq: int, at_ns: int, mono_ns: int) -> None:
        """Restart the ack wait of pending ``seq`` (work in progress); its delivery count stays."""
        if seq not in self.pending:
            return
        wait = self._wait_of(seq)
        self._resend([seq], at_ns, mono_ns + wait, wait)
        self.changed = True

    def drop(self, seqs: Iterable[int], *, keep_count: bool = False) -> list[int]:
        """Forget ``seqs``, which are not to be delivered any more (removed from the stream, max_deliver).

        ``keep_count`` keeps the redelivery count, which records permanently that max_deliver was reached.
        Returns: the sequences that were pending.
        """
        gone = []
        for seq in seqs:
            run = self.pending.pop(seq, None)
            if run is not None:
                gone.append(seq)
                if run.known:
                    self._delta.dropped.append(seq)
            self.queue.pop(seq, None)
            self._unsent.discard(seq)
            if not keep_count:
                self._uncount((seq,))
                self._floor_outdated = True
            self.changed = True
        return gone

    def exhaust(self, seq: int) -> int:
        """Give up on ``seq``; returns its delivery count. The floor moves past it with the next ack, not now."""
        count = self.redelivered.get(seq, 0) + 1
        self.drop((seq,), keep_count=True)
        self.redelivered[seq] = count
        self._delta.recounted.add(seq)
        return count

    def advance_floor(self) -> None:
        """Move the ack floor past acked messages: to just below the lowest pending message, or to ``delivered``."""
        if not self._floor_outdated:
            return
        self._floor_outdated = False
        if not self.pending:
            self.floor_cseq, self.floor_sseq = self.delivered_cseq, self.delivered_sseq
            self._low = 0
            self._pending_acks.clear()
            self._delta.forget_fresh()
            return
        low = self._pending_acks.lowest()
        if low == self._low:
            if self._pending_acks.mostly_stale:
                self._rewrite()
            return
        self._low = low
        cseq = self.pending[low].cseq_of(low) - 1
        if cseq > self.floor_cseq:
            self.floor_cseq, self.floor_sseq = cseq, low - 1
        self._prune()

    # ---- time

    @property
    def next_due_ns(self) -> int | None:
        """The monotonic time at which the next ack wait ends; may be earlier than that, never later."""
        return self._pending_acks.next_due_ns

    @property
    def last_due_ns(self) -> int | None:
        """The monotonic time at which the last ack wait of a pending message ends; None if nothing is pending."""
        return self._pending_acks.last_due_ns

    def expire(self, mono_ns: int) -> list[int]:
        """Queue messages whose ack wait is over, in order of sequence.

        Returns the messages that are not queued because ``max_deliver`` is 1. With more than one delivery, nats-server
        finds a message exhausted only when its turn in the queue comes; until then it counts as pending.
        """
        queue = self.queue
        expired = [seq for seq in self._pending_acks.expired(mono_ns) if seq not in queue]
        if self.max_deliver == 1:
            over = [seq for seq in expired if seq not in self._unsent]
            queue.update(dict.fromkeys(seq for seq in expired if seq in self._unsent))
            return over
        queue.update(dict.fromkeys(expired))
        return []

    def expire_all(self) -> None:
        """Queue all pending messages (a push consumer has moved to another deliver_subject)."""
        for seq in sorted(self.pending):
            self.queue.setdefault(seq)

    def set_waits(self, waits_ns: Sequence[int], now_at_ns: int, mono_ns: int) -> None:
        """Apply a new ack_wait or backoff to pending messages, counted from their delivery."""
        self.waits_ns = list(waits_ns)
        if waits_ns:
            self._rewait(now_at_ns, mono_ns)

    # ---- whole state

    def restart(self, next_seq: int) -> None:
        """Restart at ``next_seq`` as a new consumer would (RESET): nothing delivered, nothing pending."""
        self.drop([*self.pending, *self.redelivered])
        self._delta.dropped += self.ahead
        self._delta.ahead.clear()
        self.ahead.clear()
        self._ahead_order.clear()
        self.delivered_cseq, self.delivered_sseq = 0, next_seq - 1
        self.last_active_ns = self.last_ack_ns = 0
        self.changed = self._floor_outdated = True
        self.advance_floor()

    def purge(self, next_seq: int) -> None:
        """Forget all messages below ``next_seq`` that match this consumer: they were purged."""
        gone = [s for s in self.pending if s < next_seq]
        self.drop(gone)
        self._uncount([s for s in self.redelivered if s < next_seq])
        if self.delivered_sseq < next_seq - 1:
            self.delivered_sseq = next_seq - 1
        self.changed = self._floor_outdated = True
        self.advance_floor()
        if self.floor_sseq < next_seq - 1:
            self.floor_sseq = next_seq - 1

    def forget_ahead(self, below: int, start: int = 0) -> None:
        """Forget acks ahead in [``start``, ``below``): these sequences are delivered by now, or removed."""
        passed: list[int] = []
        if start:
            passed = _within(self.ahead, start, below - 1)
        else:
            order = self._ahead_order
            while order and order[0] < below:
                if (seq := heapq.heappop(order)) in self.ahead:
                    passed.append(seq)
        if passed:
            self.ahead.difference_update(passed)
            self._delta.dropped += passed
            self.changed = True

    def restore(self, state: StoredState, at_ns: int, mono_ns: int) -> None:
        """Restore the stored state; ack waits continue from when the messages were delivered.

        The stored times are those of the last owner's clock. If the consumer's last activity lies in the future, that
        clock was ahead of this one by at least as much, and all times are set back by it: nothing was delivered later
        than now. A NAK's delay, which is stored as a delivery in the future, keeps its length.
        """
        ahead_ns = max(0, state.last_active_ns - at_ns, state.last_ack_ns - at_ns)
        self.delivered_cseq, self.delivered_sseq = state.delivered_cseq, state.delivered_sseq
        self.floor_cseq, self.floor_sseq = state.floor_cseq, state.floor_sseq
        self.last_active_ns, self.last_ack_ns = min(state.last_active_ns, at_ns), min(state.last_ack_ns, at_ns)
        self.redelivered = {seq: count for seq, count in state.redelivered.items() if count}
        by_time: dict[int, list[int]] = {}
        for seq in sorted(state.pending):
            cseq, then = state.pending[seq]
            if cseq:
                by_time.setdefault(then, []).append(seq)
            else:
                self.ahead.add(seq)
                self._ahead_order.append(seq)  # ascending, so a heap
        for then, seqs in by_time.items():
            run = PendingRun(seqs, [state.pending[s][0] for s in seqs], max(0, then - ahead_ns), 0, True)
            self._pending_acks.restore(run)
            if ahead_ns:
                # Store it again: for the next owner, the last activity no longer shows that these times are wrong.
                self._delta.add(run)
                self.changed = True
        if self.pending and self.waits_ns:
            self._rewait(at_ns, mono_ns)
            self._low = self._pending_acks.lowest()

    @property
    def unstored(self) -> int:
        """The approximate number of messages that ``pop_delta`` would list as pending."""
        return self._delta.fresh_msgs

    @property
    def unstored_acks(self) -> int:
        """The number of messages that ``pop_delta`` would list as no longer pending."""
        return len(self._delta.dropped)

    def pop_delta(self, name: str) -> ConsumerDelta | None:
        """Return the net change since the last call, for the consumer ``name``; None if nothing changed."""
        if not self.changed:
            return None
        self.changed = False
        delta = ConsumerDelta(name, [self.delivered_cseq, self.delivered_sseq, self.last_active_ns],
                              [self.floor_cseq, self.floor_sseq], self.last_ack_ns)
        self._delta.move_into(delta, self.pending, self.floor_sseq, self.ahead, self.redelivered)
        return delta

    def forget_changes(self) -> None:
        """Forget the changes since ``pop_delta``: this state is not stored."""
        self.changed = False
        self._delta.clear()

    # ---- parts

    def _wait_of(self, seq: int) -> int:
        """Return the ack wait after the latest delivery of ``seq``."""
        waits, again = self.waits_ns, self.redelivered.get(seq, 0)
        return waits[again if again < len(waits) else -1]

    def _resend(self, seqs: list[int], at_ns: int, due_ns: int, wait_ns: int | None) -> None:
        """Give pending ``seqs`` a run of their own; ``wait_ns`` None: it fits no lane."""
        seqs.sort()
        run = PendingRun(seqs, self._pending_acks.cseqs_of(seqs), at_ns, due_ns, True)
        self._pending_acks.replace(run, wait_ns)
        self._delta.add(run)

    def _uncount(self, seqs: Sequence[int]) -> None:
        if self.redelivered:
            counts = map(self.redelivered.pop, seqs, repeat(None))
            if counted := [seq for seq, count in zip(seqs, counts, strict=False) if count is not None]:
                self._delta.recounted.update(counted)
                self.changed = True
        if self.queue:
            _drop(self.queue, seqs)
        if self._unsent:
            self._unsent.difference_update(seqs)

    def _prune(self) -> None:
        """Drop runs that are entirely below the floor."""
        self._pending_acks.prune(self.floor_sseq)
        self._delta.prune(self.floor_sseq)
        if self._pending_acks.mostly_stale:
            self._rewrite()

    def _rewrite(self) -> None:
        self._delta.rewritten(self._pending_acks.rewrite())

    def _rewait(self, at_ns: int, mono_ns: int) -> None:
        """Apply the current waits to pending messages, counted from their delivery."""
        self._delta.rewritten(self._pending_acks.rewrite(self._wait_of, at_ns, mono_ns))


def _drop(queue: dict[int, None], seqs: Iterable[int]) -> None:
    for _ in map(queue.pop, seqs, repeat(None)):
        pass


def _within(seqs: Collection[int], first_seq: int, last_seq: int) -> list[int]:
    """Return the elements of ``seqs``, a set or a dictionary, from ``first_seq`` to ``last_seq``, ascending.

    Called for each message that leaves a stream, so the cost depends on the range, not on the size of ``seqs``.
    """
    if last_seq - first_seq < len(seqs):
        return [seq for seq in range(first_seq, last_seq + 1) if seq in seqs]
    return sorted(seq for seq in seqs if first_seq <= seq <= last_seq)
