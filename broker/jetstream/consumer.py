"""A JetStream consumer: the owner object of one position in one stream.

Owns the consumer's configuration, its subscriptions, its one timer, and the order in which its parts are asked:

    pull request ──> Waiting ─┐                              ┌──> Deliveries to an inbox or the deliver_subject
    interest watch ─> target ─┼─> Pump ── Cursor (messages) ─┤
    commit landed ──> wake ───┘     └─── AckState ───────────┴──> take_delta: a record in the stream's next block
    ack ────────────────────────────────────^

All of it runs on the event loop in plain calls over whole runs of messages. Nothing awaits in the middle; what needs
the store is a ``Loading`` after which the pump runs again. Time comes from the clock, timers from ``loop`` (call_soon,
call_later), so a test may own both.

It does not judge configurations (consumer_rules), store anything itself (the stream takes ``take_delta`` when it seals
a block), or remove messages on acks: for interest and work-queue retention a stream sets ``on_acked``.

Source: nats-server consumer.go; ADR-37 (pull), ADR-13, ADR-15.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker.clock import Clock
from broker.jetstream import status, wire
from broker.jetstream.advisories import DELETED_REASON, ConsumerEvents
from broker.jetstream.answers import Answers, sample_percent
from broker.jetstream.bus import Bus, InterestWatch, Msg, Source, Subscription
from broker.jetstream.consumer_config import ConsumerConfig
from broker.jetstream.cursor import Cursor, Loading
from broker.jetstream.delivery import AckState
from broker.jetstream.errors import ApiError
from broker.jetstream.filters import Filters
from broker.jetstream.ids import unique_id
from broker.jetstream.intake import Intake, send_statuses
from broker.jetstream.pull import Waiting
from broker.jetstream.pump import Pump, PushTarget, Verdict
from broker.jetstream.push import FlowWindow, RateLimit, Replay
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.stream import Stream
    from broker.storage.applied import ConsumerState

__all__ = ["Consumer", "Scheduler", "starting_state"]

logger = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000
_RETRY_NS = _SECOND_NS
"""After a read of the store failed, which the store's own retries did not cure; doubled each time up to _RETRY_NS_MAX."""
_RETRY_NS_MAX = 30 * _SECOND_NS
_RECOUNT_NS = 200_000_000
"""Between counts of what is to come, while limits remove messages of which it is not known whether they were ours."""
_COUNT_LAG = 16_384
"""Uncounted messages after which an idle consumer counts them, while their chunks are still in the cache."""
_MAX_PAYLOAD = 1 << 20
_API_LEVEL = 5


