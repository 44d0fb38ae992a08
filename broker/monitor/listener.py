"""The port of the monitoring pages: sockets and their limits. What is said on them is aiohttp's and ``web``'s.

Each connection is closed after one request. Everything is bounded, since any peer may connect: bytes of a request's head,
duration of an exchange, concurrent connections (past the bound the oldest is cut off, so that silent ones keep nobody
out). Request bodies are not read.

aiohttp takes 0.2 s to import: as long as all else of a start, and the first request must not cost every client that
time. So it is imported in a thread once the port listens, and connections wait for it.

Source: nats-server, server/server.go (startMonitoring).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from broker.listen_socket import Bound
from broker.monitor.views import Views

__all__ = ["CONNECTIONS_MAX", "MonitorServer"]

log = logging.getLogger(__name__)

EXCHANGE_SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 64
_BACKLOG: Final = 100
_EARLY_BYTES_MAX: Final = 64 * 1024


class ReplaceableContext(ssl.SSLContext):
    """A server's context that passes each connection to ``current``, which may change at any time."""

    current: ssl.SSLContext

    @classmethod
    def of(cls, current: ssl.SSLContext) -> ReplaceableContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.current = current
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **kwargs)


class MonitorServer:
    """Owns its port from ``bind`` and listens from ``start`` to ``close``; meanwhile ``port`` is the actual one."""

    def __init__(self, views: Views, host: str, port: int, *, base_path: str = "/",
                 tls: ssl.SSLContext | None = None, exchange_seconds_max: float = EXCHANGE_SECONDS_MAX) -> None:
        """Args: ``tls`` None: plain HTTP."""
        self.host = host
        self.port = port
        self.scheme = "https" if tls is not None else "http"
        self._views = views
        self._base_path = base_path
        self._tls = ReplaceableContext.of(tls) if tls is not None else None
        self._seconds = exchange_seconds_max
        self._bound: Bound | None = None
        self._servers: list[asyncio.Server] = []
        self._http: Callable[[], asyncio.Protocol] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._connections: dict[_Connection, None] = {}

    async def bind(self) -> None:
        """Reserve the port, refusing connections until ``start``. Raises: OSError if it is unavailable."""
        if self._bound is None:
            self._bound = await Bound.at(self.host, max(self.port, 0))
            self.port = self._bound.port

    async def start(self) -> None:
        """Listen. Raises: OSError if that is impossible."""
        await self.bind()
        if self._bound is None:
            raise RuntimeError("the port is not bound")
        bound, self._bound = self._bound, None
        loop = asyncio.get_running_loop()
        self._loading = loop.create_task(self._load(), name="load the monitoring pages")
        self._servers = [await loop.create_server(
            self._connection, sock=listening, ssl=self._tls, backlog=_BACKLOG,
            ssl_handshake_timeout=self._seconds if self._tls is not None else None)
            for listening in bound.listen(_BACKLOG)]

    def use(self, tls: ssl.SSLContext) -> None:
        """Use other certificates, for connections from now on."""
        if self._tls is not None:
            self._tls.current = tls

    async def close(self) -> None:
        """Stop listening and abort exchanges in progress."""
        if self._bound is not None:
            self._bound.close()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._loading is not None:
            self._loading.cancel()

    async def _load(self) -> None:
        try:
            web = await asyncio.to_thread(import_module, "broker.monitor.web")
        except Exception:
            log.exception("the monitoring pages cannot be served")
            return
        self._http = web.http_protocol(self._views, self._base_path)
        for connection in list(self._connections):
            connection.begin(self._http())

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self._http() if self._http is not None else None, self._connections, self._seconds)


class _Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol (None: it is not there yet), and an end after a time, however slow the peer is."""

    def __init__(self, inner: asyncio.Protocol | None, connections: dict[_Connection, None], seconds: float) -> None:
        self._inner = inner
        self._connections = connections
        self._seconds = seconds
        self._early = b""
        """What arrived before there was aiohttp."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        connections = self._connections
        if len(connections) >= CONNECTIONS_MAX:
            next(iter(connections)).abort()
        connections[self] = None
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.abort)
        if self._inner is not None:
            self._inner.connection_made(transport)

    def begin(self, inner: asyncio.Protocol) -> None:
        """Serve a connection that was waiting for aiohttp."""
        self._inner = inner
        inner.connection_made(self._transport)
        if self._early:
            inner.data_received(self._early)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._connections.pop(self, None)
        if self._inner is not None:
            self._inner.connection_lost(error)

    def abort(self) -> None:
        """End it without waiting for a peer that does not read; unsent bytes are dropped."""
        self._connections.pop(self, None)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
        elif len(self._early) + len(data) <= _EARLY_BYTES_MAX:
            self._early += data
        else:
            self.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
