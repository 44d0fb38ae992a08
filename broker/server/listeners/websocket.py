"""WebSocket clients: their port, and the way of a connection from that port to an ordinary client.

    accepted ──> TLS ──> HTTP request ──┬── refused: an HTTP error, then closed
                                         └── 101 ──> frames ──> Client, which begins with INFO as on the client port

Until the request is complete, a connection is no client: it has a timer, a limit in bytes, and no number.

Source: nats-server, server/websocket.go (startWebsocketServer, wsUpgrade, createWSClient).
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final, cast

from websockets.http11 import Request, Response

from broker.base.listen_socket import Bound, Listener
from broker.config.settings import WebSocketSettings
from broker.server.connection.client import Client
from broker.server.connection.host import ClientHost
from broker.server.listeners import upgrade
from broker.server.listeners.entrance import WebSocketPort
from broker.server.listeners.frames import FramesLayer, FramesProtocol
from broker.server.listeners.tls import TlsLayer, handshake_error

__all__ = ["WebSocketListener"]

log = logging.getLogger(__name__)

_REQUEST_BYTES_MAX: Final = 128 * 1024
"""Bound on a request. A browser sends all cookies of the host, each of up to 4 KiB."""
_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_MESSAGE_PAYLOADS: Final = 8
"""Number of maximal payloads that a message may hold, since it may hold several publishes."""


class WebSocketListener:
    """The listener of the WebSocket port."""

    def __init__(self, server: ClientHost[Client]) -> None:
        self.server = server
        self.entrance = WebSocketPort()
        self.port = self.settings.port or 0
        self.openings: set[Opening] = set()
        self._bound: Bound | None = None
        self._listener: Listener | None = None

    @property
    def settings(self) -> WebSocketSettings:
        return self.server.settings.websocket

    @property
    def scheme(self) -> str:
        return "wss" if self.settings.tls.enabled else "ws"

    async def bind(self) -> None:
        """Bind the port. Raises: OSError if it is not available."""
        if self._bound is None:
            self._bound = await Bound.at(self.settings.host, max(self.port, 0))

    def unbind(self) -> None:
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def start(self, backlog: int) -> None:
        """Listen. Raises: OSError."""
        assert self._bound is not None
        bound, self._bound = self._bound, None
        self.port = self.entrance.port = bound.port
        self._listener = Listener(bound, backlog, lambda: Opening(self), "Websocket")
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        log.info("Listening for websocket clients on %s://%s:%d", self.scheme, host, self.port)
        if not self.settings.tls.enabled:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def stop_listening(self) -> None:
        """Accept no more connections, and close those that are not clients yet."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for opening in list(self.openings):
            opening.abort()


