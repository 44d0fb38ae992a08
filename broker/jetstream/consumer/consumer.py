"""A JetStream consumer: the owner object of one position in one stream.

Owns the consumer's configuration and lifecycle, and the order in which its parts are called:

    pull request ──> PullAdmission, Waiting ─┐                            ┌──> Deliveries to an inbox or deliver_subject
    listeners ─────> PushSide ───────────────┼─> DeliveryLoop ── Cursor ──┤
    commit stored ─> wake ───────────────────┘        └─── AckState ──────┴──> pop_delta: a record in the stream's
    ack ───────────> AckHandler ─────────────────────────────^                 next block

    Prefetcher: reads from the store and counts    InactivityTimer: whether the consumer is in use
    DeadlineTimer: its one timer

All of it runs on the event loop in plain calls over whole runs of messages. Nothing awaits in the middle; a read from
the store is a ``Loading``, after which the delivery runs again. Very large acks take several turns (acks.large).
Methods marked ``in_order`` first deliver the queued notifications of the stream (notified). Time comes from the clock,
timers from ``loop`` (call_soon, call_later), so a test can control both.

Does not own: the validation of configurations (consumer_rules), the position where a new consumer starts (start). The
stream stores the state: it calls ``pop_delta`` when it seals a block. The stream is notified of acks, and removes
messages that no consumer waits for; acks are answered after that (double_acks).

Source: nats-server consumer.go; ADR-37 (pull), ADR-13, ADR-15.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from broker.base.clock import Clock
from broker.base.garbage import discarded
from broker.jetstream.bus import Bus, Msg, Source
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.consumer.acks.handler import AckHandler
from broker.jetstream.consumer.acks.large import LargeAcks
from broker.jetstream.consumer.acks.reply_subjects import ReplySubjects
from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.consumer.delivery import status
from broker.jetstream.consumer.delivery.admission import PullAdmission, pulls, send_statuses
from broker.jetstream.consumer.delivery.flow_control import Replay
from broker.jetstream.consumer.delivery.loop import DeliveryLoop, Verdict
from broker.jetstream.consumer.delivery.push import PushSide
from broker.jetstream.consumer.double_acks import DoubleAcks
from broker.jetstream.consumer.inactivity import InactivityTimer
from broker.jetstream.consumer.info import consumer_info
from broker.jetstream.consumer.notified import Notified, in_order
from broker.jetstream.consumer.prefetch import Prefetcher
from broker.jetstream.consumer.start import check_reset
from broker.jetstream.consumer.timer import DeadlineTimer, Scheduler
from broker.jetstream.filters import filters_of
from broker.jetstream.wire.advisories import ConsumerEvents
from broker.storage.format.records.consumer_state import RESUME

if TYPE_CHECKING:
    from broker.jetstream.consumer.delivery.receiver import Receiver
    from broker.jetstream.consumer.stream_view import StreamView
    from broker.storage.format.records.consumer_state import ConsumerDelta
    from broker.storage.state.consumer import ConsumerState

__all__ = ["Consumer"]

_UNSTORED_MAX = 65_536
"""Pending messages, not yet stored, that are stored at once instead of within a second: this takes some 10 ms."""

_COUNT_LAG = 16_384
"""Uncounted messages that an idle consumer counts, while their chunks are cached. Its name adds up to as many again,
so that a thousand consumers do not count at once."""


class Consumer(Notified):
    """A consumer. ``await open()`` makes it live; ``stop`` or ``delete`` end it.

    Args: ``receiver`` takes its messages; None: they go to the config's ``deliver_subject``, or to pull requests.

    Attributes: ``on_inactive`` is called after the consumer was unused for ``inactive_threshold``, to delete it.
    """

    def __init__(self, stream: StreamView, config: ConsumerConfig, state: ConsumerState, bus: Bus, clock: Clock,
                 rng: random.Random, *, restored: bool = False, long_reply_subjects: bool = False,
                 loop: Scheduler | None = None, receiver: Receiver | None = None) -> None:
        super().__init__()
        self.stream = stream
        self.config = config
        self.name = state.name
        self.created_ns = state.created_ns
        self.on_inactive: Callable[[Consumer], None] | None = None
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._loop: Scheduler = loop if loop is not None else asyncio.get_running_loop()
        self.reply_subjects = ReplySubjects(stream.domain, stream.account, stream.name, self.name,
                                            long=long_reply_subjects)
        mono_ns = clock.monotonic_ns()
        self.events = ConsumerEvents(bus, clock, rng, stream.domain, stream.account, stream.name, self.name)
        self._acks = AckState((), 0, 1)
        self._acks.restore(state, clock.now_ns(), mono_ns)
        self._resume = int(state.extra.get(RESUME, 0))
        self._cursor = Cursor(stream, filters_of(config.filters), state.delivered_sseq + 1, self._acks.ahead,
                              self.deliver_notifications)
        self._prefetcher = Prefetcher(f"{stream.name} > {self.name}", self._cursor, clock, self._loop,
                                      self._schedule_delivery, self._resume_at)
        self._double_acks = DoubleAcks(stream, self._changed, stored=config.stored)
        self._delivery = DeliveryLoop(bus, self._acks, self._cursor, self.events, self.reply_subjects.ack,
                                      self._double_acks.acked,
                                      partial(bus.tracer.delivered, stream.account, stream.name, self.name)
                                      if bus.tracer is not None else None, stream.references.lines)
        self._answers = AckHandler(stream, self._acks, self._cursor, self.events, rng, self.reply_subjects.ack[:-1],
                                   self._request, self._double_acks.acked, self._double_acks.acked_from)
        self._large_acks = LargeAcks(self._acks, self._answers, self._loop, self._apply_acks, self._changed,
                                     lambda: stream.log.barrier(stream), self._acked_many)
        if restored:
            # A crash loses up to a second of deliveries, all of them of messages that are stored.
            self._answers.forgotten_seq = stream.last_seq
        self._push: PushSide | None = None
        self._admission: PullAdmission | None = None
        if config.push or receiver is not None:
            self._push = self._delivery.push = PushSide(
                bus, rng, self.reply_subjects, config, mono_ns, stream.config.max_msg_size, self._on_interest,
                self._on_flow_answers, receiver)
        else:
            self._admission = PullAdmission(bus, self._acks, self._cursor, config.max_waiting)
            self._delivery.waiting = self._admission.waiting
        if config.replay_policy == "original":
            self._delivery.replay = Replay(stream.last_seq)
        self._timer = DeadlineTimer(self._loop, clock, self._on_timer)
        self._inactivity = InactivityTimer(rng, self._acks)
        self._closed = True
        self._ended = False
        self._was_paused = False
        self._scheduled = False
        self._withheld = False
        self._dirty = False
        self._blocked = False
        self._resume_at_ns = 0
        self._count_lag = _COUNT_LAG + crc32(self.name.encode()) % _COUNT_LAG
        self._configure_parts(config)

    # ---- life

    async def open(self, listed: Sequence[int] | None = None) -> None:
        """Find the consumer's position, count pending messages, and start to serve.

        Args: ``listed``: see ``Start.listed``.
        """
        cursor = self._cursor
        if self._resume >= cursor.next_seq:
            if listed is None:
                listed = await self.stream.last_seqs_by_subject(cursor.filters, self._resume)
            cursor.list_first(listed, self._resume)
        await cursor.recount()
        if self._ended:
            return
        self._prefetcher.open()
        if self._push is not None:
            self._push.open()
        self._closed = False
        mono_ns = self._clock.monotonic_ns()
        self._restart_inactivity(mono_ns)
        if self._acks.changed:
            self._changed()
        self._rearm(mono_ns)
        self._schedule_delivery()

    def withhold(self) -> None:
        """Deliver nothing before ``begin``: the creation of this consumer is not yet persisted."""
        self._withheld = True

    def begin(self) -> None:
        """Deliver from now on. Messages published in this turn of the loop are sent first, in a write of their own."""
        self._withheld = False
        self._loop.call_soon(self._schedule_delivery)

    def stop(self, text: bytes = b"", *, pending: bool = False) -> None:
        """Stop serving permanently; the state stays as it is. Waiting pulls get ``text``, if it is not empty."""
        if text and self._admission is not None and not self._closed:
            self._admission.dismiss(text, pending=pending)
        self._closed = self._ended = True
        self.notifications = []
        self._large_acks.drop()
        self._double_acks.close()
        if self._push is not None:
            self._push.close()
        self._timer.cancel()
        self._prefetcher.close()
        discarded(self)

    def shutdown(self, *, moves: bool = False) -> None:
        """Stop because the server stops, or because the consumer ``moves`` to another; waiting pulls are notified."""
        self._large_acks.finish()
        self.stop(status.LEADERSHIP_CHANGE if moves else status.SERVER_SHUTDOWN, pending=not moves)

    def delete(self) -> None:
        """Stop because the consumer (or its stream) is deleted; waiting pulls are notified."""
        self.stop(status.CONSUMER_DELETED)

    @in_order
    def update(self, config: ConsumerConfig) -> None:
        """Apply an updated configuration, already validated against the current one."""
        old, self.config = self.config, config
        mono_ns = self._clock.monotonic_ns()
        self._configure_parts(config)
        push = self._push
        if push is not None and push.update(old, config, mono_ns, self.stream.config.max_msg_size):
            self._acks.expire_all()
            # Subscribers of the new subject are found after the update has been answered.
            self._loop.call_soon(push.watch)
        if config.filters != old.filters:
            self._cursor.refilter(filters_of(config.filters))
        if config.pause_until != old.pause_until:
            self.events.pause(self.paused, config.pause_until)
        if config.inactive_threshold != old.inactive_threshold:
            self._restart_inactivity(mono_ns)
        self._rearm(mono_ns)
        self._schedule_delivery()

    @property
    @in_order
    def waits_above_seq(self) -> int:
        """The sequence at or below which no message is unacked or yet to be delivered."""
        return min([self._acks.floor_sseq, *(seq - 1 for seq in self._acks.redelivered)])

    async def reset(self, seq: int) -> int:
        """Restart at ``seq``, or just above the ack floor for 0; returns the sequence delivered next.

        Raises: ApiError 10204 if the deliver policy does not allow it.
        """
        if seq:
            await check_reset(self.stream, self.config, seq)
        seq = self.rewind(seq)
        await self.counted()
        return seq

    def rewind(self, seq: int = 0) -> int:
        """Do as ``reset``, without checking whether it is allowed, and without waiting for the pending count."""
        self.deliver_notifications()
        self._large_acks.finish()
        seq = seq or self._acks.floor_sseq + 1
        self._acks.restart(seq)
        self._cursor.jump(seq)
        self._answers.forgotten_seq = 0
        self._changed()
        self._schedule_delivery()
        return seq

    def unpin(self, group: str) -> None:
        """Free the pin of a priority group; reported even if no client had it, as nats-server does."""
        if self._delivery.waiting is not None:
            self._delivery.waiting.order.unpin()
        self.events.unpinned(group, "admin")
        self._schedule_delivery()

    @property
    @in_order
    def acks(self) -> AckState:
        """The state of its deliveries and acks, for reading only."""
        return self._acks

    @property
    def filters(self) -> list[str]:
        """The subjects that the consumer receives; empty: all."""
        return self.config.filters

    @property
    def paused(self) -> bool:
        until = self.config.pause_until
        return until is not None and self._clock.now_ns() < until

    # ---- state for clients

    async def counted(self) -> None:
        """Wait until ``num_pending`` is exact, for an ``info`` call with no await in between."""
        await self._large_acks.finished()
        if self._cursor.long_tail:
            await self.stream.log.persisted()
        await self._prefetcher.counted()

    @in_order
    def info(self) -> dict[str, Any]:
        """Return ConsumerInfo as JSON members, without ``type``."""
        self._cursor.count()
        if not self._closed:
            self._sweep(self._clock.monotonic_ns(), at_end=False)
        push = self._push
        return consumer_info(self.stream.name, self.name, self.created_ns, self.config, self._acks, self._cursor,
                             self._delivery.waiting, push_bound=push is not None and push.active,
                             now_ns=self._clock.now_ns())

    @in_order
    def backlog(self) -> tuple[int, int]:
        """Return the numbers of messages that are yet to be delivered for the first time,
        and that are delivered and unacked."""
        self._cursor.count()
        return max(0, self._cursor.pending), len(self._acks.pending)

    # ---- called by the stream

    def waits_for(self, seqs: Sequence[int]) -> Sequence[int]:
        """Return the ``seqs`` (ascending) that are not delivered yet, or not acked; ignores filters."""
        if self.notifications:  # not in_order, which costs more: this is called for each ack of the other consumers
            self.deliver_notifications()
        return self._acks.waits_for(seqs, self._cursor.next_seq)

    def waits_from(self, seq: int) -> bool:
        """Return whether all messages from ``seq`` on are yet to be delivered; ignores filters."""
        if self.notifications:
            self.deliver_notifications()
        return seq >= self._cursor.next_seq and not self._acks.ahead

    def wake(self) -> None:
        """Deliver or count new messages, after ``safe_seq`` has advanced."""
        if self._closed:
            return
        if self._delivery.waiting or (self._push is not None and self._push.active):
            self._schedule_delivery()
        elif self.stream.safe_seq - self._cursor.counted > self._count_lag:
            # Count them now, before their chunks are evicted from the cache.
            self._prefetcher.load(self._cursor.count())

    def removed(self, first_seq: int, last_seq: int, msgs: int, subject: bytes | None = None, *,
                purged: bool = False) -> None:
        """Subtract messages that left the stream: ``msgs`` within first..last, all of ``subject`` if it is given.

        They are no longer pending; unless it was a purge, each is reported as TERMINATED.
        """
        self._cursor.removed(first_seq, last_seq, msgs, subject)
        if self._answers.removed(first_seq, last_seq, self._clock.now_ns(), purged=purged):
            self._changed()
            self._schedule_delivery()
        if not self._cursor.exact:
            self._prefetcher.count()

    def purged(self, next_seq: int) -> None:
        """Continue at ``next_seq`` after a purge of everything below it that matches this consumer.

        Source: nats-server consumer.go purge.
        """
        self._cursor.pass_over(next_seq)
        self._acks.purge(next_seq)
        # A message that could not be read may have been purged.
        self._resume_at_ns = 0
        self._prefetcher.reset_backoff()
        self._changed()
        self._prefetcher.count()
        self._schedule_delivery()

    def notification_failed(self) -> None:
        """Recount pending messages, because a change that the stream reported was not applied."""
        self._cursor.forget_count()
        self._prefetcher.count()

    def pop_delta(self) -> ConsumerDelta | None:
        """Return the record of changes since the last call; None: nothing changed, or the state is not stored."""
        self._dirty = False
        delta = self._acks.pop_delta(self.name)
        self._large_acks.sealed()
        return delta if self.config.stored else None

    # ---- handlers of the bus

    @in_order
    def on_next(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle pull requests: CONSUMER.MSG.NEXT.<stream>.<consumer>."""
        if self._closed:
            return
        mono_ns = self._clock.monotonic_ns()
        self._inactivity.used_ns = mono_ns
        for reply, body, by_reference in pulls(self._bus, ops, start, end):
            self._request(reply, body, mono_ns, by_reference)

    @in_order
    def on_ack(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle acks and all other answers to deliveries, by the subjects of ``reply_subjects``."""
        if self._closed:
            return
        if not self._large_acks.defer(ops, start, end, now_ns):
            self._apply_acks(ops, start, end, now_ns)

    def _apply_acks(self, ops: Sequence[Msg], start: int, end: int, now_ns: int) -> None:
        mono_ns = self._clock.monotonic_ns()
        replies = self._answers.apply_answers(ops, start, end, now_ns, mono_ns)
        self._after_acks(mono_ns, partial(self._publish_answers, replies) if replies else None)

    def ack(self, seqs: Sequence[int]) -> None:
        """Ack delivered messages by their stream sequences, as an answer to each of them would.

        With the policy all, that acks everything up to the highest. The acks are stored with the next commit, whatever
        it is for, so they are safe before any call that waits for a later commit is made. ``commit_acks`` begins one.
        """
        if self._closed:
            return
        self.deliver_notifications()
        self._large_acks.finish()
        if seqs:
            self._answers.ack(seqs, self._answers.consumer_seqs(seqs), self._clock.now_ns())
        self._after_acks(self._clock.monotonic_ns(), None)
        if self._dirty:
            self.stream.log.block(self.stream)  # the journal takes the changes of the streams that have a block

    def commit_acks(self) -> None:
        """Store now what ``ack`` has changed."""
        if self._dirty and not self._closed:
            self.stream.log.block(self.stream)
            self.stream.log.urgent()

    def redeliver(self, seqs: Sequence[int] | None = None) -> None:
        """Deliver unacked messages again now instead of after their ack waits: all of them, or those of ``seqs``."""
        if self._closed:
            return
        self.deliver_notifications()
        if seqs is None:
            self._acks.expire_all()
        else:
            self._acks.nak(seq for seq in seqs if seq in self._acks.pending)
        self._schedule_delivery()

    def _publish_answers(self, replies: Sequence[bytes]) -> None:
        for reply in replies:
            self._bus.publish(reply, b"", 0, b"")

    def _after_acks(self, mono_ns: int, answer: Callable[[], object] | None) -> None:
        """Store the changes by acks, and resume work that has waited for them."""
        self._inactivity.used_ns = mono_ns
        acks = self._acks
        acks.advance_floor()
        if answer is not None:
            self._double_acks.answer(answer)
        if acks.changed:
            self._changed()
            self._timer.set(acks.next_due_ns)
        if not self._cursor.known:
            self._prefetcher.count()
        if acks.queue or self._blocked:
            self._schedule_delivery()

    def _acked_many(self) -> None:
        """Resume work that has waited, after a very large ack is applied."""
        self._rearm(self._clock.monotonic_ns())
        self._schedule_delivery()

    def _request(self, reply: bytes, body: bytes, mono_ns: int, by_reference: bool = False) -> None:
        """Handle one pull request, from MSG.NEXT or after a +NXT."""
        admission = self._admission
        if admission is None:
            send_statuses(self._bus, [(reply, status.PUSH_BASED)])
            return
        by_reference = by_reference and not self.config.headers_only  # it does not give payloads away
        if by_reference and (refusal := self.stream.references.refusal):
            send_statuses(self._bus, [(reply, status.line(f"409 No References - {refusal}"))])
            return
        entry = admission.admit(reply, body, self.config, mono_ns, by_reference=by_reference)
        if entry is not None:
            self._timer.set(min(entry.expires_ns, entry.heartbeat_at_ns))
            self._schedule_delivery()
            self._timer.set(admission.waiting.order.due_ns)

    def _sweep(self, mono_ns: int, *, at_end: bool, heartbeats: bool = False) -> None:
        if self._admission is not None:
            self._admission.sweep(mono_ns, at_end=at_end, heartbeats=heartbeats)

    # ---- delivery

    def _schedule_delivery(self) -> None:
        """Schedule a run of the delivery on the loop."""
        if not self._scheduled and not self._closed and not self._withheld:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    @in_order
    def _deliver(self) -> None:
        self._scheduled = False
        if self._closed or self._prefetcher.loading or self._large_acks.under_way:
            return
        mono_ns = self._clock.monotonic_ns()
        self._blocked = False
        if self._resume_at_ns > mono_ns:
            return
        self._resume_at_ns = 0
        if not self._cursor.known:
            self._prefetcher.count()
            return
        if self.paused:
            self._sweep(mono_ns, at_end=True)
            return
        if not self.stream.log.lease_held():
            return  # the lease is over: the commit that renews it wakes this consumer
        acks = self._acks
        step = self._delivery.run(self._clock.now_ns(), mono_ns)
        if acks.ahead:
            # Forget only up to the last delivery, not up to the cursor: a restart begins after it, and must skip the
            # others again.
            acks.forget_ahead(acks.delivered_sseq + 1)
        if self._admission is not None:
            self._timer.set(self._admission.waiting.order.due_ns)
        if acks.changed:
            self._inactivity.used_ns = mono_ns
            self._changed()
            if acks.unstored >= _UNSTORED_MAX:
                self.stream.log.barrier(self.stream)
            self._timer.set(acks.next_due_ns)
        match step.verdict:
            case Verdict.MORE:
                self._schedule_delivery()
            case Verdict.END:
                self._sweep(mono_ns, at_end=True)
            case Verdict.BLOCKED:
                self._blocked = True
                self._sweep(mono_ns, at_end=False)
            case Verdict.LOADING:
                self._prefetcher.load(step.loading)
            case Verdict.LATER:
                self._resume_at(step.at_ns)

    def _resume_at(self, at_ns: int) -> None:
        """Do not try to deliver before ``at_ns`` (monotonic)."""
        self._resume_at_ns = at_ns
        if not self._closed:
            self._timer.set(at_ns)

    @in_order
    def _on_flow_answers(self, acked: Sequence[tuple[int, int]]) -> None:
        """Apply the acks in answers to flow control requests, and deliver into the new room."""
        if acked:
            self._answers.apply_flow_answers(acked, self._clock.now_ns())
            self._changed()
        self._schedule_delivery()

    def _on_interest(self, interested: bool) -> None:
        """Start or stop deliveries after the interest in deliver_subject changed."""
        mono_ns = self._clock.monotonic_ns()
        if interested:
            self._inactivity.end()
            self._resume_at_ns = 0
            self._schedule_delivery()
        else:
            self._restart_inactivity(mono_ns)
        self._rearm(mono_ns)

    # ---- time

    def _restart_inactivity(self, mono_ns: int) -> None:
        """Start or restart the inactivity timer."""
        push = self._push
        listened = push is not None and push.active
        self._inactivity.begin(0 if listened else self.config.inactive_threshold, mono_ns, pull=push is None)

    def _rearm(self, mono_ns: int) -> None:
        """Set the timer to the earliest due time."""
        if self._closed:
            return
        timer, delivery = self._timer, self._delivery
        timer.set(self._acks.next_due_ns)
        timer.set(self._resume_at_ns or None)
        timer.set(self._inactivity.at_ns or None)
        if delivery.waiting is not None:
            timer.set(delivery.waiting.next_due_ns)
        if self._push is not None:
            timer.set(self._push.next_beat_ns)
        if self.config.pause_until is not None:
            left_ns = self.config.pause_until - self._clock.now_ns()
            if left_ns > 0:
                timer.set(mono_ns + left_ns)

    @in_order
    def _on_timer(self) -> None:
        """Handle everything that is due, when the timer has fired."""
        if self._closed or self._large_acks.under_way:
            return
        mono_ns = self._clock.monotonic_ns()
        acks, delivery, push = self._acks, self._delivery, self._push
        due = acks.next_due_ns
        if due is not None and due <= mono_ns:
            if self._answers.expire(mono_ns):
                self._changed()
            self._schedule_delivery()
        if delivery.waiting is not None:
            due = delivery.waiting.next_due_ns
            if due is not None and due <= mono_ns:
                # One-shot requests that max_ack_pending holds back are kept at first, but not when something is due,
                # even another request's heartbeat: nats-server's loopAndGatherMsgs does so, and clients rely on it.
                self._sweep(mono_ns, at_end=self._blocked and not self._scheduled, heartbeats=True)
                if delivery.waiting.order.expire(mono_ns):
                    self._schedule_delivery()
        if push is not None:
            push.beat(mono_ns, delivery.sent_mono_ns, acks.delivered_cseq, self._cursor.next_seq - 1,
                      unacked=bool(acks.pending))
        paused = self.paused
        if self._was_paused and not paused:
            self.events.pause(False, self.config.pause_until)
            self._schedule_delivery()
        self._was_paused = paused
        if self._resume_at_ns and self._resume_at_ns <= mono_ns:
            self._resume_at_ns = 0
            self._schedule_delivery()
        if self._inactivity.expired(mono_ns, self._admission) and self.on_inactive is not None:
            self.on_inactive(self)
        else:
            self._rearm(mono_ns)

    # ---- parts

    def _configure_parts(self, config: ConsumerConfig) -> None:
        """Pass the configuration to the parts."""
        delivery = self._delivery
        self._double_acks.stored = config.stored
        self._answers.configure(config, self._clock.now_ns(), self._clock.monotonic_ns())
        delivery.acked = config.ack_policy != "none"
        delivery.ack_pending_max = max(config.max_ack_pending, 0) if delivery.acked else 0
        delivery.headers_only = config.headers_only
        if self._admission is not None:
            self._admission.configure(config, self.events, self._clock, self._rng)
        self._was_paused = self.paused

    def _changed(self) -> None:
        """Announce changes to store, or forget them if the state is not stored.
        ``open`` announces changes made before it."""
        if not self.config.stored:
            self._acks.forget_changes()
        elif not self._dirty and not self._closed:
            self._dirty = True
            self.stream.dirty(self)
