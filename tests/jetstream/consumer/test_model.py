"""A consumer against a simple model, under any order of events that hypothesis finds.

The model keeps a set of pending sequences with their due times and counts. After each step the consumer's info must
agree with it, and every delivery is checked: never a message that was acked or removed, new ones in order and without a
gap, redeliveries before new ones, counts one up. Restarts use the stored state and its deltas, either with everything
stored or with the losses of a crash.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.jetstream.consumer.fakes import MS, SECOND, Delivered, World, fresh_state, run

WAIT = SECOND


class Model:
    """The state of a consumer, kept simply."""

    def __init__(self) -> None:
        self.high = 0
        self.pending: dict[int, int] = {}
        """The monotonic time at which the ack wait ends, by sequence."""
        self.queued: list[int] = []
        self.counts: dict[int, int] = {}
        self.acked: set[int] = set()
        self.over: set[int] = set()
        """The sequences that had max_deliver deliveries."""


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = 0
        self.log: list[Delivered] = []

    @initialize(filters=st.sampled_from([[], ["a"], ["a", "c.>"], ["c.*"]]), max_deliver=st.sampled_from([-1, 2]),
                max_ack_pending=st.sampled_from([1000, 4]), chunk=st.sampled_from([1, 3, 50]),
                before=st.integers(0, 6), not_loaded=st.booleans(), indexed=st.booleans())
    def begin(self, filters: list[str], max_deliver: int, max_ack_pending: int, chunk: int, before: int,
              not_loaded: bool, indexed: bool) -> None:
        self.w = World(chunk_messages=chunk)
        self.w.stream.not_loaded = not_loaded
        self.w.stream.indexed = indexed
        self.w.stream.add(*(["a", "b", "c.d"] * 2)[:before])
        self.config: dict[str, Any] = {"max_deliver": max_deliver, "max_ack_pending": max_ack_pending,
                                       "ack_wait": WAIT, "filter_subjects": filters}
        self.max_deliver, self.max_ack_pending = max_deliver, max_ack_pending
        self.consumer = self.w.consumer(**self.config)
        self.match = self.consumer._cursor.filters.match
        self.model = Model()
        self.state = fresh_state(self.consumer)
        self.saved = copy.deepcopy(self.model)
        self.crash_seq = 0  # a crash may have forgotten deliveries up to here

    # ---- events

    @rule(subjects=st.lists(st.sampled_from(["a", "b", "c.d", "c.e"]), min_size=1, max_size=5))
    def publish(self, subjects: list[str]) -> None:
        self.w.stream.add(*subjects)

    @rule(batch=st.integers(1, 7))
    def pull(self, batch: int) -> None:
        self.inbox += 1
        inbox = b"_INBOX.%d" % self.inbox
        model = self.model
        was_queued = list(model.queued)
        sent = [d for d in self.w.pull(self.consumer, {"batch": batch, "no_wait": True}, inbox=inbox) if d.is_message]
        self.w.bus.deaf.add(inbox)  # a request blocked by max_ack_pending no longer matters
        again = [d for d in sent if d.count > 1]
        assert sent[:len(again)] == again, "redeliveries come first"
        due: list[int] = []
        for seq in was_queued:
            if len(due) == batch:
                break
            model.queued.remove(seq)
            if 0 < self.max_deliver <= model.counts[seq]:
                del model.pending[seq]
                model.over.add(seq)
            else:
                due.append(seq)
        assert [d.seq for d in again] == due
        new = [d.seq for d in sent[len(again):]]
        room = max(0, self.max_ack_pending - len(model.pending))
        assert new == self.to_come()[:min(batch - len(again), room)]
        now = self.w.clock.monotonic_ns()
        for d in sent:
            assert d.seq not in model.acked, "acked messages never come back"
            assert d.count == model.counts.get(d.seq, 0) + 1
            model.counts[d.seq] = d.count
            model.pending[d.seq] = now + WAIT
            self.log.append(d)
        if new:
            model.high = new[-1]

    def one(self, pick: int) -> Delivered:
        return self.log[pick % len(self.log)]

    @precondition(lambda self: self.log)
    @rule(pick=st.integers(0), body=st.sampled_from([b"", b"+ACK", b"+TERM no"]), double=st.booleans())
    def ack(self, pick: int, body: bytes, double: bool) -> None:
        d = self.one(pick)
        model = self.model
        sent = self.w.ack(self.consumer, d, body=body, reply=b"_INBOX.r" if double else b"")
        answered = [one for one in sent if one.to == b"_INBOX.r"]
        if d.seq in model.pending:
            self.settle(d.seq)
        elif d.seq > model.high:
            if d.seq > self.crash_seq:
                assert not answered
                return
            model.acked.add(d.seq)
        self.late(d.seq)
        assert len(answered) == double

    @precondition(lambda self: len(self.log) > 1)
    @rule(picks=st.lists(st.integers(0), min_size=2, max_size=6))
    def ack_many(self, picks: list[int]) -> None:
        """A run of plain acks in one call, as one read brings them."""
        chosen = [self.one(p) for p in picks]
        self.w.ack(self.consumer, *chosen)
        for d in chosen:
            if d.seq in self.model.pending:
                self.settle(d.seq)
            elif self.model.high < d.seq <= self.crash_seq:
                self.model.acked.add(d.seq)
            self.late(d.seq)

    @precondition(lambda self: self.log)
    @rule(pick=st.integers(0))
    def nak(self, pick: int) -> None:
        d, model = self.one(pick), self.model
        info = self.consumer.info()
        self.w.ack(self.consumer, d, body=b"-NAK")
        if d.seq in model.pending and info["ack_floor"]["consumer_seq"] < d.cseq <= info["delivered"]["consumer_seq"]:
            self.queue(d.seq)

    @precondition(lambda self: self.log)
    @rule(pick=st.integers(0), delay_ms=st.sampled_from([100, 500, 2500]))
    def nak_later(self, pick: int, delay_ms: int) -> None:
        d, model = self.one(pick), self.model
        info = self.consumer.info()
        self.w.ack(self.consumer, d, body=b"-NAK %dms" % delay_ms)
        if d.seq in model.pending and info["ack_floor"]["consumer_seq"] < d.cseq <= info["delivered"]["consumer_seq"]:
            self.unqueue(d.seq)
            model.pending[d.seq] = self.w.clock.monotonic_ns() + delay_ms * MS

    @precondition(lambda self: self.log)
    @rule(pick=st.integers(0))
    def progress(self, pick: int) -> None:
        d = self.one(pick)
        self.w.ack(self.consumer, d, body=b"+WPI")
        if d.seq in self.model.pending:
            self.model.pending[d.seq] = self.w.clock.monotonic_ns() + WAIT

    @rule(ms=st.sampled_from([1, 300, 700, 1100]))
    def time_passes(self, ms: int) -> None:
        self.w.pass_time(ms * MS)
        now = self.w.clock.monotonic_ns()
        # Messages whose wait ended earlier are queued earlier.
        for _, seq in sorted((due, s) for s, due in self.model.pending.items() if due <= now):
            self.queue(seq)

    @precondition(lambda self: self.w.stream.live())
    @rule(pick=st.integers(0))
    def remove(self, pick: int) -> None:
        live = self.w.stream.live()
        seq = live[pick % len(live)]
        self.w.stream.remove(seq)
        self.w.loop.settle()
        self.settle(seq)
        self.model.over.discard(seq)
        self.store()  # in one segment with the removal

    @rule()
    def store(self) -> None:
        """Seal and store a segment."""
        self.w.stored(self.consumer, self.state)
        self.saved = copy.deepcopy(self.model)

    @rule()
    def restart(self) -> None:
        """Restart cleanly: all changes are stored. The consumer's info does not change."""
        self.store()
        before = self.shown()
        self.reopen()
        after = self.shown()
        assert after == before, {k: (before[k], after[k]) for k in before if before[k] != after[k]}

    @rule()
    def crash(self) -> None:
        """Crash: changes since the last segment are lost; acks of sent deliveries may arrive later."""
        self.model = copy.deepcopy(self.saved)
        self.reopen()

    # ---- what must hold

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "w"):
            return
        run(self.w.loop, self.consumer.counted())
        info, model = self.consumer.info(), self.model
        assert info["num_ack_pending"] == len(model.pending)
        assert info["num_pending"] == len(self.to_come())
        assert info["delivered"]["stream_seq"] == model.high
        floor, delivered = info["ack_floor"], info["delivered"]
        assert floor["stream_seq"] <= delivered["stream_seq"]
        assert floor["consumer_seq"] <= delivered["consumer_seq"]
        assert floor["stream_seq"] < min(model.pending, default=model.high + 1)
        again = {s for s in model.counts if model.counts[s] > 1 and s in model.pending} | model.over
        assert info["num_redelivered"] == len(again)

    def teardown(self) -> None:
        """Every live matching message that was not acked (or given up) is delivered in the end, no other ever is."""
        if not hasattr(self, "w"):
            return
        self.time_passes(2600)
        rounds = 0
        while self.model.pending or self.to_come():
            rounds += 1
            assert rounds < 100
            start = len(self.log)
            self.pull(7)
            for i in range(start, len(self.log)):
                self.ack(i, b"+ACK", False)
            if len(self.log) == start:
                self.time_passes(1100)
        info = self.consumer.info()
        assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
        live = {s for s in self.w.stream.live() if self.match(self.w.stream.messages[s][0])}
        assert live <= self.model.acked | self.model.over

    # ---- parts

    def to_come(self) -> list[int]:
        """Return the messages that are yet to be delivered for the first time, in order."""
        model = self.model
        return [s for s in self.w.stream.live(model.high + 1)
                if s not in model.acked and self.match(self.w.stream.messages[s][0])]

    def settle(self, seq: int) -> None:
        model = self.model
        model.pending.pop(seq, None)
        self.unqueue(seq)
        model.acked.add(seq)

    def late(self, seq: int) -> None:
        """Apply an ack after the last delivery, which is valid."""
        if seq in self.model.over:
            self.model.over.discard(seq)
            self.model.acked.add(seq)

    def queue(self, seq: int) -> None:
        if seq not in self.model.queued:
            self.model.queued.append(seq)

    def unqueue(self, seq: int) -> None:
        if seq in self.model.queued:
            self.model.queued.remove(seq)

    def shown(self) -> dict[str, Any]:
        run(self.w.loop, self.consumer.counted())
        return {k: v for k, v in self.consumer.info().items() if k not in ("ts", "num_waiting")}

    def reopen(self) -> None:
        self.consumer.stop()
        self.w.stream.consumers.remove(self.consumer)
        self.consumer = self.w.consumer(self.state, **self.config)
        self.crash_seq = self.w.stream.last_seq
        # Queued messages wait out their ack wait instead; those whose wait is over are found together.
        now = self.w.clock.monotonic_ns()
        self.model.queued = sorted(s for s, due in self.model.pending.items() if due <= now)
        self.time_passes(1)


TestConsumer = ConsumerMachine.TestCase
TestConsumer.settings = settings(max_examples=50, stateful_step_count=40, deadline=None,
                                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def test_messages_that_were_acked_before_they_are_delivered_are_loaded_once() -> None:
    """A crash forgets deliveries, and their acks arrive afterwards: the next pull skips those messages and ends.

    Every message has to be loaded from the store whenever it is needed.
    """
    machine = ConsumerMachine()
    machine.begin(filters=["a"], max_deliver=-1, max_ack_pending=1000, chunk=1, before=4, not_loaded=True, indexed=True)
    machine.pull(batch=2)
    machine.crash()
    machine.ack_many(picks=[0, 0])
    machine.pull(batch=1)
    machine.agrees()
