"""What an existing consumer delivers to a mirror or source that names it (``consumer``).

    Deliveries ── $JS.API.CONSUMER.RESET.<stream>.<consumer> ──> the consumer begins again behind its ack floor
    deliver_subject ──> messages, heartbeats                 ──> Batch: messages in order, without a gap
                    ──> a flow control request               ──> FlowRequest: its answer acks what is stored here

The consumer acks by flow control, so what it counts as acked is stored by the stream that copies. A gap, or ten seconds
without anything, not even a heartbeat, and the consumer has to be reset again (``Lost``).

Does not own: storing, and when to answer (follower).

Source: nats-server, server/stream.go, setupMirrorConsumer, trySetupSourceConsumer, processInboundSourceMsg.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from broker.jetstream.stream.upstream.origin import Batch
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import secret_id
from broker.jetstream.wire.numbers import SEQ_MAX, decimal
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source, Subscription
    from broker.jetstream.config.stream import StreamSource

__all__ = ["Deliveries", "FlowRequest", "Lost"]

ANSWER_SECONDS, SILENCE_SECONDS = 5.0, 10.0
MSGS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
WAITING_BYTES_MAX = 64 << 20
"""Of messages not stored yet: past it some are dropped, and the consumer is reset. Flow control keeps it to less."""

_STATUS = b"NATS/1.0 100 "


class Lost(Exception):
    """Something is missing: the consumer has to be reset."""


class FlowRequest(NamedTuple):
    """Its answer goes to ``reply``, once all up to ``stream_seq`` is stored."""

    reply: bytes
    stream_seq: int
    consumer_seq: int


class Deliveries:
    """One consumer's, from a reset to the end of the ``with`` block.

    Attributes: ``identity`` of the origin, and ``stream_seq``, the last one before those delivered: known after ``reset``;
        ``lag``: messages not delivered yet.
    """

    def __init__(self, bus: Bus, given: StreamSource, *, mirror: bool) -> None:
        consumer = given.consumer
        assert consumer is not None
        self.identity = ""
        self.stream_seq = self.consumer_seq = self.lag = 0
        self._bus, self._given, self._mirror = bus, given, mirror
        self._to, self._names = consumer.deliver_subject.encode(), (given.name.encode(), consumer.name.encode())
        self._waiting: deque[Msg] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._subscriptions:
            self._bus.unsubscribe(self._subscriptions.pop())

    async def reset(self) -> None:
        """Let the consumer begin again behind its ack floor, and listen. Raises: ApiError."""
        given = self._given
        answer, block = await self._ask(f"$JS.API.CONSUMER.RESET.{given.name}.{self._names[1].decode()}".encode())
        if (error := answer.get("error")) is not None:
            raise ApiError(error.get("err_code", 0), err=error.get("description", ""))
        if answer.get("config", {}).get("ack_policy") != "flow_control":
            raise ApiError(ApiErrors.MIRROR_CONSUMER_REQUIRES_ACK_FC if self._mirror
                           else ApiErrors.SOURCE_CONSUMER_REQUIRES_ACK_FC)
        self.identity = (headers.get(block, b"Nats-Stream-Identity") or b"").decode("latin-1")
        self.stream_seq = int(answer["delivered"]["stream_seq"])
        self._subscriptions.append(self._bus.subscribe(self._to, self._queue_messages))

    async def _ask(self, subject: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer of an API request, and its headers."""
        answered: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def on_answer(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            if not answered.done():
                answered.set_result(ops[start])

        inbox = b"_INBOX." + secret_id().encode()
        subscription = self._bus.subscribe(inbox, on_answer)
        try:
            block = b"NATS/1.0\r\nNats-Required-Api-Level: 4\r\nNats-Stream-Identity: \r\n\r\n"
            self._bus.publish(subject, inbox, len(block), block)
            async with asyncio.timeout(ANSWER_SECONDS):
                _, _, hlen, body = await answered
        except TimeoutError:
            why = f"consumer {self._names[1].decode()} of stream {self._given.name} does not answer"
            raise ApiError(ApiErrors.MIRROR_CONSUMER_SETUP_FAILED if self._mirror
                           else ApiErrors.SOURCE_CONSUMER_SETUP_FAILED, err=why) from None
        finally:
            self._bus.unsubscribe(subscription)
        answer = json.loads(body[hlen:])
        return answer, body[:hlen]

    def _queue_messages(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        if source is not None:
            return  # a client's: consumers deliver as the broker itself
        if self._bytes < WAITING_BYTES_MAX:
            run = ops[start:end]
            self._waiting += run
            self._bytes += sum(len(body) for _, _, _, body in run)
        self._arrived.set()

    async def read(self) -> Batch | FlowRequest:
        """What comes next. Raises: Lost."""
        while True:
            while self._waiting:
                if (found := self._next()) is not None:
                    return found
            self._arrived.clear()
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                raise Lost("the consumer sends nothing") from None

    def _next(self) -> Batch | FlowRequest | None:
        """The messages that came up to the next status, or that status' request; None: nothing to do."""
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
                continue  # not of this consumer
            deliveries, stream_seq, consumer_seq, time_ns, pending = numbers
            if deliveries > 1 or consumer_seq != self.consumer_seq + 1:
                raise Lost(f"delivery {consumer_seq} came after {self.consumer_seq}")
            self.consumer_seq, self.lag = consumer_seq, max(pending - 1, 0)
            if stream_seq <= self.stream_seq:
                continue  # stored before
            self.stream_seq = stream_seq
            size += batch.add(stream_seq, subject, hlen, body, time_ns)
        batch.end_seq = self.stream_seq + 1
        return batch if batch.seqs else None

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
        """The numbers of an ack subject of this consumer, in either format; None: it is not one."""
        tokens = reply.split(b".")
        names = tokens[2:4] if len(tokens) == 9 else tokens[4:6]
        if tokens[:2] != [b"$JS", b"ACK"] or tuple(names) != self._names:
            return None
        start = 4 if len(tokens) == 9 else 6
        numbers = [decimal(token, SEQ_MAX) for token in tokens[start:start + 5]]
        return numbers if len(numbers) == 5 and min(numbers) >= 0 else None
