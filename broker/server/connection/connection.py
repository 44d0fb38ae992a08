"""One client connection: the protocol's state between parser, router and outbound.

    data_received ──> ReadPacing ──> Parser.feed ──> runs ──> Publishing ──> Router.route ──> other connections' outbound
                                          │
                                          └─> CONNECT, SUB, UNSUB, PING, …  answered here

Owns: subscriptions, CONNECT's options, the account and user logged in to, counts, and the order of serving and
closing. Does not own: logging in (handshake), what may be published (publishing), pings (keepalive), how much is read at
a time (read_pacing), unsent bytes (outbound), slowing down for receivers (stalling).

Nothing here is awaited; timers are the loop's.

Source: nats-server, server/client.go (processConnect, processPing, closeConnection).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

from broker.base.garbage import discarded
from broker.config.access import Permissions
from broker.protocol import encoder
from broker.protocol.parser import Connect, Err, Op, Parser, Ping, Pong, ProtocolError, Sub, Unsub
from broker.protocol.run import AnyRun, Msg, Run
from broker.server.accounts.account import Account
from broker.server.auth.login import Login, Refusal
from broker.server.connection.cipher_suites import standard_name
from broker.server.connection.connect_options import CONNECT_DEFAULTS, described, go_quoted, read_connect
from broker.server.connection.handshake import EVERYBODY, Handshake
from broker.server.connection.host import Entrance, Host
from broker.server.connection.keepalive import KeepAlive
from broker.server.connection.limits import Limits
from broker.server.connection.outbound import SLOW_TIME, Outbound
from broker.server.connection.publishing import Publishing
from broker.server.connection.read_pacing import ReadPacing
from broker.server.connection.stalling import stall
from broker.server.connection.subscribing import Subscribing, quoted
from broker.server.connection.trace import Trace, TracedOutbound
from broker.server.routing.outward import AT_ONCE
from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["Client"]

log = logging.getLogger(__name__)

_SID = attrgetter("sid")
_BODY = itemgetter(3)

_CONNECT_WORK: Final = AT_ONCE // 50
"""The work of a CONNECT, in deliveries; with a large JSON object it takes 0.1 ms."""


class Client(asyncio.Protocol):
    """A connection from TCP accept to the end; ``Peer`` to the router, ``Source`` to JetStream."""

    def __init__(self, server: Host[Client], entrance: Entrance | None = None) -> None:
        """Args: ``entrance``: None means the client port."""
        self.server = server
        self.entrance = entrance = entrance or server.entrance
        self.connection_type = entrance.connection_type
        self.client_type = entrance.client_type
        self._loop = server.loop
        self._clock = server.clock
        settings = server.settings.clients
        # The default account's, until a login changes them.
        self.account: Account = server.accounts.default
        self.router: Router = self.account.router
        self.login: Login = EVERYBODY
        self.parser = Parser(settings.max_control_line, settings.max_payload)
        self.options: dict[str, Any] = dict(CONNECT_DEFAULTS)
        self.cid = 0
        self.ip = ""
        self.port = 0
        self.nonce = b""
        self.proxy_key = ""
        """The trusted proxy that the client came through, by its public key."""

        self.forwarded_for = ""
        """The client's address according to a proxy; only for the log, since anyone can claim one."""

        self.cookies: dict[str, str] = {}
        """Values by CONNECT's field names, for fields that CONNECT lacks."""

        self.ip_known = True
        """False while ``ip`` may be a proxy's, which INFO does not show."""

        self.tls_first = False
        """Whether the TLS handshake comes, or came, before INFO."""

        # What the router reads.
        self.headers = False
        self.no_echo = False
        self.wants_no_responders = False
        # State and statistics.
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
        self.fan_outs = 0
        self._taking = 0
        """Bytes of the read that is being served."""

        self._unserved: tuple[list[Op], int, int, ProtocolError | None] | None = None
        """Of one read, what follows on a later turn: its operations, the next one, the next of the parser's marks, and the error
        that they end in. ``_publishing`` may have more before them."""
        self._verbose = True
        self._pong_sent = False
        self._publishing = Publishing(self)
        self._subscribing = Subscribing(self, self._loop.call_soon, self._loop.call_later)
        self._handshake = Handshake(server, entrance, self)
        logging_settings = server.settings.logging
        self._trace = Trace(self, logging_settings) if logging_settings.trace else None
        self.label = ""
        """The prefix of log lines about this client."""

        self._keepalive = KeepAlive(self._loop, self._clock, server.rng, entrance.ping_interval_ns, settings.ping_max,
                                    self._send_ping, self._stale)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.open(cast(asyncio.Transport, transport)):
            self.begin()

    def open(self, transport: asyncio.Transport, *, greet: bool = True) -> bool:
        """Accept a connection, with INFO if ``greet``. Returns: False if it was refused, and is being closed."""
        server = self.server
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.ip, self.port = peer[0], peer[1]
        settings = server.settings.clients
        kind = TracedOutbound if self._trace is not None else Outbound
        self._outbound = kind(self._loop, server.flusher, self._transport, settings.max_pending,
                              settings.write_deadline_ns, self._slow,
                              self._late if settings.write_timeout == "retry" else None)
        if isinstance(self._outbound, TracedOutbound) and self._trace is not None:
            self._outbound.trace = self._trace
        self.cid = server.next_cid()
        self._name()
        self._reading = ReadPacing(self._loop, self._transport, self._take, lambda: self.parser.missing)
        server.made()
        if greet:
            self.greet()
        refused = server.admit(self)
        if refused:
            self.fail(refused, "Maximum Connections Exceeded")
        return not refused

    def came_from(self, ip: str, port: int) -> None:
        """The client's own address, behind a proxy."""
        self.ip, self.port = ip, port
        self._name()

    def _name(self) -> None:
        forwarded = self.forwarded_for and self.forwarded_for + "/"
        self.label = f"{forwarded}{self.ip}:{self.port} - {self.entrance.id_label}:{self.cid}"

    def greet(self) -> None:
        """Send the first INFO, at once: a client that begins with TLS must not receive an answer to that before it."""
        self.send_line(encoder.info(self.server.info(self)))
        self._outbound.flush()

    def upgrade(self, transport: asyncio.Transport) -> None:
        """Continue on ``transport``, a layer above the current one, on which everything queued is sent first."""
        self._transport = transport
        self._outbound.upgrade(transport)
        self._reading.upgrade(transport)

    def begin(self) -> None:
        """The transport is final: start the authentication timeout."""
        if self._handshake.pending:
            self._handshake.set_timer()
        self._keepalive.start()

    def data_received(self, data: bytes) -> None:
        self._reading.receive(data)

    def _take(self, data: bytes) -> None:
        if self.closed:
            return
        now_ns = self._clock.now_ns()
        self.server.stalled.clear()
        if self._handshake.pending and not self._handshake.may_speak(data):
            return
        self.router.outward.work = 0
        self._taking = len(data)
        self._read(data, now_ns)

    def _read(self, data: bytes, now_ns: int) -> None:
        """Parse and serve ``data``, up to what is too much work for one turn of the loop."""
        parser = self.parser
        while True:
            error: ProtocolError | None = None
            try:
                ops = parser.feed(data)
            except ProtocolError as raised:
                # Its traceback refers to this frame, which refers to the error and the connection.
                error, ops = raised.with_traceback(None), raised.ops
            if self._trace is not None:
                self._trace.received(ops)
            msgs = len(ops) - len(parser.marks)
            if msgs:
                self.in_msgs += msgs
                self.in_bytes += parser.payload_bytes
                self.last_at_ns = self._keepalive.heard_at_ns = now_ns
            if not self._serve(ops, 0, 0, error, now_ns):
                return
            if error is None and not parser.held:  # as after nearly every read
                if parser.begun is not None:
                    self._publishing.begin(parser.begun)
                if self.server.stalled or self.router.outward.busy:
                    self._end_turn()
                self._reading.taken(self._taking)
                return
            if not self._served(error, now_ns):
                return
            data = b""

    def _served(self, error: ProtocolError | None, now_ns: int) -> bool:
        """All that the parser returned is served; ``error`` ended it. Returns: whether to feed it once more, at once."""
        if self.closed:
            return False
        if self.parser.begun is not None:
            self._publishing.begin(self.parser.begun)
        if error is not None:
            if error.too_large is not None:
                self._publishing.too_large(*error.too_large, now_ns)
            self.fail(error.text, error.reason)
            return False
        if self.parser.held and not self._handshake.checking:
            if self.router.outward.work <= AT_ONCE:
                return True
            self._serve_later()
        else:
            self._end_turn()
            self._reading.taken(self._taking)
        return False

    def _end_turn(self) -> None:
        """Have the client wait where its messages are waited for."""
        if self.server.stalled and not self.server.settings.clients.no_fast_producer_stall:
            self._stall(self._taking)
        self.router.outward.hold_back(self)

    def _serve_later(self) -> None:
        """Go on with ``_unserved`` on a later turn, when all that was published has been sent."""
        self._end_turn()
        self._reading.postpone(self._serve_rest)

    def _serve_rest(self) -> None:
        self.server.stalled.clear()
        self.router.outward.work = 0
        now_ns = self._clock.now_ns()
        if not self._publishing.go_on(now_ns) or self.fan_outs:
            self._serve_later()
            return
        rest, self._unserved = self._unserved, None
        if rest is None or (self._serve(*rest, now_ns) and self._served(rest[3], now_ns)):
            self._read(b"", now_ns)

    def go_on(self, early: bytes) -> None:
        """Serve what arrived after CONNECT while its login was checked."""
        self._reading.go_on(early)

    def eof_received(self) -> bool:
        self.close("Client Closed")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing("Read Error" if isinstance(exc, OSError) and not isinstance(exc, ConnectionResetError)
                      else "Client Closed")
        self._outbound.lost()
        self.server.lost()
        self._break_cycles()
        discarded(self)

    def _break_cycles(self) -> None:
        """Have the parts of this connection forget it, so that the memory of all is freed at once, without a collection.

        Whatever still refers to this connection may call it: it is closed, sends nothing, and has no subscriptions.
        """
        self._reading.forget_connection()
        self._keepalive.forget_connection()
        self._handshake.forget_connection()
        self._publishing.forget_connection()
        self._subscribing.forget_connection()
        self._trace = None
        if isinstance(self._outbound, TracedOutbound):
            self._outbound.trace = None

    def pause_writing(self) -> None:
        self._outbound.pause()

    def resume_writing(self) -> None:
        self._outbound.resume()

    # For the router (Peer), and for JetStream (Source).

    @property
    def peer(self) -> Client:
        return self

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
        return self.tls.getpeercert(binary_form=True) if self.tls is not None else None

    @property
    def tls(self) -> ssl.SSLObject | None:
        """None for a connection without TLS."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return tls

    def tls_facts(self) -> dict[str, Any] | None:
        """Version and cipher of TLS; None without it."""
        tls = self.tls
        if tls is None or (cipher := tls.cipher()) is None:
            return None
        return {"version": (tls.version() or "").removeprefix("TLSv"), "cipher": standard_name(cipher[0])}

    @property
    def pending_bytes(self) -> int:
        return self._outbound.pending_bytes

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        """Queue ``run`` as messages of ``sub``."""
        if not self.headers:
            run = run.without_headers()
        buffers = encoder.encode(run, sub.sid)
        self._queue(buffers, sum(map(len, buffers)), run.count, run.bytes)

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        """Queue messages, each of the subscription at the same place in ``subs``."""
        if not self.headers:
            msgs = [(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in msgs]
        data = encoder.encode_each(map(_SID, subs), msgs)
        self._queue([data], len(data), len(msgs), sum(map(len, map(_BODY, msgs))))

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        """Queue a run of one message for each of ``subs``."""
        if not self.headers:
            run = run.without_headers()
        data = encoder.encode_for_all(run, map(_SID, subs))
        count = len(subs)
        self._queue([data], len(data), count, run.bytes * count)

    def _queue(self, buffers: list[bytes], size: int, count: int, body_bytes: int) -> None:
        """Queue ``count`` messages with ``body_bytes`` of bodies."""
        outbound = self._outbound
        outbound.write(buffers, size)
        self.out_msgs += count
        self.out_bytes += body_bytes
        if outbound.stalled:
            self.server.stalled.append(outbound)

    def expire(self, sub: Subscription) -> None:
        """Remove a subscription that received its last message."""
        self._subscribing.expire(sub)

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send 503 for a request without receivers, if this client asked for it and subscribes to the reply subject."""
        if self.wants_no_responders and not self.closed:
            sub = self.router.plain_of(reply, self)
            if sub is not None:
                self.send_line(encoder.no_responders(subject, reply, sub.sid))

    def refuse_publish(self, subject: bytes) -> None:
        """Refuse a publish to a subject that is not permitted to this client."""
        name = quoted(subject)
        self.send_error(f"Permissions Violation for Publish to {name}")
        log.error("%s - Publish Violation - Subject %s", self.label, name)

    def refuse_reply(self, reply: bytes) -> None:
        """Refuse a publish with a reply subject that clients may not use."""
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

    def fan_out_began(self) -> None:
        self.fan_outs += 1
        self._reading.hold()

    def fan_out_ended(self) -> None:
        self.fan_outs -= 1
        self._reading.release()

    # Ending

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        if not self.closed:
            self._closing(reason)
            self._outbound.close()

    def fail(self, text: str | None, reason: str) -> None:
        """Close because of the client's error, with -ERR unless ``text`` is None."""
        if text is not None:
            self.send_error(text)
        self.close(reason)

    def _slow(self, reason: str) -> None:
        if not self.closed:
            self.server.count_slow(self, reason)
            self._closing(reason)
            self._outbound.abort()

    def _late(self) -> None:
        self.server.count_slow(self, SLOW_TIME)

    def _closing(self, reason: str) -> None:
        """Leave the router and the server, once."""
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

    def _serve(self, ops: list[Op], start: int, number: int, error: ProtocolError | None, now_ns: int) -> bool:
        """Serve ops[start:], in order; ``number`` counts the parser's marks before ``start``. What is too much work for one turn
        of the loop is left for a later one. Returns: whether all is served."""
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
            self._control(ops[mark], now_ns)
            if self.closed:
                return False
            start, number = mark + 1, number + 1
            if self.router.outward.work > AT_ONCE and start < end:
                self._unserved = ops, start, number, error
                self._serve_later()
                return False
        return True

    def _control(self, op: Any, now_ns: int) -> None:
        kind = type(op)
        if kind is Ping:
            self._keepalive.heard_at_ns = now_ns
            self.send_line(encoder.PONG)
            if self.connected and not self._pong_sent:
                self._pong_sent = True
                if self.options["protocol"] >= 1:
                    fields = self.server.info(self)
                    fields.update(connect_info=True, remote_account=self.account.name)
                    if self.account.is_system:
                        fields["acc_is_sys"] = True
                    self.send_line(encoder.info(fields))
        elif kind is Pong:
            self._keepalive.pong()
        elif kind is Sub:
            self.last_at_ns = self._keepalive.heard_at_ns = now_ns
            if self._subscribing.add(op) and self._verbose:
                self.send_line(encoder.OK)
        elif kind is Unsub:
            self.last_at_ns = self._keepalive.heard_at_ns = now_ns
            self._subscribing.end(op)
            if self._verbose:
                self.send_line(encoder.OK)
        elif kind is Connect:
            self._connect(op.arg)
            self.router.outward.work += _CONNECT_WORK
        else:
            assert kind is Err
            self.close("Parse Error")

    def _connect(self, arg: bytes) -> None:
        fields = read_connect(arg)
        if fields is None:
            self.fail(None, "Protocol Violation")
            return
        keepalive = self._keepalive
        # Until a ping is answered, the time until CONNECT is the estimate.
        keepalive.rtt_ns = keepalive.rtt_ns or max(self._clock.now_ns() - self.started_at_ns, 1)
        keepalive.start()
        options = self.options
        options.update(fields)
        options.update({name: value for name, value in self.cookies.items() if not options.get(name)})
        if self.connected:
            # A second CONNECT may be for another account, so it starts without subscriptions.
            self._subscribing.end_all()
        self._handshake.connect(options)

    def enter(self, login: Login) -> bool:
        """Become the user of ``login``, in its account. Returns: False if the connection was closed instead."""
        account = self.server.accounts.get(login.account)
        if account is None:
            log.error("%s - Problem registering with account %s", self.label, go_quoted(login.account))
            self.fail("Failed Account Registration", "Authentication Failure")
            return False
        self.account.leave(self)
        if account.full:
            self.exceed_account()
            return False
        account.join(self)
        self.account, self.router, self.login = account, account.router, login
        self._take_limits()
        self._take_rules(login)
        return not self.closed

    def exceed_account(self) -> None:
        """Close: the account has as many connections as it may have."""
        log.error("%s - maximum account active connections exceeded", self.label)
        self.fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")

    def _take_limits(self) -> None:
        clients = self.server.settings.clients
        limits = Limits.of(clients, self.account, self.login)
        self.parser.limit(clients.max_control_line, limits.max_payload)
        self._subscribing.limit(limits.max_subscriptions, clients.max_sub_tokens)

    def _take_rules(self, login: Login) -> None:
        rules = login.rules
        replies = rules.replies(self._clock.monotonic_ns) if rules is not None else None
        self._publishing.restrict(rules.publish if rules is not None else None, replies)
        self._subscribing.restrict(rules.subscribe if rules is not None else None, replies)

    def still(self, login: Login) -> None:
        """The user's rules or the account's limits may have changed."""
        rules_before = _permissions(self.login)
        self.login = login
        self._take_limits()
        # Applying rules takes time for each subscription, and all of the account's clients come here in one turn of the loop.
        if not self.closed and _permissions(login) != rules_before:
            self._take_rules(login)
            self._subscribing.reconsider(login.user)

    def settings_changed(self) -> None:
        """Apply the changed server settings that a live connection can."""
        clients, logging_settings = self.server.settings.clients, self.server.settings.logging
        self._keepalive.change(self.entrance.ping_interval_ns, clients.ping_max)
        self._trace = Trace(self, logging_settings) if logging_settings.trace else None
        if isinstance(self._outbound, TracedOutbound):
            self._outbound.trace = self._trace
        self._take_limits()

    def users_changed(self, names: Collection[str]) -> None:
        """The users have changed; ``names`` are the current ones."""
        self._handshake.reconsider(names)

    def judged(self, decision: Login | Refusal) -> None:
        """What the account says of this user has changed."""
        self._handshake.decided_again(decision)

    def logged_in(self, login: Login) -> None:
        """Finish CONNECT after its credentials were accepted."""
        options = self.options
        if not self.enter(login):
            return
        if options.get("account") or options.get("new_account"):
            self._handshake.refuse(Refusal(after_login=True))
            return
        self.server.logged_in(self)
        if not self.connected:
            name, tag = self.account.name, self.account.settings.name_tag
            self.label += described(options, f"{name}/{tag}" if tag else name, login.user, login.kind)
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

    def send_info(self, **fields: object) -> bool:
        """Send the current INFO with ``fields``. Returns: False if this client accepts none now: it has an old
        protocol, or awaits its first PONG."""
        accepts: bool = self._pong_sent and self.options["protocol"] >= 1
        if accepts:
            self.send_line(encoder.info({**self.server.info(self), **fields}))
        return accepts

    def refused(self, refusal: Refusal) -> None:
        """The login was refused: close, with an error that does not say why."""
        self.fail("Authorization Violation", refusal.reason)
        self.server.refused(self, refusal)

    # Keeping alive and slowing down

    def _send_ping(self) -> None:
        self.send_line(encoder.PING)

    def _stale(self) -> None:
        self.server.stale_connections += 1
        self.fail("Stale Connection", "Stale Connection")

    def _stall(self, read_bytes: int) -> None:
        """Receivers of this read's messages are far behind: stop reading until they catch up, or for a bounded time."""
        self.stalls += 1
        self.server.stalled_clients += 1
        stall(self, self.server.stalled, read_bytes)
        self.server.stalled.clear()


def _permissions(login: Login) -> Permissions | None:
    return login.rules.permissions if login.rules is not None else None
