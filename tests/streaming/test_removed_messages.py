"""Messages, streams and consumers that are removed under the subscriptions of NATS Streaming clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.js.api import StreamConfig, StreamSource

from tests.harness import BrokerProcess
from tests.streaming.stan_client import FIRST, StanClient


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster", "-mm", "10") as process:
        yield process
        assert not [line for line in process.stderr if "[ERR]" in line or "Traceback" in line]


@pytest.mark.parametrize("how", ["limit", "purge"])
async def test_a_queue_group_goes_on(server: BrokerProcess, how: str) -> None:
    """All members have as many messages as they may have, and these leave the stream: they count no longer."""
    client = await StanClient.open(server.url, "me")
    await client.publish_all("c", *[b"old"] * 10)
    members = [await client.subscribe("c", FIRST, queue="q", in_flight=3) for _ in range(2)]
    for member in members:
        await member.take(3, ack=False)
    if how == "purge":
        await client.nc.jetstream().purge_stream("STAN_c")
    await client.publish_all("c", *[b"new"] * 10)
    for member in members:
        while (await member.next()).data != b"new":
            pass
    await client.nc.close()


async def test_a_stream_deleted_under_a_queue_group(server: BrokerProcess) -> None:
    """Members leave and others join at once after JetStream deleted the channel: each gets an answer."""
    clients = [await StanClient.open(server.url, f"client-{number}") for number in range(6)]
    first = clients[0]
    await first.publish_all("c", b"1")
    for client in clients[:3]:
        await client.subscribe("c", FIRST, queue="q", durable="d")
    await first.nc.jetstream().delete_stream("STAN_c")
    joined = asyncio.gather(*(client.subscribe("c", FIRST, queue="q", durable="d") for client in clients[3:]))
    assert [*await asyncio.gather(*(client.close() for client in clients[:3]))] == [""] * 3
    assert [sub.error for sub in await joined] == [""] * 3
    await clients[3].publish_all("c", b"2")
    received = [asyncio.create_task(sub.next()) for sub in await joined]
    done, rest = await asyncio.wait(received, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().data for one in done] == [b"2"]
    for task in rest:
        task.cancel()
    for client in clients:
        await client.nc.close()


async def test_streams_that_store_other_subjects(server: BrokerProcess) -> None:
    """A mirror and a stream of other subjects can be read as channels; publishes to them are refused."""
    client = await StanClient.open(server.url, "me")
    js = client.nc.jetstream()
    await client.publish_all("source", b"1")
    await js.add_stream(StreamConfig(name="STAN_mirror", mirror=StreamSource(name="STAN_source")))
    await client.publish_all("moved", b"1")
    config = (await js.stream_info("STAN_moved")).config
    config.subjects = ["elsewhere"]
    await js.update_stream(config)
    for channel in ("mirror", "moved"):
        error = (await client.publish(channel, b"2")).error
        assert error == f"stream STAN_{channel} does not store subject {channel}"
        assert [one.data for one in await (await client.subscribe(channel, FIRST)).take(1)] == [b"1"]
    await client.nc.close()


async def test_subscriptions_go_on_in_a_channel_that_is_made_again(server: BrokerProcess) -> None:
    """JetStream deletes the stream under a subscription, a durable one and a queue group; a publish makes it again."""
    client = await StanClient.open(server.url, "me")
    await client.publish_all("c", b"1", b"2")
    subs = [await client.subscribe("c", FIRST, **fields) for fields in ({}, {"durable": "d"}, {"queue": "q"})]
    for sub in subs:
        await sub.take(2, ack=False)
    left = await client.subscribe("c", FIRST)
    await left.take(2)
    await client.nc.jetstream().delete_stream("STAN_c")
    assert await left.unsubscribe() == ""
    await client.publish_all("c", b"3")
    assert [[(one.seq, one.data, one.redelivered) for one in await sub.take(1)] for sub in subs] == [[(1, b"3", 0)]] * 3
    assert await left.rest() == []
    # A restart without the stream drops the subscriptions, once.
    await client.publish_all("c", b"4")
    await client.nc.jetstream().delete_stream("STAN_c")
    await server.restart()
    assert sum("is dropped" in line for line in server.stderr) == 3
    await server.restart()
    assert not any("is dropped" in line for line in server.stderr)
    await client.nc.close()
