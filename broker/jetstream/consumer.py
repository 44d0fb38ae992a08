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
from broker.jetstream.ack import Answer, parse_answer, parse_delay, parse_subject
from broker.jetstream.bus import Bus, InterestWatch, Msg, Source, Subscription
from broker.jetstream.consumer_config import ConsumerConfig
from broker.jetstream.consumer_events import DELETED_REASON, ConsumerEvents, unique_id
from broker.jetstream.cursor import Cursor, Loading
from broker.jetstream.delivery import AckState
from broker.jetstream.errors import ApiError
from broker.jetstream.filters import Filters
from broker.jetstream.pull import BadRequest, Waiting, WaitingRequest, parse_request
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
"""After a read of the store failed, which the store's own retries did not cure."""
_COUNT_LAG = 16_384
"""Uncounted messages after which an idle consumer counts them, while their chunks are still in the cache."""
_MAX_PAYLOAD = 1 << 20
_API_LEVEL = 5
_PLAIN_ACKS = (b"", b"+ACK", b"+OK")


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
                 rng: random.Random, *, loop: Scheduler | None = None) -> None:
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
        self._events = ConsumerEvents(bus, clock, rng, stream.name, self.name)
        self._closed = True
        self._acks = AckState((), 0, 1)
        self._acks.restore(state, clock.now_ns(), clock.monotonic_ns())
        # Deliveries up to here may have gone out without our knowing: a crash forgets up to a second of them.
        self._forgotten_seq = stream.last_seq
        self._resume = int(state.extra.get("resume", 0))
        self._cursor = Cursor(stream, Filters(), state.delivered_sseq + 1, self._acks.ahead)
        self._pump = Pump(bus, self._acks, self._cursor, self._events, self._ack_prefix + b".")
        self._subscriptions: list[Subscription] = []
        self._watch: InterestWatch | None = None
        self._timer: Any = None
        self._timer_ns = 0
        self._scheduled = False
        self._loading = False
        self._counting = False
        self._dirty = False
        self._blocked = False
        self._resume_at_ns = 0
        self._beat_at_ns = 0
        self._threshold_ns = 0
        self._used_ns = 0
        self._unused_at_ns = 0
        self._swept_ns = 0
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
        mono_ns = self.clock.monotonic_ns()
        config, bus = self.config, self.bus
        self._closed = False
        if config.push and config.flow_control:
            self._subscriptions.append(bus.subscribe(self._flow_prefix.encode() + b"*", self.on_flow))
        self._watch_target()
        self._used(mono_ns)
        self._rearm(mono_ns)
        self._kick()

    def stop(self) -> None:
        """Stop serving, silently; the state stays as it is."""
        self._closed = True
        for subscription in self._subscriptions:
            self.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self) -> None:
        """Stop because the server does: every waiting pull hears of it."""
        if not self._closed and self._pump.waiting is not None:
            self._publish(self._pump.waiting.drain(status.SERVER_SHUTDOWN, pending=True))
        self.stop()

    def delete(self, text: bytes = status.CONSUMER_DELETED) -> None:
        """Stop because the consumer (or its stream) is deleted: every waiting pull gets ``text``."""
        if not self._closed and self._pump.waiting is not None:
            self._publish(self._pump.waiting.drain(text))
        self.stop()

    def update(self, config: ConsumerConfig) -> None:
        """Take an updated configuration, already judged against the present one."""
        old, self.config = self.config, config
        mono_ns = self.clock.monotonic_ns()
        self._adopt(config, old)
        if config.deliver_subject != old.deliver_subject or config.deliver_group != old.deliver_group:
            self._acks.expire_all()
            self._watch_target()
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
        self._forgotten_seq = 0
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
            if not self._cursor.known:
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
        if waiting is not None and not self._closed:
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
                    self._events.terminated(seq, acks.pending[seq].cseq_of(seq), acks.redelivered.get(seq, 0) + 1,
                                            DELETED_REASON)
            lost = [s for s in acks.redelivered if first_seq <= s <= last_seq and s not in acks.pending]
            if gone or lost:
                acks.drop(gone)
                acks.drop(lost)
                acks.settle()
                self._changed()
                self._kick()
        if not self._cursor.known:
            self._count_soon()

    def purged(self, next_seq: int) -> None:
        """Everything that this consumer could get below ``next_seq`` was purged: it goes on there.

        Source: nats-server consumer.go purge.
        """
        if self._cursor.next_seq < next_seq:
            self._cursor.jump(next_seq)
        self._acks.purge(next_seq)
        self._changed()
        self._count_soon()

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
        self._kick()

    def on_ack(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Answers to deliveries: $JS.ACK.<stream>.<consumer>.> and its longer form."""
        if self._closed:
            return
        mono_ns = self.clock.monotonic_ns()
        self._used_ns = mono_ns
        prefix = self._ack_prefix
        replies: list[bytes] = []
        plain: list[int] = []
        fast = self.config.ack_policy == "explicit" and not self.config.sample_freq
        for i in range(start, end):
            subject, reply, hlen, body = ops[i]
            if fast and not hlen and body in _PLAIN_ACKS:
                # The common answer: one split, and all of a run acked together.
                tokens = subject.rsplit(b".", 5)
                if tokens[0] == prefix and tokens[2].isdigit() and len(tokens[2]) < 20:
                    plain.append(int(tokens[2]))
                    if reply:
                        replies += self._plain(plain, reply, now_ns)
                    continue
            if plain:
                self._plain(plain, b"", now_ns)
            if self._answer(subject, reply, body[hlen:] if hlen else body, now_ns, mono_ns) and reply:
                replies.append(reply)
        if plain:
            self._plain(plain, b"", now_ns)
        self._acks.settle()
        if replies:
            self._acknowledge(replies)
        if self._acks.changed:
            self._changed()
        if self._acks.queue or self._blocked:
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

    # ---- pull requests

    def _request(self, reply: bytes, body: bytes, mono_ns: int) -> None:
        """Judge one pull request and let it wait, in the order of processNextMsgRequest."""
        waiting = self._pump.waiting
        if waiting is None:
            self._status(reply, status.PUSH_BASED)
            return
        try:
            request = parse_request(body)
        except BadRequest as error:
            self._status(reply, status.line(f"400 Bad Request - {error.text}"))
            return
        if refusal := self._refusal(request.batch, request.expires, request.max_bytes):
            self._status(reply, status.line(refusal))
            return
        if request.min_pending or request.min_ack_pending:
            self._status(reply, status.line("400 Bad Request - Not a Overflow Priority consumer"))
            return
        if request.id:
            self._status(reply, status.line("400 Bad Request - Not a Pinned Client Priority consumer"))
            return
        if not 0 <= request.priority <= 9:
            self._status(reply, status.line("400 Bad Request - Priority must be between 0 and 9"))
            return
        if waiting.full and mono_ns - self._swept_ns > _SECOND_NS:
            self._sweep(mono_ns, at_end=False)
        if request.no_wait and self._one_shot_refused(reply, waiting, request.expires, mono_ns):
            return
        if waiting.full:
            # A client with heartbeats would only ask again at once; it learns from their absence instead.
            if not request.idle_heartbeat:
                self._status(reply, status.line("409 Exceeded MaxWaiting"))
            return
        entry = WaitingRequest(reply, request, mono_ns)
        waiting.add(entry)
        self._due(min(entry.expires_ns, entry.heartbeat_at_ns))

    def _refusal(self, batch: int, expires_ns: int, max_bytes: int) -> str:
        """The text of a request over the consumer's limits, or ""."""
        config = self.config
        if 0 < config.max_batch < batch:
            return f"409 Exceeded MaxRequestBatch of {config.max_batch}"
        if 0 < config.max_expires < expires_ns:
            return f"409 Exceeded MaxRequestExpires of {wire.format_duration(config.max_expires)}"
        if 0 < config.max_bytes < max_bytes:
            return f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}"
        return ""

    def _one_shot_refused(self, reply: bytes, waiting: Waiting, expires_ns: int, mono_ns: int) -> bool:
        """Whether a no_wait request ends at once: nothing there, or others in front want it all."""
        if not self._cursor.known or self._cursor.count() is not None:
            return False  # not known yet: the pump will find out
        pending = max(0, self._cursor.pending) + len(self._acks.queue)
        if not pending:
            if not expires_ns:
                self._status(reply, status.NO_MESSAGES)
                return True
            return False
        self._sweep(mono_ns, at_end=False)
        if pending < waiting.wanted:
            self._status(reply, status.line("408 Requests Pending"))
            return True
        return False

    def _sweep(self, mono_ns: int, *, at_end: bool, heartbeats: bool = False) -> None:
        """Let go of requests that are over."""
        waiting = self._pump.waiting
        if not waiting:
            return
        self._swept_ns = mono_ns
        beat = status.idle_heartbeat(self._acks.delivered_cseq, self._cursor.next_seq - 1) if heartbeats else None
        self._publish(waiting.sweep(mono_ns, self.bus.interest, at_end=at_end, heartbeat=beat))

    # ---- answers

    def _plain(self, seqs: list[int], reply: bytes, now_ns: int) -> list[bytes]:
        """Ack ``seqs`` (explicit) and empty the list; returns ``reply``, of the last one, if it is to be answered."""
        acks, next_seq = self._acks, self._cursor.next_seq
        answered = bool(reply)
        if max(seqs) >= next_seq or min(seqs) <= 0:
            beyond = [s for s in seqs if s >= next_seq or s <= 0]
            answered = answered and (seqs[-1] < next_seq or self._forgotten(seqs[-1])) and seqs[-1] > 0
            for seq in beyond:
                self._ahead(seq, now_ns)
            seqs[:] = [s for s in seqs if 0 < s < next_seq]
        if seqs:
            acks.ack(seqs, now_ns)
            if self.on_acked is not None:
                self.on_acked(self, list(seqs))
            seqs.clear()
        return [reply] if answered else []

    def _answer(self, subject: bytes, reply: bytes, payload: bytes, now_ns: int, mono_ns: int) -> bool:
        """Take any answer; returns whether its reply, if it has one, is due."""
        info = parse_subject(subject)
        seq, cseq, deliveries = info.stream_seq, info.consumer_seq, info.delivered
        kind, argument = parse_answer(payload)
        acks = self._acks
        match kind:
            case Answer.ACK:
                return self._ack(seq, cseq, deliveries, now_ns, sample=True)
            case Answer.NEXT:
                self._ack(seq, cseq, deliveries, now_ns, sample=True)
                if reply:
                    acks.settle()
                    self._request(reply, argument, mono_ns)
                    self._kick()
                return False
            case Answer.TERM:
                done = self._ack(seq, cseq, deliveries, now_ns, sample=False)
                reason = argument.strip().decode("utf-8", "replace")
                self._events.terminated(seq, cseq, deliveries, reason)
                return done
            case Answer.NAK:
                self._nak(seq, cseq, deliveries, argument, now_ns, mono_ns)
            case Answer.PROGRESS:
                acks.progress(seq, now_ns, mono_ns)
                self._due_acks()
        return seq > 0

    def _ack(self, seq: int, cseq: int, deliveries: int, now_ns: int, *, sample: bool) -> bool:
        """Ack one message (or, with ack all, everything up to it); returns whether that is to be answered."""
        if seq <= 0:
            return False
        acks = self._acks
        if seq >= self._cursor.next_seq:
            return self._ahead(seq, now_ns, cseq)
        if self.config.ack_policy == "all":
            done: Sequence[int] = acks.ack_all(seq, cseq, now_ns)
            if self.on_acked is not None and done:
                self.on_acked(self, done)
            return True
        if sample and seq in acks.pending and self._sampled():
            self._events.sampled_ack(seq, cseq, max(1, now_ns - acks.pending[seq].at_ns), deliveries)
        acks.ack((seq,), now_ns)
        if self.on_acked is not None:
            self.on_acked(self, (seq,))
        return True

    def _forgotten(self, seq: int) -> bool:
        return seq <= min(self._forgotten_seq, self.stream.persisted_seq)

    def _ahead(self, seq: int, now_ns: int, cseq: int = 0) -> bool:
        """An ack beyond what we delivered: taken when a crash may have forgotten that delivery, else ignored."""
        if seq <= 0 or not self._forgotten(seq):
            return False
        acks = self._acks
        if self.config.ack_policy == "all":
            # What lies before it had been delivered too, and is acked with it.
            acks.ack_all(seq, max(cseq, acks.floor_cseq + 1), now_ns)
            acks.delivered_sseq, acks.delivered_cseq = seq, max(acks.delivered_cseq, acks.floor_cseq)
            self._cursor.jump(seq + 1)
            self._count_soon()
        elif self._cursor.is_to_come(seq) and acks.ack_ahead(seq, now_ns):
            self._cursor.acked_ahead(seq)
        if self.on_acked is not None:
            self.on_acked(self, (seq,))
        return True

    def _nak(self, seq: int, cseq: int, deliveries: int, argument: bytes, now_ns: int, mono_ns: int) -> None:
        acks = self._acks
        if not acks.floor_cseq < cseq <= acks.delivered_cseq or seq not in acks.pending:
            return
        self._events.nak(seq, cseq, deliveries)
        delay_ns = parse_delay(argument)
        if delay_ns is not None:
            acks.nak_later(seq, delay_ns, now_ns, mono_ns)
            self._due_acks()
        elif not acks.nak(seq):
            self._events.max_deliver(seq, acks.exhaust(seq))

    def _sampled(self) -> bool:
        text = self.config.sample_freq.removesuffix("%")
        try:
            percent = int(text)
        except ValueError:
            return False
        return percent >= 100 or (percent > 0 and self.rng.randrange(100) < percent)

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
        if not self._cursor.known:
            self._count_soon()
            return
        mono_ns = self.clock.monotonic_ns()
        self._blocked = False
        if self._resume_at_ns > mono_ns:
            return
        self._resume_at_ns = 0
        if self.paused:
            self._sweep(mono_ns, at_end=True)
            return
        if self.stream.log.muted:
            return  # past the lease: the commit that ends this wakes us
        acks, cursor = self._acks, self._cursor
        step = self._pump.run(self.clock.now_ns(), mono_ns)
        if acks.ahead:
            acks.forget_ahead(cursor.next_seq)
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
            logger.warning("consumer %s > %s: reading failed, trying again: %s", self.stream.name, self.name, error)
            self._resume_at_ns = self.clock.monotonic_ns() + _RETRY_NS
            self._due(self._resume_at_ns)
        finally:
            self._loading = False
            self._kick()

    def _count_soon(self) -> None:
        if not self._counting and not self._closed and not self._cursor.known:
            self._counting = True
            self._loop.create_task(self._recount())

    async def _recount(self) -> None:
        try:
            await self._cursor.recount()
        except Exception as error:
            logger.warning("consumer %s > %s: counting failed, trying again: %s", self.stream.name, self.name, error)
            self._resume_at_ns = self.clock.monotonic_ns() + _RETRY_NS
            self._due(self._resume_at_ns)
        finally:
            self._counting = False
            if self._cursor.known:
                self._kick()

    # ---- push

    def _watch_target(self) -> None:
        """Follow the interest in deliver_subject."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        target = self._pump.target
        if target is None or (self._closed and not self._subscriptions):
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
                acks.settle()
                self._changed()
            self._kick()
        waiting = pump.waiting
        if waiting is not None:
            due = waiting.next_due_ns
            if due is not None and due <= mono_ns:
                self._sweep(mono_ns, at_end=False, heartbeats=True)
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
        self._was_paused = self.paused

    def _changed(self) -> None:
        """The state has something new to store."""
        if not self._dirty:
            self._dirty = True
            self.stream.dirty(self)

    @staticmethod
    def _wants_newer(block: bytes) -> bool:
        level = headers.get(block, b"Nats-Required-Api-Level")
        return level is not None and not (level.isdigit() and len(level) < 10 and int(level) <= _API_LEVEL)

    def _status(self, to: bytes, text: bytes) -> None:
        self.bus.publish(to, b"", len(text), text)

    def _publish(self, statuses: list[tuple[bytes, bytes]]) -> None:
        for to, text in statuses:
            self.bus.publish(to, b"", len(text), text)
