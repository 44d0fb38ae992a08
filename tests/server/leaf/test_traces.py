"""The trace of a message that goes to a leaf node whose server takes no traces, as nats-server shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.leaf.servers import connect, crossed, pair
from tests.server.leaf.test_differential import made
from tests.server.leaf.test_solicited import serve

pytestmark = pytest.mark.shows("cluster.leaf_hub")


async def traces(directory: Path, hub: str, only: str) -> list[dict[str, Any]]:
    """Return what the hub traces of a message that a client there and a spoke want, without what always differs."""
    async with pair(directory, hub, "jetblock") as servers:
        here, there = await connect(servers.hub), await connect(servers.spoke)
        traced = await here.subscribe("traced")
        await here.subscribe("a.b")
        for subject in ("a.b", "a.*"):
            await there.subscribe(subject)
        await serve(there, "echo")
        await crossed(there, here)
        headers = {"Nats-Trace-Dest": "traced", "Nats-Trace-Only": only}
        await here.publish("a.b", b"x", headers=headers)
        event = json.loads((await traced.next_msg(timeout=30)).data)
        await here.close()
        await there.close()
    assert event["server"]["name"] == "hub"
    assert set(event) == {"server", "request", "hops", "events"}
    assert event["hops"] == 1
    shown = sorted(event["events"], key=lambda one: (one["type"], one["kind"]))
    for one in shown:
        for name in ("ts", "cid"):
            del one[name]
    return shown


@pytest.mark.parametrize("only", ["false", "true"])
async def test_a_leaf_in_a_trace(tmp_path: Path, only: str) -> None:
    """A leaf is one receiver, however many of its subscriptions match; its entry says that no trace comes from it."""
    expected = await traces(made(tmp_path / "reference"), "nats-server", only)
    assert [one["kind"] for one in expected] == [0, 4, 0]
    assert await traces(made(tmp_path / "ours"), "jetblock", only) == expected
