"""Connections that come in large numbers, send nothing, trickle or do not read: each is bounded, and others are
unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.harness import BrokerProcess
from tests.server.in_process import running
from tests.server.raw_client import Wire

CONNECT = b'CONNECT {"verbose":false,"user":"u","pass":"p"}\r\n'
STORM = 2000


@contextlib.asynccontextmanager
async def wires(port: int, count: int) -> AsyncIterator[list[Wire]]:
    """Open so many connections at once."""
    found = [Wire(port) for _ in range(count)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(wire.__aenter__() for wire in found))
    try:
        yield found
    finally:
        for wire in found:
            wire.writer.transport.abort()


async def served(wire: Wire, count: int) -> None:
    """Check that the connection gets its own messages."""
    wire.send(b"SUB served 1\r\n" + b"PUB served 1\r\nx\r\n" * count + b"UNSUB 1\r\n")
    assert (await wire.settled()).count(b"MSG served 1 1\r\n") == count


async def test_connections_that_trickle() -> None:
    """A CONNECT that comes byte by byte does not extend the time to log in, nor delay others."""
    async def trickle(wire: Wire) -> bytes:
        with contextlib.suppress(ConnectionError):
            for byte in CONNECT[:-2] * 1000:
                if wire.writer.is_closing() or wire.reader.at_eof():
                    break
                wire.send(bytes([byte]))
                await asyncio.sleep(0.02)
            return await wire.end()
        return b""

    for seconds in (0.5, 2, 8):  # a CONNECT that comes at once may be later than that on a busy machine
        async with (running(user="u", password="p", timeout_ns=int(seconds * 1e9)) as server,
                    Wire(server.port) as other):
            other.send(CONNECT)
            if await other.settled() != b"PONG\r\n":
                continue
            await served(other, 10)
            async with wires(server.port, 100) as slow, asyncio.timeout(30):
                ended = asyncio.gather(*(trickle(wire) for wire in slow))
                while not ended.done():
                    await served(other, 10)
                    await asyncio.sleep(0.05)
            # A connection that is written to after its end may be reset before its last line is read.
            assert set(await ended) <= {b"-ERR 'Authentication Timeout'\r\n", b""}
            assert [row["reason"] for row in server.connections(closed=True)] == ["Authentication Timeout"] * 100
            return
    pytest.fail("nobody could log in")


async def test_peers_that_are_gone_without_a_word() -> None:
    """A peer that answers no PING is disconnected; one that does stays."""
    async with running(ping_interval_ns=200_000_000, ping_max=3) as server, wires(server.port, 100) as gone, \
            Wire(server.port, pings=True) as alive:
        own = server.subscription_count
        alive.send(b'CONNECT {"verbose":false}\r\n')
        for wire in gone:
            wire.send(b'CONNECT {"verbose":false}\r\nSUB served 1\r\n')

        async def answer() -> None:
            while True:
                await alive.until(b"PING\r\n")
                alive.send(b"PONG\r\n")

        answering = asyncio.create_task(answer())
        assert all(await asyncio.gather(*(wire.end() for wire in gone)))
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await served(alive, 10)
        assert len(server.clients) == 1
        assert server.subscription_count == own
        assert {row["reason"] for row in server.connections(closed=True)} == {"Stale Connection"}


async def test_a_storm_of_connections() -> None:
    """Two thousand connections come at once: each is served, and nothing of them remains afterwards."""
    async with running() as server:
        own = server.subscription_count
        async with wires(server.port, STORM) as storm:
            for wire in storm:
                wire.send(b'CONNECT {"verbose":false}\r\nSUB all 1\r\n')
            await asyncio.gather(*(wire.settled() for wire in storm))
            assert len(server.clients) == STORM
            storm[0].send(b"PUB all 2\r\nhi\r\n")
            arrivals: Sequence[bytes] = await asyncio.gather(*(wire.until(b"hi\r\n") for wire in storm))
            assert set(arrivals) == {b"MSG all 1 2\r\nhi\r\n"}
        async with asyncio.timeout(30):
            while server.clients:  # noqa: ASYNC110 - a server tells nobody that a client left
                await asyncio.sleep(0.02)
        assert server.subscription_count == own


@pytest.mark.parametrize("stall", [True, False])
async def test_a_subscriber_that_does_not_read_beside_one_that_does(stall: bool) -> None:
    """The subscriber is disconnected at its bound; the other one gets every message, and the publisher keeps
    publishing."""
    count, body = 400, b"x" * 100_000
    async with running(max_pending=8 << 20, no_fast_producer_stall=not stall) as server, Wire(server.port) as deaf, \
            Wire(server.port) as reader, Wire(server.port) as publisher:
        for wire in (deaf, reader, publisher):
            wire.send(b'CONNECT {"verbose":false}\r\n')
        for wire in (deaf, reader):
            wire.send(b"SUB a 1\r\n")
            await wire.settled()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        got = 0
        for _ in range(count // 40):
            publisher.send((b"PUB a %d\r\n%b\r\n" % (len(body), body)) * 40)
            await publisher.settled()
            got += (await reader.settled()).count(b"MSG a 1 ")
        assert got == count
        assert [row["reason"] for row in server.connections(closed=True)] == ["Slow Consumer (Pending Bytes)"]
        assert len(server.clients) == 2


@pytest.mark.soak
async def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """Each connection costs a few KiB, and others are served meanwhile; the memory is reused by the next ten
    thousand."""
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 1000:
        pytest.fail(f"needs {count + 1000} open files, and the limit is {hard}: raise it (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        async with BrokerProcess("-sd", str(tmp_path)) as broker, Wire(broker.port) as other:
            other.send(b'CONNECT {"verbose":false}\r\n')
            await served(other, 10)
            sizes = [rss(broker)]
            for _ in range(2):
                async with contextlib.AsyncExitStack() as stack:
                    for _ in range(count // 500):
                        group = await stack.enter_async_context(wires(broker.port, 500))
                        for wire in group:
                            wire.send(b'CONNECT {"verbose":false}\r\n')
                        await asyncio.gather(*(wire.settled() for wire in group))
                    await served(other, 1000)
                    sizes.append(rss(broker))
                while (await broker.monitor("/varz"))["connections"] > 1:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.1)
            assert sizes[1] - sizes[0] < count * 16 * 1024
            assert sizes[2] - sizes[1] < count * 2 * 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
async def test_half_handshakes_leave_nothing(tmp_path: Path) -> None:
    """Two thousand TLS handshakes are left unfinished, six times: each time the memory of the last ones is reused."""
    files = Authority(tmp_path).server()
    config = tmp_path / "conf"
    config.write_text(f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", timeout: 60 }}\n')
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), sent,
                                                         server_hostname="localhost").do_handshake()
    hello = sent.read()
    async with BrokerProcess("-c", str(config), monitor=True) as broker:
        sizes = []
        for _ in range(6):
            async with wires(broker.port, 2000) as storm:
                for wire in storm:
                    wire.send(hello)
                await asyncio.gather(*(wire.until(b"\x16\x03") for wire in storm))
                sizes.append(rss(broker))
            while (await broker.monitor("/varz"))["connections"]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
        assert sizes[-1] - sizes[1] < 4 << 20, sizes


def rss(broker: BrokerProcess) -> int:
    """Return the resident memory in bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
