"""kill -9 at random moments, repeatedly, with a checker of acknowledged publishes, deliveries and acks.

Two publishers (one waits for each PubAck, one keeps many in flight), a pull consumer with plain acks and one with double acks run
through all the kills; see ``history`` for what must hold. Beside them a key-value bucket, whose acknowledged puts may not be lost
or go back, and a stock push consumer (nats-py's ordered one), which may neither skip nor repeat a message. The seed of
the moments is printed on failure and read from JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets how many kills the long
variants have.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import APIError

from tests.adversity.history import ACK_WAIT, History, Violation
from tests.harness import BrokerProcess
from tests.stores import Store, make_store

FAILED = (nats.errors.Error, APIError, asyncio.TimeoutError, ConnectionError)


class Run:
    """The clients and their record, over one broker that is killed and restarted."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker, self.rng, self.history = broker, rng, History()
        self.double = History(begun=self.history.begun)
        self.stop = asyncio.Event()
        self.moved = asyncio.Event()
        self.count = self.kv_puts = self.pushed = 0

    async def connect(self) -> Client:
        async def quiet(_: Exception) -> None:
            """Connections are lost by design here."""

        return await nats.connect(self.broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet)

    def next_message(self) -> tuple[bytes, bytes]:
        self.count += 1
        msg_id = b"m%d" % self.count
        payload = msg_id + b" " + self.rng.randbytes(self.rng.choice((0, 10, 100, 3000)))
        self.history.begin(msg_id, payload)
        return msg_id, payload

    async def publish_one(self, nc: Client, msg_id: bytes, payload: bytes) -> None:
        """Until it is acknowledged, always under the same id; at the end of the run, once more at most."""
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
        nc = await self.connect()
        while not self.stop.is_set():
            await asyncio.gather(*(self.publish_one(nc, *self.next_message()) for _ in range(window)))
        await nc.close()

    async def consumer(self, durable: str, history: History, double: bool) -> None:
        nc = await self.connect()
        js = nc.jetstream()
        config = ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT, max_ack_pending=500)
        sub = None
        since = began = time.monotonic()
        while not self.stop.is_set():
            # A fetch returns messages received during it, or since the previous one ended.
            since, began = began, time.monotonic()
            try:
                if sub is None:
                    await js.add_consumer("KILL", config)
                    sub = await js.pull_subscribe_bind(consumer=durable, stream="KILL")
                messages = await sub.fetch(50, timeout=0.5)
            except FAILED:
                continue
            for at, message in enumerate(messages):
                seq = message.metadata.sequence.stream
                history.deliver(seq, message.headers["Nats-Msg-Id"].encode(), message.data)
                try:
                    if double:
                        await message.ack_sync(timeout=1)
                        queued = [*messages[at + 1:], *sub._sub._pending_queue._queue]
                        history.double_ack(seq, [m.metadata.sequence.stream for m in queued if m.reply])
                    else:
                        await message.ack()
                        history.plain_ack(seq, since)
                except FAILED:
                    pass
        await nc.close()

    async def bucket(self, key: str) -> None:
        """One writer of one key: a get returns the last acknowledged value, or a later one that was begun."""
        nc = await self.connect()
        js = nc.jetstream()
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
        await nc.close()

    async def ordered(self) -> None:
        """A push consumer that nats-py recreates at each gap: every sequence in turn, once, through all kills."""
        nc = await self.connect()
        js = nc.jetstream()
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
                    if seq != self.pushed + 1:
                        raise Violation(f"the ordered consumer had {self.pushed}, then {seq}")
                    self.pushed = seq
                    msg_id = message.headers["Nats-Msg-Id"].encode()
                    if self.history.begun.get(msg_id) != message.data:
                        raise Violation(f"the ordered consumer got bytes at {seq} that nobody published")
            with suppress(*FAILED):
                await sub.unsubscribe()
        await nc.close()

    async def stored(self) -> tuple[dict[int, tuple[bytes, bytes]], int]:
        """Everything that the stream holds now, by a fresh ordered read."""
        nc = await self.connect()
        js = nc.jetstream()
        last = (await js.stream_info("KILL")).state.last_seq
        held: dict[int, tuple[bytes, bytes]] = {}
        sub = await js.subscribe("kill.>", ordered_consumer=True)
        while len(held) < last:
            message = await sub.next_msg(timeout=10)
            held[message.metadata.sequence.stream] = message.headers["Nats-Msg-Id"].encode(), message.data
        await nc.close()
        return held, last


async def kill_rounds(store: Store, rounds: int) -> History:
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        run = Run(broker, rng)
        nc = await run.connect()
        await nc.jetstream().add_stream(StreamConfig(name="KILL", subjects=["kill.>"]))
        await nc.close()
        tasks = [asyncio.create_task(run.publisher(1)), asyncio.create_task(run.publisher(50)),
                 asyncio.create_task(run.consumer("plain", run.history, False)),
                 asyncio.create_task(run.consumer("double", run.double, True)),
                 asyncio.create_task(run.bucket("key")), asyncio.create_task(run.ordered())]
        try:
            for _ in range(rounds):
                run.moved.clear()
                async with asyncio.timeout(30):
                    await run.moved.wait()  # it acknowledges again
                await asyncio.sleep(rng.random() * 0.5)
                for task in tasks:
                    if task.done():
                        task.result()
                await broker.kill()
                run.history.killed()
                run.double.killed()
                await broker.start()
        finally:
            run.stop.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        held, last = await run.stored()
        run.history.check(held, last)
        run.double.check(held, last)
    print(f"{rounds} kills: {run.count} messages begun, {len(run.history.acked)} acknowledged, {last} stored, "
          f"{len(run.history.delivered)} and {len(run.double.delivered)} delivered, {len(run.double.double_acked)} double acked, "
          f"{run.history.redelivered} redelivered after a plain ack, {run.kv_puts} key-value puts, {run.pushed} pushed in order")
    assert len(run.history.acked) > rounds
    assert run.kv_puts
    assert run.pushed
    assert run.double.double_acked
    return run.history


@pytest.mark.shows("publish.durable", "store.kill")
@pytest.mark.timeout(300)
async def test_25_kills_on_a_directory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    await kill_rounds(make_store("directory", tmp_path, request), 25)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["directory", "minio"])
async def test_100_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    await kill_rounds(make_store(kind, tmp_path, request), int(os.environ.get("JETBLOCK_KILL_ROUNDS", "100")))
