"""Channels that nobody uses are deleted after ``max_inactivity``, as by nats-streaming-server."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, NatsStreamingProcess, ServerProcess, fetch
from tests.streaming.stan_client import FIRST, NEW, StanClient

pytestmark = pytest.mark.shows("streaming.inactivity")


async def channels(server: ServerProcess) -> list[str]:
    page = json.loads((await fetch(server.monitor_url + "/streaming/channelsz"))[1])
    return page.get("names", [])


async def play(server: ServerProcess) -> list[object]:
    """Return what is left of channels in use and of idle ones, and of a channel that comes back."""
    client = await StanClient.open(server.url, "me")
    for channel in ("idle", "read", "kept", "durable"):
        await client.publish_all(channel, b"1", b"2")
    sub = await client.subscribe("read", FIRST)
    await sub.take(2)
    durable = await client.subscribe("durable", FIRST, durable="d")
    await durable.take(1)
    assert await durable.close() == ""
    async with asyncio.timeout(60):
        while await channels(server) != ["kept", "read"]:  # noqa: ASYNC110  # no event announces it
            await asyncio.sleep(0.1)
    again = await client.subscribe("durable", NEW, durable="d")
    await client.publish_all("durable", b"3")
    found: list[object] = [again.error, await again.take(1), (await sub.close())]
    async with asyncio.timeout(60):
        while "read" in await channels(server):  # noqa: ASYNC110  # no event announces it
            await asyncio.sleep(0.1)
    found.append(await channels(server))
    await client.nc.close()
    return found


async def test_idle_channels(tmp_path: Path) -> None:
    """Active subscriptions keep a channel; offline durables go with it, and a channel that comes back begins at 1."""
    config = tmp_path / "server.conf"
    config.write_text('streaming { limits { mi: "2s", channels { kept: { mi: "0s" } } } }')
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(NatsStreamingProcess("-sc", str(config)))
        ours = await stack.enter_async_context(
            BrokerProcess("--store", f"file://{tmp_path / 'ours'}", "-sc", str(config)))
        expected, found = await asyncio.gather(play(peer), play(ours))
        assert found == expected
        # The deletion is stored.
        await ours.restart()
        assert await channels(ours) == ["durable", "kept"]


async def test_a_deleted_stream(tmp_path: Path) -> None:
    """If JetStream deletes a channel's stream, its durable subscriptions begin anew."""
    async with BrokerProcess("--store", f"file://{tmp_path}", "-cid", "test-cluster") as server:
        client = await StanClient.open(server.url, "me")
        await client.publish_all("c", b"1", b"2")
        durable = await client.subscribe("c", FIRST, durable="d")
        await durable.take(2)
        assert await client.nc.jetstream().delete_stream("STAN_c")
        again = await client.subscribe("c", FIRST, durable="d")
        assert again.error == ""
        await client.publish_all("c", b"3")
        assert [(one.seq, one.data) for one in await again.take(1)] == [(1, b"3")]
        await client.nc.close()


async def test_replaced_durables(tmp_path: Path) -> None:
    """With ``replace_durable``, a durable subscription takes the place of one in use, as on nats-streaming-server."""
    peer = NatsStreamingProcess("-replace_durable")
    ours = BrokerProcess("--store", f"file://{tmp_path / 'ours'}", "-cid", "test-cluster", "-replace_durable")
    found = []
    async with peer, ours:
        for server in (peer, ours):
            client = await StanClient.open(server.url, "me")
            await client.publish_all("c", b"1", b"2")
            first = await client.subscribe("c", FIRST, durable="d")
            await first.take(1)
            assert (await first.next()).seq == 2
            assert await client.ping() == ""
            second = await client.subscribe("c", FIRST, durable="d")
            await client.publish_all("c", b"3")
            found.append([second.error, await second.take(2), await first.rest(0.1)])
            await client.nc.close()
    assert found[0] == found[1]
