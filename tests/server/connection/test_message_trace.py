"""Message traces: the event at the destination is nats-server's, and a message for the trace alone is not delivered.

Both servers get the same publishes over real sockets; identities and times are normalized.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tests.harness import BrokerProcess, NatsServerProcess

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("core.trace_messages")]

DEST = {"Nats-Trace-Dest": "trace.x"}
ONLY = {**DEST, "Nats-Trace-Only": "true"}
PUBLISHES: list[tuple[str, dict[str, str]]] = [
    ("core.a", DEST), ("core.a", ONLY), ("s.a", DEST), ("s.a", ONLY), ("nobody", DEST), ("nobody", ONLY),
    ("s.a", {**DEST, "Nats-Trace-Only": "1"}), ("s.a", {**DEST, "Nats-Trace-Only": "ON"}),
    ("s.a", {**DEST, "Nats-Trace-Only": "false"}), ("s.a", {"Nats-Trace-Only": "true"}),
    ("s.a", {"nats-trace-dest": "trace.x", "nats-trace-only": "true"}),
    ("s.a", {"Nats-Trace-Dest": "a..b", "Nats-Trace-Only": "true"}),
    ("s.a", {"Nats-Trace-Dest": "trace.>", "Nats-Trace-Only": "true"}),
    ("s.a", {"Nats-Trace-Dest": "", "Nats-Trace-Only": "true"}),
    ("s.a", {"Nats-Trace-Dest": "trace disabled", "Nats-Trace-Only": "true"}),
    ("$JS.API.STREAM.NAMES", {**ONLY}),
]


LAST = "s.last"
"""Subject of a traced message that follows each of PUBLISHES; after its PubAck and event, no more events are
expected."""


async def _received(subscription: Subscription) -> list[Any]:
    """Return everything received so far."""
    return [await subscription.next_msg() for _ in range(subscription.pending_msgs)]


async def _events_before_last(traces: Subscription) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while (event := json.loads((await traces.next_msg(timeout=30)).data))["events"][0]["subj"] != LAST:
        found.append(event)
    return found


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    assert event["server"]["seq"] > 0
    assert event["server"]["time"] <= "9"
    server = {name: event["server"][name] for name in ("ver", "jetstream")}
    hops = [{name: value for name, value in hop.items() if name not in ("ts", "cid")}
            for hop in event["events"] if hop["type"] != "si"]
    return {"server": server, "request": event["request"], "events": sorted(hops, key=json.dumps)}


async def _play(client: Client) -> list[Any]:
    await client.request("$JS.API.STREAM.CREATE.S", b'{"name": "S", "subjects": ["s.>"]}', timeout=30)
    receivers = [await client.subscribe("core.*"), await client.subscribe("core.a", queue="Q")]
    traces = await client.subscribe("trace.>")
    played: list[Any] = []
    for subject, headers in PUBLISHES:
        inbox = await client.subscribe(client.new_inbox())
        await client.publish(subject, b"x" if not subject.startswith("$") else b"", headers=headers,
                             reply=inbox.subject)
        await client.request(LAST, b"", headers=DEST, timeout=30)
        await client.request("$JS.API.INFO", b"", timeout=30)
        events = await _events_before_last(traces)
        replies = [(msg.headers or {}).get("Status") or json.loads(msg.data) for msg in await _received(inbox)]
        counts = [len(await _received(one)) for one in receivers]
        played.append((subject, headers, replies, counts, list(map(_shown, events))))
        await inbox.unsubscribe()
    info = json.loads((await client.request("$JS.API.STREAM.INFO.S", b"", timeout=30)).data)
    played.append(info["state"]["messages"])
    return played


async def test_traces_are_as_on_nats_server(tmp_path: Path) -> None:
    async with (NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as theirs,
                BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as mine):
        clients = [await nats.connect(server.url, name="tracer") for server in (theirs, mine)]
        real, ours = await asyncio.gather(*map(_play, clients))
        for client in clients:
            await client.close()
    for expected, got in zip(real, ours, strict=True):
        assert got == expected


async def test_a_trace_among_others_of_one_read(tmp_path: Path) -> None:
    """Publishes in one write keep their order and sequences beside one that is for the trace alone."""
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        client = await nats.connect(broker.url)
        await client.request("$JS.API.STREAM.CREATE.S", b'{"name": "S", "subjects": ["s.>"]}', timeout=30)
        inbox = await client.subscribe(client.new_inbox())
        for i in range(20):
            await client.publish("s.a", b"%d" % i, reply=inbox.subject,
                                 headers=ONLY if i == 7 else None if i % 2 else {"A": "b"})
        assert json.loads((await client.request("s.a", b"last", timeout=30)).data)["seq"] == 20
        assert [json.loads(msg.data)["seq"] for msg in await _received(inbox)] == list(range(1, 20))
        last = await client.jetstream().get_msg("S", seq=8)
        assert last.data == b"8"
        await client.close()
