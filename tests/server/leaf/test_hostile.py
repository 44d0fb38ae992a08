"""A peer that speaks the leaf protocol and means harm: others are served meanwhile, and memory has a bound.

Every number that these tests see is printed, for both servers where both are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from nats.aio.client import Client

from tests.harness import ServerProcess, free_port
from tests.server.leaf.raw import Raw, login
from tests.server.leaf.servers import KINDS, connect, write
from tests.server.leaf.test_solicited import LEAF_PORT, scripted

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

MIB = 1 << 20
LATE_SECONDS = 5.0
"""The longest that another client may wait for an answer, on a machine that is busy with other work."""


class Others:
    """A client beside the hostile peer. ``worst``: the longest that it waited for an answer, in seconds."""

    def __init__(self, server: ServerProcess, client: Client) -> None:
        self.client = client
        self.worst = 0.0
        self._server = server
        self._before = self._largest = resident_bytes(server)

    async def watch(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            began = time.monotonic()
            await self.client.flush(60)
            self.worst = max(self.worst, time.monotonic() - began)
            self._largest = max(self._largest, resident_bytes(self._server))
            await asyncio.sleep(0.02)

    @property
    def grown(self) -> float:
        """The largest growth of the server's memory, in MiB."""
        return max(self._largest, resident_bytes(self._server)) / MIB - self._before / MIB


def resident_bytes(server: ServerProcess) -> int:
    text = Path(f"/proc/{server.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


@asynccontextmanager
async def hub(tmp_path: Path, kind: str, what: str, settings: str = "") -> AsyncIterator[tuple[Others, int]]:
    """Start a hub with another client; print at the end what that client saw, and check how long it waited."""
    port = free_port()
    path = write(tmp_path / "hub.conf", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n{settings}')
    async with KINDS[kind]("-c", path) as server:
        client = await connect(server)
        others = Others(server, client)
        watch = asyncio.create_task(others.watch())
        yield others, port
        assert server.running
        assert not watch.done()
        watch.cancel()
        print(f"{what}, {kind}: memory grew by {others.grown:.0f} MiB, others waited "
              f"{others.worst * 1000:.0f} ms at most")
        await client.close()
        assert others.worst < LATE_SECONDS


both = pytest.mark.parametrize("kind", list(KINDS))


@both
async def test_a_million_interests(tmp_path: Path, kind: str) -> None:
    """A leaf asks for a million subjects, gets a message of the last one, and goes."""
    async with hub(tmp_path, kind, "a million interests of one leaf") as (others, port):
        spoke, _ = await Raw.open(port)
        spoke.send(login(remote_account="R"))
        await spoke.until(b"PING")
        spoke.send(b"PONG\r\n")
        for start in range(0, 1_000_000, 10_000):
            spoke.send(b"".join(b"LS+ some.subject.%d\r\n" % number for number in range(start, start + 10_000)))
            await spoke.sent()
        spoke.send(b"PING\r\n")
        assert await spoke.until_pong()
        await others.client.publish("some.subject.999999", b"x")
        assert (await spoke.until(b"LMSG")).startswith(b"LMSG some.subject.999999")
        spoke.close()
        await others.client.flush(60)


@both
async def test_half_handshakes(tmp_path: Path, kind: str) -> None:
    """Three hundred connections say half of a CONNECT, or nothing; they are closed, and a sound spoke is served."""
    async with hub(tmp_path, kind, "300 half handshakes") as (_, port):
        halves = [await Raw.open(port) for _ in range(300)]
        for number, (half, _) in enumerate(halves):
            half.send(login(remote_account="R")[:number % 30])
        spoke, _ = await Raw.open(port)
        spoke.send(login(remote_account="sound"))
        assert await spoke.until(b"PING")
        for half, _ in halves:
            await half.rest()
        spoke.close()


@both
async def test_a_flood_of_info(tmp_path: Path, kind: str) -> None:
    """A spoke sends INFO after INFO; others are served, and the memory stays."""
    async with hub(tmp_path, kind, "100 000 INFO of a spoke") as (others, port):
        spoke, _ = await Raw.open(port)
        spoke.send(login(remote_account="R"))
        await spoke.until(b"PING")
        info = b"INFO " + json.dumps({"server_id": "R", "connect_urls": [f"10.0.0.{n}:1" for n in range(20)]}).encode()
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                spoke.send((info + b"\r\n") * 1000)
                await spoke.sent()
        await others.client.flush(60)
        assert others.grown < 100
        spoke.close()


@both
async def test_a_hub_that_stops_reading(tmp_path: Path, kind: str) -> None:
    """A hub that wants everything reads nothing more: it is disconnected, others are served, and memory is bounded."""
    wanting, ended = asyncio.Event(), asyncio.Event()

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cast(asyncio.ReadTransport, writer.transport).pause_reading()
        if wanting.is_set():
            await ended.wait()  # the spoke is here again: it had given up the first connection
            return
        writer.write(b"LS+ >\r\nLS+ flood q 1\r\nPING\r\n")
        wanting.set()
        await ended.wait()

    async with scripted(LEAF_PORT, then) as port:
        path = write(tmp_path / "spoke.conf", f"""
            server_name: spoke
            write_deadline: 2s
            leafnodes {{ reconnect: 30s, remotes [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}""")
        async with KINDS[kind]("-c", path, "-D") as spoke:
            await wanting.wait()
            client, beside = await connect(spoke), await connect(spoke)
            others = Others(spoke, beside)
            watch = asyncio.create_task(others.watch())
            body, sent = b"x" * 60_000, 0
            began = time.monotonic()
            closed = asyncio.create_task(spoke.wait_line("Slow Consumer"))
            while time.monotonic() - began < 15:
                await client.publish(f"some.{sent}", body)
                await client.subscribe(f"interest.{sent}")
                await client.flush(60)
                sent += 1
                if closed.done() and sent >= 5000:
                    break
            await asyncio.wait_for(closed, 60)
            assert not watch.done()
            watch.cancel()
            print(f"a hub that reads nothing, {kind}: {sent} messages of 60 kB, memory grew by {others.grown:.0f} MiB, "
                  f"others waited {others.worst * 1000:.0f} ms at most")
            assert others.grown < 300
            assert others.worst < LATE_SECONDS
            ended.set()
            await client.close()
            await beside.close()
