"""kill -9 at random moments while a work queue and an interest stream are filled and drained, with a checker.

    nothing unacked is lost      every message with a PubAck is delivered to each consumer that matches it
    nothing acked comes back     a message whose ack was answered is never delivered again
    nothing acked stays          once everything is acked, the streams are empty

The seed of the moments is printed on failure and read from JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets how many kills there are.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import APIError

from tests.harness import BrokerProcess

pytestmark = pytest.mark.asyncio

FAILED = (nats.errors.Error, APIError, asyncio.TimeoutError, ConnectionError)
ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "3"))
STREAMS = {"QUEUE": ("w", RetentionPolicy.WORK_QUEUE, ("one",)), "INTEREST": ("i", RetentionPolicy.INTEREST, ("one", "two"))}


class Run:
    """The clients and the answers they got, over one broker that is killed and restarted."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.stop = asyncio.Event()
        self.kept: dict[str, set[bytes]] = {name: set() for name in STREAMS}
        """Payloads with a PubAck."""
        self.seen: dict[tuple[str, str], set[bytes]] = {
            (name, who): set() for name, (_, _, consumers) in STREAMS.items() for who in consumers}
        self.acked: dict[tuple[str, str], set[bytes]] = {key: set() for key in self.seen}
        """Those of them whose acks were answered."""
        self.moved = asyncio.Event()

    async def connect(self) -> Client:
        async def quiet(_: Exception) -> None:
            """Connections are lost by design here."""

        return await nats.connect(self.broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet)

    async def publisher(self, name: str) -> None:
        nc = await self.connect()
        subject, number = STREAMS[name][0], 0
        while not self.stop.is_set():
            batch = [b"%d" % (number := number + 1) for _ in range(20)]
            done = await asyncio.gather(*(nc.jetstream().publish(f"{subject}.x", payload, timeout=1) for payload in batch),
                                        return_exceptions=True)
            self.kept[name].update(payload for payload, ack in zip(batch, done, strict=True) if not isinstance(ack, BaseException))
            self.moved.set()
        await nc.close()

    async def consumer(self, name: str, who: str) -> None:
        nc = await self.connect()
        seen, acked = self.seen[name, who], self.acked[name, who]
        sub = await nc.jetstream().pull_subscribe_bind(consumer=who, stream=name)
        left = 1
        while left:
            try:
                messages = await sub.fetch(20, timeout=0.3)
            except FAILED:
                if self.stop.is_set():
                    # An ack without an answer may still take effect; then its message is not delivered again.
                    info = await nc.jetstream().consumer_info(name, who)
                    left = info.num_pending + info.num_ack_pending
                continue
            for message in messages:
                assert message.data not in acked, f"{message.data!r} of {name} was acked by {who}, and comes back"
                seen.add(message.data)
            answers = await asyncio.gather(*(message.ack_sync(timeout=1) for message in messages), return_exceptions=True)
            acked.update(message.data for message, answer in zip(messages, answers, strict=True)
                         if not isinstance(answer, BaseException))
        await nc.close()


@pytest.mark.shows("consumer.survives", "store.kill")
async def test_work_queues_survive_kills(tmp_path: Path) -> None:
    """Publishers wait for PubAcks, consumers for the answers to their acks; the broker is killed on the way."""
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        run = Run(broker)
        nc = await run.connect()
        js = nc.jetstream()
        for name, (subject, retention, consumers) in STREAMS.items():
            await js.add_stream(StreamConfig(name=name, subjects=[f"{subject}.>"], retention=retention))
            for who in consumers:
                await js.add_consumer(name, ConsumerConfig(durable_name=who, ack_policy=AckPolicy.EXPLICIT, ack_wait=1.5))
        publishers = [asyncio.create_task(run.publisher(name)) for name in STREAMS]
        readers = [asyncio.create_task(run.consumer(*key)) for key in run.seen]
        for _ in range(ROUNDS):
            run.moved.clear()
            async with asyncio.timeout(30):
                await run.moved.wait()
            await asyncio.sleep(rng.random() * 0.4)
            await broker.kill()
            await broker.start()
        async with asyncio.timeout(60):
            run.stop.set()
            await asyncio.gather(*publishers)
            await asyncio.gather(*readers)  # until no message is pending or unacked
        for name in STREAMS:
            assert (await js.stream_info(name)).state.messages == 0
        await nc.close()
    for key, seen in run.seen.items():
        assert run.kept[key[0]] <= seen
    assert all(run.kept.values())


