"""One client connection: the protocol's state between parser, router and outbound.

    data_received ──> ReadPacing ──> Parser.feed ──> runs ──> Publishing ──> Router.route ──> other connections' outbound
                                          │
                                          └─> CONNECT, SUB, UNSUB, PING, …  answered here

Owns: subscriptions, what CONNECT asked for, the account and the user since then, counts, and the order of serving and of
closing. Does not own: logging in (handshake), what may be published (publishing), pings (keepalive), how much is read at
a time (read_pacing), unsent bytes (outbound).

Nothing here is awaited; timers are the loop's.

Source: nats-server, server/client.go (processConnect, processPing, stalledWait, closeConnection).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final, cast

from broker.protocol import encoder
from broker.protocol.parser import Connect, Err, Op, Parser, Ping, Pong, ProtocolError, Sub, Unsub
from broker.server.accounts.account import Account
from broker.server.auth.login import Login
from broker.server.connection.connect_options import CONNECT_DEFAULTS, described, go_quoted, read_connect
from broker.server.connection.handshake import EVERYBODY, Handshake
from broker.server.connection.host import Host
from broker.server.connection.keepalive import KeepAlive
from broker.server.connection.outbound import Outbound, hold_until_caught_up
from broker.server.connection.publishing import Publishing
from broker.server.connection.read_pacing import ReadPacing
from broker.server.connection.subscribing import Subscribing, quoted
from broker.server.connection.trace import Trace, TracedOutbound
from broker.server.routing.route import Subscription
from broker.server.routing.router import Router

__all__ = ["Client"]

log = logging.getLogger(__name__)

_STALL_PER_READ_NS: Final = 10_000_000
_READ_BYTES: Final = 64 * 1024
"""A producer is stalled for at most 10 ms for each so many bytes read, as in nats-server's read loop."""


