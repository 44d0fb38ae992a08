"""The port of the monitoring pages: sockets and their limits. aiohttp speaks HTTP, and ``web`` makes the pages.

Each connection is closed after one request. Any peer may connect, so these have bounds:

* the bytes of a request's head, and the time to send it;
* the time to read the answer;
* the number of idle connections, which do not wait for an answer. Beyond this bound the oldest idle one is closed, so
  peers that send nothing exclude nobody;
* the number of all connections.

Request bodies are not read.

Importing aiohttp takes 0.2 s, as long as all else of a start, and the first request must not delay every client by
that time. So a thread imports it once the port listens, and connections wait for it: their time begins afterwards.

A socket that is closed with unread bytes resets the connection. Then the peer can lose the answer to a request that
was too long to be read. So an answered connection sends EOF, and drops what the peer sends until the peer closes or its
time is over.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from broker.base.listen_socket import Bound, Listener
from broker.monitor.access import Access

__all__ = ["CONNECTIONS_MAX", "MonitorServer"]

log = logging.getLogger(__name__)

EXCHANGE_SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 256
"""Bound on connections that do not wait for an answer."""
_ANSWERS_MAX: Final = 512
"""Bound on all connections."""
_BACKLOG: Final = 100
_LINGER_BYTES_MAX: Final = 4 * 1024 * 1024


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
    """The monitoring port, bound from ``bind`` on, listening from ``start`` to ``close``; ``port`` is the actual
    number."""

    def __init__(self, views: object, host: str, port: int, *, base_path: str = "/",
                 tls: ssl.SSLContext | None = None, exchange_seconds_max: float = EXCHANGE_SECONDS_MAX,
                 access: Access | None = None, module: str = ".web") -> None:
        """Args: ``tls``: None for plain HTTP; ``access``: None for no restriction; ``module`` makes the pages from
        ``views``.
        """
        self._module = module
        self.access = access or Access()
        """The restrictions of the pages; they may be replaced at any time."""
        self.host = host
        self.port = port
        self.scheme = "https" if tls is not None else "http"
        self._views = views
        self._base_path = base_path
        self._tls = ReplaceableContext.of(tls) if tls is not None else None
        self._bound: Bound | None = None
        self._listener: Listener | None = None
        self._loading: asyncio.Task[None] | None = None
        self._connections = _Connections(exchange_seconds_max)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections.present)

    async def bind(self) -> None:
        """Bind the port, but refuse connections until ``start``. Raises: OSError if it is unavailable."""
        if self._bound is None:
            self._bound = await Bound.at(self.host, max(self.port, 0))
            self.port = self._bound.port

    async def start(self) -> None:
        """Listen on the port. Raises: OSError if that is impossible."""
        await self.bind()
        if self._bound is None:
            raise RuntimeError("the port is not bound")
        bound, self._bound = self._bound, None
        self._loading = asyncio.get_running_loop().create_task(self._load(), name="load the monitoring pages")
        self._listener = Listener(bound, _BACKLOG, lambda: _Connection(self._connections), "Monitoring",
                                  monitoring=True, ssl_context=self._tls, handshake_seconds=self._connections.seconds)

    def use(self, tls: ssl.SSLContext) -> None:
        """Use other certificates for new connections."""
        if self._tls is not None:
            self._tls.current = tls

    async def close(self) -> None:
        """Stop listening and abort exchanges in progress."""
        if self._bound is not None:
            self._bound.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._connections.close()
        if self._loading is not None:
            self._loading.cancel()

    async def _load(self) -> None:
        try:
            web = await asyncio.to_thread(import_module, self._module, __package__)
        except Exception:
            log.exception("the monitoring pages cannot be served")
            self._connections.close()
            return
        self._connections.serve_by(web.http_protocol(self._views, self._base_path, lambda: self.access))


class _Connections:
    """The connections, oldest first, and their protocol. ``idle``: connections that do not wait for an answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.present: dict[_Connection, None] = {}
        self.idle: dict[_Connection, None] = {}
        self.protocol: Callable[[], asyncio.Protocol] | None = None
        """Function that makes aiohttp's protocol object for a connection; None until aiohttp is imported."""
        self.closed = False

    def serve_by(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Serve the waiting connections and all later ones."""
        self.protocol = protocol
        for connection in list(self.present):
            connection.serve(protocol())

    def add(self, connection: _Connection) -> None:
        """Add a new connection, and close another one if there are too many."""
        if len(self.idle) >= CONNECTIONS_MAX:
            next(iter(self.idle)).abort()
        elif len(self.present) >= _ANSWERS_MAX:
            next(iter(self.present)).abort()
        self.present[connection] = self.idle[connection] = None

    def remove(self, connection: _Connection) -> None:
        self.present.pop(connection, None)
        self.idle.pop(connection, None)

    def close(self) -> None:
        """Abort all connections, and every later one."""
        self.closed = True
        for connection in list(self.present):
            connection.abort()


class _Connection(asyncio.Protocol):
    """A connection: it passes bytes to aiohttp's protocol, and ends after a time, even if the peer is slow."""

    def __init__(self, connections: _Connections) -> None:
        self._connections = connections
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._early = b""
        """Bytes that arrived before aiohttp was imported; after one read, reading pauses."""
        self._dropped_bytes = 0
        self.lingering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        connections = self._connections
        if connections.closed:
            self._transport.abort()
            return
        connections.add(self)
        if connections.protocol is not None:
            self.serve(connections.protocol())

    def serve(self, inner: asyncio.Protocol) -> None:
        """Begin the exchange with aiohttp's protocol ``inner``."""
        self._inner = inner
        self._set_timer()
        inner.connection_made(_Answering(self, self._transport))
        if self._early:
            self._transport.resume_reading()
            inner.data_received(self._early)

    def request_read(self) -> None:
        """Stop the timer: the request is complete, so the peer waits for the answer."""
        self._end_timer()
        self._connections.idle.pop(self, None)

    def answer_made(self) -> None:
        """Start the timer: the peer has limited time to read the answer."""
        if self in self._connections.present:
            self._set_timer()

    def _set_timer(self) -> None:
        self._end_timer()
        self._timer = asyncio.get_running_loop().call_later(self._connections.seconds, self.abort)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, error: Exception | None) -> None:
        self._end_timer()
        self._connections.remove(self)
        if self._inner is not None:
            self._inner.connection_lost(error)

    def abort(self) -> None:
        """End the connection without waiting for its peer; unsent bytes are dropped."""
        self._connections.remove(self)
        self._transport.abort()

    def linger(self) -> None:
        """Send EOF after the answer, and close when the peer sends EOF, too, or its time is over.

        TLS cannot end one direction alone, so such a connection is closed at once.
        """
        if self.lingering or self._transport.is_closing():
            return
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingering = True
        self._connections.idle[self] = None
        self._transport.write_eof()
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.lingering:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _LINGER_BYTES_MAX:
                self.abort()
        elif self._inner is not None:
            self._inner.data_received(data)
        else:
            self._early += data
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()


class _Answering(asyncio.Transport):
    """The transport that aiohttp uses; its ``close`` makes the connection linger."""

    def __init__(self, connection: _Connection, transport: asyncio.Transport) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the transport's information. ``exchange`` is the connection, which records events of the answer."""
        if name == "exchange":
            return self._connection
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._connection.lingering or self._transport.is_closing()

    def close(self) -> None:
        self._connection.linger()

    def abort(self) -> None:
        self._connection.abort()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
