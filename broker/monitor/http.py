"""The monitoring pages over HTTP/1.1: sockets around ``pages``, framed by h11.

Each connection is closed after one request, as in nats-server. Everything is bounded, since any peer may connect:
bytes of a request's head, duration of an exchange, concurrent connections. Request bodies are not read.
"""

from __future__ import annotations

import asyncio
import logging
from email.utils import formatdate
from http import HTTPStatus

import h11

from broker.clock import Clock
from broker.listen_socket import Bound
from broker.monitor.pages import Page, Pages

__all__ = ["MonitorServer"]

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 * 1024
EXCHANGE_SECONDS_MAX = 10.0
_BACKLOG = 100
CONNECTIONS_MAX = 64
"""Further ones wait until one is answered."""


class MonitorServer:
    """Owns its port from ``bind`` and listens from ``start`` to ``close``; meanwhile ``port`` is the actual one."""

    def __init__(self, pages: Pages, clock: Clock, host: str, port: int, *,
                 exchange_seconds_max: float = EXCHANGE_SECONDS_MAX) -> None:
        self.host = host
        self.port = port
        self._pages = pages
        self._clock = clock
        self._seconds = exchange_seconds_max
        self._bound: Bound | None = None
        self._servers: list[asyncio.Server] = []
        self._exchanges: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)

    async def bind(self) -> None:
        """Reserve the port, refusing connections until ``start``. Raises: OSError if it is unavailable."""
        if self._bound is None:
            self._bound = await Bound.at(self.host, max(self.port, 0))
            self.port = self._bound.port

    async def start(self) -> None:
        """Listen. Raises: OSError if that is impossible."""
        await self.bind()
        assert self._bound is not None
        bound, self._bound = self._bound, None
        self._servers = [await asyncio.start_server(self._accepted, sock=listening, limit=HEAD_BYTES_MAX)
                         for listening in bound.listen(_BACKLOG)]

    async def close(self) -> None:
        """Stop listening and abort exchanges in progress."""
        if self._bound is not None:
            self._bound.close()
        for server in self._servers:
            server.close()
        for task in list(self._exchanges):
            task.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._exchange(reader, writer), name="monitor exchange")
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # so that drain() returns once everything is sent
        try:
            async with asyncio.timeout(self._seconds), self._free:
                await self._serve(reader, writer)
        except (TimeoutError, ConnectionError):
            pass
        except Exception:
            log.exception("a monitoring page failed")
        finally:
            # Do not wait for a peer that does not read; unsent bytes are dropped.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(4096))
        except h11.RemoteProtocolError as error:
            page = Page(error.error_status_hint, str(error).encode(), "text/plain; charset=utf-8")
        else:
            if not isinstance(event, h11.Request):
                return  # closed without a request
            if event.method in (b"GET", b"HEAD"):
                page = self._pages.answer(event.target.decode("latin-1"))
            else:
                page = Page(405, b"Method Not Allowed\n", "text/plain; charset=utf-8")
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        head = h11.Response(status_code=page.status, reason=_reason(page.status), headers=[
            ("Access-Control-Allow-Origin", "*"), ("Content-Type", page.content_type),
            ("Date", formatdate(self._clock.now_ns() / 1e9, usegmt=True)), ("Content-Length", str(len(page.body))),
            ("X-Content-Type-Options", "nosniff"), ("Connection", "close")])
        writer.write(connection.send(head) or b"")
        writer.write(connection.send(h11.Data(data=page.body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
