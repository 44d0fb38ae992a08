"""Leaf connections of jetblock and the real nats-server, as hub, as spoke and on both sides, byte for byte.

A scenario is played to two real servers, and then with jetblock in the place of one and of both. What the servers say
to each other, and what their clients receive, is equal except for names and times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import free_port
from tests.server.leaf.capture import plain, recording, shown_body
from tests.server.leaf.servers import KINDS, write
from tests.server.raw_client import Wire

pytestmark = [pytest.mark.shows("cluster.leaf_spoke"), pytest.mark.shows("cluster.leaf_hub"),
              pytest.mark.shows("cluster.leaf_domain")]

Step = tuple[str, bytes] | tuple[str, bytes, bytes]
"""The side whose client sends, the bytes that it sends, and the end of what it then waits for."""


class Scenario(NamedTuple):
    """Two configurations, and what clients of both servers do. ``login`` goes into the remote's URL."""

    steps: Sequence[Step]
    hub: str = ""
    spoke: str = ""
    listener: str = ""
    remote: str = ""
    login: str = ""
    users: tuple[str, str] = ("", "")
    """Fields of the clients' CONNECT, at the hub and at the spoke."""


def pub(subject: bytes, body: bytes = b"x", reply: bytes = b"", headers: bytes = b"") -> bytes:
    """Return a publish of a client."""
    if not headers:
        return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply and reply + b" ", len(body), body)
    block = b"NATS/1.0\r\n" + headers + b"\r\n\r\n"
    return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply and reply + b" ", len(block), len(block) + len(body), block,
                                             body)


def both_ways(*steps: Step) -> list[Step]:
    """Return the steps, and again with the sides exchanged."""
    other = {"hub": "spoke", "spoke": "hub"}
    return [*steps, *((other[step[0]], *step[1:]) for step in steps)]  # type: ignore[misc]


MESSAGES = Scenario(both_ways(
    ("spoke", b"SUB a.* 1\r\nSUB a.* 2\r\nSUB a.> 3\r\n"),
    ("hub", pub(b"a.1") + pub(b"a.2", b"", headers=b"K: v") + pub(b"a.b.c", b"y" * 5000) + pub(b"none")),
    ("hub", pub(b"a.3", reply=b"r.1") + pub(b"a.4", reply=b"r.2", headers=b"A: 1\r\nA: 2")),
    ("spoke", pub(b"a.1", b"own")),
    ("spoke", b"UNSUB 1\r\n"),
    ("spoke", b"UNSUB 2\r\nUNSUB 3\r\n"),
    ("spoke", b"SUB once 4\r\nUNSUB 4 2\r\n"),
    ("hub", pub(b"once", b"1") + pub(b"once", b"2") + pub(b"once", b"3")),
    ("spoke", b"SUB w one 5\r\nSUB w one 6\r\nSUB w two 7\r\n"),
    ("hub", pub(b"w", b"1") + pub(b"w", b"2") + pub(b"w", b"3", reply=b"r.3") + pub(b"w", b"4", headers=b"K: v")),
    ("spoke", b"SUB w 8\r\n"),
    ("hub", pub(b"w", b"to both", reply=b"r")),
    ("hub", b"SUB w one 9\r\nSUB w.* three 10\r\n"),
    ("hub", pub(b"w", b"near")),
    ("spoke", b"UNSUB 6\r\n"),
    ("spoke", b"UNSUB 5\r\nUNSUB 7\r\nUNSUB 8\r\n"),
    ("hub", b"UNSUB 9\r\nUNSUB 10\r\n"),
    ("spoke", b"SUB svc 11\r\n"),
    ("hub", b"SUB _IN.* 12\r\n" + pub(b"svc", b"?", reply=b"_IN.1")),
    ("spoke", pub(b"_IN.1", b"!")),
    ("hub", pub(b"nobody", b"?", reply=b"_IN.2")),
    ("hub", b"UNSUB 12\r\n"),
    ("spoke", b"UNSUB 11\r\n"),
))

MAPPED = Scenario([
    ("hub", b"SUB new.* 1\r\nSUB new.* q 2\r\n"),
    ("spoke", pub(b"old.7", b"mapped there", reply=b"r")),
    ("spoke", pub(b"new.8", b"plain")),
    ("spoke", b"SUB mine.* 3\r\n"),
    ("hub", pub(b"yours.1", b"mapped here")),
    ("spoke", pub(b"yours.2", b"mapped by both")),
    ("hub", b"UNSUB 1\r\nUNSUB 2\r\n"),
], hub='mappings { "old.*": "new.{{wildcard(1)}}" }', spoke='mappings { "yours.*": "mine.{{wildcard(1)}}" }')