class Opening(asyncio.Protocol):
    """A connection until it becomes a client."""

    def __init__(self, listener: WebSocketListener) -> None:
        self._listener = listener
        # A reload applies to later connections only.
        self._tls = listener.entrance.tls
        self._head = bytearray()
        self._peer = ""
        self._timer: asyncio.TimerHandle | None = None
        self._layer: TlsLayer | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._peer = f"{peer[0]}:{peer[1]}"
        listener = self._listener
        listener.openings.add(self)
        tls = self._tls
        if tls is None:
            self._await_request()
            return
        if not tls.admits(listener.server.clock.monotonic_ns()):
            log.debug("%s - websocket: too many TLS handshakes within a second", self._peer)
            self.abort()
            return
        self._set_timer(tls.settings.timeout_ns)
        self._layer = TlsLayer(self._transport, self, tls.context, tls.turns, self._await_request, self._tls_failed)
        self._transport.set_protocol(self._layer)

    def data_received(self, data: bytes) -> None:
        searched = max(len(self._head) - 3, 0)
        self._head += data
        end = self._head.find(b"\r\n\r\n", searched)
        if 0 <= end <= _REQUEST_BYTES_MAX:
            self._end_timer()
            self._answer(bytes(self._head[:end + 4]), bytes(self._head[end + 4:]))
        elif len(self._head) > _REQUEST_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._layer = None

    def abort(self) -> None:
        """Close the connection because the server stops."""
        self._leave()
        self._transport.abort()

    # Steps

    def _await_request(self) -> None:
        listener, tls, layer = self._listener, self._tls, self._layer
        if tls is not None and layer is not None:
            self._transport = layer
            why = tls.objection(layer.get_extra_info("ssl_object"), listener.server.clock.now_ns())
            if why:
                log.error("%s - TLS handshake error: %s", self._peer, why)
                layer.close()
                return
        self._set_timer(listener.settings.handshake_timeout_ns)

    def _answer(self, request: bytes, early: bytes) -> None:
        settings = self._listener.settings
        payload_max = self._listener.server.settings.clients.max_payload
        protocol = FramesProtocol(compression=settings.compression,
                                  message_bytes_max=min(_MESSAGE_PAYLOADS * payload_max, _MESSAGE_BYTES_MAX))
        refusal = self._upgrade(protocol, request, early)
        if refusal is not None:
            protocol.release()
            self._refuse(*refusal)

    def _upgrade(self, protocol: FramesProtocol, request: bytes, early: bytes) -> tuple[HTTPStatus, str] | None:
        """Answer a request. Returns: the status and the reason if it is refused, otherwise None."""
        settings = self._listener.settings
        request, cookie_lines = upgrade.split_cookies(request)
        protocol.receive_data(request)
        event = next(iter(protocol.events_received()), None)
        if not isinstance(event, Request):
            return HTTPStatus.BAD_REQUEST, str(protocol.handshake_exc or "no HTTP request")
        fields: dict[str, list[str]] = {}
        for name, value in event.headers.raw_items():
            fields.setdefault(name.lower(), []).append(value)
        why = upgrade.origin_error(settings, fields, secure=self._layer is not None)
        path = event.path.partition("?")[0]
        if early:
            return HTTPStatus.BAD_REQUEST, "client sent data before handshake is complete"
        hosts = fields.get("host", [])
        if len(hosts) > 1:
            return HTTPStatus.BAD_REQUEST, "too many 'Host' headers"
        if not any(hosts):
            return HTTPStatus.BAD_REQUEST, "'Host' missing in request"
        if path.endswith(("/mqtt", "/leafnode")):
            return HTTPStatus.NOT_FOUND, f"nothing is served at {path!r}"
        if why:
            return HTTPStatus.FORBIDDEN, f"origin not allowed: {why}"
        response = protocol.accept(event)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return HTTPStatus(response.status_code), str(protocol.handshake_exc)
        self._accept(protocol, response, fields, upgrade.cookies(settings, cookie_lines))
        return None

    def _accept(self, protocol: FramesProtocol, response: Response, fields: upgrade.Fields,
                cookies: dict[str, str]) -> None:
        listener, transport = self._listener, self._transport
        settings = listener.settings
        no_masking = upgrade.wants_no_masking(fields)
        if no_masking:
            response.headers["Nats-No-Masking"] = "true"
        for name, value in settings.headers:
            response.headers[name] = value
        protocol.send_response(response)
        transport.write(b"".join(protocol.data_to_send()))
        if no_masking:
            protocol.expect_no_masks()
        client = Client(listener.server, listener.entrance)
        client.forwarded_for = upgrade.forwarded_for(fields)
        client.cookies = cookies
        layer = FramesLayer(transport, client, protocol, browser=upgrade.is_browser(fields))
        self._leave()
        transport.set_protocol(layer)
        client.connection_made(layer)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._end_timer()
        log.error("%s - websocket handshake error: %s", self._peer, why)
        body = status.phrase.encode() + b"\n"
        self._transport.write(b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Length: %d\r\nContent-Type: text/plain; "
                              b"charset=utf-8\r\nSec-Websocket-Version: 13\r\nX-Content-Type-Options: nosniff\r\n\r\n%b"
                              % (status, status.phrase.encode(), len(body), body))
        self._transport.close()

    def _tls_failed(self, error: Exception) -> None:
        why = handshake_error(error)
        if getattr(error, "reason", None) == "HTTP_REQUEST":
            # The client used ws:// instead of wss://. The text is that of Go's net/http server.
            why = "client sent an HTTP request to an HTTPS server"
            self._transport.write(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
        log.error("%s - websocket: TLS handshake error: %s", self._peer, why)
        self._transport.close()

    def _timed_out(self) -> None:
        log.debug("%s - websocket handshake timeout", self._peer)
        self._transport.abort()

    def _set_timer(self, limit_ns: int) -> None:
        self._end_timer()
        self._timer = self._listener.server.loop.call_later(limit_ns / 1e9, self._timed_out)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        self._end_timer()
        self._listener.openings.discard(self)
