"""Message traces across accounts, beside the real nats-server: mappings, stream exports, service imports, outer
traces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.errors import TimeoutError as NoAnswer

from tests.harness import BrokerProcess, NatsServerProcess
from tests.server.sharing.dialogue import masked

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
server_name: s
jetstream {{ store_dir: "{}" }}
accounts {{
  A {{ users: [ {{user: a, password: a}} ], jetstream: enabled
      exports: [ {{service: "open.*", allow_trace: true}}, {{service: "closed"}}
                 {{service: "mapped", allow_trace: true}}
                 {{stream: "ev.open"}}, {{stream: "ev.closed"}}, {{service: "js.>", allow_trace: true}} ]
      mappings: {{ mapped: target, own: "target" }} }}
  B {{ users: [ {{user: b, password: b}} ], jetstream: enabled, msg_trace: "outer.b"
      imports: [ {{service: {{account: A, subject: "open.*"}}, to: "local.*"}}
                 {{service: {{account: A, subject: "closed"}}}}
                 {{service: {{account: A, subject: "mapped"}}}}, {{service: {{account: A, subject: "js.>"}}}}
                 {{stream: {{account: A, subject: "ev.open"}}, allow_trace: true, to: "got.open"}}
                 {{stream: {{account: A, subject: "ev.closed"}}, prefix: "got"}} ]
      exports: [ {{service: "local.*", allow_trace: true}} ]
      mappings: {{ away: "local.x" }} }}
  C {{ users: [ {{user: c, password: c}} ]
      imports: [ {{service: {{account: B, subject: "local.*"}}, to: "far.*"}} ] }}
}}
"""

DEST = {"Nats-Trace-Dest": "trace.x"}
ONLY = {**DEST, "Nats-Trace-Only": "true"}
OUTER = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

PUBLISHES: list[tuple[str, str, dict[str, str]]] = [
    (user, subject, headers) for user, subject in (
        ("a", "own"), ("a", "ev.open"), ("a", "ev.closed"), ("b", "local.u"), ("b", "closed"), ("b", "mapped"),
        ("b", "away"),
        ("b", "js.x"), ("c", "far.u"), ("c", "nobody")) for headers in (DEST, ONLY)] + [
    ("b", "local.u", OUTER), ("b", "local.u", {"TraceParent": OUTER["traceparent"]}), ("a", "own", OUTER),
    ("b", "away", {"traceparent": OUTER["traceparent"][:-1] + "0"}), ("b", "closed", {**OUTER, **ONLY}),
    ("b", "away", {"traceparent": OUTER["traceparent"][:-2] + "81"}),
    ("b", "js.x", {**DEST, "Nats-Expected-Stream": "OTHER"}), ("b", "js.x", {**ONLY, "Nats-Expected-Stream": "OTHER"}),
    ("b", "js.out", DEST), ("a", "ev.open", {**DEST, "Nats-Expected-Stream": "OTHER"}),
    ("a", "ev.closed", {**DEST, "Nats-Expected-Stream": "OTHER"}), ("a", "ev.open", {**ONLY, "Nats-Rollup": "sub"})]


def _config(directory: Path) -> Path:
    path = directory / "sharing.conf"
    path.write_text(CONFIG.format(directory / "store"))
    return path


async def _play(port: int, wait: float) -> list[Any]:
    """Return each publish's event, if it came within ``wait`` seconds, and the received messages and replies."""
    clients = {name: await nats.connect(f"nats://{name}:{name}@127.0.0.1:{port}", name=name) for name in "abc"}
    await clients["a"].jetstream().add_stream(name="JS", subjects=["js.>"])
    await clients["b"].jetstream().add_stream(name="GOT", subjects=["got.>"])
    receivers = [await clients["a"].subscribe(subject) for subject in ("open.*", "closed", "target", "ev.*")]
    receivers += [await clients["b"].subscribe("got.*", queue="q"), await clients["b"].subscribe("got.open")]
    traces = {name: await client.subscribe("trace.*") for name, client in clients.items()}
    traces["outer"] = await clients["b"].subscribe("outer.b")
    for client in clients.values():
        await client.flush()
    played = []
    for user, subject, headers in PUBLISHES:
        client = clients[user]
        inbox = await client.subscribe(client.new_inbox())
        await client.publish(subject, b"x", headers=headers, reply=inbox.subject)
        events = [await _event(traces["outer" if user == "b" and not headers.keys() & DEST.keys() else user], wait)]
        is_stored = subject.startswith("js.") and "Nats-Trace-Only" not in headers
        stored = [await inbox.next_msg(timeout=30)] if is_stored else []
        for other in clients.values():
            await other.flush()
        received = [[(msg.subject, msg.data) for msg in await _received(one)] for one in receivers]
        replies = [(msg.headers or {}).get("Status") for msg in [*stored, *await _received(inbox)]]
        played.append(((user, subject, headers), events, received, replies))
    for client in clients.values():
        await client.close()
    return played


async def _event(traces: Any, wait: float) -> Any:
    try:
        msg = await traces.next_msg(timeout=wait)
    except NoAnswer:
        return None
    event = masked(json.loads(msg.data))
    # Nats-server's own imports are left out; subscriptions to the same message have no order of their own.
    hops = [one for one in event["events"] if one.get("acc") != "$SYS"]
    if any(one["type"] == "se" for one in hops):
        hops.sort(key=json.dumps)
    return {"request": event["request"], "events": hops}


async def _received(subscription: Any) -> list[Any]:
    return [await subscription.next_msg() for _ in range(subscription.pending_msgs)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[list[Any], list[Any]]]:
    for wait in (0.5, 3.0):  # a busy machine may need longer than the first
        async with NatsServerProcess("-c", str(_config(tmp_path_factory.mktemp("traces")))) as real:
            theirs = await _play(real.port, wait)
        async with BrokerProcess("-c", str(_config(tmp_path_factory.mktemp("traces")))) as mine:
            ours = await _play(mine.port, wait)
        if ours == theirs:
            break
    yield theirs, ours


@pytest.mark.shows("accounts.trace")
@pytest.mark.parametrize("at", range(len(PUBLISHES)), ids=lambda at: " ".join(map(str, PUBLISHES[at])))
async def test_trace(at: int, played: tuple[list[Any], list[Any]]) -> None:
    """Both servers have the same event, deliveries and replies."""
    real, ours = played
    assert ours[at] == real[at]


async def test_all_kinds_of_hops_occur(played: tuple[list[Any], list[Any]]) -> None:
    """The events have each kind of hop."""
    kinds = {one["type"] for _, events, _, _ in played[0] for event in events if event for one in event["events"]}
    assert kinds == {"in", "sm", "se", "si", "eg", "js"}

