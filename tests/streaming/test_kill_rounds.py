"""A broker is killed at random moments while a NATS Streaming client publishes and acks; a checker watches what comes.

    PubAck          the message is stored: each subscription gets it, always with the same sequence
    ack             lost by a kill at most until a publish after it, on the same connection, has its PubAck; from then
                    on the message never comes again. An ack before the first PubAck of a connection may find no
                    gateway: a broker has its port before it has the store.
    no ack          the message comes again, until it is acked

The seed of the moments is printed on failure and read from JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets the number of
kills of the long variants.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from broker.streaming.wire import stan_pb2 as wire
from tests.streaming.stan_client import FIRST, StanClient
from tests.streaming.test_recovery import Start, start

__all__ = ["start"]

SEED = int(os.environ.get("JETBLOCK_KILL_SEED", time.time_ns() & 0xFFFFFFFF))
ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "30"))
_SUBSCRIPTIONS = {"single": ("", ""), "durable": ("", "d"), "one": ("q", ""), "two": ("q", ""), "third": ("q", "d")}
"""Queue group and durable name of each subscription."""
_AT_ONCE = 20
_BEHIND_MAX = 2000


class Load:
    """A client that publishes, and acks most of what it gets.

    All that the broker sends comes by one subscription, so it is handled in the order in which it was sent.
    """

    def __init__(self, client: StanClient, rng: random.Random) -> None:
        self.client = client
        self.problems: list[str] = []
        self.stored: set[int] = set()
        """The numbers of the messages that have a PubAck."""
        self.acked: dict[str, set[int]] = {}
        """The numbers of the messages that each group has acked at least once."""
        self._rng = rng
        self._prefix = client.nc.new_inbox()
        self._connection = 0
        self._served = False
        """True once the present connection has had a PubAck."""
        self._published: dict[int, tuple[int, int]] = {}
        """For each number: the connection, and how many acks were sent before."""
        self._sent_acks: list[tuple[int, str, int]] = []
        """For each ack: the connection, the group, and the sequence."""
        self._sure_up_to = 0
        self._sure: set[tuple[str, int]] = set()
        self._number_of: dict[int, int] = {}
        self._ack_inboxes: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.lazy = True

    async def begin(self) -> None:
        await self.client.nc.subscribe(self._prefix + ".*", cb=self._on_msg, pending_msgs_limit=-1)
        for name, (queue, durable) in _SUBSCRIPTIONS.items():
            self.acked[_group(name)] = set()
            request = wire.SubscriptionRequest(
                client_id=self.client.id, subject="orders", q_group=queue, inbox=f"{self._prefix}.{name}",
                max_in_flight=50, ack_wait_in_secs=1, durable_name=durable, start_position=FIRST)
            answer = await self.client.request(self.client.connected.sub_requests, request)
            self._ack_inboxes[name] = wire.SubscriptionResponse.FromString(answer).ack_inbox

    def disconnected(self) -> None:
        self._connection += 1
        self._served = False

    async def publish(self) -> None:
        """Publish until cancelled, while there is a broker, and no group has too much left to ack."""
        while True:
            behind = len(self.stored) - min(map(len, self.acked.values()))
            if self.client.nc.is_connected and behind < _BEHIND_MAX:
                await self.publish_some()
            await asyncio.sleep(0.005)

    async def publish_some(self) -> None:
        for _ in range(_AT_ONCE):
            number = len(self._published)
            self._published[number] = (self._connection, len(self._sent_acks))
            msg = wire.PubMsg(client_id=self.client.id, conn_id=self.client.conn_id, guid=str(number), subject="orders",
                              data=b"%d" % number)
            await self.client.nc.publish(f"{self.client.connected.pub_prefix}.orders", msg.SerializeToString(),
                                         self._prefix + ".pub")

    async def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until something that the broker sends makes ``done`` true."""
        try:
            async with asyncio.timeout(90):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = {group: sorted(self.stored - acked)[:5] for group, acked in self.acked.items()}
            raise AssertionError(f"seed {SEED}: never {what}; not acked: {missing}; {self.problems}") from None

    async def more(self) -> None:
        """Wait until messages published from now on are stored."""
        number = len(self._published)
        await self.until(lambda: any(one >= number for one in self.stored), "stored anything more")

    def all_acked(self) -> bool:
        return all(acked >= self.stored for acked in self.acked.values())

    async def _on_msg(self, msg: Msg) -> None:
        name = msg.subject.rpartition(".")[2]
        if name == "pub":
            self._on_pub_ack(wire.PubAck.FromString(msg.data))
        else:
            await self._on_delivery(name, wire.MsgProto.FromString(msg.data))
        self._changed.set()

    def _on_pub_ack(self, ack: wire.PubAck) -> None:
        if ack.error:
            self.problems.append(f"publish {ack.guid}: {ack.error}")
            return
        number = int(ack.guid)
        self.stored.add(number)
        connection, count = self._published[number]
        if connection == self._connection:
            for on, group, seq in self._sent_acks[self._sure_up_to:count]:
                if on == connection:
                    self._sure.add((group, seq))
            self._sure_up_to = max(self._sure_up_to, count)
            self._served = True

    async def _on_delivery(self, name: str, msg: wire.MsgProto) -> None:
        group, number = _group(name), int(msg.data)
        if self._number_of.setdefault(msg.sequence, number) != number:
            self.problems.append(f"sequence {msg.sequence} is message {number} and {self._number_of[msg.sequence]}")
        if (group, msg.sequence) in self._sure:
            self.problems.append(f"{name}: message {msg.sequence} was acked, and came again")
        if self.lazy and self._rng.random() < 0.3:
            return
        self._sent_acks.append((self._connection if self._served else -1, group, msg.sequence))
        self.acked[group].add(number)
        ack = wire.Ack(subject="orders", sequence=msg.sequence)
        await self.client.nc.publish(self._ack_inboxes[name], ack.SerializeToString())

    def last_seq(self) -> int:
        """Return the last sequence that was delivered. Raises: AssertionError, if one below it never was."""
        assert sorted(self._number_of) == list(range(1, len(self._number_of) + 1)), f"seed {SEED}"
        return len(self._number_of)


