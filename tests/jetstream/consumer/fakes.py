"""Fakes of a consumer's neighbours: a stream with messages in memory, a bus that records, a virtual loop."""

from __future__ import annotations

import heapq
import json
import random
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.filters import Filters
from broker.storage.format.frame import Chunk
from broker.storage.format.record import Record
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.state.consumer import ConsumerState
from tests.manual_clock import ManualClock

MS = 1_000_000
SECOND = 1_000_000_000


class VirtualLoop:
    """A loop with call_soon, call_later and tasks, run by hand: nothing happens until ``settle`` or ``advance``."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ready: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.timers: list[list[Any]] = []
        self._n = 0

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        self._n += 1
        entry = [self.clock.monotonic_ns() + max(0, round(delay * 1e9)), self._n, callback, args]
        heapq.heappush(self.timers, entry)
        return Timer(entry)

    def create_task(self, coro: Coroutine[Any, Any, None]) -> None:
        self.call_soon(self._step, coro)

    def _step(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            awaited = coro.send(None)
        except StopIteration:
            return
        assert awaited is None, "only bare yields are awaited on this loop"
        self.call_soon(self._step, coro)

    def settle(self, turns: int = 10_000) -> None:
        """Run ready callbacks until there are none."""
        for _ in range(turns):
            if not self.ready:
                return
            callback, args = self.ready.pop(0)
            callback(*args)
        raise AssertionError("the loop does not come to rest")

    def advance(self, ns: int) -> None:
        """Let time pass, firing timers in order."""
        self.settle()
        until = self.clock.monotonic_ns() + ns
        while self.timers and self.timers[0][0] <= until:
            at_ns, _, callback, args = heapq.heappop(self.timers)
            if callback is None:
                continue
            self.clock.advance(max(0, at_ns - self.clock.monotonic_ns()))
            callback(*args)
            self.settle()
        self.clock.advance(until - self.clock.monotonic_ns())
        self.settle()


class Timer:
    def __init__(self, entry: list[Any]) -> None:
        self._entry = entry

    def cancel(self) -> None:
        self._entry[2] = None


class Turn:
    """Awaitable for one turn of the virtual loop."""

    def __await__(self) -> Any:
        yield None


class Delivered:
    """A message as a subscriber sees it."""

    def __init__(self, to: bytes, subject: bytes, reply: bytes, hlen: int, body: bytes) -> None:
        self.to = to
        self.subject = subject
        self.reply = reply
        self.headers = body[:hlen]
        self.payload = body[hlen:]
        numbers = reply.split(b".")
        self.is_message = reply.startswith(b"$JS.ACK.")
        if self.is_message:
            self.count, self.seq, self.cseq, self.time_ns, self.pending = map(int, numbers[-5:])

    @property
    def status(self) -> str:
        return self.headers.split(b"\r\n")[0].decode()[len("NATS/1.0 "):]

    def __repr__(self) -> str:
        return f"<{self.seq} to {self.to!r}>" if self.is_message else f"<{self.status} to {self.to!r}>"


class FakeBus:
    """A bus that records everything sent. Inboxes have interest unless in ``deaf``,
    other subjects only if in ``wanted``."""

    tracer: Any = None

    def __init__(self) -> None:
        self.sent: list[Delivered] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.batches: list[int] = []
        self.wanted: set[bytes] = set()
        self.deaf: set[bytes] = set()
        self.pending: dict[bytes, int] = {}
        self.room: dict[bytes, int] = {}
        self.subscriptions: dict[bytes, Callable[..., None]] = {}
        self.watches: list[FakeWatch] = []
        self.listens_to_events = True

    def count_work(self, amount: int) -> None:
        """Do nothing: no turn is cut short here."""

    def subscribe(self, subject: bytes, handler: Callable[..., None], *, queue: bytes = b"") -> FakeSubscription:
        self.subscriptions[subject] = handler
        return FakeSubscription(subject)

    def unsubscribe(self, subscription: FakeSubscription) -> None:
        del self.subscriptions[subscription.subject]

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        if subject.startswith(b"$JS.EVENT."):
            return self.listens_to_events
        if subject.startswith(b"_INBOX."):
            return subject not in self.deaf
        return subject in self.wanted

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        if subject.startswith(b"$JS.EVENT."):
            self.events.append((subject.decode(), json.loads(body)))
        else:
            self.sent.append(Delivered(subject, subject, reply, hlen, body))
        return int(self.interest(subject))

    def deliver(self, to: bytes, batch: Any, *, queue: bytes = b"") -> int:
        if not self.interest(to):
            return 0
        n = min(len(batch), self.room.get(to, 1 << 30))
        columns = (batch.delivered, batch.stream_seqs, batch.consumer_seqs, batch.times_ns, batch.pendings)
        assert all(len(column) == len(batch) for column in (*columns, batch.subjects, batch.bodies))
        self.batches.append(n)
        for i in range(n):
            numbers = b".".join(b"%d" % column[i] for column in columns)
            hlen = 0 if batch.hlens is None else batch.hlens[i]
            self.sent.append(Delivered(to, batch.subjects[i], batch.reply_prefix + numbers, hlen, batch.bodies[i]))
        return n

    def pub_acks(self, *args: Any) -> None:
        raise AssertionError("consumers publish no PubAcks")

    pub_acks_each = pub_acks

    def pending_bytes(self, subject: bytes) -> int:
        return self.pending.get(subject, 0)

    def watch_interest(self, subject: bytes, queue: bytes, changed: Callable[[bool], None]) -> FakeWatch:
        watch = FakeWatch(subject, self.interest(subject), changed)
        self.watches.append(watch)
        return watch

    def listen(self, subject: bytes, on: bool = True) -> None:
        """Begin or end interest in ``subject``."""
        (self.wanted.add if on else self.wanted.discard)(subject)
        for watch in self.watches:
            if watch.subject == subject and not watch.cancelled and watch.interested != on:
                watch.interested = on
                watch.changed(on)

    def pop_sent(self) -> list[Delivered]:
        """Return the messages sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class FakeSubscription:
    def __init__(self, subject: bytes) -> None:
        self.subject = subject


