"""Requests with subjects that would break the protocol of other clients, or headers of other messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from broker.streaming.wire import stan_pb2 as wire
from tests.harness import BrokerProcess
from tests.streaming.stan_client import FIRST, StanClient

BAD = ["", "a b", "a\r\nPUB x 0\r\n", "a\n", "a\tb", "a.*", ">", "a..b", ".a", "a.", "a\x00b", "a\u2028b"]


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[StanClient]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster") as server:
        client = await StanClient.open(server.url, "me")
        yield client
        assert await client.ping() == ""
        assert not [line for line in server.stderr if "[ERR]" in line or "Traceback" in line]
        await client.nc.close()


async def test_inboxes(client: StanClient) -> None:
    """The broker publishes to inboxes that clients name, so they must be literal subjects."""
    other = StanClient(client.nc, "other")
    for subject in BAD:
        assert await other.register(heartbeat_inbox=subject) == "stan: invalid connection request", subject
        assert (await client.subscribe("c", inbox=subject)).error == "stan: invalid subscription request", subject


async def test_a_reply_cannot_add_a_header(client: StanClient) -> None:
    """A reply subject with a line feed is refused, because it would become a header of its own."""
    ack = await client.publish("c", b"1", reply="x\r\nNats-Rollup: all")
    assert ack.error == "stan: invalid publish request"
    assert (await client.publish("c", b"1", reply="x y")).error == ""
    sub = await client.subscribe("c", FIRST)
    assert (await sub.msgs.get()).reply == "x y"


async def test_acks_and_publishes_that_are_no_text(client: StanClient) -> None:
    """Subjects and payloads of any bytes disturb nobody."""
    ack_prefix = (await client.subscribe("c")).ack_inbox.rpartition(".")[0]
    nc = client.nc
    for data in (b"", b"\xff", b"\x0a\x01\xff", bytes(1000), wire.Ack(subject="c", sequence=1).SerializeToString()):
        await nc.publish(f"{ack_prefix}.nobody", data)
        assert wire.PubAck.FromString(
            await client.request(f"{client.connected.pub_prefix}.c", data)).error == "stan: invalid publish request"
        for subject in (client.connected.sub_requests, client.connected.unsub_requests,
                        client.connected.close_requests):
            assert wire.SubscriptionResponse.FromString(await client.request(subject, data)) is not None
    # Subjects in bytes that are not UTF-8.
    nc._transport.write(b"PUB " + ack_prefix.encode() + b".\xff\xfe 1\r\nx\r\n")
    await nc.flush()
