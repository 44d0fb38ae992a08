"""The opening of a connection on the port of clients or leaf nodes: TLS or plain text, the time of INFO, the address.

                           ┌── data within the delay, or no delay ──────────────────────────────> TLS, then INFO
    accepted ── TLS first ─┤
        │                  └─ no data ┐
        └──────────────────────────> INFO ──┬── TLS required ───────────────────────────────────> TLS
                                            ├── allow_non_tls: does the client begin with it? ──> TLS
                                            └──────────────────────────────────────────────────> plain text

With ``proxy_protocol``, the choice after INFO waits for the header in which a proxy gives the client's address. A port
without TLS and proxies needs no opening: the client is then the protocol from the start. Each wait has a timer. Input
is examined as soon as it arrives, and none is lost.

Source: nats-server, server/server.go (createClientEx, tlsTimeout).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from broker.server.connection.connection import Connection
from broker.server.connection.host import Host
from broker.server.listeners.certificates import TlsParameters
from broker.server.listeners.proxy_protocol import HEADER_SECONDS, ProxyHeaderError, read_header
from broker.server.listeners.tls import TlsLayer, handshake_error

__all__ = ["Opening", "Port"]

log = logging.getLogger(__name__)

_HANDSHAKE_RECORD: Final = b"\x16"
"""First byte of TLS; no operation of the client protocol begins with it."""

_TLS_FAILED: Final = "TLS Handshake Failure"


class Port(Protocol):
    """The port that the connection came through."""

    @property
    def tls(self) -> TlsParameters | None: ...

    @property
    def allow_non_tls(self) -> bool: ...

    @property
    def proxy_protocol(self) -> bool: ...

    @property
    def tls_name(self) -> str:
        """The word for the port in log lines about TLS; "" for clients."""


def _nothing() -> None:
    """Do nothing: the step of a connection that was refused, or that has passed its opening."""


class Opening(asyncio.Protocol):
    """The protocol of one connection until the connection itself, ``client``, or a TLS layer replaces it."""

    def __init__(self, server: Host, client: Connection, port: Port) -> None:
        self._server = server
        self._client = client
        self._port = port
        # A reload applies to later connections only.
        self._tls = port.tls
        self._early = b""
        self._step: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None
        self._layer: TlsLayer | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls, client = self._tls, self._client
        delay_ns = tls.settings.handshake_first_ns if tls is not None else None
        client.tls_first = delay_ns is not None
        client.ip_known = not self._port.proxy_protocol
        if not client.open(self._transport, greet=delay_ns is None):
            return
        if delay_ns:
            self._wait(self._await_header, delay_ns, self._fall_back)
        else:
            self._await_header()

    def data_received(self, data: bytes) -> None:
        if not self._client.closed:
            self._early += data
            self._step()

    def eof_received(self) -> bool | None:
        return self._client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self._client.connection_lost(exc)
        # Avoid reference cycles: both refer to this opening.
        self._step, self._layer = _nothing, None

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()

    # Steps

    def _fall_back(self) -> None:
        """Send INFO: no TLS handshake arrived in time, so this client waits for INFO."""
        self._client.tls_first = False
        self._client.greet()
        self._await_header()

    def _await_header(self) -> None:
        if self._client.ip_known:
            self._choose()
        else:
            self._wait(self._read_header, int(HEADER_SECONDS * 1e9), self._no_header)

    def _read_header(self) -> None:
        client = self._client
        try:
            header = read_header(self._early)
        except ProxyHeaderError as error:
            self._refuse_header(str(error))
            return
        if header is None:
            return
        self._end_timer()
        self._early = header.rest
        client.ip_known = True
        if header.address:
            client.set_address(header.address, header.port)
        self._choose()

    def _no_header(self) -> None:
        self._refuse_header("timeout reading PROXY protocol header")

    def _refuse_header(self, why: str) -> None:
        self._end_timer()
        log.warning("Error reading PROXY protocol header from %s:%d: %s", self._client.ip, self._client.port, why)
        self._client.close("Protocol Violation")

    def _choose(self) -> None:
        tls = self._tls
        if tls is None:
            self._continue_plain()
        elif self._client.tls_first or not self._port.allow_non_tls:
            self._begin_tls(tls)
        else:
            self._wait(self._inspect_input, tls.settings.timeout_ns, self._continue_plain)

    def _inspect_input(self) -> None:
        if self._tls is not None and self._early.startswith(_HANDSHAKE_RECORD):
            self._begin_tls(self._tls)
        else:
            self._continue_plain()

    def _continue_plain(self) -> None:
        self._end_timer()
        client, early = self._client, self._early
        self._step = _nothing
        self._transport.set_protocol(client)
        client.begin()
        if early:
            client.data_received(early)

    # TLS

    def _begin_tls(self, tls: TlsParameters) -> None:
        self._end_timer()
        client = self._client
        if not tls.admits(self._server.clock.monotonic_ns()):
            client.fail("Connection throttling is active. Please try again later.", "Maximum Connections Exceeded")
            return
        name = self._port.tls_name
        log.debug("%s - Starting TLS %s handshake", client.label, f"{name} server" if name else "client connection")
        self._set_timer(tls.settings.timeout_ns, self._tls_timed_out)
        layer = self._layer = TlsLayer(self._transport, self, tls.context, tls.turns, self._tls_ready, self._tls_failed)
        self._transport.set_protocol(layer)
        if self._early:
            layer.data_received(self._early)

    def _tls_ready(self) -> None:
        self._end_timer()
        client, tls, layer = self._client, self._tls, self._layer
        assert tls is not None
        self._step = _nothing
        assert layer is not None
        if client.closed:
            return
        client.upgrade(layer)
        layer.set_protocol(client)
        why = tls.objection(layer.get_extra_info("ssl_object"), self._server.clock.now_ns())
        if why:
            self._log_failure(logging.ERROR, why)
            client.close(_TLS_FAILED)
            return
        log.debug("%s - TLS handshake complete", client.label)
        if client.tls_first:
            client.greet()
        client.begin()

    def _tls_failed(self, error: Exception) -> None:
        self._end_timer()
        why = handshake_error(error)
        # Load balancers and port scanners send arbitrary bytes.
        level = logging.DEBUG if why.startswith("tls: first record") else logging.ERROR
        self._log_failure(level, why)
        self._client.close(_TLS_FAILED)

    def _log_failure(self, level: int, why: str) -> None:
        name = self._port.tls_name
        log.log(level, "%s - TLS %shandshake error: %s", self._client.label, name and f"{name} ", why)

    def _tls_timed_out(self) -> None:
        log.debug("%s - TLS handshake timeout", self._client.label)
        self._client.close(_TLS_FAILED)

    # Waiting

    def _wait(self, step: Callable[[], None], limit_ns: int, timed_out: Callable[[], None]) -> None:
        """Run ``step`` at each input, beginning with any that is buffered; call ``timed_out`` after the limit."""
        self._end_timer()
        self._step = step
        self._set_timer(limit_ns, timed_out)
        if self._early:
            step()

    def _set_timer(self, limit_ns: int, timed_out: Callable[[], None]) -> None:
        def due() -> None:
            if not self._client.closed:
                timed_out()

        self._timer = self._server.loop.call_later(limit_ns / 1e9, due)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