PERMISSIONS = Scenario([
    ("hub", b"SUB out.* 1\r\nSUB out.no 2\r\nSUB other 3\r\nSUB local.1 4\r\n"),
    ("spoke", pub(b"out.a") + pub(b"out.no") + pub(b"other") + pub(b"local.1")),
    ("spoke", b"SUB in.* 5\r\nSUB in.no 6\r\nSUB foreign 7\r\nSUB > 8\r\nSUB secret.* 9\r\n"),
    ("hub", pub(b"in.a") + pub(b"in.no") + pub(b"foreign") + pub(b"secret.1")),
    ("spoke", b"UNSUB 5\r\nUNSUB 6\r\nUNSUB 7\r\nUNSUB 8\r\nUNSUB 9\r\n"),
], hub="""accounts { APP { jetstream: enabled, users [ { user: app, password: app }
    { user: leaf, password: leaf, permissions {
        publish { allow: ["out.>", "local.>", "sync.*"], deny: "out.no" }
        subscribe { allow: ["in.>", "secret.>", "sync.*"], deny: "in.no" } } } ] } }""",
    remote='deny_imports: "secret.*", deny_exports: ["local.>"]', login="leaf:leaf@",
    users=('"user":"app","pass":"app"', ""))

JETSTREAM = Scenario(both_ways(
    ("spoke", b"SUB _IN.* 1\r\n" + pub(
        b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s.*"],"allow_direct":true}', b"_IN.1"), b"}\r\n"),
    ("hub", b"SUB _IN.* 1\r\n" + pub(b"s.1", b"one", reply=b"_IN.2"), b"}\r\n"),
    ("hub", pub(b"s.2", b"two", b"_IN.3", b"Nats-Msg-Id: x"), b"}\r\n"),
    ("hub", pub(b"s.2", b"two", b"_IN.4", b"Nats-Msg-Id: x"), b"}\r\n"),
    ("hub", pub(b"s.3", b"not answered")),
    ("hub", pub(b"$JS.{far}.API.STREAM.INFO.S", b"", reply=b"_IN.5"), b"}\r\n"),
    ("hub", pub(b"$JS.API.STREAM.INFO.S", b"", reply=b"_IN.6"), b"}\r\n"),
    ("hub", pub(b"$JS.{far}.API.CONSUMER.CREATE.S.pull", b'{"stream_name":"S","config":{"durable_name":"pull",'
                b'"ack_policy":"explicit"}}', b"_IN.7"), b"}\r\n"),
    ("hub", b"SUB _IN.m.* 2\r\n" + pub(b"$JS.{far}.API.CONSUMER.MSG.NEXT.S.pull", b'{"batch":2}', b"_IN.m.1"),
     b"two\r\n"),
    ("hub", pub(b"$JS.ACK.S.pull.1.1.1.1.0", b"+ACK", b"_IN.8"), b"\r\n\r\n"),
    ("hub", b"SUB _IN.d.1 3\r\n"),
    ("hub", pub(b"$JS.{far}.API.CONSUMER.CREATE.S.push", b'{"stream_name":"S","config":{"durable_name":"push",'
                b'"deliver_subject":"_IN.d.1","ack_policy":"none"}}', b"_IN.9"), b"not answered\r\n"),
    ("hub", pub(b"$JS.{far}.API.DIRECT.GET.S", b'{"seq":1}', b"_IN.10"), b"\r\n\r\n"),
    ("hub", pub(b"$JS.{far}.API.STREAM.DELETE.S", b"", b"_IN.11"), b"}\r\n"),
    ("hub", pub(b"$KV.B.k", b"v") + pub(b"$JS.{far}.API.NONSENSE", b"", b"_IN.12")),
))

SCENARIOS = {"messages": MESSAGES, "mapped": MAPPED, "permissions": PERMISSIONS, "jetstream": JETSTREAM}

ROLES = [("jetblock", "nats-server"), ("nats-server", "jetblock"), ("jetblock", "jetblock")]


async def play(tmp_path: Path, hub: str, spoke: str, scenario: Scenario) -> list[tuple[str, dict[str, list[bytes]]]]:
    """Play a scenario to a hub and a spoke. Returns: for each step, what each side said and each client received."""
    port, via = free_port(), free_port()
    hub_file = write(tmp_path / "hub.conf", f"""
        server_name: hub
        jetstream {{ store_dir: "{tmp_path}/hub", domain: hub }}
        leafnodes {{ listen: "127.0.0.1:{port}", compression: off, {scenario.listener} }}
        {scenario.hub}""")
    spoke_file = write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        jetstream {{ store_dir: "{tmp_path}/spoke", domain: spoke }}
        leafnodes {{ reconnect: 100ms, remotes [
            {{ url: "leaf://{scenario.login}127.0.0.1:{via}", compression: off, {scenario.remote} }} ] }}
        {scenario.spoke}""")
    seen = []
    async with (recording(via, port) as capture, KINDS[hub]("-c", hub_file) as there,
                KINDS[spoke]("-c", spoke_file) as here, Wire(there.port) as one, Wire(here.port) as two):
        clients = {"hub": one, "spoke": two}
        for (name, client), user in zip(clients.items(), scenario.users, strict=True):
            client.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true,%b"protocol":1}\r\n'
                        b"SUB sync.%b 900\r\n" % ((user + ",").encode() if user else b"", name.encode()))
            await client.settled()
        for _ in range(2):
            await crossed(clients)
        seen.append(("connect", {name: sorted(lines) for name, lines in capture.take().items()}))
        for number, (side, data, *awaited) in enumerate(scenario.steps):
            far = b"spoke" if side == "hub" else b"hub"
            data = data.replace(b"{far}", far)
            clients[side].send(data)
            got = await clients[side].until(awaited[0]) if awaited else b""
            assert not clients[side].closed, (hub, spoke, number, data, got)
            got += await clients[side].settled()
            received = await crossed(clients)
            received[side] = got + received[side]
            lines = {name: in_order([line for line in lines if b" sync." not in line])
                     for name, lines in capture.take().items()}
            for name, part in received.items():
                lines[f"client of {name}"] = sorted(map(plain, deliveries(part)))
            seen.append((f"{number}: {side} {data[:60]!r}", lines))
    return seen


def made(directory: Path) -> Path:
    """Make a directory."""
    directory.mkdir()
    return directory


async def crossed(clients: dict[str, Wire]) -> dict[str, bytes]:
    """Wait until everything that either side has sent has arrived. Returns: what the clients received."""
    received = {"hub": b"", "spoke": b""}
    for _ in range(2):
        for sender, receiver in (("hub", "spoke"), ("spoke", "hub")):
            mark = b"MSG sync.%b 900 1\r\n.\r\n" % receiver.encode()
            async with asyncio.timeout(60):
                while True:
                    clients[sender].send(pub(b"sync." + receiver.encode(), b"."))
                    received[sender] += await clients[sender].settled()
                    try:
                        async with asyncio.timeout(5):
                            received[receiver] += await clients[receiver].until(mark)
                        break
                    except TimeoutError:
                        pass  # the servers are not connected yet
    return received


def deliveries(data: bytes) -> Iterator[bytes]:
    """Yield the errors and messages that a client received, without the numbers of its subscriptions."""
    while data:
        line, _, data = data.partition(b"\r\n")
        verb, *words = line.split(b" ")
        if verb in (b"MSG", b"HMSG"):
            size = int(words[-1])
            body, data = data[:size], data[size + 2:]
            if not words[0].startswith(b"sync."):
                yield b" ".join((verb, words[0], *words[2:-1])) + b"\n" + shown_body(body)
        elif verb == b"-ERR":
            yield line


def in_order(lines: list[bytes]) -> list[bytes]:
    """Return the lines with those about interest first and sorted, and messages in the order of their subjects."""
    about = [line for line in lines if line.startswith((b"LS+", b"LS-"))]
    return sorted(about) + sorted((line for line in lines if line not in about), key=lambda line: line.split()[1])


@pytest.mark.parametrize("name", SCENARIOS)
async def test_servers_say_the_same_to_each_other(tmp_path: Path, name: str) -> None:
    """Each side says the same as nats-server in its place, to the other side and to its own client."""
    scenario = SCENARIOS[name]
    expected = await play(made(tmp_path / "reference"), "nats-server", "nats-server", scenario)
    assert sum(len(lines) for _, said in expected for lines in said.values()) > 5 * len(scenario.steps) // 2
    for hub, spoke in ROLES:
        got = await play(made(tmp_path / f"{hub} {spoke}"), hub, spoke, scenario)
        for (step, want), (_, have) in zip(expected, got, strict=True):
            for side in want:
                assert have[side] == want[side], (hub, spoke, step, side)
