"""The monitoring pages beside those of nats-streaming-server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness import BrokerProcess, NatsStreamingProcess, ServerProcess, fetch
from tests.streaming.stan_client import FIRST, StanClient

pytestmark = pytest.mark.shows("streaming.monitoring")

PAGES = ("/streaming/serverz", "/streaming/storez", "/streaming/clientsz", "/streaming/clientsz?subs=1",
         "/streaming/clientsz?client=me", "/streaming/clientsz?client=me&subs=1", "/streaming/clientsz?client=nobody",
         "/streaming/clientsz?limit=1&offset=1", "/streaming/clientsz?limit=x&offset=-1&subs=2",
         "/streaming/clientsz?offset=7", "/streaming/channelsz", "/streaming/channelsz?subs=1",
         "/streaming/channelsz?channel=a", "/streaming/channelsz?channel=a&subs=1",
         "/streaming/channelsz?channel=none", "/streaming/channelsz?limit=1&offset=1&subs=1",
         "/streaming/channelsz?limit=1", "/streaming/channelsz?offset=9", "/streaming/channelsz?callback=f")
_OTHER = {"server_id", "now", "start_time", "uptime", "go", "open_fds", "max_fds", "bytes", "total_bytes", "in_bytes",
          "out_bytes", "inbox", "ack_inbox", "hb_inbox", "type"}
"""Members whose values are each server's own."""


def normal(value: Any) -> Any:
    """Return a page with the values that must be equal. Subscriptions are in no order."""
    if isinstance(value, dict):
        return {key: type(inner).__name__ if key in _OTHER else normal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted(map(normal, value), key=json.dumps) if value and isinstance(value[0], dict) else value
    return value


async def use(server: ServerProcess) -> StanClient:
    """Leave clients, channels and all kinds of subscriptions on the server."""
    me, other = await StanClient.open(server.url, "me"), await StanClient.open(server.url, "other")
    await me.publish_all("a", b"1", b"2", b"3")
    await me.publish_all("b.c", b"1")
    full = await me.subscribe("a", FIRST, in_flight=2, ack_wait=7)
    await full.take(2, ack=False)
    for options in ({"durable": "d"}, {"queue": "q"}, {"queue": "q", "durable": "d"}):
        await (await me.subscribe("a", FIRST, **options)).take(3)
        sub = await other.subscribe("b.c", FIRST, **options)
        await sub.take(1, ack=False)
        assert await sub.close() == ""
    for _ in range(2):  # two members that have as many messages as they take
        await (await me.subscribe("a", FIRST, queue="full", in_flight=1)).next()
    stalled = await other.subscribe("a", FIRST, durable="stalled", in_flight=2)
    await stalled.take(2, ack=False)
    assert await stalled.close() == ""
    # The answer comes after all acks are processed.
    assert await me.ping() == ""
    assert await (await me.subscribe("a")).close() == ""
    await other.nc.close()
    return me


async def test_pages(tmp_path: Path) -> None:
    """Names, order and values of members, status codes and errors are equal."""
    peer = NatsStreamingProcess("-store", "file", "-dir", str(tmp_path / "peer"), "-ma", "1h")
    ours = BrokerProcess("--store", f"file://{tmp_path / 'ours'}", "-cid", "test-cluster", "-ma", "1h")
    async with peer, ours:
        clients = [await use(server) for server in (peer, ours)]
        for path in PAGES:
            (status, body), (our_status, our_body) = [await fetch(one.monitor_url + path) for one in (peer, ours)]
            assert our_status == status, path
            if status == 200 and "callback" not in path:
                page, our_page = normal(json.loads(body)), normal(json.loads(our_body))
                assert our_page == page, path
                assert list(our_page) == list(page), path
            elif status == 200:
                assert re.match(rb"f\(\{", our_body), path
            else:
                assert our_body == body, path
        for server in (peer, ours):
            status, index = await fetch(server.monitor_url + "/streaming")
            assert status == 200
            assert re.findall(rb"href=\./streaming/(\w+)", index) == [b"serverz", b"storez", b"clientsz", b"channelsz"]
        values = dict(line.rsplit(" ", 1) for line in
                      (await fetch(ours.monitor_url + "/metrics"))[1].decode().splitlines()
                      if line.startswith("jetblock_streaming_"))
        assert {name.removeprefix("jetblock_streaming_"): float(value) for name, value in values.items()
                if "bytes" not in name} == {
            "clients": 2, "channels": 2, "subscriptions": 9, "received_messages_total": 4, "sent_messages_total": 18,
            'channel_subscriptions{channel="a"}': 7, 'channel_subscriptions{channel="b.c"}': 2,
            'channel_unacked_messages{channel="a"}': 6, 'channel_unacked_messages{channel="b.c"}': 2}
        for client in clients:
            await client.nc.close()


async def test_without_the_gateway(tmp_path: Path) -> None:
    """A broker without the gateway has no such pages."""
    async with BrokerProcess("--store", f"file://{tmp_path}") as server:
        assert (await fetch(server.monitor_url + "/streaming/serverz"))[0] == 404


async def test_channels_that_change_between_two_requests(tmp_path: Path) -> None:
    """The list is that of the present channels, also if as many were made as deleted, the newest under its old name."""
    async with BrokerProcess("-cid", "test-cluster", "-sd", str(tmp_path)) as server:
        me = await StanClient.open(server.url, "me")
        for channel in ("a", "b", "c"):
            await me.publish_all(channel, b"1")
        url = f"{server.monitor_url}/streaming/channelsz"
        assert json.loads((await fetch(url))[1])["names"] == ["a", "b", "c"]
        js = me.nc.jetstream()
        for channel in ("a", "c"):
            await js.delete_stream(f"STAN_{channel}")
        for channel in ("d", "c"):
            await js.add_stream(name=f"STAN_{channel}", subjects=[channel])
        assert json.loads((await fetch(url))[1])["names"] == ["b", "c", "d"]
        await me.nc.close()
