"""A listener leaves the last descriptors to the store: it pauses instead of accepting, and continues by itself."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from itertools import pairwise

import pytest

from broker.base import descriptors, listen_socket
from broker.base.descriptors import is_free_for_connections, open_files_max, raise_limit, reserved
from broker.base.listen_socket import Bound, Listener


class Greeter(asyncio.Protocol):
    """A protocol that sends one byte to each client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        transport.write(b"!")


async def greeted(port: int) -> socket.socket:
    """A connection that was accepted."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", port))
    async with asyncio.timeout(60):
        assert await loop.sock_recv(client, 10) == b"!"
    return client


async def test_a_pause_and_its_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a free descriptor, connections wait in the kernel's queue, which is checked less and less often, with one
    log line. When a descriptor is free, they are accepted in order."""
    asked: list[float] = []
    enough = asyncio.Event()
    free = False

    def is_free(_: int, *, monitoring: bool) -> bool:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) >= 6:
            enough.set()
        return free

    monkeypatch.setattr(listen_socket, "is_free_for_connections", is_free)
    bound = await Bound.at("127.0.0.1", 0)
    listener = Listener(bound, 10, Greeter, "Client")
    with caplog.at_level(logging.INFO):
        clients = [asyncio.create_task(greeted(bound.port)) for _ in range(3)]
        async with asyncio.timeout(60):
            await enough.wait()
        assert not any(client.done() for client in clients)
        pauses = [after - before for before, after in pairwise(asked[1:])]
        assert all(pause >= wanted for pause, wanted in zip(pauses, (0.018, 0.038, 0.078), strict=False)), pauses
        free = True
        for client in await asyncio.gather(*clients):
            client.close()
    listener.close()
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "Temporary Client Accept Error (too many open files)" in text] == texts[:1]
    assert texts[1:] == ["Client connections are accepted again"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED])
async def test_errors_of_accept(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any error of ``accept`` the listener continues; the loop makes a few turns at most meanwhile."""
    failures = [number] * 3
    accept = socket.socket.accept

    def fail(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", fail)
    bound = await Bound.at("127.0.0.1", 0)
    listener = Listener(bound, 10, Greeter, "Client")
    (await greeted(bound.port)).close()
    assert not failures
    listener.close()


async def test_close_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close during a pause cancels the timer, which would use the closed socket."""
    monkeypatch.setattr(listen_socket, "is_free_for_connections", lambda *_, **__: False)
    bound = await Bound.at("127.0.0.1", 0)
    listener = Listener(bound, 10, Greeter, "Client")
    client = asyncio.create_task(greeted(bound.port))
    async with asyncio.timeout(60):
        while not listener._timers:  # noqa: ASYNC110 - a pause notifies nobody
            await asyncio.sleep(0.005)
    listener.close()
    with pytest.raises((ConnectionError, AssertionError)):
        await client


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that fakes the limits of the process."""
    now: list[tuple[int, int]] = [(0, 0)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: now.__setitem__(0, wanted))

    def become(soft: int, hard: int) -> None:
        now[0] = soft, hard

    return become


def test_the_limit_is_raised(limits: Callable[[int, int], None]) -> None:
    """The soft limit becomes the hard one."""
    limits(256, 4096)
    raise_limit()
    assert open_files_max() == 4096


@pytest.mark.parametrize(("most", "kept"), [(40, 10), (200, 50), (256, 64), (1024, 64), (1 << 20, 64)])
def test_the_reserve(most: int, kept: int, limits: Callable[[int, int], None]) -> None:
    """Clients leave ``kept`` descriptors free, and monitoring three quarters of them."""
    limits(most, most)
    assert reserved(most) == kept
    first = os.open(os.devnull, os.O_RDONLY)
    try:
        lowest_free = os.dup(first)
        os.close(lowest_free)
        for monitoring, left in ((False, kept), (True, kept - kept // descriptors._MONITORING_SHARE)):
            # As if the lowest free descriptor were the last one before the reserve, and the first one of it.
            for limit, is_free in ((lowest_free + left + 1, True), (lowest_free + left, False)):
                if reserved(limit) == kept:
                    limits(limit, limit)
                    assert is_free_for_connections(first, monitoring=monitoring) is is_free
    finally:
        os.close(first)
