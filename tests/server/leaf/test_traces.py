"""Traces of messages that cross leaf nodes, beside the real nats-server: each server publishes an event of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness import free_port
from tests.server.leaf.raw import Raw, login
from tests.server.leaf.servers import KINDS, connect, crossed, write
from tests.server.leaf.test_differential import made
from tests.upstreams.test_upstreams import make

pytestmark = pytest.mark.shows("cluster.leaf_traces")

SUBJECTS = ("a.b", "a.c", "mapped", "js.x", "queue", "one", "denied.x", "nobody")

NAMES = ("one", "hub", "two")


@asynccontextmanager
async def chain(directory: Path, kinds: dict[str, str]) -> AsyncIterator[dict[str, Client]]:
    """Run two spokes of one hub, each of the given kind. Yields: a client of each server."""
    port = free_port()
    common = "mappings {{ mapped: to.{name} }}, jetstream {{ store_dir: \"{directory}/{name}\", domain: {name} }}"
    async with AsyncExitStack() as stack:
        clients = {}
        for name in ("hub", "one", "two"):
            leafs = (f'listen: "127.0.0.1:{port}", authorization {{ user: leaf, password: leaf }}' if name == "hub" else
                     f'remotes [ {{ url: "leaf://leaf:leaf@127.0.0.1:{port}", deny_exports: ["denied.>"] }} ]')
            path = write(directory / f"{name}.conf", f"""
                server_name: {name}
                {common.format(name=name, directory=directory)}
                leafnodes {{ {leafs}, reconnect: 100ms }}""")
            clients[name] = await connect(await stack.enter_async_context(KINDS[kinds[name]]("-c", path)))
        yield clients
        for client in clients.values():
            await client.close()


async def subscribed(clients: dict[str, Client]) -> list[tuple[str, str, str]]:
    """Subscribe on all servers. Returns: the messages received, as they come: server, subject and hop."""
    received: list[tuple[str, str, str]] = []
    for name, client in clients.items():
        async def note(msg: Msg, name: str = name) -> None:
            received.append((name, msg.subject, level((msg.headers or {}).get("Nats-Trace-Hop", ""))))

        for subject in ("a.b", "a.*", f"to.{name}"):
            await client.subscribe(subject, cb=note)
        await client.subscribe("one", queue="q", cb=note)
    await clients["two"].subscribe("queue", queue="q", cb=note)
    await clients["two"].subscribe("denied.*", cb=note)
    await make(clients["two"], "STREAM", subjects=["js.*"])
    return received


async def events(clients: dict[str, Client], publisher: str) -> dict[str, Any]:
    """Publish from one server, and return the events of all servers, without what always differs."""
    here = clients[publisher]
    traced = await here.subscribe("traced.*.*")
    for other in clients:
        for name in clients:
            if name != other:
                await crossed(clients[name], clients[other])
    found: dict[str, Any] = {}
    for subject in SUBJECTS:
        for only in ("false", "true"):
            headers = {"Nats-Trace-Dest": f"traced.{subject.partition('.')[0]}.{only}", "Nats-Trace-Only": only}
            await here.publish(subject, b"x", headers=headers)
            shown_by: dict[str, Any] = {}
            sent: dict[str, str] = {}
            while shown_by.keys() != {publisher, *sent}:
                event = json.loads((await traced.next_msg(timeout=10)).data)
                sent |= {one["name"]: one["hop"] for one in event["events"] if "hop" in one and "error" not in one}
                shown_by[event.pop("server")["name"]] = event
            for name, event in shown_by.items():
                assert event["request"]["header"].get("Nats-Trace-Hop", [""]) == [sent.get(name, "")]
                found[f"{publisher} {subject} {only} {name}"] = shown(event)
    await traced.unsubscribe()
    return found


def shown(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without identifiers, times and random orders."""
    for one in event["events"]:
        del one["ts"]
        one.pop("cid", None)
        if "hop" in one:
            one["hop"] = level(one["hop"])
    event["request"]["header"]["Nats-Trace-Hop"] = level(event["request"]["header"].get("Nats-Trace-Hop", [""])[0])
    event["events"].sort(key=lambda one: (one["type"] == "eg", one.get("kind", 0), one.get("name"), one.get("sub", "")))
    return event


