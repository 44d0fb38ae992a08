"""Bursts of publishes and acks, which the gateway handles as runs of messages that are alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from nats.aio.msg import Msg

from broker.streaming.wire import stan_pb2 as wire
from tests.harness import BrokerProcess
from tests.streaming.stan_client import FIRST, StanClient


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[StanClient]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster") as server:
        client = await StanClient.open(server.url, "me")
        yield client
        await client.nc.close()


async def test_a_mixed_burst_is_answered_and_stored_in_order(client: StanClient) -> None:
    """Publishes of two clients on one connection that change channel, inbox, sender, guid, reply and size at random.

    Each gets its PubAck on its own inbox, and each channel has what was not refused, in order.
    """
    rng = random.Random(4)
    other = StanClient(client.nc, "other")
    assert await other.register() == ""
    inboxes = [client.nc.new_inbox() for _ in range(2)]
    answers: dict[str, asyncio.Queue[wire.PubAck]] = {inbox: asyncio.Queue() for inbox in inboxes}

    async def on_answer(msg: Msg) -> None:
        answers[msg.subject].put_nowait(wire.PubAck.FromString(msg.data))

    for inbox in inboxes:
        await client.nc.subscribe(inbox, cb=on_answer)
    expected: dict[str, list[tuple[str, str]]] = {inbox: [] for inbox in inboxes}
    stored: dict[str, list[tuple[bytes, str]]] = {"a": [], "b": []}
    fields: dict[str, Any] = {"channel": "a", "inbox": inboxes[0], "sender": client, "kind": "", "size": 3, "reply": ""}
    changes: dict[str, Any] = {
        "channel": "ab", "inbox": inboxes, "sender": (client, other, None), "size": (0, 3, 200, 20_000),
        "kind": ("", "", "long" * 40, "ü", "x.$FI"), "reply": ("", "", "answer")}
    for number in range(1500):
        if not number % 5:
            for name in rng.sample(sorted(changes), rng.randrange(3)):
                fields[name] = rng.choice(changes[name])
        channel, inbox, sender, kind, size, reply = fields.values()
        guid, data = f"{number:022}{kind}", rng.randbytes(size)
        body = wire.PubMsg(client_id=sender.id if sender else "nobody", conn_id=sender.conn_id if sender else b"",
                           guid=guid, subject=channel, data=data, reply=reply)
        await client.nc.publish(f"_STAN.pub.test-cluster.{channel}", body.SerializeToString(), reply=inbox)
        expected[inbox].append((guid, "" if sender else "stan: invalid publish request"))
        if sender:
            stored[channel].append((data, reply))
    for inbox in inboxes:
        came = [await asyncio.wait_for(answers[inbox].get(), 20) for _ in expected[inbox]]
        assert sorted((ack.guid, ack.error) for ack in came) == sorted(expected[inbox])
    for channel, wanted in stored.items():
        sub = await client.subscribe(channel, FIRST, in_flight=2000)
        got = [await asyncio.wait_for(sub.msgs.get(), 20) for _ in wanted]
        assert [(msg.data, msg.reply) for msg in got] == wanted
        assert [msg.sequence for msg in got] == list(range(1, len(wanted) + 1))


async def test_acks_of_several_subscriptions_in_one_write(client: StanClient) -> None:
    """Members of a queue group and others have as many messages as they may, and ack all in one write, in any order.

    Then they get as many again, each for the first time.
    """
    subs = [await client.subscribe("c", FIRST, queue="q", in_flight=30) for _ in range(2)]
    subs.append(await client.subscribe("c", FIRST, in_flight=60))
    for _ in range(2):
        await client.publish_all("c", *(b"%d" % number for number in range(60)))
        got = [(sub, one) for sub, count in zip(subs, (30, 30, 60), strict=True)
               for one in await sub.take(count, ack=False)]
        assert not any(one.redelivered for _, one in got)
        random.Random(5).shuffle(got)
        for sub, one in got:
            await client.nc.publish(sub.ack_inbox, wire.Ack(subject="c", sequence=one.seq).SerializeToString())
        await client.nc.flush()
