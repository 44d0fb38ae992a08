"""A raw client: it sends and receives bytes, and parses only the marks that end a wait."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Self

__all__ = ["Wire"]

SECONDS = 30.0


class Wire:
    """A TCP connection; ``info`` is the first INFO line as received.

    Args: ``pings``: return the server's PINGs, too. The first comes two seconds after CONNECT, which may be anywhere
    in a dialogue on a busy machine.
        ``source``: the loopback address from which it connects.
    """

    def __init__(self, port: int, *, pings: bool = False, source: str = "127.0.0.1") -> None:
        self.port = port
        self.source = source
        self.pings = pings
        self.info = b""
        self.closed = False

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26,
                                                                 local_addr=(self.source, 0))
        async with asyncio.timeout(SECONDS):
            self.info = await self.reader.readuntil(b"\r\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, mark: bytes) -> bytes:
        """Return the bytes up to and including ``mark``, or up to the end of the connection."""
        async with asyncio.timeout(SECONDS):
            try:
                while not (data := self._without_pings(await self.reader.readuntil(mark))):
                    pass
                return data
            except asyncio.IncompleteReadError as error:
                self.closed = True
                return self._without_pings(error.partial)
            except ConnectionResetError:
                self.closed = True
                return b""

    async def end(self) -> bytes:
        """Return the bytes up to the end of the connection."""
        data = b""
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionResetError):  # return the bytes before the reset
                while part := await self.reader.read(1 << 16):
                    data += part
        self.closed = True
        return self._without_pings(data)

    async def settled(self) -> bytes:
        """Return everything the server sends before it answers a PING. The connection must be between two
        operations."""
        self.send(b"PING\r\n")
        return await self.until(b"PONG\r\n")

    def _without_pings(self, data: bytes) -> bytes:
        return data if self.pings else re.sub(rb"^PING\r\n", b"", data, flags=re.MULTILINE)

    @staticmethod
    def plain(data: bytes) -> bytes:
        """Return ``data`` with INFO lines reduced to the fields that do not depend on server and connection."""
        return re.sub(rb"INFO \{[^\n]*\r\n",
                      lambda line: b"INFO connect\r\n" if b'"connect_info":true' in line[0] else b"INFO\r\n", data)