def level(hop: str) -> str:
    """Return a hop without its numbers: a server numbers the others in a random order."""
    return "".join(char for char in hop if char == ".") + "." if hop else ""


async def test_a_trace_across_three_servers(tmp_path: Path) -> None:
    """Hops, mappings, queue groups, streams, denied subjects, and messages for the trace alone."""
    results = []
    for case in (dict.fromkeys(NAMES, "nats-server"), {"hub": "jetblock", "one": "nats-server", "two": "jetblock"},
                 {"hub": "nats-server", "one": "jetblock", "two": "nats-server"}):
        async with chain(made(tmp_path / "-".join(case.values())), case) as clients:
            received = await subscribed(clients)
            results.append([await events(clients, publisher) for publisher in NAMES])
            for name in NAMES:
                await crossed(clients[name], clients["hub" if name != "hub" else "one"])
            results[-1].append({"received": sorted(received)})
    expected, *others = results
    for other in others:
        assert other == expected


async def old_spoke(directory: Path, kind: str) -> list[Any]:
    """Return what a hub shows and sends of traced messages to a spoke that takes no traces, and what it does with the
    spoke's own traced messages."""
    port = free_port()
    path = write(directory / "hub.conf", f"""
        server_name: hub
        accounts {{ A {{ users: [ {{ user: a, password: a }}
            {{ user: leaf, password: leaf, permissions {{ publish: ["own", "traced.own"] }} }} ]
            msg_trace: "traced.own" }} }}
        leafnodes {{ listen: "127.0.0.1:{port}" }}""")
    found: list[Any] = []
    async with KINDS[kind]("-c", path) as hub:
        here = await connect(hub, "a")
        traced = await here.subscribe("traced.>")
        raw, _ = await Raw.open(port)
        raw.send(login(user="leaf", **{"pass": "leaf"}) + b"LS+ a.*\r\nLS+ a.b\r\nPING\r\n")
        await raw.until_pong()
        raw.send(b"PING\r\n")  # the hub reads on once it has served the interest
        await raw.until_pong()
        for only in ("false", "true"):
            await here.publish("a.b", b"x", headers={"Nats-Trace-Dest": "traced.hub", "Nats-Trace-Only": only})
            found.append(shown(json.loads((await traced.next_msg(timeout=10)).data)))
        await here.publish("a.b", b"end")
        found += [await raw.until(b"HMSG"), await raw.until(b"LMSG")]
        for block in (b"Nats-Trace-Dest: traced.own\r\nNats-Trace-Hop: 3.1", b"Nats-Trace-Dest: traced.own",
                      b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
            raw.send(_hmsg(b"own", block))
            found.append(shown(json.loads((await traced.next_msg(timeout=10)).data)))
        raw.send(_hmsg(b"own", b"Nats-Trace-Dest: traced.other"))
        found.append(await raw.until(b"-ERR"))
        await here.close()
    for event in found:
        if isinstance(event, dict):
            del event["server"]
    return found


def _hmsg(subject: bytes, header: bytes) -> bytes:
    block = b"NATS/1.0\r\n%b\r\n\r\n" % header
    return b"HMSG %b %d %d\r\n%b\r\n" % (subject, len(block), len(block), block)


async def test_a_spoke_without_traces(tmp_path: Path) -> None:
    """A spoke of an older protocol gets the message once, unless it is for the trace alone, and may send traces."""
    expected = await old_spoke(made(tmp_path / "reference"), "nats-server")
    assert await old_spoke(made(tmp_path / "ours"), "jetblock") == expected