class FakeWatch:
    def __init__(self, subject: bytes, interested: bool, changed: Callable[[bool], None]) -> None:
        self.subject = subject
        self.interested = interested
        self.changed = changed
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLog:
    """A log whose waiters run when ``persist`` is called, or at once."""

    def __init__(self) -> None:
        self.lease_expired = False
        self.held = False
        self.barriers = 0
        self.asked: list[str] = []
        """The calls of ``block`` and ``urgent``."""
        self.waiters: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def lease_held(self) -> bool:
        return not self.lease_expired

    def barrier(self, owner: object = None) -> None:
        self.barriers += 1

    def block(self, owner: object) -> None:
        self.asked.append("block")

    def urgent(self) -> None:
        self.asked.append("urgent")

    def wait(self, fn: Callable[..., object], *args: Any, of: object = None) -> None:
        if self.held:
            self.waiters.append((fn, args))
        else:
            fn(*args)

    def persist(self) -> None:
        waiters, self.waiters = self.waiters, []
        for fn, args in waiters:
            fn(*args)


class FakeBlock:
    def __init__(self, last_seq: int, dead: set[int]) -> None:
        self.last_seq = last_seq
        self.dead = dead or None


class FakeLoading:
    def __init__(self, seq: int) -> None:
        self.ready = Turn()
        self.seq = seq


class FakeReferences:
    """References of a stream that has none."""

    refusal = "there are none"

    def lines(self, seq: int) -> bytes | None:
        """Return no reference."""
        return None


