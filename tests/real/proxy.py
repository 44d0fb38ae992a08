"""A TCP proxy on loopback that passes, stalls, cuts or swallows: a network that fails on demand, between real parts.

    async with TcpProxy("127.0.0.1", minio_port) as proxy:      # clients connect to proxy.port
        proxy.stall()      nothing goes through, in either direction; nothing is lost
        proxy.resume()     the held bytes are passed on, in order
        proxy.swallow()    requests go through, answers are dropped: applied but unanswered
        proxy.cut()        every connection is reset; new ones are taken
        proxy.refuse()     as cut, and new connections are reset until resume()

It runs on the test's own loop: a test that blocks the loop blocks the proxy.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Self
from urllib.parse import urlsplit

__all__ = ["TcpProxy"]

_CHUNK = 65536


class TcpProxy:
    """A proxy with one listening port and one target."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.target_port = port
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._swallowing = False
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.accepted = 0
        """Number of accepted connections so far."""
        self.bytes_up = 0
        """Number of bytes passed towards the target so far."""
        self.bytes_down = 0
        self._moved = asyncio.Condition()

    @classmethod
    def to(cls, endpoint: str) -> TcpProxy:
        """Return a proxy to the host and port of a URL."""
        parts = urlsplit(endpoint)
        assert parts.hostname
        assert parts.port
        return cls(parts.hostname, parts.port)

    @property
    def endpoint(self) -> str:
        """The proxy's own HTTP URL."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall(self) -> None:
        """Hold all bytes, in both directions."""
        self._open.clear()

    def swallow(self) -> None:
        """Drop the target's answers from now on, on all connections."""
        self._swallowing = True

    def refuse(self) -> None:
        """Reset all connections, and new ones as they come."""
        self._refusing = True
        self.cut()

    def resume(self) -> None:
        """Pass bytes and accept connections again. A connection whose answers were swallowed is reset, because its
        protocol is out of step."""
        if self._swallowing:
            self.cut()
        self._swallowing = self._refusing = False
        self._open.set()

    def cut(self) -> None:
        """Reset all connections, and drop their held bytes."""
        for writer in list(self._writers):
            _reset(writer)

    async def passed(self, up: int) -> None:
        """Wait until ``bytes_up`` is at least ``up``."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.bytes_up >= up)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self._writers.add(writer)
        target: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                return
            answers, target = await asyncio.open_connection(*self._target)
            self._writers.add(target)
            await asyncio.wait({asyncio.ensure_future(self._pump(reader, target, up=True)),
                                asyncio.ensure_future(self._pump(answers, writer, up=False))})
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, target):
                if end is not None:
                    self._writers.discard(end)
                    _reset(end)
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        """Pass bytes one way until that way ends; a reset connection is a normal end."""
        try:
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                if self._swallowing and not up:
                    continue
                writer.write(data)
                await writer.drain()
                async with self._moved:
                    if up:
                        self.bytes_up += len(data)
                    else:
                        self.bytes_down += len(data)
                    self._moved.notify_all()
            if writer.can_write_eof():
                writer.write_eof()
        except (OSError, RuntimeError):
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, so that the other end detects it at once in any state."""
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
    writer.transport.abort()
