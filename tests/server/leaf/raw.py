"""A spoke by hand: lines to the listener of a hub, and its lines back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["Raw", "login"]


class Raw:
    """A spoke by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> tuple[Raw, bytes]:
        """Connect. Returns: the connection, and the first INFO."""
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        return raw, await raw.line()

    async def line(self) -> bytes:
        async with asyncio.timeout(30):
            return await self._reader.readline()

    async def until(self, begin: bytes) -> bytes:
        """Return the next line that begins so, or b"" at the end."""
        while (line := await self.line()) and not line.startswith(begin):
            if line.startswith(b"PING"):
                self.send(b"PONG\r\n")
        return line

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def rest(self) -> list[bytes]:
        """Return the lines up to the end, without those about interest, pings and INFO."""
        lines = []
        try:
            while line := await self.line():
                if not line.startswith((b"LS+ ", b"PING", b"INFO")):
                    lines.append(line)
        except ConnectionError:
            pass
        return lines

    async def sent(self) -> None:
        """Wait until most of what was sent is with the system. Raises: ConnectionError, if the other side is gone."""
        await self._writer.drain()

    async def until_pong(self) -> bytes:
        """Return the next PONG, or b"" at the end."""
        while (line := await self.line()) and not line.startswith(b"PONG"):
            if line.startswith(b"PING"):
                self.send(b"PONG\r\n")
        return line

    def close(self) -> None:
        self._writer.close()


def login(**fields: Any) -> bytes:
    return b"CONNECT " + json.dumps({"version": "2.15.1", "name": "raw", "headers": True, **fields}).encode() + b"\r\n"
