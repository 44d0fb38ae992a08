"""Leaf connections on the monitoring pages and in events, beside the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import fetch
from tests.server.leaf.servers import KINDS, Pair, connect, crossed, pair

pytestmark = pytest.mark.shows("monitoring.leafz")

SYSTEM = """accounts { APP { users [ { user: app, password: app } ] }, SYS { users [ { user: sys, password: sys } ] } }
            system_account: SYS"""


async def pages(servers: Pair) -> dict[str, Any]:
    """Send one message in each direction, and return the members of the pages that do not vary."""
    here, there = await connect(servers.hub, "app"), await connect(servers.spoke, "app")
    await crossed(there, here)
    await crossed(here, there)
    found: dict[str, Any] = {}
    for side, server, client, port in (("hub", servers.hub, here, 0), ("spoke", servers.spoke, there, servers.port)):
        page = await server.monitor("/leafz?subs=1&acc=APP")
        assert page["leafnodes"] == len(page["leafs"]) == 1
        [row] = page["leafs"]
        assert row["rtt"]
        assert min(row[name] for name in ("in_msgs", "out_msgs", "subscriptions", "port", "id")) > 0
        assert not port or row["port"] == port
        assert len(row["subscriptions_list"]) == row["subscriptions"]
        assert (await server.monitor("/leafz?acc=SYS"))["leafs"] == []
        varz = await server.monitor("/varz")
        assert varz["in_msgs"] > varz["in_client_msgs"] > 0
        [account] = (await server.monitor("/accstatz?unused=1"))["account_statz"][:1]
        accounts = {one["acc"]: one for one in (await server.monitor("/accstatz?unused=1"))["account_statz"]}
        account = accounts["APP"]
        assert account["sent"]["leafs"]["msgs"] > 0
        assert account["received"]["leafs"]["msgs"] > 0
        detail = (await server.monitor("/accountz?acc=APP"))["account_detail"]
        system = await connect(server, "sys")
        watched = await system.subscribe("$SYS.ACCOUNT.APP.SERVER.CONNS")
        await system.flush()
        more = await connect(server, "app")
        event = json.loads((await watched.next_msg(timeout=30)).data)
        found[side] = {
            "row": {name: row[name] for name in ("name", "is_spoke", "account", "ip")},
            "names": sorted(row.keys() - {"compression"}), "leafnodes": varz["leafnodes"],
            "leaf": {name: value for name, value in varz["leaf"].items() if name != "port"},
            "account": {name: account[name] for name in ("conns", "leafnodes", "total_conns")},
            "detail": detail["leafnode_connections"], "event": (event["leafnodes"], event["total_conns"])}
        for one in (system, more, client):
            await one.close()
    found["spoke"]["leaf"]["remotes"][0].pop("urls")
    return found


async def test_pages_and_events(tmp_path: Path) -> None:
    """A real and a jetblock server, as hub and as spoke, show the same."""
    seen = {}
    for hub, spoke in (("nats-server", "nats-server"), ("nats-server", "jetblock"), ("jetblock", "nats-server")):
        folder = tmp_path / f"{hub}-{spoke}"
        folder.mkdir()
        async with pair(folder, hub, spoke, hub_settings=SYSTEM, spoke_settings=SYSTEM, login="app:app@",
                        remote="account: APP, deny_imports: [x]") as servers:
            seen[hub, spoke] = await pages(servers)
    real = seen.pop(("nats-server", "nats-server"))
    assert set(KINDS) == {"nats-server", "jetblock"}
    for found in seen.values():
        assert found == real


async def test_metrics(tmp_path: Path) -> None:
    """The number of leaf connections, and their messages, are metrics."""
    async with pair(tmp_path, "nats-server", "jetblock") as servers:
        here, there = await connect(servers.hub), await connect(servers.spoke)
        await crossed(there, here)
        _, body = await fetch(servers.spoke.monitor_url + "/metrics")
        values = {name: float(value) for name, _, value in (
            line.partition(" ") for line in body.decode().splitlines() if line.startswith("jetblock_leaf"))}
        assert values["jetblock_leaf_nodes"] == 1
        assert values["jetblock_leaf_received_messages_total"] >= 2
        assert values["jetblock_leaf_sent_messages_total"] >= 2
        await here.close()
        await there.close()
