"""Receives the deliveries of a push consumer for a mirror or source.

    deliver_subject ──> messages, heartbeats   ──> Batch: messages in order, without a gap
                    ──> a flow control request ──> FlowRequest

    NamedDeliveries   an existing consumer that the configuration names; it is reset, and begins again after its ack
                      floor. It acks by flow control, so the copying stream has stored all messages that the consumer
                      counts as acked.
    RemoteDeliveries  a consumer of another server (``remote``), created for this copy

After a gap, or some seconds without a message or heartbeat, the consumer must be reset or created again (``Lost``).

Does not own: storing messages, and the time of an answer (follower).

Source: nats-server, server/stream.go, setupMirrorConsumer, trySetupSourceConsumer, processInboundSourceMsg.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import le
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from broker.jetstream.stream.upstream.link import NoAnswer, ask, identity_in
from broker.jetstream.stream.upstream.origin import Batch
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import INT64_MAX, SEQ_MAX, decimal
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source, Subscription
    from broker.jetstream.config.stream import StreamSource
    from broker.jetstream.stream.upstream.link import Link

__all__ = ["Deliveries", "FlowRequest", "Lost", "NamedDeliveries"]

MSGS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
WAITING_BYTES_MAX = 64 << 20
"""Bytes of messages that wait to be stored. Beyond this, messages are dropped and the consumer is reset; flow control
normally prevents that."""

_STATUS = b"NATS/1.0 100 "

_ALIKE_MIN = 8
"""Fewer messages are read one by one."""


class Lost(Exception):
    """Raised if a delivery is missing: the consumer must be reset."""


class FlowRequest(NamedTuple):
    """A flow control request: answer to ``reply`` once all messages up to ``stream_seq`` are stored."""

    reply: bytes
    stream_seq: int
    consumer_seq: int


class Deliveries:
    """The deliveries of one consumer to one subject, to the end of the ``with`` block.

    Attributes: ``identity``: identity of the origin; ``stream_seq``: the last sequence before those delivered; both are
        known after ``open``. ``lag``: number of messages not delivered yet.
    """

    SILENCE_SECONDS: ClassVar[float] = 10.0
    KEEPS_EXPECTATIONS: ClassVar[bool] = False
    """Keep headers that are meant only for the origin."""

    ACKS: ClassVar[bool] = False
    """Answers to flow control requests ack messages, which then have to be persisted first."""

    def __init__(self, link: Link, to: bytes) -> None:
        self.identity = ""
        self.stream_seq = self.consumer_seq = self.lag = 0
        self._link = link
        self._to = to
        self._waiting: deque[Msg] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._subscriptions:
            self._link.unsubscribe(self._subscriptions.pop())

    async def open(self) -> None:
        """Subscribe, and let the consumer begin. Raises: ApiError."""
        raise NotImplementedError

    def answer(self, request: FlowRequest) -> None:
        """Answer a flow control request."""
        raise NotImplementedError

    def _accepts(self, source: Source | None) -> bool:
        """Return whether a message may be a delivery, by its publisher."""
        raise NotImplementedError

    def _subscribe(self) -> None:
        self._subscriptions.append(self._link.subscribe(self._to, self._queue_messages))

    def _queue_messages(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        if not self._accepts(source):
            return
        if self._bytes < WAITING_BYTES_MAX:
            run = ops[start:end]
            self._waiting += run
            self._bytes += sum(len(body) for _, _, _, body in run)
        self._arrived.set()

    async def read(self) -> Batch | FlowRequest:
        """Wait for the next batch or request. Raises: Lost."""
        while True:
            while self._waiting:
                if (found := self._next()) is not None:
                    return found
            self._arrived.clear()
            try:
                async with asyncio.timeout(self.SILENCE_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                raise Lost("the consumer sends nothing") from None

    def _next(self) -> Batch | FlowRequest | None:
        """Return the messages received up to the next status, or the request of that status; None: nothing to do."""
        if len(self._waiting) >= _ALIKE_MIN and (alike := self._alike()) is not None:
            return alike
        batch, size = Batch(), 0
        while self._waiting and len(batch.seqs) < MSGS_AT_ONCE and size < BYTES_AT_ONCE:
            subject, reply, hlen, body = self._waiting[0]
            if hlen == len(body) and body.startswith(_STATUS):
                if batch.seqs:
                    break
                self._drop()
                return self._status(reply, body)
            self._drop()
            numbers = self._numbers(reply)
            if numbers is None:
                continue  # not a delivery of this consumer
            deliveries, stream_seq, consumer_seq, time_ns, pending = numbers
            if deliveries > 1 or consumer_seq != self.consumer_seq + 1:
                raise Lost(f"delivery {consumer_seq} came after {self.consumer_seq}")
            self.consumer_seq, self.lag = consumer_seq, max(pending - 1, 0)
            if stream_seq <= self.stream_seq:
                continue  # stored before
            self.stream_seq = stream_seq
            size += batch.add(stream_seq, subject, hlen, body, time_ns, keep=self.KEEPS_EXPECTATIONS)
        batch.end_seq = self.stream_seq + 1
        return batch if batch.seqs else None

    def _alike(self) -> Batch | None:
        """Return the next messages as a batch if each is the next delivery of the consumer, as nearly all are.

        This is several times faster than to read them one by one. Nothing has changed if the result is None.
        """
        subjects, replies, hlens, bodies = zip(*islice(self._waiting, MSGS_AT_ONCE), strict=True)
        sizes = list(map(len, bodies))
        count = len(sizes)
        if any(hlens):
            count = next((at for at, (hlen, size) in enumerate(zip(hlens, sizes, strict=True))
                          if hlen == size and bodies[at].startswith(_STATUS)), count)
            if not self.KEEPS_EXPECTATIONS:
                return None
        size = sum(sizes[:count])
        if count < _ALIKE_MIN or size > BYTES_AT_ONCE:
            return None
        tokens = [reply.rsplit(b".", 5) for reply in replies[:count]]
        head = tokens[0][0]
        names = head.split(b".")
        if len(names) not in (4, 6) or names[:2] != [b"$JS", b"ACK"] or not self._is_ours(names[-2:]):
            return None
        if any(len(one) != 6 or one[0] != head or one[1] != b"1" for one in tokens):
            return None
        columns: list[list[int]] = []
        for at in range(2, 6):
            column = _numbers([one[at] for one in tokens])
            if column is None:
                return None
            columns.append(column)
        seqs, consumer_seqs, times_ns, pending = columns
        first = self.consumer_seq + 1
        if (consumer_seqs != list(range(first, first + count)) or seqs[0] <= self.stream_seq
                or any(map(le, seqs[1:], seqs))):
            return None
        for _ in range(count):
            self._waiting.popleft()
        self._bytes -= size
        self.consumer_seq, self.stream_seq, self.lag = consumer_seqs[-1], seqs[-1], max(pending[-1] - 1, 0)
        batch = Batch()
        batch.seqs, batch.times_ns, batch.end_seq = seqs, times_ns, seqs[-1] + 1
        batch.subjects, batch.hlens, batch.bodies = list(subjects[:count]), list(hlens[:count]), list(bodies[:count])
        return batch

    def _status(self, reply: bytes, block: bytes) -> FlowRequest | None:
        if reply:
            return FlowRequest(reply, self.stream_seq, self.consumer_seq)
        last = decimal(headers.get(block, b"Nats-Last-Consumer") or b"", SEQ_MAX)
        if last > 0 and last != self.consumer_seq:
            raise Lost(f"{last} messages were delivered, {self.consumer_seq} came")
        stalled = headers.get(block, b"Nats-Consumer-Stalled")
        return FlowRequest(stalled, self.stream_seq, self.consumer_seq) if stalled else None

    def _drop(self) -> None:
        self._bytes -= len(self._waiting.popleft()[3])

    def _numbers(self, reply: bytes) -> list[int] | None:
        """Return the numbers of an ack subject, in either format; None if it is not one of this consumer."""
        tokens = reply.split(b".")
        start = 4 if len(tokens) == 9 else 6
        if tokens[:2] != [b"$JS", b"ACK"] or not self._is_ours(tokens[start - 2:start]):
            return None
        numbers = [decimal(token, SEQ_MAX) for token in tokens[start:start + 5]]
        return numbers if len(numbers) == 5 and min(numbers) >= 0 else None

    def _is_ours(self, names: list[bytes]) -> bool:
        """Return whether these are the names of the stream and the consumer."""
        return True


def _numbers(tokens: list[bytes]) -> list[int] | None:
    """Return decimal numbers up to 2^63 - 1, which times nearly have; None, if any token is not one."""
    if b"".join(tokens).isdigit() and b"" not in tokens and max(map(len, tokens)) < 20:
        numbers = list(map(int, tokens))
        return numbers if max(numbers) <= INT64_MAX else None
    return None


class NamedDeliveries(Deliveries):
    """The deliveries of the consumer that a mirror or source names."""

    ACKS: ClassVar[bool] = True

    def __init__(self, link: Link, given: StreamSource, *, mirror: bool) -> None:
        consumer = given.consumer
        assert consumer is not None
        super().__init__(link, consumer.deliver_subject.encode())
        self._mirror = mirror
        self._names = [given.name.encode(), consumer.name.encode()]

    async def open(self) -> None:
        """Reset the consumer, so that it begins again after its ack floor, and subscribe. Raises: ApiError."""
        subject = b"$JS.API.CONSUMER.RESET." + b".".join(self._names)
        block = b"NATS/1.0\r\nNats-Required-Api-Level: 4\r\nNats-Stream-Identity: \r\n\r\n"
        try:
            answer, block = await ask(self._link, subject, block=block)
        except NoAnswer:
            why = f"consumer {self._names[1].decode()} of stream {self._names[0].decode()} does not answer"
            raise ApiError(ApiErrors.MIRROR_CONSUMER_SETUP_FAILED if self._mirror
                           else ApiErrors.SOURCE_CONSUMER_SETUP_FAILED, err=why) from None
        if (error := answer.get("error")) is not None:
            raise ApiError(error.get("err_code", 0), err=error.get("description", ""))
        if answer.get("config", {}).get("ack_policy") != "flow_control":
            raise ApiError(ApiErrors.MIRROR_CONSUMER_REQUIRES_ACK_FC if self._mirror
                           else ApiErrors.SOURCE_CONSUMER_REQUIRES_ACK_FC)
        self.identity = identity_in(block)
        self.stream_seq = int(answer["delivered"]["stream_seq"])
        self._subscribe()

    def answer(self, request: FlowRequest) -> None:
        """Ack the messages before the request."""
        block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (
            request.consumer_seq, request.stream_seq)
        self._link.publish(request.reply, b"", len(block), block)

    def _accepts(self, source: Source | None) -> bool:
        return source is None  # not from a client: consumers deliver as the broker itself

    def _is_ours(self, names: list[bytes]) -> bool:
        return names == self._names
