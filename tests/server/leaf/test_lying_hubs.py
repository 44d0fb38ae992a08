"""Hubs that break the protocol after the handshake: each connection ends by itself, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness import BrokerProcess
from tests.server.leaf.servers import connect, write
from tests.server.leaf.test_solicited import LEAF_PORT, scripted

pytestmark = pytest.mark.shows("cluster.leaf_spoke")


def traced(*fields: bytes) -> bytes:
    """Return a message with these headers."""
    block = b"NATS/1.0\r\n%b\r\n\r\n" % b"\r\n".join(fields)
    return b"HMSG a %d %d\r\n%b\r\n" % (len(block), len(block), block)


LIES: dict[str, tuple[bytes, bytes]] = {
    "binary": (bytes(range(256)) * 1000, b"-ERR 'Unknown Protocol Operation'"),
    "a long line": (b"LS+ " + b"a" * 3_000_000 + b"\r\n", b"-ERR 'maximum control line exceeded'"),
    "a size of 20 digits": (b"LMSG a 99999999999999999999\r\nx\r\n", b""),
    "a large payload": (b"LMSG a 1048577\r\n" + b"x" * 1048577 + b"\r\n", b"-ERR 'Maximum Payload Violation'"),
    "headers beyond the end": (b"HMSG a 50 20\r\n" + b"x" * 20 + b"\r\n", b""),
    "subjects": (b"LS+ a..b\r\n", b"-ERR 'Invalid Subject'"),
    "a deep INFO": (b"INFO " + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\r\n", b""),
    "a client's verb": (b"PUB a 1\r\nx\r\n", b""),
    "destinations of traces": (
        traced(b"Nats-Trace-Dest: a b") + traced(b"Nats-Trace-Dest: >", b"Nats-Trace-Only: true")
        + traced(b"Nats-Trace-Dest: \xff\xfe", b"Nats-Trace-Hop: \xff")
        + 100 * traced(b"Nats-Trace-Dest: t", b"Nats-Trace-Hop: " + b"9." * 30_000) + b"PING\r\n", b"PONG"),
}
"""The bytes that a hub sends, and the answer: an error, b"" for the end of the connection, or PONG if it goes on."""


def hub(lie: bytes, answers: asyncio.Queue[bytes]) -> Callable[
        [asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return the dialogue of a hub, which puts the spoke's answer into ``answers``."""
    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'INFO {"connect_info":true,"remote_account":"A"}\r\n' + lie)
        try:
            while (line := await reader.readline()) and not line.startswith((b"-ERR", b"PONG")):
                pass
        except ConnectionError:
            line = b""
        answers.put_nowait(line.strip())

    return then


async def test_what_a_hub_may_send(tmp_path: Path) -> None:
    """The spoke answers each lie as it should, serves its clients, and logs no traceback."""
    answers: dict[str, asyncio.Queue[bytes]] = {name: asyncio.Queue() for name in LIES}
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(scripted(
            {**LEAF_PORT, "info_on_connect": True}, hub(lie, answers[name]))) for name, (lie, _) in LIES.items()]
        remotes = ", ".join(f'{{ url: "leaf://127.0.0.1:{port}", ignore_discovered_servers: true }}' for port in ports)
        path = write(tmp_path / "spoke.conf", f"leafnodes {{ reconnect: 60s, remotes [ {remotes} ] }}")
        spoke = await stack.enter_async_context(BrokerProcess("-c", path))
        client = await connect(spoke)
        async with asyncio.timeout(60):
            assert {name: await queue.get() for name, queue in answers.items()} == {
                name: answer for name, (_, answer) in LIES.items()}
        await client.flush()
        await client.close()
        assert "Traceback" not in spoke.tail(1000)
