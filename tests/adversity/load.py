"""The clients of a kill loop and the answers they received: publishers, consumers, a bucket, a stock ordered consumer.

There are at least two publishers (one waits for each PubAck, one keeps many in flight), a pull consumer with plain acks
and one with double acks; ``history`` has their contract. Beside them are a key-value bucket, whose acknowledged puts
may
not be lost or go back, and a stock push consumer (nats-py's ordered one), which may neither skip nor repeat a message.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.adversity.clients import ANSWER_SECONDS, FAILED, connect, disconnect
from tests.adversity.history import ACK_WAIT, History, Violation

__all__ = ["STREAM", "Load"]

STREAM = "KILL"


class Load:
    """The clients and their record, over brokers that are killed, restarted and take over from each other.

    Args: strict: a plain ack may be forgotten only by a kill that ``history`` records.
    """

    def __init__(self, rng: random.Random, *urls: str, strict: bool = True) -> None:
        self.urls, self.rng, self.history = urls, rng, History(strict=strict)
        self.double = History(begun=self.history.begun)
        self.stop = asyncio.Event()
        self.moved = asyncio.Event()
        self.count = self.kv_puts = self.pushed = 0

    def clients(self) -> list[Coroutine[Any, Any, None]]:
        """Return all clients; they run until ``stop`` is set."""
        return [self.publisher(1), self.publisher(50), self.consumer("plain", self.history, False),
                self.consumer("double", self.double, True), self.bucket("key"), self.ordered()]

    def killed(self) -> None:
        self.history.killed()
        self.double.killed()

    def check(self, held: dict[int, tuple[bytes, bytes]], last: int) -> None:
        """Check ``held``, all messages that the stream has now, and that each client did something."""
        self.history.check(held, last)
        self.double.check(held, last)
        assert self.kv_puts
        assert self.pushed
        assert self.double.double_acked

    def __str__(self) -> str:
        return (f"{self.count} messages begun, {len(self.history.acked)} acknowledged, {len(self.history.delivered)} "
                f"and {len(self.double.delivered)} delivered, {len(self.double.double_acked)} double acked, "
                f"{self.history.redelivered} redelivered after a plain ack, {self.kv_puts} key-value puts, "
                f"{self.pushed} pushed in order")

    def next_message(self) -> tuple[bytes, bytes]:
        self.count += 1
        msg_id = b"m%d" % self.count
        payload = msg_id + b" " + self.rng.randbytes(self.rng.choice((0, 10, 100, 3000)))
        self.history.begin(msg_id, payload)
        return msg_id, payload

    async def publish_one(self, nc: Client, msg_id: bytes, payload: bytes) -> None:
        """Publish until the message is acknowledged, always under the same id; at the end of the run, once more at
        most."""
        js = nc.jetstream()
        while True:
            try:
                ack = await js.publish("kill.x", payload, headers={"Nats-Msg-Id": msg_id.decode()}, timeout=1)
            except FAILED:
                if self.stop.is_set():
                    return
                await asyncio.sleep(0.02)
                continue
            self.history.ack(msg_id, ack.seq)
            self.moved.set()
            return

    async def publisher(self, window: int) -> None:
        nc = await connect(*self.urls)
        while not self.stop.is_set():
            await asyncio.gather(*(self.publish_one(nc, *self.next_message()) for _ in range(window)))
        await disconnect(nc)

    async def consumer(self, durable: str, history: History, double: bool) -> None:
        nc = await connect(*self.urls)
        js = nc.jetstream(timeout=ANSWER_SECONDS)
        config = ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT,
                                max_ack_pending=500)
        sub = None
        since = began = time.monotonic()
        while not self.stop.is_set():
            # A fetch returns messages received during it, or since the previous one ended.
            since, began = began, time.monotonic()
            try:
                if sub is None:
                    await js.add_consumer(STREAM, config)
                    sub = await js.pull_subscribe_bind(consumer=durable, stream=STREAM)
                messages = await sub.fetch(50, timeout=0.5)
            except FAILED:
                continue
            for at, message in enumerate(messages):
                seq = message.metadata.sequence.stream
                history.deliver(seq, message.headers["Nats-Msg-Id"].encode(), message.data)
                try:
                    if double:
                        await message.ack_sync(timeout=1)
                        queued = [*messages[at + 1:], *sub._sub._pending_queue._queue]  # type: ignore[attr-defined]
                        history.double_ack(seq, [m.metadata.sequence.stream for m in queued if m.reply])
                    else:
                        await message.ack()
                        history.plain_ack(seq, since)
                except FAILED:
                    pass
        await disconnect(nc)

    async def bucket(self, key: str) -> None:
        """Run the one writer of a key: a get returns the last acknowledged value, or a later one that was begun."""
        nc = await connect(*self.urls)
        js = nc.jetstream(timeout=ANSWER_SECONDS)
        kv = None
        began = acked = 0
        while not self.stop.is_set():
            try:
                if kv is None:
                    kv = await js.create_key_value(bucket="KILL", history=1)
                began += 1
                await kv.put(key, b"%d" % began)
                acked = began
                entry = await kv.get(key)
            except FAILED:
                await asyncio.sleep(0.02)
                continue
            value = int(entry.value or b"0")
            if not acked <= value <= began:
                raise Violation(f"{key} reads {value} after {acked} was acknowledged and {began} begun")
            self.kv_puts = acked
            await asyncio.sleep(0.005)
        await disconnect(nc)

    async def ordered(self) -> None:
        """Run a push consumer that nats-py recreates at each gap: every sequence comes in turn, once, through all
        kills."""
        nc = await connect(*self.urls)
        js = nc.jetstream(timeout=ANSWER_SECONDS)
        while not self.stop.is_set():
            try:
                sub = await js.subscribe("kill.>", ordered_consumer=True, idle_heartbeat=0.5, config=ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=self.pushed + 1))
            except FAILED:
                continue
            with suppress(*FAILED):
                while not self.stop.is_set():
                    message = await sub.next_msg(timeout=3)
                    seq = message.metadata.sequence.stream
                    if seq == sub._sub._jsi._ccreq.opt_start_seq != self.pushed + 1:
                        break  # nats-py asks for 1 when it recreates a consumer that has not had a message yet
                    if seq != self.pushed + 1:
                        raise Violation(f"the ordered consumer had {self.pushed}, then {seq}")
                    self.pushed = seq
                    msg_id = message.headers["Nats-Msg-Id"].encode()
                    if self.history.begun.get(msg_id) != message.data:
                        raise Violation(f"the ordered consumer got bytes at {seq} that nobody published")
            with suppress(*FAILED):
                await sub.unsubscribe()
        await disconnect(nc)

    async def stored(self) -> tuple[dict[int, tuple[bytes, bytes]], int]:
        """Return everything that the stream has now, by a fresh ordered read."""
        nc = await connect(*self.urls)
        js = nc.jetstream()
        last = (await js.stream_info(STREAM)).state.last_seq
        held: dict[int, tuple[bytes, bytes]] = {}
        sub = await js.subscribe("kill.>", ordered_consumer=True)
        while len(held) < last:
            message = await sub.next_msg(timeout=30)
            held[message.metadata.sequence.stream] = message.headers["Nats-Msg-Id"].encode(), message.data
        await disconnect(nc)
        return held, last
