"""Clients that do not answer heartbeats are closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import BrokerProcess, NatsStreamingProcess
from tests.streaming.stan_client import FIRST, StanClient

pytestmark = pytest.mark.shows("streaming.heartbeats")

FLAGS = ("-hbi", "200ms", "-hbt", "200ms", "-hbf", "2")


@pytest.mark.parametrize("which", ["nats-streaming-server", "jetblock"])
async def test_a_silent_client_is_closed(tmp_path: Path, which: str) -> None:
    """After too many failed heartbeats, its ID is free, its subscriptions end, and its durables wait for it."""
    server = (BrokerProcess("--store", f"file://{tmp_path}", *FLAGS) if which == "jetblock"
              else NatsStreamingProcess("-store", "file", "-dir", str(tmp_path), *FLAGS))
    async with server:
        client = await StanClient.open(server.url, "silent")
        await client.publish_all("a", b"1", b"2")
        durable = await client.subscribe("a", FIRST, durable="d", in_flight=1)
        await durable.take(1)
        await durable.next()
        plain = await client.subscribe("a")
        await client.next_heartbeats(3)
        assert await client.ping() == ""
        client.answers_heartbeats = False
        await client.closed()
        assert await client.ping() == "client has been replaced or is no longer registered"
        client.answers_heartbeats = True
        assert await client.register() == ""
        await client.publish_all("a", b"3")
        assert await plain.rest(0.2) == []
        again = await client.subscribe("a", durable="d")
        assert [one.seq for one in await again.take(2)] == [2, 3]
        await client.nc.close()


async def test_a_client_that_fails_once_stays(tmp_path: Path) -> None:
    """An answer resets the count of failures."""
    async with BrokerProcess("--store", f"file://{tmp_path}", *FLAGS) as server:
        client = await StanClient.open(server.url, "me")
        for _ in range(3):
            client.answers_heartbeats = False
            await client.next_heartbeats(2)
            client.answers_heartbeats = True
            await client.next_heartbeats(2)
        assert await client.ping() == ""
        await client.nc.close()