class Client(asyncio.Protocol):
    """A connection from TCP accept to the end; ``Peer`` to the router, ``Source`` to JetStream."""

    connection_type = "STANDARD"

    def __init__(self, server: Host[Client]) -> None:
        self.server = server
        self._loop = server.loop
        self._clock = server.clock
        settings = server.settings.clients
        # Those of the default account, until a login says otherwise.
        self.account: Account = server.accounts.default
        self.router: Router = self.account.router
        self.login: Login = EVERYBODY
        self.parser = Parser(settings.max_control_line, settings.max_payload)
        self.options: dict[str, Any] = dict(CONNECT_DEFAULTS)
        self.cid = 0
        self.ip = ""
        self.port = 0
        self.nonce = b""
        # What the router reads.
        self.headers = False
        self.no_echo = False
        self.wants_no_responders = False
        # What it did so far.
        self.connected = False
        self.closed = False
        self.close_reason = ""
        self.started_at_ns = self.last_at_ns = self._clock.now_ns()
        self.stopped_at_ns = 0
        self.in_msgs = 0
        self.in_bytes = 0
        self.out_msgs = 0
        self.out_bytes = 0
        self.stalls = 0
        self._verbose = True
        self._pong_sent = False
        self._publishing = Publishing(self)
        self._subscribing = Subscribing(self)
        self._handshake = Handshake(server, self)
        logging_settings = server.settings.logging
        self._trace = Trace(self, logging_settings.max_traced_msg_len) if logging_settings.trace else None
        self.label = ""
        """What log lines about this client begin with."""

        self._keepalive = KeepAlive(self._loop, self._clock, server.rng, settings.ping_interval_ns, settings.ping_max,
                                    self._send_ping, self._stale)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self.server
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.ip, self.port = peer[0], peer[1]
        settings = server.settings.clients
        kind = TracedOutbound if self._trace is not None else Outbound
        self._outbound = kind(self._loop, server.flusher, self._transport, settings.max_pending,
                              settings.write_deadline_ns, self._slow)
        if isinstance(self._outbound, TracedOutbound) and self._trace is not None:
            self._outbound.trace = self._trace
        self.cid = server.next_cid()
        self.label = f"{self.ip}:{self.port} - cid:{self.cid}"
        self._reading = ReadPacing(self._loop, self._transport, self._take)
        server.made()
        self.send_line(encoder.info(server.info(self)))
        refused = server.admit(self)
        if refused:
            self.fail(refused, "Maximum Connections Exceeded")
            return
        if self._handshake.pending:
            self._handshake.set_timer()
        self._keepalive.start()

    def data_received(self, data: bytes) -> None:
        self._reading.receive(data)

    def _take(self, data: bytes) -> None:
        if self.closed:
            return
        now_ns = self._clock.now_ns()
        parser = self.parser
        stalled = self.server.stalled
        if stalled:
            stalled.clear()
        if self._handshake.pending and not self._handshake.may_speak(data):
            return
        size = len(data)
        self.last_at_ns = now_ns
        try:
            self._serve(parser.feed(data), now_ns)
            while parser.held and not self.closed and not self._handshake.checking:
                self._serve(parser.feed(b""), now_ns)
        except ProtocolError as error:
            self._serve(error.ops, now_ns)
            if not self.closed:
                self.fail(error.text, error.reason)
            return
        if stalled and not self.server.settings.clients.no_fast_producer_stall:
            self._stall(size)
        self._reading.taken(size)

    def go_on(self, early: bytes) -> None:
        """Serve what came after CONNECT while its login was checked."""
        self._reading.go_on(early)

    def eof_received(self) -> bool:
        self.close("Client Closed")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing("Read Error" if isinstance(exc, OSError) and not isinstance(exc, ConnectionResetError)
                      else "Client Closed")
        self._outbound.lost()
        self.server.lost()

    def pause_writing(self) -> None:
        self._outbound.pause()

    def resume_writing(self) -> None:
        self._outbound.resume()

    # What the router asks (Peer) and JetStream (Source).

    @property
    def subs(self) -> dict[bytes, Subscription]:
        """By sid."""
        return self._subscribing.subs

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0: unknown."""
        return self._keepalive.rtt_ns

    @property
    def certificate(self) -> bytes | None:
        """The client's verified certificate (DER); None without one."""
        tls = self._transport.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) if tls is not None else None

    @property
    def pending_bytes(self) -> int:
        return self._outbound.pending_bytes

    def send(self, buffers: list[bytes], size: int, count: int, body_bytes: int) -> None:
        """Queue ``count`` messages with ``body_bytes`` of bodies."""
        outbound = self._outbound
        outbound.write(buffers, size)
        self.out_msgs += count
        self.out_bytes += body_bytes
        if outbound.stalled:
            self.server.stalled.append(outbound)

    def expire(self, sub: Subscription) -> None:
        """A subscription got its last message."""
        self._subscribing.expire(sub)

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send 503 for a request without receivers, if this client asked for that and subscribes to the reply subject."""
        if self.wants_no_responders and not self.closed:
            sub = self.router.plain_of(reply, self)
            if sub is not None:
                self.send_line(encoder.no_responders(subject, reply, sub.sid))

    def refuse_publish(self, subject: bytes) -> None:
        """Refuse a publish to a subject that is not for this client."""
        name = quoted(subject)
        self.send_error(f"Permissions Violation for Publish to {name}")
        log.error("%s - Publish Violation - Subject %s", self.label, name)

    def refuse_reply(self, reply: bytes) -> None:
        """Refuse a publish with a reply subject that is not for clients."""
        name = quoted(reply)
        self.send_error(f"Permissions Violation for Publish with Reply of {name}")
        log.error("%s - Publish Violation - Reply %s", self.label, name)

    def identity(self) -> dict[str, Any]:
        return self.server.identity(self)

    def server_identity(self, at: str) -> dict[str, Any]:
        """The server as events show it. Source: nats-server, server/events.go ServerInfo."""
        return self.server.event_identity(at)

    def hold(self) -> None:
        """Stop reading until ``release``; holds nest."""
        self._reading.hold()

    def release(self) -> None:
        """Undo one ``hold``."""
        self._reading.release()

    # Ending

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        if not self.closed:
            self._closing(reason)
            self._outbound.close()

    def fail(self, text: str | None, reason: str) -> None:
        """Close through the client's fault, with -ERR unless ``text`` is None."""
        if text is not None:
            self.send_error(text)
        self.close(reason)

    def _slow(self, reason: str) -> None:
        if not self.closed:
            self.server.count_slow(self, reason)
            self._closing(reason)
            self._outbound.abort()

    def _closing(self, reason: str) -> None:
        """Leave the router and the server; once."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.stopped_at_ns = self._clock.now_ns()
        self._reading.close()
        self._keepalive.close()
        self._handshake.close()
        # The server shows the subscriptions of a closed connection.
        self.server.left(self)
        self._subscribing.end_all()

    # Serving

    def _serve(self, ops: list[Op], now_ns: int) -> None:
        """Serve one batch, in order."""
        if self._trace is not None:
            self._trace.received(ops)
        parser = self.parser
        publish = self._publishing.publish
        marks = parser.marks
        if len(ops) > len(marks):
            self.in_msgs += len(ops) - len(marks)
            self.in_bytes += parser.payload_bytes
            self._keepalive.heard_at_ns = now_ns
            if not marks:
                publish(ops, 0, len(ops), now_ns)
                return
        start = 0
        for mark in marks:
            if mark > start:
                publish(ops, start, mark, now_ns)
            self._control(ops[mark], now_ns)
            if self.closed:
                return
            start = mark + 1
        if start < len(ops):
            publish(ops, start, len(ops), now_ns)

    def _control(self, op: Any, now_ns: int) -> None:
        kind = type(op)
        if kind is Ping:
            self._keepalive.heard_at_ns = now_ns
            self.send_line(encoder.PONG)
            if self.connected and not self._pong_sent:
                self._pong_sent = True
                if self.options["protocol"] >= 1:
                    fields = self.server.info(self)
                    fields.update(connect_info=True, remote_account=self.router.name)
                    self.send_line(encoder.info(fields))
        elif kind is Pong:
            self._keepalive.pong()
        elif kind is Sub:
            self._keepalive.heard_at_ns = now_ns
            if self._subscribing.add(op) and self._verbose:
                self.send_line(encoder.OK)
        elif kind is Unsub:
            self._keepalive.heard_at_ns = now_ns
            self._subscribing.end(op)
            if self._verbose:
                self.send_line(encoder.OK)
        elif kind is Connect:
            self._connect(op.arg)
        else:
            assert kind is Err
            self.close("Parse Error")

    def _connect(self, arg: bytes) -> None:
        fields = read_connect(arg)
        if fields is None:
            self.fail(None, "Protocol Violation")
            return
        keepalive = self._keepalive
        # Until a ping is answered, the time that CONNECT took to come stands for it.
        keepalive.rtt_ns = keepalive.rtt_ns or max(self._clock.now_ns() - self.started_at_ns, 1)
        keepalive.start()
        options = self.options
        options.update(fields)
        if self.connected:
            # A second CONNECT may be for another account, so it begins without subscriptions.
            self._subscribing.end_all()
        self._handshake.connect(options)

    def enter(self, login: Login) -> bool:
        """Become that user of that account. Returns: False if the connection was closed instead."""
        account = self.server.accounts.get(login.account)
        if account is None:
            log.error("%s - Problem registering with account %s", self.label, go_quoted(login.account))
            self.fail("Failed Account Registration", "Authentication Failure")
            return False
        self.account.leave(self)
        if account.full:
            log.error("%s - maximum account active connections exceeded", self.label)
            self.fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")
            return False
        account.join(self)
        self.account, self.router, self.login = account, account.router, login
        self._take_limits()
        self._take_rules(login)
        return True

    def _take_limits(self) -> None:
        """The server's, or the account's where they are lower."""
        own, account = self.server.settings.clients, self.account.settings
        self.parser.limit(own.max_control_line, own.max_payload if account.max_payload < 0 else
                          min(own.max_payload, account.max_payload))
        bounds = [bound for bound in (own.max_subscriptions or -1, account.max_subscriptions) if bound >= 0]
        self._subscribing.limit(min(bounds, default=-1))

    def _take_rules(self, login: Login) -> None:
        rules = login.rules
        replies = rules.replies(self._clock.monotonic_ns) if rules is not None else None
        self._publishing.restrict(rules.publish if rules is not None else None, replies)
        self._subscribing.restrict(rules.subscribe if rules is not None else None, replies)

    def still(self, login: Login) -> None:
        """The user's rules or the account's limits may have changed."""
        self.login = login
        self._take_limits()
        if not self.closed:
            self._take_rules(login)
            self._subscribing.reconsider(login.user)

    def settings_changed(self) -> None:
        """The server's settings are others: take those that a live connection can."""
        clients, logging_settings = self.server.settings.clients, self.server.settings.logging
        self._keepalive.change(clients.ping_interval_ns, clients.ping_max)
        self._trace = Trace(self, logging_settings.max_traced_msg_len) if logging_settings.trace else None
        if isinstance(self._outbound, TracedOutbound):
            self._outbound.trace = self._trace
        self._take_limits()

    def users_changed(self, names: Collection[str]) -> None:
        """Who may log in, and as whom, has changed; ``names`` are the users there are."""
        self._handshake.reconsider(names)

    def logged_in(self, login: Login) -> None:
        """The rest of CONNECT, whose credentials were right."""
        options = self.options
        if options.get("account") or options.get("new_account"):
            self._handshake.refuse()
            return
        if not self.enter(login):
            return
        if not self.connected:
            self.label += described(options, self.router.name, login.user)
        self.connected = True
        self._verbose = options["verbose"]
        self._publishing.answer(verbose=self._verbose, pedantic=options["pedantic"])
        self.no_echo = not options["echo"]
        self.headers = self.parser.headers = not self.server.settings.clients.no_header_support and bool(options.get("headers"))
        if options["protocol"] not in (0, 1):
            self.fail("invalid client protocol", "Bad Client Protocol Version")
            return
        wanted = bool(options.get("no_responders"))
        if wanted and not self.headers:
            self.fail("no responders requires headers support", "No Responders Requires Headers")
            return
        self.wants_no_responders = wanted
        if self._verbose:
            self.send_line(encoder.OK)

    # Sending

    def send_line(self, line: bytes) -> None:
        """Queue one line of the protocol, or a message without a subscription."""
        self._outbound.write([line], len(line))

    def send_error(self, text: str) -> None:
        self.send_line(encoder.err(text))

    def send_info(self) -> None:
        """The server's present INFO, if this client can take one at any time (protocol 1, first PONG sent)."""
        if self._pong_sent and self.options["protocol"] >= 1:
            self.send_line(encoder.info(self.server.info(self)))

    # Keeping alive and slowing down

    def _send_ping(self) -> None:
        self.send_line(encoder.PING)

    def _stale(self) -> None:
        self.server.stale_connections += 1
        self.fail("Stale Connection", "Stale Connection")

    def _stall(self, read_bytes: int) -> None:
        """Receivers of this read's messages are far behind: read on once they have caught up, or a little later."""
        behind = {id(outbound): outbound for outbound in self.server.stalled}
        self.server.stalled.clear()
        self.stalls += 1
        self.server.stalled_clients += 1
        reads = -(-read_bytes // _READ_BYTES)
        hold_until_caught_up(self, behind.values(), reads * _STALL_PER_READ_NS / 1e9)
