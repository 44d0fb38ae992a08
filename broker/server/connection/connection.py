"""A connection of any kind, from accept to its end, between a transport, a parser and an outbound buffer.

    data_received ──> ReadPacing ──> parser.feed ──> operations ──┬──> runs of messages: _publishing
                                                                  └──> other operations, one by one: _execute

Owns: the order of reading, serving and closing; the peer's address, TLS and counts. Does not own: the meaning of
operations, and the peer's identity (a subclass, such as ``Client``); how much is read at a time (read_pacing), unsent
bytes (outbound), pings (keepalive), slowing down for receivers (stalling).

Nothing here is awaited; timers belong to the loop.

Source: nats-server, server/client.go (readLoop, closeConnection).
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, Self, cast

from broker.base.garbage import discarded
from broker.protocol import encoder
from broker.protocol.framing import Framing, ProtocolError
from broker.protocol.run import Msg
from broker.server.accounts.account import Account
from broker.server.connection.cipher_suites import standard_name
from broker.server.connection.host import Entrance, Host
from broker.server.connection.keepalive import KeepAlive
from broker.server.connection.outbound import SLOW_TIME, Outbound
from broker.server.connection.read_pacing import ReadPacing
from broker.server.connection.stalling import stall
from broker.server.connection.trace import Trace, TracedOutbound
from broker.server.routing.outward import AT_ONCE
from broker.server.routing.router import Router

__all__ = ["Connection"]


class _Handshake(Protocol):
    """The handshake of a kind of connection."""

    @property
    def pending(self) -> bool:
        """Flag: the connection has not logged in, and no other operation is allowed yet."""

    @property
    def checking(self) -> bool:
        """Flag: the operations that follow must wait for a decision about the login."""

    def may_serve(self, data: bytes) -> bool:
        """Return whether to serve ``data`` while ``pending``; if not, it was buffered, or the connection was closed."""


class _Publishing(Protocol):
    """The part of a connection that passes its messages to the router."""

    def publish(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> bool:
        """Route ops[start:end], which are messages. Returns: False if ``resume`` must route the last ones."""

    def resume(self, now_ns: int) -> bool:
        """Route the messages that ``publish`` did not. Returns: False if ``resume`` must be called again."""

    def check_begun(self, subject: bytes) -> None:
        """Check the subject of a message whose line has arrived, because the rest of the message may never come."""

    def trace_too_large(self, msg: Msg, size: int, now_ns: int) -> None:
        """Trace a message of ``size`` bytes, which ends the connection. ``msg`` holds the part that has arrived."""


class Connection(asyncio.Protocol, ABC):
    """The base of all kinds of connections.

    A subclass sets ``_handshake`` and ``_publishing``, carries out operations, and encodes the messages for its peer
    (``routing.subscription.Peer``).
    """

    _handshake: _Handshake
    _publishing: _Publishing

    def __init__(self, server: Host, entrance: Entrance, parser: Framing) -> None:
        self.server = server
        self.entrance = entrance
        self.parser = parser
        self.connection_type = entrance.connection_type
        self.client_type = entrance.client_type
        self._loop = server.loop
        self._clock = server.clock
        # The default account applies until a login changes it.
        self.account: Account = server.accounts.default
        self.router: Router = self.account.router
        self.cid = 0
        self.ip = ""
        self.port = 0
        self.forwarded_for = ""
        """The peer's address according to a proxy. It is only logged, since anyone can claim any address."""

        self.ip_known = True
        """Flag; False while ``ip`` may be a proxy's, which INFO must not show."""

        self.tls_first = False
        """Flag: the TLS handshake comes before INFO."""

        self.label = ""
        """The prefix of log lines about this connection."""

        self.closed = False
        self.close_reason = ""
        self.started_at_ns = self.last_at_ns = self._clock.now_ns()
        self.stopped_at_ns = 0
        self.in_msgs = 0
        self.in_bytes = 0
        self.out_msgs = 0
        self.out_bytes = 0
        self.stalls = 0
        self.fan_outs = 0
        self._read_bytes = 0
        """Size of the read that is being served, in bytes."""

        self._unserved: tuple[list[Any], int, int, ProtocolError | None] | None = None
        """The rest of one read, which is served on a later turn, after ``_publishing.resume``.

        Its parts are the operations, the index of the next operation, the index of the next of the parser's marks, and
        the error after the last operation.
        """

        settings = server.settings
        self._trace = Trace(self, settings.logging) if settings.logging.trace else None
        self._keepalive = KeepAlive(self._loop, self._clock, server.rng, entrance.ping_interval_ns,
                                    settings.clients.ping_max, self._send_ping, self._close_stale)

    # A subclass implements these.

    @abstractmethod
    def greet(self) -> None:
        """Send the first line of the protocol at once."""

    @abstractmethod
    def _admit(self) -> str:
        """Register with the server. Returns: why the connection may not stay; "" if it may."""

    @abstractmethod
    def _leave(self) -> None:
        """Remove the closing connection and its subscriptions from the server and the router."""

    @abstractmethod
    def _execute(self, op: Any, now_ns: int) -> None:
        """Carry out an operation that is not a message."""

    @abstractmethod
    def _count_slow(self, reason: str) -> None:
        """Count the connection as a slow consumer."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.open(cast(asyncio.Transport, transport)):
            self.begin()

    def open(self, transport: asyncio.Transport, *, greet: bool = True) -> bool:
        """Accept a connection, and send INFO if ``greet``. Returns: False if it was refused and is closing."""
        server = self.server
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.ip, self.port = peer[0], peer[1]
        deadline_ns, retry = self._write_deadline
        kind = TracedOutbound if self._trace is not None else Outbound
        self._outbound = kind(self._loop, server.flusher, self._transport, server.settings.clients.max_pending,
                              deadline_ns, self._close_slow, self._count_late if retry else None)
        if isinstance(self._outbound, TracedOutbound) and self._trace is not None:
            self._outbound.trace = self._trace
        self.cid = server.next_cid()
        self._set_label()
        self._reading = ReadPacing(self._loop, self._transport, self._receive, lambda: self.parser.missing)
        server.count_opened()
        if greet:
            self.greet()
        refused = self._admit()
        if refused:
            self.fail(refused, "Maximum Connections Exceeded")
        return not refused

    @property
    def _write_deadline(self) -> tuple[int, bool]:
        """The time by which the peer must read something, and whether it may be late if it reads less than all."""
        settings = self.server.settings.clients
        return settings.write_deadline_ns, settings.write_timeout == "retry"

    def set_address(self, ip: str, port: int) -> None:
        """Set the address of the peer, if it connects through a proxy that sends it."""
        self.ip, self.port = ip, port
        self._set_label()

    def _set_label(self) -> None:
        forwarded = self.forwarded_for and self.forwarded_for + "/"
        self.label = f"{forwarded}{self.ip}:{self.port} - {self.entrance.id_label}:{self.cid}"

    def upgrade(self, transport: asyncio.Transport) -> None:
        """Continue on ``transport``, a layer above the current one, which first sends everything that is queued."""
        self._transport = transport
        self._outbound.upgrade(transport)
        self._reading.upgrade(transport)

    def begin(self) -> None:
        """Start pinging; the transport does not change any more."""
        self._keepalive.start()

    def eof_received(self) -> bool:
        self.close("Client Closed")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("Read Error" if isinstance(exc, OSError) and not isinstance(exc, ConnectionResetError)
                  else "Client Closed")
        self._outbound.lost()
        self.server.count_closed()
        self._break_cycles()
        discarded(self)

    def _break_cycles(self) -> None:
        """Remove the parts' references to this connection, so that all memory is freed at once, without a collection.

        Objects that refer to this connection may call it afterwards: it is closed, sends nothing, and has no
        subscriptions.
        """
        self._reading.forget_connection()
        self._keepalive.forget_connection()
        self._trace = None
        if isinstance(self._outbound, TracedOutbound):
            self._outbound.trace = None

    def pause_writing(self) -> None:
        self._outbound.pause()

    def resume_writing(self) -> None:
        self._outbound.resume()

    # For the router

    @property
    def peer(self) -> Self:
        return self

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0 if unknown."""
        return self._keepalive.rtt_ns

    @property
    def certificate(self) -> bytes | None:
        """The peer's verified certificate (DER); None without one."""
        return self.tls.getpeercert(binary_form=True) if self.tls is not None else None

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS state; None for a connection without TLS."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return tls

    def tls_facts(self) -> dict[str, Any] | None:
        """Return the version and cipher of TLS; None without TLS."""
        tls = self.tls
        if tls is None or (cipher := tls.cipher()) is None:
            return None
        return {"version": (tls.version() or "").removeprefix("TLSv"), "cipher": standard_name(cipher[0])}

    @property
    def pending_bytes(self) -> int:
        return self._outbound.pending_bytes

    def _queue(self, buffers: list[bytes], size: int, count: int, body_bytes: int) -> None:
        """Queue ``count`` messages; ``body_bytes`` is the size of their bodies together."""
        outbound = self._outbound
        outbound.write(buffers, size)
        self.out_msgs += count
        self.out_bytes += body_bytes
        if outbound.stalled:
            self.server.stalled.append(outbound)

    def server_identity(self, at: str) -> dict[str, Any]:
        """Return the server as events show it. Source: nats-server, server/events.go ServerInfo."""
        return self.server.event_identity(at)

    def hold(self) -> None:
        """Stop reading until ``release``; holds nest."""
        self._reading.hold()

    def release(self) -> None:
        """Undo one ``hold``."""
        self._reading.release()

    def fan_out_began(self) -> None:
        self.fan_outs += 1
        self._reading.hold()

    def fan_out_ended(self) -> None:
        self.fan_outs -= 1
        self._reading.release()

    # Ending

    def close(self, reason: str) -> None:
        """Send the queued bytes, then close."""
        if not self.closed:
            self._end(reason)
            self._outbound.close()

    def fail(self, text: str | None, reason: str) -> None:
        """Close because of the peer's error; send it as -ERR unless ``text`` is None."""
        if text is not None:
            self.send_error(text)
        self.close(reason)

    def _close_slow(self, reason: str) -> None:
        if not self.closed:
            self._count_slow(reason)
            self._end(reason)
            self._outbound.abort()

    def _count_late(self) -> None:
        self._count_slow(SLOW_TIME)

    def _end(self, reason: str) -> None:
        """Stop reading and pinging, and call ``_leave``; only the first call has an effect."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.stopped_at_ns = self._clock.now_ns()
        self._reading.close()
        self._keepalive.close()
        self._leave()

    # Serving

    def data_received(self, data: bytes) -> None:
        self._reading.receive(data)

    def _receive(self, data: bytes) -> None:
        if self.closed or (self._handshake.pending and not self._handshake.may_serve(data)):
            return
        now_ns = self._clock.now_ns()
        self.server.stalled.clear()
        self.router.outward.work = 0
        self._read_bytes = len(data)
        self._read(data, now_ns)

    def _read(self, data: bytes, now_ns: int) -> None:
        """Parse and serve ``data``, as far as the work fits into one turn of the loop."""
        parser = self.parser
        while True:
            error: ProtocolError | None = None
            try:
                ops = parser.feed(data)
            except ProtocolError as raised:
                # Drop the traceback: it refers to this frame, which refers to the error and the connection.
                error, ops = raised.with_traceback(None), raised.ops
            if self._trace is not None:
                self._trace.received(ops)
            msgs = len(ops) - len(parser.marks)
            if msgs:
                self.in_msgs += msgs
                self.in_bytes += parser.payload_bytes
                self.last_at_ns = self._keepalive.input_at_ns = now_ns
            if not self._serve(ops, 0, 0, error, now_ns):
                return
            if error is None and not parser.held:  # this is the case after nearly every read
                if parser.begun is not None:
                    self._publishing.check_begun(parser.begun)
                if self.server.stalled or self.router.outward.busy:
                    self._end_turn()
                self._reading.count_served(self._read_bytes)
                return
            if not self._finish_read(error, now_ns):
                return
            data = b""

    def _finish_read(self, error: ProtocolError | None, now_ns: int) -> bool:
        """Finish a read whose operations are all served; ``error`` is the parser's error after them, if any.

        Returns: whether to feed the parser again at once.
        """
        if self.closed:
            return False
        if self.parser.begun is not None:
            self._publishing.check_begun(self.parser.begun)
        if error is not None:
            if error.too_large is not None:
                self._publishing.trace_too_large(*error.too_large, now_ns)
            self.fail(error.text, error.reason)
            return False
        if self.parser.held and not self._handshake.checking:
            if self.router.outward.work <= AT_ONCE:
                return True
            self._serve_later()
        else:
            self._end_turn()
            self._reading.count_served(self._read_bytes)
        return False

    def _end_turn(self) -> None:
        """Hold the connection if its messages have filled the buffers of receivers."""
        if self.server.stalled and not self.server.settings.clients.no_fast_producer_stall:
            self._stall(self._read_bytes)
        self.router.outward.hold_back(self)

    def _serve(self, ops: list[Any], start: int, number: int, error: ProtocolError | None, now_ns: int) -> bool:
        """Serve ops[start:], in order. Operations that are too much work for this turn of the loop are served later.

        Args: ``number`` counts the parser's marks before ``start``. Returns: whether all are served.
        """
        marks = self.parser.marks
        end = len(ops)
        while start < end:
            mark = marks[number] if number < len(marks) else end
            if start < mark and (not self._publishing.publish(ops, start, mark, now_ns) or self.fan_outs):
                self._unserved = ops, mark, number, error
                self._serve_later()
                return False
            if mark == end:
                break
            self._execute(ops[mark], now_ns)
            if self.closed:
                return False
            start, number = mark + 1, number + 1
            if self.router.outward.work > AT_ONCE and start < end:
                self._unserved = ops, start, number, error
                self._serve_later()
                return False
        return True

    def _serve_later(self) -> None:
        """Serve ``_unserved`` on a later turn, after all published messages have been sent."""
        self._end_turn()
        self._reading.postpone(self._serve_rest)

    def _serve_rest(self) -> None:
        self.server.stalled.clear()
        self.router.outward.work = 0
        now_ns = self._clock.now_ns()
        if not self._publishing.resume(now_ns) or self.fan_outs:
            self._serve_later()
            return
        rest, self._unserved = self._unserved, None
        if rest is None or (self._serve(*rest, now_ns) and self._finish_read(rest[3], now_ns)):
            self._read(b"", now_ns)

    # Sending

    def send_line(self, line: bytes) -> None:
        """Queue one line of the protocol, or a message that is for no subscription."""
        self._outbound.write([line], len(line))

    def send_error(self, text: str) -> None:
        self.send_line(encoder.err(text))

    def settings_changed(self) -> None:
        """Apply changed server settings, as far as a live connection can."""
        clients, logging_settings = self.server.settings.clients, self.server.settings.logging
        self._keepalive.change(self.entrance.ping_interval_ns, clients.ping_max)
        self._trace = Trace(self, logging_settings) if logging_settings.trace else None
        if isinstance(self._outbound, TracedOutbound):
            self._outbound.trace = self._trace

    # Keeping alive and slowing down

    def _send_ping(self) -> None:
        self.send_line(encoder.PING)

    def _close_stale(self) -> None:
        self.server.stale_connections += 1
        self.fail("Stale Connection", "Stale Connection")

    def _stall(self, read_bytes: int) -> None:
        """Stop reading until the receivers of this read's messages catch up, but for a bounded time."""
        self.stalls += 1
        self.server.stalled_clients += 1
        stall(self, self.server.stalled, read_bytes)
        self.server.stalled.clear()