class FakeStream:
    """A stream with its messages in chunks of ``chunk_messages``.

    ``not_loaded`` makes each chunk need one load before it is returned, and ``indexed`` lets the stream know where the
    messages of a subject are.
    """

    def __init__(self, clock: ManualClock, *, chunk_messages: int = 100) -> None:
        self.clock = clock
        self.name = "S"
        self.account = "$G"
        self.domain = ""
        self.config = StreamConfig(name="S", subjects=[">"])
        self.log = FakeLog()
        self.references = FakeReferences()
        self.chunk_messages = chunk_messages
        self.first_seq = 1
        self.last_seq = 0
        self.safe_seq = 0
        self.messages: dict[int, tuple[bytes, int, bytes, int]] = {}
        self.dead: set[int] = set()
        self.consumers: list[Consumer] = []
        self.dirtied = 0
        self.acknowledged: list[int] = []
        self.acknowledged_from: list[int] = []
        self.not_loaded = False
        self.indexed = False
        self._warm: set[int] = set()
        self._chunks: dict[int, Chunk] = {}

    def add(self, *subjects: str, headers: bytes = b"", payload: bytes | None = None) -> None:
        """Publish and persist one message on each subject."""
        for subject in subjects:
            self.last_seq += 1
            body = payload if payload is not None else b"m%d" % self.last_seq
            self.messages[self.last_seq] = subject.encode(), len(headers), headers + body, self.clock.now_ns()
        self.safe_seq = self.last_seq
        self._chunks.clear()
        for consumer in self.consumers:
            consumer.wake()

    def remove(self, *seqs: int, purged: bool = False) -> None:
        """Remove messages from the stream, one by one."""
        for seq in seqs:
            if seq in self.dead:
                continue
            self.dead.add(seq)
            for consumer in self.consumers:
                consumer.removed(seq, seq, 1, self.messages[seq][0], purged=purged)

    def live(self, start: int = 1) -> list[int]:
        return [s for s in self.messages if s >= start and s >= self.first_seq and s not in self.dead]

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, FakeBlock, int] | FakeLoading | None:
        while seq <= self.safe_seq:
            number = (seq - 1) // self.chunk_messages
            first = number * self.chunk_messages + 1
            last = min(first + self.chunk_messages - 1, self.safe_seq)
            rows = [self.messages[s] for s in range(first, last + 1)]
            if all(s in self.dead for s in range(seq, last + 1)) or (filters and not filters.any(r[0] for r in rows)):
                seq = last + 1
                continue
            if self.not_loaded and number not in self._warm:
                self._warm.add(number)
                return FakeLoading(max(seq, self.first_seq))
            self._warm.discard(number)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = Chunk(
                    0, first, None, [r[0] for r in rows], [r[1] for r in rows] if any(r[1] for r in rows) else None,
                    [r[2] for r in rows], array("q", [r[3] for r in rows]), sum(len(r[2]) for r in rows))
            return chunk, FakeBlock(last, {s for s in self.dead if first <= s <= last}), seq - first
        return None

    def known_seqs(self, filters: Filters, seq: int, most: int) -> list[int] | None:
        if not self.indexed or len(filters.subjects) != 1 or not filters.literal:
            return None
        return [s for s in self.live(seq) if s <= self.safe_seq and filters.match(self.messages[s][0])][:most]

    def chunk_of(self, seq: int) -> tuple[Chunk, FakeBlock, int] | None:
        found = None if self.not_loaded else self.next_chunk(seq, None)
        return found if isinstance(found, tuple) else None

    def may_hold(self, seq: int) -> bool:
        return seq in self.messages and seq >= self.first_seq and seq not in self.dead

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        await Turn()
        found = [s for s in self.live(seq) if s <= self.safe_seq
                 and (filters is None or filters.match(self.messages[s][0]))]
        return len(found), self.safe_seq

    async def last_seqs(self, filters: Filters | None) -> list[int]:
        found = [s for s in self.live() if filters is None or filters.match(self.messages[s][0])]
        return found[-1:]

    async def last_seqs_by_subject(self, filters: Filters, up_to: int) -> list[int]:
        last: dict[bytes, int] = {}
        for seq in self.live():
            if seq <= up_to and filters.match(self.messages[seq][0]):
                last[self.messages[seq][0]] = seq
        return sorted(last.values())

    async def seq_at(self, time_ns: int) -> int:
        return next((s for s in self.live() if self.messages[s][3] >= time_ns), self.last_seq + 1)

    def acked(self, seqs: Sequence[int]) -> None:
        self.acknowledged += seqs

    def acked_from(self, seq: int) -> None:
        self.acknowledged_from.append(seq)

    def dirty(self, consumer: Consumer) -> None:
        self.dirtied += 1