def _group(name: str) -> str:
    """Return the name of the position that a subscription shares."""
    queue, durable = _SUBSCRIPTIONS[name]
    return f"{durable}:{queue}" if queue else durable or name


async def play(stack: AsyncExitStack, urls: list[str], kill: Callable[[], object], rounds: int) -> None:
    """Publish and ack while ``kill`` is called ``rounds`` times; then ack the rest, and check."""
    rng = random.Random(SEED)
    loads: list[Load] = []

    async def on_disconnected() -> None:
        for load in loads:
            load.disconnected()

    nc = await nats.connect(urls, max_reconnect_attempts=-1, reconnect_time_wait=0.05, pending_size=64 << 20,
                            disconnected_cb=on_disconnected)
    stack.push_async_callback(_close, nc)
    client = StanClient(nc, "me")
    assert await client.register() == ""
    load = Load(client, rng)
    loads.append(load)
    await load.begin()
    publishing = asyncio.create_task(load.publish())
    try:
        for _ in range(rounds):
            await load.more()
            await asyncio.sleep(rng.random() * 0.05)
            await kill()  # type: ignore[misc]
            assert not load.problems, f"seed {SEED}: {load.problems}"
        await load.more()
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    load.lazy = False
    await load.until(load.all_acked, "acked everything")
    await load.publish_some()
    await load.until(load.all_acked, "acked everything")
    await load.publish_some()
    await load.until(load.all_acked, "acked everything")
    await kill()  # type: ignore[misc]
    await load.publish_some()
    await load.until(load.all_acked, "acked everything after the last kill")
    assert not load.problems, f"seed {SEED}: {load.problems}"
    load.last_seq()


async def _close(nc: NatsClient) -> None:
    with suppress(OSError):  # it may be about to connect again
        await nc.close()


async def on_one_store(start: Start, kind: str, rounds: int) -> None:
    async with start(kind) as broker, AsyncExitStack() as stack:
        await play(stack, [broker.url], broker.restart, rounds)


@pytest.mark.timeout(300)
async def test_a_few_kills(start: Start) -> None:
    """Three kills on a directory."""
    await on_one_store(start, "file", 3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["file", "s3"])
async def test_many_kills(start: Start, kind: str) -> None:
    """Many kills on a directory and in a bucket."""
    await on_one_store(start, kind, ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["file", "s3"])
async def test_many_take_overs(start: Start, kind: str) -> None:
    """Two brokers on one store are killed in turn, each time the owner."""
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(start(kind))
        standby = start(kind, "two")
        await standby.start(ready=False)
        stack.push_async_callback(standby.close)
        await standby.wait_line(r"standby: \w+ ")
        both = [owner, standby]

        async def take_over() -> None:
            first, second = both
            await first.kill()
            await second.wait_ready()
            await first.start(ready=False)
            await first.wait_line(r"standby: \w+ ")
            both.reverse()

        await play(stack, [one.url if one is owner else f"nats://127.0.0.1:{one.port}" for one in both], take_over,
                   ROUNDS)
