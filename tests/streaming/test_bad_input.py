"""Requests with subjects that would break the protocol of other clients, or headers of other messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest_asyncio

from broker.streaming.wire import stan_pb2 as wire
from tests.adversity.clients import resident_bytes
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


USERS = """
jetstream {}
streaming { hbi: "50ms", hbt: "50ms" }
authorization { users [
  { user: owner, password: o }
  { user: stan, password: s, permissions { publish: ["_STAN.>", "_INBOX.>"], subscribe: "_INBOX.>" } }
] }
"""
DELETION = "$JS.API.STREAM.DELETE.OTHER"


async def test_a_client_makes_no_requests_through_the_gateway(tmp_path: Path) -> None:
    """Inboxes and reply subjects name subjects on which the gateway publishes: no API and no stream receives that."""
    config = tmp_path / "server.conf"
    config.write_text(USERS)
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-c", str(config)) as server:
        owner = await nats.connect(server.url, user="owner", password="o")
        js = owner.jetstream()
        await js.add_stream(name="OTHER", subjects=["other"])
        await js.publish("other", b"1")
        client = StanClient(await nats.connect(server.url, user="stan", password="s"), "me")
        assert await client.register() == ""
        for name, inbox in (("two", DELETION), ("three", "other")):
            assert await StanClient(client.nc, name).register(heartbeat_inbox=inbox, conn_id=name.encode()) == ""
        sub = await client.subscribe("c", FIRST, inbox="other")
        assert (sub.error, (await client.subscribe("c", FIRST, inbox=DELETION)).error) == ("", "")
        await client.publish_all("c", b"2")
        ping = wire.Ping(conn_id=client.conn_id).SerializeToString()
        await client.nc.publish(client.connected.ping_requests, ping, reply=DELETION)  # its answer is empty
        await client.next_heartbeats(4)
        assert (await js.stream_info("OTHER")).state.messages == 1
        # A subscription whose inbox is its own channel gets nothing, and fills nothing.
        assert (await client.subscribe("c", FIRST, inbox="c")).error == ""
        await client.next_heartbeats(1)
        assert (await js.stream_info("STAN_c")).state.messages == 1
        await owner.close()
        await client.nc.close()


async def test_the_subjects_of_the_gateway_are_no_channels(client: StanClient) -> None:
    """A stream on such a subject would answer the requests of all clients with PubAcks of its own."""
    for channel in ("_STAN.discover.test-cluster", f"{client.connected.pub_prefix}.c", client.connected.sub_requests):
        assert (await client.publish("c", b"1", subject=channel)).error == "stan: invalid subject"
        assert (await client.subscribe(channel)).error == "stan: invalid subject"
    assert await StanClient(client.nc, "other").register() == ""
    await client.publish_all("c", b"1")


async def test_long_names_are_not_kept(tmp_path: Path) -> None:
    """Names of channels that cannot exist cost no memory once they are refused."""
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster") as server:
        client = await StanClient.open(server.url, "me")
        await client.publish_all("c", b"1")
        before = 0
        for number in range(160):
            name = f"{number:04}" + "x" * 500_000
            assert (await client.publish("c", b"1", subject=name)).error.startswith("stream name is too long")
            if number == 40:
                before = resident_bytes(server)
        assert resident_bytes(server) - before < 30 << 20
        await client.nc.close()

