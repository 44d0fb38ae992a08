"""A channel is a stream: JetStream clients and NATS Streaming clients see the same messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.js.errors import NotFoundError

from tests.harness import BrokerProcess
from tests.streaming.stan_client import FIRST, NEW, StanClient


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster", "-mc", "3",
                             "-msu", "2", "-mm", "5") as process:
        yield process


@pytest.mark.shows("streaming.same_log")
async def test_both_protocols_see_the_same_messages(server: BrokerProcess) -> None:
    """A STAN publish reaches a JetStream consumer, and a JetStream publish reaches a STAN subscriber."""
    client = await StanClient.open(server.url, "me")
    js = client.nc.jetstream()
    await client.publish("orders.new", b"from STAN", reply="answer.here")
    consumer = await js.subscribe("orders.new")
    msg = await consumer.next_msg(timeout=10)
    assert (msg.subject, msg.data, msg.headers) == (
        "orders.new", b"from STAN", {"Nats-Streaming-Reply": "answer.here"})
    ack = await js.publish("orders.new", b"from JetStream", headers={"Some": "header"})
    assert (ack.stream, ack.seq) == ("STAN_orders:new", 2)
    sub = await client.subscribe("orders.new", FIRST)
    first, second = await sub.msgs.get(), await sub.msgs.get()
    assert (first.data, first.reply, second.data, second.reply) == (b"from STAN", "answer.here", b"from JetStream", "")
    assert (await js.get_msg("STAN_orders:new", 2)).time is not None
    assert second.timestamp - first.timestamp >= 0
    await client.nc.close()


async def test_a_reply_header_of_any_bytes(server: BrokerProcess) -> None:
    """A JetStream client may set the reply header to bytes that are no text; subscribers get a readable message."""
    client = await StanClient.open(server.url, "me")
    await client.publish_all("orders", b"1")
    header = b"NATS/1.0\r\nNats-Streaming-Reply: \xff\xfe\r\n\r\n"
    client.nc._transport.write(b"HPUB orders %d %d\r\n%b2\r\n" % (len(header), len(header) + 1, header))
    await client.nc.flush()
    await client.publish_all("orders", b"3")
    sub = await client.subscribe("orders", FIRST)
    assert [one.data for one in await sub.take(3)] == [b"1", b"2", b"3"]
    await client.nc.close()


async def test_a_plain_publish_reaches_subscribers_of_the_channel(server: BrokerProcess) -> None:
    """A message of core NATS on the channel's subject is stored like a JetStream publish."""
    client = await StanClient.open(server.url, "me")
    sub = await client.subscribe("orders", NEW)
    await client.nc.publish("orders", b"plain")
    assert (await sub.next()).data == b"plain"
    await client.nc.close()


async def test_a_stream_that_has_the_subject_stays_as_it_is(server: BrokerProcess) -> None:
    """A channel whose subject another stream stores is refused, because it would take that stream's messages."""
    client = await StanClient.open(server.url, "me")
    js = client.nc.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    refused = "subjects overlap with an existing stream"
    assert (await client.publish("orders.new", b"1")).error == refused
    assert (await client.subscribe("orders.new")).error == refused
    assert (await js.stream_info("ORDERS")).state.messages == 0
    await client.nc.close()


async def test_a_channel_is_deleted_with_its_stream(server: BrokerProcess) -> None:
    """After JetStream deletes the stream, the channel begins anew; its subscriptions get nothing, and can be closed."""
    client = await StanClient.open(server.url, "me")
    js = client.nc.jetstream()
    await client.publish_all("orders", b"1", b"2")
    sub = await client.subscribe("orders", FIRST)
    await sub.take(2)
    await js.delete_stream("STAN_orders")
    await client.publish_all("orders", b"3")
    again = await client.subscribe("orders", FIRST)
    assert [(one.seq, one.data) for one in await again.take(1)] == [(1, b"3")]
    assert await sub.close() == ""
    await client.nc.close()


async def test_subscriptions_are_consumers(server: BrokerProcess) -> None:
    """The consumer of a subscription shows whose it is; it goes with the subscription."""
    client = await StanClient.open(server.url, "me")
    js = client.nc.jetstream()
    sub = await client.subscribe("orders", FIRST, durable="d", in_flight=7, ack_wait=11)
    [info] = await js.consumers_info("STAN_orders")
    shown = {"jetblock.streaming": "orders", "client_id": "me", "durable": "d"}
    assert shown.items() <= info.config.metadata.items()
    assert (info.config.max_ack_pending, info.config.ack_wait) == (7, 11)
    assert await sub.unsubscribe() == ""
    assert await js.consumers_info("STAN_orders") == []
    await client.nc.close()


@pytest.mark.shows("streaming.limits")
async def test_limits(server: BrokerProcess) -> None:
    """Channels and subscriptions have limits; the oldest messages of a full channel are discarded."""
    client = await StanClient.open(server.url, "me")
    await client.publish_all("a", *(b"%d" % i for i in range(8)))
    sub = await client.subscribe("a", FIRST)
    assert [one.seq for one in await sub.take(5)] == [4, 5, 6, 7, 8]
    assert (await client.subscribe("a")).error == ""
    assert (await client.subscribe("a")).error == "too many subscriptions per channel"
    assert await sub.close() == ""
    assert (await client.subscribe("a")).error == ""
    await client.publish_all("b", b"1")
    await client.publish_all("c", b"1")
    assert (await client.publish("d", b"1")).error == "too many channels"
    assert (await client.subscribe("d")).error == "too many channels"
    await client.nc.close()


async def test_a_broker_without_the_gateway(tmp_path: Path) -> None:
    """Without settings of NATS Streaming, nobody answers connect requests, and there is no stream."""
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker:
        nc = await nats.connect(broker.url)
        client = StanClient(nc, "me")
        try:
            await client.register()
        except nats.errors.NoRespondersError:
            pass
        else:
            raise AssertionError("the gateway answers")
        try:
            await nc.jetstream().stream_info("STAN")
        except NotFoundError:
            pass
        else:
            raise AssertionError("the gateway has a stream")
        await nc.close()