class Scheduler(Protocol):
    """The part of an event loop that a consumer uses."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any: ...

    def create_task(self, coro: Coroutine[Any, Any, None]) -> Any: ...


async def starting_state(stream: Stream, config: ConsumerConfig) -> dict[str, Any]:
    """Where a new consumer of ``config`` begins, as the state part of its CONSUMER_CREATE record.

    Source: nats-server consumer.go selectStartingSeqNo.
    """
    filters = Filters([f.encode() for f in config.filters])
    narrow = None if filters.all else filters
    first, last = max(stream.first_seq, 1), stream.last_seq
    extra: dict[str, Any] = {}
    match config.deliver_policy:
        case "new":
            seq = last + 1
        case "last":
            found = await stream.last_seqs(None if narrow is None else filters)
            seq = found[-1] if found else last + 1
        case "last_per_subject" if stream.config.max_msgs_per_subject != 1:
            listed = await stream.last_seqs_by_subject(filters, last)
            seq = listed[0] if listed else last + 1
            extra["resume"] = last
        case "by_start_sequence":
            seq = max(config.opt_start_seq, first)
        case "by_start_time":
            seq = await stream.seq_at(config.opt_start_time or 0)
        case _:
            seq = first
    return {"d": [0, seq - 1, 0], "f": [0, seq - 1], "x": extra}


class Consumer:
    """One consumer. ``await open()`` makes it live; ``stop`` or ``delete`` end it.

    Attributes:
        on_acked: told of stream sequences that this consumer is done with (interest and work-queue retention).
        on_inactive: told once nobody has used it for ``inactive_threshold``; the owner deletes it.
    """

    def __init__(self, stream: Stream, config: ConsumerConfig, state: ConsumerState, bus: Bus, clock: Clock,
                 rng: random.Random, *, restored: bool = False, loop: Scheduler | None = None) -> None:
        self.stream = stream
        self.config = config
        self.name = state.name
        self.created_ns = state.created_ns
        self.bus = bus
        self.clock = clock
        self.rng = rng
        self.on_acked: Callable[[Consumer, Sequence[int]], None] | None = None
        self.on_inactive: Callable[[Consumer], None] | None = None
        self._loop: Scheduler = loop if loop is not None else asyncio.get_running_loop()
        tail = f"{stream.name}.{self.name}"
        self._ack_prefix = f"$JS.ACK.{tail}".encode()
        self._flow_prefix = f"$JS.FC.{tail}."
        self._events = ConsumerEvents(bus, clock, rng, stream.domain, stream.name, self.name)
        self._closed = True
        self._ended = False
        self._acks = AckState((), 0, 1)
        self._acks.restore(state, clock.now_ns(), clock.monotonic_ns())
        self._resume = int(state.extra.get("resume", 0))
        self._cursor = Cursor(stream, Filters(), state.delivered_sseq + 1, self._acks.ahead)
        self._pump = Pump(bus, self._acks, self._cursor, self._events, self._ack_prefix + b".")
        self._intake: Intake | None = None
        self._answers = Answers(stream, self._acks, self._cursor, self._events, rng, self._ack_prefix, self._request,
                                self._told)
        if restored:
            # A crash forgets up to a second of deliveries, and those were of messages that the restart found.
            self._answers.forgotten_seq = stream.last_seq
        self._subscriptions: list[Subscription] = []
        self._watch: InterestWatch | None = None
        self._timer: Any = None
        self._timer_ns = 0
        self._scheduled = False
        self._loading = False
        self._counting = False
        self._count_timer: Any = None
        self._dirty = False
        self._blocked = False
        self._failures = 0
        self._resume_at_ns = 0
        self._beat_at_ns = 0
        self._threshold_ns = 0
        self._used_ns = 0
        self._unused_at_ns = 0
        self._was_paused = False
        self._adopt(config, None)

    # ---- life

    async def open(self) -> None:
        """Find where the consumer stands, count what is pending, and begin to serve."""
        cursor = self._cursor
        if self._resume >= cursor.next_seq:
            listed = await self.stream.last_seqs_by_subject(cursor.filters, self._resume)
            cursor.skip = deque(s for s in listed if s >= cursor.next_seq)
            cursor.resume = self._resume
            if not cursor.skip:
                cursor.next_seq = self._resume + 1
        await self._cursor.recount()
        if self._ended:
            return
        mono_ns = self.clock.monotonic_ns()
        config, bus = self.config, self.bus
        self._closed = False
        if config.push and config.flow_control:
            self._subscriptions.append(bus.subscribe(self._flow_prefix.encode() + b"*", self.on_flow))
        self._watch_target()
        self._used(mono_ns)
        if self._acks.changed:
            self._changed()
        self._rearm(mono_ns)
        self._kick()

    def stop(self) -> None:
        """Stop serving, silently and for good; the state stays as it is."""
        self._closed = self._ended = True
        for subscription in self._subscriptions:
            self.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count_timer is not None:
            self._count_timer.cancel()
            self._count_timer = None

    def shutdown(self) -> None:
        """Stop because the server does: every waiting pull hears of it."""
        if not self._closed and self._pump.waiting is not None:
            send_statuses(self.bus, self._pump.waiting.drain(status.SERVER_SHUTDOWN, pending=True))
        self.stop()

    def delete(self, text: bytes = status.CONSUMER_DELETED) -> None:
        """Stop because the consumer (or its stream) is deleted: every waiting pull gets ``text``."""
        if not self._closed and self._pump.waiting is not None:
            send_statuses(self.bus, self._pump.waiting.drain(text))
        self.stop()

    def update(self, config: ConsumerConfig) -> None:
        """Take an updated configuration, already judged against the present one."""
        old, self.config = self.config, config
        mono_ns = self.clock.monotonic_ns()
        self._adopt(config, old)
        if config.deliver_subject != old.deliver_subject or config.deliver_group != old.deliver_group:
            self._acks.expire_all()
            if self._watch is not None:
                self._watch.cancel()
            # Whoever listens there already is found once the update has been answered.
            self._loop.call_soon(self._watch_target)
        if config.filters != old.filters:
            self._cursor.refilter(Filters([f.encode() for f in config.filters]))
        if config.pause_until != old.pause_until:
            self._events.pause(self.paused, config.pause_until)
        if config.inactive_threshold != old.inactive_threshold:
            self._used(mono_ns)
        self._rearm(mono_ns)
        self._kick()

    async def reset(self, seq: int) -> int:
        """Begin again at ``seq``, or just above the ack floor for 0; returns the sequence delivered next.

        Raises: ApiError 10204 where the deliver policy does not allow it.
        """
        config = self.config
        if not seq:
            seq = self._acks.floor_sseq + 1
        elif config.deliver_policy == "by_start_sequence":
            if seq < config.opt_start_seq:
                raise ApiError(10204, err="below start seq")
        elif config.deliver_policy == "by_start_time":
            if seq < await self.stream.seq_at(config.opt_start_time or 0):
                raise ApiError(10204, err="below start time")
        elif config.deliver_policy != "all":
            raise ApiError(10204, err="not allowed")
        self._acks.restart(seq)
        self._cursor.jump(seq)
        self._answers.forgotten_seq = 0
        self._changed()
        await self.counted()
        self._kick()
        return seq

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def paused(self) -> bool:
        until = self.config.pause_until
        return until is not None and self.clock.now_ns() < until

    # ---- what it shows

    async def counted(self) -> None:
        """Wait until ``num_pending`` is exact, for an ``info`` that follows without a wait between."""
        while not self._closed:
            await self._cursor.recount()
            loading = self._cursor.count()
            if loading is None:
                return
            await loading.ready

    def info(self) -> dict[str, Any]:
        """ConsumerInfo as JSON members, less ``type``."""
        acks, cursor, config = self._acks, self._cursor, self.config
        now_ns, mono_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        cursor.count()
        delivered: dict[str, Any] = {"consumer_seq": acks.delivered_cseq, "stream_seq": acks.delivered_sseq}
        if acks.last_active_ns:
            delivered["last_active"] = wire.format_time(acks.last_active_ns)
        floor: dict[str, Any] = {"consumer_seq": acks.floor_cseq, "stream_seq": acks.floor_sseq}
        if acks.last_ack_ns:
            floor["last_active"] = wire.format_time(acks.last_ack_ns)
        waiting = self._pump.waiting
        if not self._closed:
            self._sweep(mono_ns, at_end=False)
        info: dict[str, Any] = {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": wire.format_time(self.created_ns),
            "config": config.to_json(),
            "delivered": delivered,
            "ack_floor": floor,
            "num_ack_pending": len(acks.pending),
            # Redeliveries are off with max_deliver 1, so none are shown although the state keeps them.
            "num_redelivered": 0 if config.max_deliver == 1 else len(acks.redelivered),
            "num_waiting": 0 if waiting is None else len(waiting),
            "num_pending": max(0, cursor.pending),
        }
        if self._pump.target is not None and self._pump.target.active:
            info["push_bound"] = True
        if config.pause_until is not None and now_ns < config.pause_until:
            info["paused"] = True
            info["pause_remaining"] = config.pause_until - now_ns
        info["ts"] = wire.format_time(now_ns)
        if config.priority_groups:
            info["priority_groups"] = [{"group": config.priority_groups[0]}]
        return info

    # ---- what the stream tells it

    def wake(self) -> None:
        """``persisted_seq`` moved."""
        if self._closed:
            return
        if self._pump.waiting or (self._pump.target is not None and self._pump.target.active):
            self._kick()
        elif self.stream.persisted_seq - self._cursor.counted > _COUNT_LAG:
            # Rather now than after the cache let go of them.
            self._loaded_by(self._cursor.count())

    def removed(self, first_seq: int, last_seq: int, msgs: int, subject: bytes | None = None, *,
                purged: bool = False) -> None:
        """``msgs`` messages within first..last left the stream, all of ``subject`` when it is given.

        What was pending of them is over; but for a purge, that is told as TERMINATED.
        """
        acks = self._acks
        self._cursor.removed(first_seq, last_seq, msgs, subject)
        if acks.ahead:
            acks.forget_ahead(last_seq + 1, first_seq)
        if last_seq > acks.floor_sseq or acks.redelivered:
            if last_seq - first_seq < len(acks.pending):
                gone = [s for s in range(first_seq, last_seq + 1) if s in acks.pending]
            else:
                gone = sorted(s for s in acks.pending if first_seq <= s <= last_seq)
            if gone and not purged:
                for seq in gone:
                    self._events.terminated(seq, acks.pending[seq].cseq_of(seq), max(1, acks.redelivered.get(seq, 0)),
                                            DELETED_REASON)
            lost = [s for s in acks.redelivered if first_seq <= s <= last_seq and s not in acks.pending]
            if gone or lost:
                acks.drop(gone)
                acks.drop(lost)
                acks.settle()
                if gone:
                    acks.last_ack_ns = self.clock.now_ns()
                self._changed()
                self._kick()
        if not self._cursor.exact:
            self._count_soon()

    def purged(self, next_seq: int) -> None:
        """Everything that this consumer could get below ``next_seq`` was purged: it goes on there.

        Source: nats-server consumer.go purge.
        """
        self._cursor.pass_over(next_seq)
        self._acks.purge(next_seq)
        # What could not be read may be behind us now.
        self._resume_at_ns = self._failures = 0
        self._changed()
        self._count_soon()
        self._kick()

    def take_delta(self) -> dict[str, Any] | None:
        """CONSUMER_STATE record body of what changed since the last call; None: nothing, or nothing is stored."""
        self._dirty = False
        delta = self._acks.take_delta()
        if delta is None or self.config.mem_storage:
            return None
        return {"n": self.name, **delta}

    # ---- handlers of the bus

    def on_next(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Pull requests: CONSUMER.MSG.NEXT.<stream>.<consumer>."""
        if self._closed:
            return
        mono_ns = self.clock.monotonic_ns()
        self._used_ns = mono_ns
        for i in range(start, end):
            _, reply, hlen, body = ops[i]
            if not reply:
                continue
            if hlen and self._wants_newer(body[:hlen]):
                self._status(reply, status.line("412 Required Api Level"))
                continue
            self._request(reply, body[hlen:] if hlen else body, mono_ns)

    def on_ack(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Answers to deliveries: $JS.ACK.<stream>.<consumer>.> and its longer form."""
        if self._closed:
            return
        mono_ns = self.clock.monotonic_ns()
        self._used_ns = mono_ns
        acks = self._acks
        replies = self._answers.take(ops, start, end, now_ns, mono_ns)
        acks.settle()
        if replies:
            self._acknowledge(replies)
        if acks.changed:
            self._changed()
            self._due_acks()
        if not self._cursor.known:
            self._count_soon()
        if acks.queue or self._blocked:
            self._kick()

    def on_flow(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Answers to flow control requests: $JS.FC.<stream>.<consumer>.<id>."""
        flow = self._pump.flow
        if self._closed or flow is None:
            return
        for i in range(start, end):
            if flow.answered(ops[i][0]):
                self._renew_flow()
                self._kick()

    def _request(self, reply: bytes, body: bytes, mono_ns: int) -> None:
        """One pull request, from MSG.NEXT or behind a +NXT."""
        intake = self._intake
        if intake is None:
            self._status(reply, status.PUSH_BASED)
            return
        entry = intake.judge(reply, body, self.config, mono_ns)
        if entry is not None:
            self._due(min(entry.expires_ns, entry.heartbeat_at_ns))
            self._kick()

    def _sweep(self, mono_ns: int, *, at_end: bool, heartbeats: bool = False) -> None:
        if self._intake is not None:
            self._intake.sweep(mono_ns, at_end=at_end, heartbeats=heartbeats)

    # ---- answers

    def _acknowledge(self, replies: list[bytes]) -> None:
        """Answer double acks once the state that they made is persisted."""
        stream = self.stream
        if self.config.mem_storage or stream.config.persist_mode == "async":
            self._answer_all(replies)
            return
        self._changed()
        stream.log.barrier(stream)
        stream.log.wait(self._answer_all, replies)

    def _answer_all(self, replies: list[bytes]) -> None:
        publish = self.bus.publish
        for reply in replies:
            publish(reply, b"", 0, b"")

    # ---- delivery

    def _kick(self) -> None:
        """Run the pump when the loop comes to it."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._closed or self._loading:
            return
        mono_ns = self.clock.monotonic_ns()
        self._blocked = False
        if self._resume_at_ns > mono_ns:
            return
        self._resume_at_ns = 0
        if not self._cursor.known:
            self._count_soon()
            return
        if self.paused:
            self._sweep(mono_ns, at_end=True)
            return
        if self.stream.log.muted:
            return  # past the lease: the commit that ends this wakes us
        acks = self._acks
        step = self._pump.run(self.clock.now_ns(), mono_ns)
        if acks.ahead:
            # Not up to the cursor: a restart begins behind what was delivered, and must pass over the same again.
            acks.forget_ahead(acks.delivered_sseq + 1)
        if acks.changed:
            self._used_ns = mono_ns
            self._changed()
            self._due_acks()
        match step.verdict:
            case Verdict.MORE:
                self._kick()
            case Verdict.END:
                self._sweep(mono_ns, at_end=True)
            case Verdict.BLOCKED:
                self._blocked = True
                self._sweep(mono_ns, at_end=False)
            case Verdict.LOADING:
                self._loaded_by(step.loading)
            case Verdict.LATER:
                self._resume_at_ns = step.at_ns
                self._due(step.at_ns)

    def _loaded_by(self, loading: Loading | None) -> None:
        if loading is not None and not self._loading:
            self._loading = True
            self._loop.create_task(self._load(loading))

    async def _load(self, loading: Loading) -> None:
        try:
            await loading.ready
        except Exception as error:
            self._try_later("reading", error)
        else:
            self._failures = 0
        finally:
            self._loading = False
            self._kick()

    def _count_soon(self) -> None:
        """Count what is to come, unless that is under way; where only the figure is off, not more than now and then."""
        if self._counting or self._closed or self._cursor.exact:
            return
        if not self._cursor.known:
            self._start_count()
        elif self._count_timer is None:
            self._count_timer = self._loop.call_later(_RECOUNT_NS / 1e9, self._start_count)

    def _start_count(self) -> None:
        self._count_timer = None
        if not self._counting:
            self._counting = True
            self._loop.create_task(self._recount())

    async def _recount(self) -> None:
        try:
            if not self._closed:
                await self._cursor.recount()
        except Exception as error:
            self._try_later("counting", error)
        finally:
            self._counting = False
            self._kick()

    def _try_later(self, what: str, error: Exception) -> None:
        """A block could not be read: wait, the longer the more often that happened, as a damaged one stays so."""
        delay_ns = min(_RETRY_NS << self._failures, _RETRY_NS_MAX)
        self._failures = min(self._failures + 1, 16)
        logger.warning("consumer %s > %s: %s failed, trying again in %g s: %s", self.stream.name, self.name, what,
                       delay_ns / 1e9, error)
        self._resume_at_ns = self.clock.monotonic_ns() + delay_ns
        self._due(self._resume_at_ns)

    # ---- push

    def _watch_target(self) -> None:
        """Follow the interest in deliver_subject."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        target = self._pump.target
        if target is None or self._closed:
            return
        self._watch = self.bus.watch_interest(target.subject, target.group, self._interest)
        self._interest(self._watch.interested)

    def _interest(self, interested: bool) -> None:
        target = self._pump.target
        if target is None:
            return
        mono_ns = self.clock.monotonic_ns()
        target.active = interested
        if interested:
            self._unused_at_ns = 0
            self._resume_at_ns = 0
            self._kick()
        else:
            self._used(mono_ns)
        self._rearm(mono_ns)

    def _renew_flow(self) -> None:
        self._pump.flow_request = (self._flow_prefix + unique_id(self.rng, 4)).encode()

    # ---- time

    def _used(self, mono_ns: int) -> None:
        """Begin (again) to count the time that nobody uses the consumer."""
        self._used_ns = mono_ns
        threshold = self.config.inactive_threshold
        self._unused_at_ns = 0
        if threshold <= 0 or (self._pump.target is not None and self._pump.target.active):
            return
        jitter = 0 if self.config.push else 100_000_000 + self.rng.randrange(900_000_000)
        self._threshold_ns = threshold + jitter
        self._unused_at_ns = mono_ns + self._threshold_ns

    def _due_acks(self) -> None:
        due = self._acks.next_due_ns
        if due is not None:
            self._due(due)

    def _due(self, at_ns: int) -> None:
        """Make sure that the timer fires at ``at_ns`` or before."""
        if at_ns >= 1 << 63 or self._closed or (self._timer is not None and self._timer_ns <= at_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self._loop.call_later(max(0, at_ns - self.clock.monotonic_ns()) / 1e9, self._tick)

    def _rearm(self, mono_ns: int) -> None:
        """Set the one timer to the earliest of all that is due."""
        acks, pump = self._acks, self._pump
        dues: list[int | None] = [acks.next_due_ns, self._resume_at_ns or None, self._unused_at_ns or None]
        if pump.waiting is not None:
            dues.append(pump.waiting.next_due_ns)
        elif self.config.idle_heartbeat and pump.target is not None and pump.target.active:
            dues.append(self._beat_at_ns)
        if self.config.pause_until is not None:
            left = self.config.pause_until - self.clock.now_ns()
            if left > 0:
                dues.append(mono_ns + left)
        for due in dues:
            if due is not None:
                self._due(due)

    def _tick(self) -> None:
        """Something may be due: look at everything that waits for time."""
        self._timer = None
        if self._closed:
            return
        mono_ns = self.clock.monotonic_ns()
        acks, pump = self._acks, self._pump
        due = acks.next_due_ns
        if due is not None and due <= mono_ns:
            over = acks.expire(mono_ns)
            for seq in over:
                self._events.max_deliver(seq, acks.exhaust(seq))
            if over:
                self._changed()
            self._kick()
        waiting = pump.waiting
        if waiting is not None:
            due = waiting.next_due_ns
            if due is not None and due <= mono_ns:
                # One-shots that max_ack_pending holds back are spared at first, but not when something is due, be it
                # another request's heartbeat: nats-server's loopAndGatherMsgs, which clients have come to count on.
                self._sweep(mono_ns, at_end=self._blocked and not self._scheduled, heartbeats=True)
        else:
            self._beat(mono_ns)
        paused = self.paused
        if self._was_paused and not paused:
            self._events.pause(False, self.config.pause_until)
            self._kick()
        self._was_paused = paused
        if self._resume_at_ns and self._resume_at_ns <= mono_ns:
            self._resume_at_ns = 0
            self._kick()
        if self._unused_at_ns and self._unused_at_ns <= mono_ns and self._unused(mono_ns):
            return
        self._rearm(mono_ns)

    def _beat(self, mono_ns: int) -> None:
        """The idle heartbeat of a push consumer, while somebody listens."""
        beat_ns, target, flow = self.config.idle_heartbeat, self._pump.target, self._pump.flow
        if beat_ns <= 0 or target is None or not target.active:
            return
        self._beat_at_ns = max(self._beat_at_ns, self._pump.sent_mono_ns + beat_ns)
        if self._beat_at_ns > mono_ns:
            return
        stalled = flow.outstanding if flow is not None else b""
        self._status(target.subject, status.idle_heartbeat(self._acks.delivered_cseq, self._cursor.next_seq - 1,
                                                           stalled))
        self._beat_at_ns = mono_ns + beat_ns

    def _unused(self, mono_ns: int) -> bool:
        """The threshold may have passed: returns True once the owner was told. Source: deleteNotActive."""
        threshold_ns, waiting = self._threshold_ns, self._pump.waiting
        self._unused_at_ns = 0
        if waiting is not None:
            idle_ns = mono_ns - self._used_ns
            if idle_ns < threshold_ns:
                self._unused_at_ns = self._used_ns + threshold_ns
                return False
            self._sweep(mono_ns, at_end=True)
            if waiting:
                self._unused_at_ns = mono_ns + threshold_ns
                return False
            # Somebody may still be at work on what was delivered last.
            last_ns = self._acks.last_due_ns
            if last_ns is not None and last_ns + threshold_ns > mono_ns:
                self._unused_at_ns = last_ns + threshold_ns
                return False
        elif self._pump.target is not None and self._pump.target.active:
            return False
        if self.on_inactive is not None:
            self.on_inactive(self)
            return True
        return False

    # ---- parts

    def _adopt(self, config: ConsumerConfig, old: ConsumerConfig | None) -> None:
        """Hand the configuration to the parts."""
        now_ns, mono_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        acks, pump = self._acks, self._pump
        pump.acked = config.ack_policy != "none"
        waits = (config.backoff or [config.ack_wait or 30 * _SECOND_NS]) if pump.acked else []
        if waits != acks.waits_ns:
            acks.set_waits(waits, now_ns, mono_ns)
        acks.max_deliver = max(config.max_deliver, 0)
        pump.ack_pending_max = max(config.max_ack_pending, 0) if pump.acked else 0
        pump.headers_only = config.headers_only
        if old is None:
            self._cursor.filters = Filters([f.encode() for f in config.filters])
            if config.replay_policy == "original":
                pump.replay = Replay(self.stream.last_seq)
            if config.push and config.flow_control:
                pump.flow = FlowWindow()
                self._renew_flow()
            self._beat_at_ns = mono_ns + config.idle_heartbeat
        if config.push:
            if pump.target is None or old is None or (config.deliver_subject, config.deliver_group) != (
                    old.deliver_subject, old.deliver_group):
                pump.target = PushTarget(config.deliver_subject.encode(), config.deliver_group.encode())
            if old is None or config.rate_limit_bps != old.rate_limit_bps:
                burst = self.stream.config.max_msg_size
                pump.rate = RateLimit(config.rate_limit_bps, burst if burst > 0 else _MAX_PAYLOAD,
                                      mono_ns) if config.rate_limit_bps else None
        elif pump.waiting is None:
            pump.waiting = Waiting(config.max_waiting)
            self._intake = Intake(self.bus, acks, self._cursor, pump.waiting)
        self._answers.policy = config.ack_policy
        self._answers.sample_percent = sample_percent(config.sample_freq)
        self._was_paused = self.paused

    def _told(self, seqs: Sequence[int]) -> None:
        if self.on_acked is not None:
            self.on_acked(self, seqs)

    def _changed(self) -> None:
        """The state has something new to store; before it is open, ``open`` sees to that."""
        if not self._dirty and not self._closed:
            self._dirty = True
            self.stream.dirty(self)

    @staticmethod
    def _wants_newer(block: bytes) -> bool:
        level = headers.get(block, b"Nats-Required-Api-Level")
        return level is not None and not (level.isdigit() and len(level) < 10 and int(level) <= _API_LEVEL)

    def _status(self, to: bytes, text: bytes) -> None:
        self.bus.publish(to, b"", len(text), text)