def run(loop: VirtualLoop, coro: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, with the virtual loop running meanwhile."""
    result: list[Any] = []

    async def main() -> None:
        result.append(await coro)

    loop.create_task(main())
    loop.settle()
    assert result, "the coroutine did not end"
    return result[0]


class World:
    """A stream, a bus and a loop, and consumers on them."""

    def __init__(self, *, chunk_messages: int = 100) -> None:
        self.clock = ManualClock()
        self.loop = VirtualLoop(self.clock)
        self.bus = FakeBus()
        self.stream = FakeStream(self.clock, chunk_messages=chunk_messages)
        self.rng = random.Random(7)

    def consumer(self, state: ConsumerState | None = None, receiver: Any = None, **config: Any) -> Consumer:
        """Return an open consumer; by default with explicit acks and an ack_wait of 30 s."""
        from broker.jetstream.consumer.start import starting_state

        full: dict[str, Any] = {"durable_name": "C", "ack_policy": "explicit", "max_deliver": -1, "max_waiting": 512}
        full.update(config)
        if full["ack_policy"] != "none":
            full.setdefault("ack_wait", full["backoff"][0] if full.get("backoff") else 30 * SECOND)
            full.setdefault("max_ack_pending", 1000)
        made = ConsumerConfig(**full)
        restored = state is not None
        if state is None:
            start = run(self.loop, starting_state(self.stream, "C", made)).record  # type: ignore[arg-type]
            state = ConsumerState.created(ConsumerCreate("C", made.to_json(), self.clock.now_ns(), start))
        consumer = Consumer(self.stream, made, state, self.bus, self.clock, self.rng, restored=restored,
                            loop=self.loop, receiver=receiver)  # type: ignore[arg-type]
        self.stream.consumers.append(consumer)
        run(self.loop, consumer.open())
        self.loop.settle()
        return consumer

    def pull(self, consumer: Consumer, body: bytes | dict[str, Any] = b"", *, inbox: bytes = b"_INBOX.a",
             headers: bytes = b"") -> list[Delivered]:
        """Send one pull request; returns the messages sent at once."""
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        op = (b"$JS.API.CONSUMER.MSG.NEXT.S.C", inbox, len(headers), headers + payload)
        consumer.on_next([op], 0, 1, None, self.clock.now_ns())
        self.loop.settle()
        return self.bus.pop_sent()

    def ack(self, consumer: Consumer, *messages: Delivered, body: bytes = b"+ACK",
            reply: bytes = b"") -> list[Delivered]:
        """Ack deliveries in one run; returns the messages sent at once."""
        ops = [(m.reply, reply, 0, body) for m in messages]
        consumer.on_ack(ops, 0, len(ops), None, self.clock.now_ns())
        self.loop.settle()
        return self.bus.pop_sent()

    def pass_time(self, ns: int) -> list[Delivered]:
        """Let time pass; returns the messages sent meanwhile."""
        self.loop.advance(ns)
        return self.bus.pop_sent()

    def stored(self, consumer: Consumer, state: ConsumerState) -> ConsumerState:
        """Fold the consumer's delta into ``state``, as a segment's replay does."""
        delta = consumer.pop_delta()
        if delta is not None:
            state.apply_delta(ConsumerDelta.decode(Record.pack(delta, 0).body))
        return state

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events whose subject contains ``kind``, in order."""
        return [event for subject, event in self.bus.events if kind in subject]


def fresh_state(consumer: Consumer, start_seq: int = 1) -> ConsumerState:
    """Return the stored state of a consumer that has just been created."""
    state = ConsumerState(consumer.name, consumer.config.to_json(), consumer.created_ns)
    state.delivered_sseq = state.floor_sseq = start_seq - 1
    return state


def seqs(sent: Sequence[Delivered]) -> list[int]:
    """Return the stream sequences of the messages in ``sent``."""
    return [d.seq for d in sent if d.is_message]


def statuses(sent: Sequence[Delivered]) -> list[str]:
    """Return the status lines in ``sent``."""
    return [d.status for d in sent if not d.is_message]
