"""What one consumer has delivered and what became of it: ack pending, floors, redelivery.

Owns the numbers of ConsumerInfo that acks move (``delivered``, ``ack_floor``, ack pending, redelivered), the queue of
messages to deliver again, and the net change of all that since it was last stored. It does not read messages, send
anything or look at a clock: every call takes the time and says what to do.

    first delivery           +ACK, +TERM, removed                 ack_floor <= delivered <= stream last_seq
    ──────────────> pending ──────────────────────> gone          pending:  ack_floor < seq <= delivered
                     ^   │ ack_wait / backoff over, -NAK          queue:    pending, and waits for its next delivery
                     │   v
                     └─ queue ── max_deliver reached ──> gone     redelivered[seq]: deliveries after the first

Messages delivered together share one ``Flight``: at hundreds of thousands of messages a second an object for each is
what costs, so ``pending`` maps a sequence to the flight that last carried it, and a flight knows its sequences in
ascending order. A first delivery's flight stands in ``_order`` (its front is the lowest pending sequence, so the floor
is found without a search) and every flight in a lane, one for each wait (its front is the next to expire). Neither is
touched when a message is acked: a sequence whose ``pending`` entry is not that flight is simply passed over.

Source: nats-server consumer.go: trackPending, processAckMsgLocked, moveAckFloor, checkPending, processNak.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Protocol

__all__ = ["AckState", "Flight", "StoredState"]

_STALE_MAX = 8192
"""Sequences kept beyond four times the pending ones before flights are rewritten: bounds memory while one message holds
the floor back and others stream by."""

_DELAY_MAX_NS = 86_400_000_000_000
"""The longest delay of a NAK that a restart believes: what is stored is a delivery in the future, and a wall clock that
went back looks the same."""


class StoredState(Protocol):
    """What a restart brings back of a consumer (storage.applied.ConsumerState)."""

    delivered_cseq: int
    delivered_sseq: int
    floor_cseq: int
    floor_sseq: int
    pending: dict[int, tuple[int, int]]
    redelivered: dict[int, int]
    last_active_ns: int
    last_ack_ns: int


class Flight:
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


class AckState:
    """Delivered, unanswered and to be delivered again, of one consumer.

    ``waits_ns`` is the ack wait after delivery 1, 2, …, the last one repeating: ``backoff``, or ``[ack_wait]``; empty
    when deliveries need no answer. ``at_ns`` is wall time (stored, so that waits go on after a restart), ``mono_ns``
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
        self.pending: dict[int, Flight] = {}
        self.redelivered: dict[int, int] = {}
        self.queue: dict[int, None] = {}  # to redeliver; a dict for its order and its cheap removal
        # Acked beyond `delivered`: deliveries that a crash forgot. Stored as pending with consumer sequence 0.
        self.ahead: set[int] = set()
        self._unsent: set[int] = set()  # in the queue because nobody was there: that delivery does not count
        self._order: deque[Sequence[int]] = deque()
        self._order_at = 0
        self._low = 0
        self._lanes: dict[int, deque[Flight]] = {}
        self._late: list[tuple[int, int, Flight]] = []  # heap: waits set by a NAK's delay
        self._late_n = 0
        self._stale = 0
        self._unsettled = False
        # Since the last delta.
        self.changed = False
        self._fresh: list[Flight] = []
        self._dropped: list[int] = []
        self._recounted: set[int] = set()
        self._new_ahead: list[int] = []

    # ---- deliveries

    def deliver_unacked(self, last_seq: int, count: int, at_ns: int) -> None:
        """``count`` messages up to ``last_seq`` went out and need no answer (ack none): they count as acked."""
        self.delivered_cseq += count
        self.delivered_sseq = last_seq
        self.floor_cseq = self.delivered_cseq
        self.floor_sseq = last_seq
        self.last_active_ns = at_ns
        self.changed = True

    def deliver(self, seqs: Sequence[int], at_ns: int, mono_ns: int) -> None:
        """First delivery of ``seqs`` (ascending, all beyond ``delivered``) under the next consumer sequences."""
        first = self.delivered_cseq + 1
        wait = self.waits_ns[0]
        flight = Flight(seqs, range(first, first + len(seqs)), at_ns, mono_ns + wait, False)
        self.pending.update(dict.fromkeys(seqs, flight))
        self._order.append(seqs)
        self._lane(wait).append(flight)
        self._stale += len(seqs)
        self._fresh.append(flight)
        self.delivered_cseq += len(seqs)
        self.delivered_sseq = seqs[-1]
        self.last_active_ns = at_ns
        self.changed = True

    def next_again(self, seq: int) -> int:
        """The delivery count (2, 3, …) that the queued ``seq`` would have now; 1 if it was never really sent."""
        count = self.redelivered.get(seq, 0) + 1
        return count if seq in self._unsent else count + 1

    def deliver_again(self, seqs: Iterable[int], at_ns: int, mono_ns: int) -> None:
        """The queued ``seqs`` went out once more; each takes a consumer sequence, and keeps its first for floors."""
        by_wait: dict[int, list[int]] = {}
        waits, last = self.waits_ns, len(self.waits_ns) - 1
        count = 0
        for seq in seqs:
            self.queue.pop(seq, None)
            again = self.redelivered.get(seq, 0)
            if seq in self._unsent:
                self._unsent.discard(seq)
            else:
                again += 1
                self.redelivered[seq] = again
                self._recounted.add(seq)
            by_wait.setdefault(waits[again if again < last else last], []).append(seq)
            count += 1
        for wait, group in by_wait.items():
            self._resend(group, at_ns, mono_ns + wait, wait)
        self.delivered_cseq += count
        self.last_active_ns = at_ns
        self.changed = True

    def not_sent(self, seqs: Iterable[int]) -> None:
        """Of what was just delivered, ``seqs`` had no receiver: queue them, and do not count that delivery.

        Source: nats-server consumer.go didNotDeliver.
        """
        for seq in seqs:
            if seq not in self.pending:
                continue
            self._unsent.add(seq)
            self.queue[seq] = None

    # ---- answers

    def ack(self, seqs: Sequence[int], at_ns: int) -> int:
        """Each of ``seqs`` is answered for; returns how many were pending. Call ``settle`` after the batch."""
        before = len(self.pending)
        flights = list(map(self.pending.pop, seqs, repeat(None)))
        if any(flight is not None and flight.known for flight in set(flights)):
            self._dropped += [s for s, flight in zip(seqs, flights, strict=True) if flight is not None and flight.known]
        if self.redelivered or self.queue:
            for seq in seqs:
                self._uncount(seq)
        found = before - len(self.pending)
        self.last_ack_ns = at_ns  # also when it is an ack once more
        self.changed = True
        if found:
            self._unsettled = True
        return found

    def ack_all(self, seq: int, cseq: int, at_ns: int) -> list[int]:
        """Everything up to ``seq`` is answered for; returns what was pending of it, ascending.

        The floor becomes (``cseq``, ``seq``) as the client named them. Nothing happens at or below the floor.
        """
        if cseq <= self.floor_cseq or seq <= self.floor_sseq:
            return []
        low = self._upto(seq)
        self.ack(low, at_ns)
        self.floor_cseq, self.floor_sseq = cseq, seq
        self.last_ack_ns = at_ns
        self.changed = True
        self._prune()
        return low

    def ack_all_ahead(self, seq: int, cseq: int, at_ns: int) -> list[int]:
        """With ack all, an ack for a delivery that a crash made us forget: everything up to it had been delivered."""
        low = self.ack_all(seq, max(cseq, self.delivered_cseq, self.floor_cseq + 1), at_ns)
        self.delivered_cseq, self.delivered_sseq = self.floor_cseq, seq
        return low

    def ack_ahead(self, seq: int, at_ns: int) -> bool:
        """An ack for a delivery that a crash made us forget: keep it, so that the cursor passes over ``seq``."""
        if seq in self.ahead:
            return False
        self.ahead.add(seq)
        self._new_ahead.append(seq)
        self.last_ack_ns = at_ns
        self.changed = True
        return True

    def nak(self, seq: int) -> None:
        """Deliver pending ``seq`` again now: to the tail of the queue, unless it stands there."""
        self.queue.setdefault(seq)

    def nak_later(self, seq: int, delay_ns: int, at_ns: int, mono_ns: int) -> None:
        """Deliver pending ``seq`` again after ``delay_ns``, measured as nats-server does: from one ack wait ago."""
        self.queue.pop(seq, None)
        waits = self.waits_ns
        again = self.redelivered.get(seq, 0)
        shift = delay_ns - waits[0]
        due = mono_ns + shift + waits[again if again < len(waits) else -1]
        self._resend([seq], at_ns + shift, due, None)
        self.changed = True

    def progress(self, seq: int, at_ns: int, mono_ns: int) -> None:
        """Work goes on: the ack wait of pending ``seq`` starts anew; its delivery count stays."""
        if seq not in self.pending:
            return
        waits = self.waits_ns
        again = self.redelivered.get(seq, 0)
        wait = waits[again if again < len(waits) else -1]
        self._resend([seq], at_ns, mono_ns + wait, wait)
        self.changed = True

    def drop(self, seqs: Iterable[int], *, keep_count: bool = False) -> list[int]:
        """``seqs`` are no longer ours to deliver (removed from the stream, max_deliver); returns those pending.

        ``keep_count`` leaves the redelivery count, which says for ever after that max_deliver was reached.
        """
        gone = []
        for seq in seqs:
            flight = self.pending.pop(seq, None)
            if flight is not None:
                gone.append(seq)
                if flight.known:
                    self._dropped.append(seq)
            self.queue.pop(seq, None)
            self._unsent.discard(seq)
            if not keep_count:
                self._uncount(seq)
                self._unsettled = True
            self.changed = True
        return gone

    def exhaust(self, seq: int) -> int:
        """Give up on ``seq``; returns how often it was delivered. The floor moves past it with the next ack, not now."""
        count = self.redelivered.get(seq, 0) + 1
        self.drop((seq,), keep_count=True)
        self.redelivered[seq] = count
        self._recounted.add(seq)
        return count

    def settle(self) -> None:
        """Move the ack floor over what is answered: to just below the lowest pending message, or to ``delivered``."""
        if not self._unsettled:
            return
        self._unsettled = False
        if not self.pending:
            self.floor_cseq, self.floor_sseq = self.delivered_cseq, self.delivered_sseq
            self._order.clear()
            self._order_at = 0
            self._low = 0
            self._lanes.clear()
            self._late.clear()
            self._stale = 0
            self._fresh.clear()
            return
        low = self._lowest()
        if low == self._low:
            if self._stale > 4 * len(self.pending) + _STALE_MAX:
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
        """Monotonic time of the next ack wait to end; may be earlier than needed, never later."""
        dues = [lane[0].due_ns for lane in self._lanes.values() if lane]
        if self._late:
            dues.append(self._late[0][0])
        return min(dues, default=None)

    @property
    def last_due_ns(self) -> int | None:
        """Monotonic time of the last ack wait to end of what is pending; None when nothing is."""
        dues = [lane[-1].due_ns for lane in self._lanes.values() if lane]
        dues += [due for due, _, _ in self._late]
        return max(dues, default=None) if self.pending else None

    def expire(self, mono_ns: int) -> list[int]:
        """Queue what has waited long enough, by sequence.

        Returns what is not queued because ``max_deliver`` is 1. With more than one delivery nats-server finds a message
        exhausted only when its turn in the queue comes, so until then it counts as pending.
        """
        expired: list[int] = []
        pending, queue = self.pending, self.queue
        for lane in self._lanes.values():
            while lane and lane[0].due_ns <= mono_ns:
                flight = lane.popleft()
                self._stale -= len(flight.seqs)
                expired += [s for s in flight.seqs if pending.get(s) is flight and s not in queue]
        while self._late and self._late[0][0] <= mono_ns:
            flight = heapq.heappop(self._late)[2]
            self._stale -= len(flight.seqs)
            expired += [s for s in flight.seqs if pending.get(s) is flight and s not in queue]
        expired.sort()
        if self.max_deliver == 1:
            over = [seq for seq in expired if seq not in self._unsent]
            queue.update(dict.fromkeys(seq for seq in expired if seq in self._unsent))
            return over
        queue.update(dict.fromkeys(expired))
        return []

    def expire_all(self) -> None:
        """Queue everything pending (a push consumer has moved to another deliver_subject)."""
        for seq in sorted(self.pending):
            self.queue.setdefault(seq)

    def set_waits(self, waits_ns: Sequence[int], now_at_ns: int, mono_ns: int) -> None:
        """ack_wait or backoff changed: what is pending waits by the new ones, from when it was delivered."""
        self.waits_ns = list(waits_ns)
        if waits_ns:
            self._rewrite(now_at_ns, mono_ns)

    # ---- whole state

    def restart(self, next_seq: int) -> None:
        """Begin again at ``next_seq`` as a new consumer would (RESET): nothing delivered, nothing pending."""
        self.drop([*self.pending, *self.redelivered])
        self._dropped += self.ahead
        self.ahead.clear()
        self._new_ahead.clear()
        self.delivered_cseq, self.delivered_sseq = 0, next_seq - 1
        self.last_active_ns = self.last_ack_ns = 0
        self.changed = self._unsettled = True
        self.settle()

    def purge(self, next_seq: int) -> None:
        """All messages below ``next_seq`` that this consumer could have got were purged."""
        gone = [s for s in self.pending if s < next_seq]
        self.drop(gone)
        for seq in [s for s in self.redelivered if s < next_seq]:
            self._uncount(seq)
        if self.delivered_sseq < next_seq - 1:
            self.delivered_sseq = next_seq - 1
        self.changed = self._unsettled = True
        self.settle()
        if self.floor_sseq < next_seq - 1:
            self.floor_sseq = next_seq - 1

    def forget_ahead(self, below: int, start: int = 0) -> None:
        """What was acked ahead from ``start`` to under ``below`` lies behind what was delivered, or is gone."""
        passed = [s for s in self.ahead if start <= s < below]
        if passed:
            self.ahead.difference_update(passed)
            self._dropped += passed
            self.changed = True

    def restore(self, state: StoredState, at_ns: int, mono_ns: int) -> None:
        """Take over what was stored; ack waits go on from when the messages were delivered."""
        self.delivered_cseq, self.delivered_sseq = state.delivered_cseq, state.delivered_sseq
        self.floor_cseq, self.floor_sseq = state.floor_cseq, state.floor_sseq
        self.last_active_ns, self.last_ack_ns = state.last_active_ns, state.last_ack_ns
        self.redelivered = {seq: count for seq, count in state.redelivered.items() if count}
        by_time: dict[int, list[int]] = {}
        for seq in sorted(state.pending):
            cseq, then = state.pending[seq]
            if cseq:
                by_time.setdefault(then, []).append(seq)
            else:
                self.ahead.add(seq)
        for then, seqs in by_time.items():
            flight = Flight(seqs, [state.pending[s][0] for s in seqs], then, 0, True)
            self.pending.update(dict.fromkeys(seqs, flight))
        if self.pending and self.waits_ns:
            self._rewrite(at_ns, mono_ns)
            self._low = self._lowest()

    def take_delta(self) -> dict[str, Any] | None:
        """Net change since the last call, as a CONSUMER_STATE body without its name; None when nothing changed.

        ``add`` holds parallel lists (stream sequence, consumer sequence, wall time) of what is pending and new or
        delivered again, and with consumer sequence 0 what was acked ahead of ``delivered``; ``drop`` what is neither
        any longer (apply it before ``add``); ``re`` redelivery counts, 0 = none any more. A message delivered and acked
        between two calls appears in none of them.
        """
        if not self.changed:
            return None
        self.changed = False
        delta: dict[str, Any] = {
            "d": [self.delivered_cseq, self.delivered_sseq, self.last_active_ns],
            "f": [self.floor_cseq, self.floor_sseq],
            "la": self.last_ack_ns,
        }
        pending = self.pending
        seqs: list[int] = []
        cseqs: list[int] = []
        times: list[int] = []
        for flight in self._fresh:
            flight.known = True
            if flight.seqs[-1] <= self.floor_sseq:
                continue
            for seq, cseq in zip(flight.seqs, flight.cseqs, strict=True):
                if pending.get(seq) is flight:
                    seqs.append(seq)
                    cseqs.append(cseq)
            times += [flight.at_ns] * (len(seqs) - len(times))
        self._fresh.clear()
        for seq in self._new_ahead:
            if seq in self.ahead:
                seqs.append(seq)
                cseqs.append(0)
                times.append(0)
        self._new_ahead.clear()
        if seqs:
            delta["add"] = [_column(seqs), _column(cseqs), _column(times)]
        if self._dropped:
            delta["drop"] = _column(self._dropped)
            self._dropped = []
        if self._recounted:
            delta["re"] = {seq: self.redelivered.get(seq, 0) for seq in sorted(self._recounted)}
            self._recounted.clear()
        return delta

    # ---- parts

    def _lane(self, wait_ns: int) -> deque[Flight]:
        lane = self._lanes.get(wait_ns)
        if lane is None:
            lane = self._lanes[wait_ns] = deque()
        return lane

    def _resend(self, seqs: list[int], at_ns: int, due_ns: int, wait_ns: int | None) -> None:
        """Give pending ``seqs`` a flight of their own; ``wait_ns`` None: not in step with any lane."""
        seqs.sort()
        pending = self.pending
        flight = Flight(seqs, [pending[s].cseq_of(s) for s in seqs], at_ns, due_ns, True)
        pending.update(dict.fromkeys(seqs, flight))
        if wait_ns is None:
            self._late_n += 1
            heapq.heappush(self._late, (due_ns, self._late_n, flight))
        else:
            self._lane(wait_ns).append(flight)
        self._stale += len(seqs)
        self._fresh.append(flight)

    def _uncount(self, seq: int) -> None:
        if self.redelivered.pop(seq, None) is not None:
            self._recounted.add(seq)
            self.changed = True
        if self.queue:
            self.queue.pop(seq, None)
        self._unsent.discard(seq)

    def _upto(self, seq: int) -> list[int]:
        """Pending sequences up to ``seq``, ascending, from the order of delivery rather than from all of ``pending``."""
        found: list[int] = []
        pending, i = self.pending, self._order_at
        for seqs in self._order:
            if seqs[0] > seq:
                break
            found += [s for s in seqs[i:bisect_right(seqs, seq, i)] if s in pending]
            i = 0
        return found

    def _lowest(self) -> int:
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

    def _prune(self) -> None:
        """Let go of flights that lie wholly below the floor."""
        floor = self.floor_sseq
        for lane in self._lanes.values():
            while lane and lane[0].seqs[-1] <= floor:
                self._stale -= len(lane.popleft().seqs)
        if len(self._fresh) > 64 and self._fresh[0].seqs[-1] <= floor:
            self._fresh = [f for f in self._fresh if f.seqs[-1] > floor]
        if self._stale > 4 * len(self.pending) + _STALE_MAX:
            self._rewrite()

    def _rewrite(self, at_ns: int | None = None, mono_ns: int = 0) -> None:
        """Rewrite order and lanes from what is still pending; with the time given, by the present waits."""
        groups: dict[int, tuple[Flight, list[int]]] = {}
        ordered = sorted(self.pending)
        for seq in ordered:
            flight = self.pending[seq]
            groups.setdefault(id(flight), (flight, []))[1].append(seq)
        late = {id(f) for _, _, f in self._late}
        fresh = {id(f) for f in self._fresh}
        by_wait = {id(f): wait for wait, lane in self._lanes.items() for f in lane}
        self._order = deque([ordered] if ordered else [])
        self._order_at = 0
        self._lanes, self._late, self._fresh = {}, [], []
        self._stale = len(ordered)
        waits = self.waits_ns
        moved: list[tuple[int, Flight]] = []
        for key, (flight, seqs) in groups.items():
            parts: dict[int | None, list[int]] = {}
            if at_ns is None:
                parts[None if key in late else by_wait.get(key, -1)] = seqs
            else:
                for seq in seqs:
                    again = self.redelivered.get(seq, 0)
                    parts.setdefault(waits[again if again < len(waits) else -1], []).append(seq)
            for wait, part in parts.items():
                due = flight.due_ns
                if at_ns is not None and wait is not None:
                    due = mono_ns + wait + min(flight.at_ns - at_ns, _DELAY_MAX_NS)
                    if flight.at_ns > at_ns:
                        wait = None  # a NAK's delay: later than what is delivered from now on, so out of step
                new = Flight(part, [flight.cseq_of(s) for s in part], flight.at_ns, due, flight.known)
                self.pending.update(dict.fromkeys(part, new))
                if key in fresh:
                    self._fresh.append(new)
                if wait is None:
                    self._late_n += 1
                    heapq.heappush(self._late, (due, self._late_n, new))
                elif wait != -1:  # -1: it has expired and stands in the queue, no lane holds it
                    moved.append((wait, new))
        for wait, flight in sorted(moved, key=lambda item: item[1].due_ns):
            self._lane(wait).append(flight)


def _column(numbers: list[int]) -> list[int] | bytes:
    """As CONSUMER_STATE records hold it: a few as they are, many as little-endian int64."""
    if len(numbers) <= 8:
        return numbers
    values = array("q", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
