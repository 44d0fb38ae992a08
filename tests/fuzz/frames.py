"""A client connection that reads frames (INFO, MSG, -ERR, …) as values, and sends any bytes unchecked."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Connection", "Message"]

READ_LIMIT = 1 << 26


@dataclass(frozen=True)
class Message:
    """A MSG or HMSG."""

    subject: str
    sid: str
    reply: str
    headers: str
    payload: str


class Connection:
    """A TCP connection. A task reads frames into ``lines`` and ``messages`` until ``pop_received`` returns them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.info: dict[str, Any] = {}
        self.lines: list[str] = []
        self.messages: list[Message] = []
        self.closed = False
        self.sids: dict[str, str] = {}
        """The queue group of each subscription."""
        self._pongs = 0
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=READ_LIMIT)
        self._task = asyncio.create_task(self._read())
        while not self.info and not self.closed:
            await self._wait(30.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._writer.close()

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._writer.write(data)

    async def read_by_server(self) -> None:
        """Wait until the server has read all that was sent, so that later bytes do not come in the same read.

        Both servers check the subject of an incomplete message once more at the end of a read.
        """
        ours = self._writer.get_extra_info("sockname")[1]
        server_end = f" 0100007F:{self.port:04X} 0100007F:{ours:04X} "
        while not self.closed:
            with open("/proc/net/tcp", encoding="ascii") as sockets:  # noqa: ASYNC230  # the kernel answers at once
                found = [line.split()[4] for line in sockets if server_end in line]
            if not found or found[0].endswith(":00000000"):
                return
            await asyncio.sleep(0.001)

    async def leave(self) -> None:
        """Close the connection from the client's side, and wait for the server's end of it."""
        if not self.closed:
            if self._writer.can_write_eof():
                self._writer.write_eof()
            while not self.closed and await self._wait(5.0):
                pass
        self._writer.close()
        self.closed = True

    async def ping(self, seconds: float) -> bool:
        """Wait until the server answers a PING or closes; return False if it did neither within ``seconds``."""
        if self.closed:
            return True
        before = self._pongs
        self.send(b"PING\r\n")
        deadline = asyncio.get_running_loop().time() + seconds
        while self._pongs == before and not self.closed:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._wait(left):
                return self._pongs != before or self.closed
        return True

    async def receive(self, seconds: float) -> list[Message]:
        """Return the messages that come next; none if the server closed, or sent none within ``seconds``."""
        while not self.messages and not self.closed:
            if not await self._wait(seconds):
                break
        return self.pop_received()[1]

    def pop_received(self) -> tuple[list[str], list[Message]]:
        """Return the lines and messages that have come since the last call."""
        received = self.lines, self.messages
        self.lines, self.messages = [], []
        return received

    async def _wait(self, seconds: float) -> bool:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                await self._frame(line.decode("latin-1").rstrip("\r\n"))
                self._changed.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.closed = True
        self._changed.set()

    async def _frame(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if verb in ("MSG", "HMSG"):
            words = rest.split()
            size = int(words[-1])
            hlen = int(words[-2]) if verb == "HMSG" else 0
            body = (await self._reader.readexactly(size + 2))[:size].decode("latin-1")
            reply = words[2] if len(words) == (5 if hlen else 4) else ""
            self.messages.append(Message(words[0], words[1], reply, body[:hlen], body[hlen:]))
        elif verb == "INFO":
            fields = json.loads(rest)
            if self.info:
                self.lines.append("INFO")
            self.info = fields
        elif verb == "PONG":
            self._pongs += 1
        elif verb != "PING":
            self.lines.append(line)
