"""The monitoring pages over real sockets: framing, bounds on time and size, and what a bad peer gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.clock import ManualClock
from broker.monitor import http
from broker.monitor.http import MonitorServer
from broker.monitor.pages import Page


class AnyPage:
    """Answers with the target it was asked for; a large one on request."""

    def answer(self, target: str) -> Page:
        if target == "/large":
            return Page(200, bytes(64 << 20), "application/octet-stream")
        if target == "/broken":
            raise RuntimeError("a bug in a page")
        return Page(200, target.encode("latin-1"), "text/plain")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[MonitorServer]:
    async for found in serving(exchange_seconds_max=60):
        yield found


@pytest_asyncio.fixture
async def hasty() -> AsyncIterator[MonitorServer]:
    """One that cuts off clients soon."""
    async for found in serving(exchange_seconds_max=0.5):
        yield found


async def serving(exchange_seconds_max: float) -> AsyncIterator[MonitorServer]:
    found = MonitorServer(AnyPage(), ManualClock(), "127.0.0.1", -1,  # type: ignore[arg-type]
                          exchange_seconds_max=exchange_seconds_max)
    await found.start()
    yield found
    await found.close()


async def ask(server: MonitorServer, request: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_get(server: MonitorServer) -> None:
    """One answer with its length, then the connection closes."""
    head, _, body = (await ask(server, b"GET /varz?a=1 HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-length: 9" in head.lower()
    assert b"access-control-allow-origin: *" in head.lower()
    assert body == b"/varz?a=1"


async def test_old_http_and_head(server: MonitorServer) -> None:
    """HTTP/1.0 without a Host works; HEAD gets no body."""
    assert (await ask(server, b"GET /x HTTP/1.0\r\n\r\n")).endswith(b"/x")
    head = await ask(server, b"HEAD /varz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"200 OK" in head


@pytest.mark.parametrize(("request_bytes", "status"), [
    (b"POST /varz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"405"),
    (b"INFO {}\r\nCONNECT {}\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /" + b"a" * 100_000, b"431"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000, b"431"),
])
async def test_bad_requests(server: MonitorServer, request_bytes: bytes, status: bytes) -> None:
    """Each is answered with its status and closed; none is read without end."""
    assert (await ask(server, request_bytes)).split()[1] == status


async def test_silent_and_slow_clients_are_cut_off(hasty: MonitorServer) -> None:
    """A client that sends nothing, or never finishes its request, is closed when its time is over."""
    assert await ask(hasty, b"") == b""
    assert await ask(hasty, b"GET / HTTP/1.1\r\nHos") == b""


async def test_client_that_does_not_read_is_cut_off(hasty: MonitorServer) -> None:
    """A reply that the peer does not read is dropped after a timeout, and the server goes on."""
    reader, writer = await asyncio.open_connection(hasty.host, hasty.port, limit=1024)
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(1.0)
    received = 0
    with pytest.raises(ConnectionError):  # noqa: PT012 (until it is cut off)
        while chunk := await reader.read(1 << 20):
            received += len(chunk)
        raise ConnectionError("closed early")
    assert received < 64 << 20
    writer.close()
    assert (await ask(hasty, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"/x")


async def test_many_silent_clients_block_no_others(hasty: MonitorServer) -> None:
    """More connections than are served at once: those behind them wait no longer than one time-out."""
    silent = [await asyncio.open_connection(hasty.host, hasty.port) for _ in range(http.CONNECTIONS_MAX + 8)]
    assert (await ask(hasty, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"/x")
    for _, writer in silent:
        writer.close()


async def test_a_page_that_fails_ends_its_own_exchange_only(server: MonitorServer,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    """The connection closes, the log says why, the next request is served."""
    assert await ask(server, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    assert "a bug in a page" in caplog.text
    assert (await ask(server, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"/x")


async def test_close_ends_exchanges_in_progress(server: MonitorServer) -> None:
    """Closing does not wait for silent clients."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        await server.close()
        assert await reader.read() == b""
    writer.close()
