"""One client connection: the protocol's state between parser, router and outbound.

    data_received ──> ReadPacing ──> Parser.feed ──> runs ──> Router.route ──> other connections' outbound
                                          │
                                          └─> CONNECT, SUB, UNSUB, PING, …  answered here

Owns: subscriptions, what CONNECT asked for, counts, and the order of serving and of closing. Does not own: logging in
(handshake), pings (keepalive), how much is read at a time (read_pacing), unsent bytes (outbound).

Nothing here is awaited; timers are the loop's. A connection with ``verbose`` or ``pedantic`` takes its messages one by
one, since each has an answer of its own; all others never pay for that.

Source: nats-server, server/client.go (processConnect, processPing, stalledWait, closeConnection).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from broker.protocol import encoder
from broker.protocol.parser import Connect, Err, Msg, Op, Parser, Ping, Pong, ProtocolError, Sub, Unsub
from broker.protocol.subject import is_literal, is_valid
from broker.server.connection.connect_options import CONNECT_DEFAULTS, described, read_connect
from broker.server.connection.handshake import Login
from broker.server.connection.host import Host
from broker.server.connection.keepalive import KeepAlive
from broker.server.connection.message_trace import traced
from broker.server.connection.outbound import Outbound, hold_until_caught_up
from broker.server.connection.read_pacing import ReadPacing
from broker.server.routing.route import Subscription
from broker.server.routing.router import Router

__all__ = ["Client"]

_STALL_PER_READ_NS: Final = 10_000_000
_READ_BYTES: Final = 64 * 1024
"""A producer is stalled for at most 10 ms for each so many bytes read, as in nats-server's read loop."""

_RESERVED_REPLIES: Final = (b"_R_.", b"$JS.ACK.", b"_GR_.")
_SYSTEM_QUEUE: Final = b"_sys_"


class Client(asyncio.Protocol):
    """A connection from TCP accept to the end; ``Peer`` to the router, ``Source`` to JetStream."""

    def __init__(self, server: Host[Client]) -> None:
        self.server = server
        self._loop = server.loop
        self._clock = server.clock
        settings = server.settings.clients
        self.router: Router = server.router
        self.parser = Parser(settings.max_control_line, settings.max_payload)
        self.options: dict[str, Any] = dict(CONNECT_DEFAULTS)
        self.subs: dict[bytes, Subscription] = {}
        self.cid = 0
        self.ip = ""
        self.port = 0
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
        self._strict = True
        self._pong_sent = False
        self._login = Login(self)
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
        self._outbound = Outbound(self._loop, server.flusher, self._transport, settings.max_pending,
                                  settings.write_deadline_ns, self._slow)
        self.cid = server.next_cid()
        self.label = f"{self.ip}:{self.port} - cid:{self.cid}"
        self._reading = ReadPacing(self._loop, self._transport, self._take)
        server.made()
        self._proto(encoder.info(server.info(self)))
        refused = server.admit(self)
        if refused:
            self.fail(refused, "Maximum Connections Exceeded")
            return
        if self._login.pending:
            self._login.set_timer()
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
        if self._login.pending and not self._login.may_speak(data):
            return
        size = len(data)
        self.last_at_ns = now_ns
        try:
            self._serve(parser.feed(data), now_ns)
            while parser.held and not self.closed and not self._login.checking:
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
    def rtt_ns(self) -> int:
        """Round-trip time; 0: unknown."""
        return self._keepalive.rtt_ns

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
        if self.subs.get(sub.sid) is sub:
            del self.subs[sub.sid]
            self.router.remove(sub)

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send 503 for a request without receivers, if this client asked for that and subscribes to the reply subject."""
        if self.wants_no_responders and not self.closed:
            sub = self.router.plain_of(reply, self)
            if sub is not None:
                self._proto(encoder.no_responders(subject, reply, sub.sid))

    def refuse_publish(self, subject: bytes) -> None:
        """Refuse a publish to a subject that is not for clients."""
        self._error(f'Permissions Violation for Publish to "{_text(subject)}"')

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
            self._error(text)
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
        self._login.close()
        subs = list(self.subs.values())
        self.server.left(self)
        self.subs = {}
        for sub in subs:
            self.router.remove(sub)

    # Serving

    def _serve(self, ops: list[Op], now_ns: int) -> None:
        """Serve one batch, in order."""
        parser = self.parser
        marks = parser.marks
        if len(ops) > len(marks):
            self.in_msgs += len(ops) - len(marks)
            self.in_bytes += parser.payload_bytes
            self._keepalive.heard_at_ns = now_ns
            if not marks:
                self._publish(ops, 0, len(ops), now_ns)
                return
        start = 0
        for mark in marks:
            if mark > start:
                self._publish(ops, start, mark, now_ns)
            self._control(ops[mark], now_ns)
            if self.closed:
                return
            start = mark + 1
        if start < len(ops):
            self._publish(ops, start, len(ops), now_ns)

    def _publish_traced(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> None:
        """``_publish`` for a run in which some message may ask to be traced."""
        for at in range(start, end):
            msg = ops[at]
            trace = traced(msg)
            if trace is not None and not self.router.refuses(msg[0]):
                trace.tell(self, now_ns)
                if trace.only:
                    if self._verbose:
                        self._proto(encoder.OK)
                    continue
            self._publish(ops, at, at + 1, now_ns, False)

    def _publish(self, ops: Sequence[Any], start: int, end: int, now_ns: int, look: bool = True) -> None:
        if look and self.parser.traced:
            self._publish_traced(ops, start, end, now_ns)
            return
        if not self._strict and not self.parser.odd_replies:
            self.router.route(ops, start, end, self, now_ns)
            return
        msgs: list[Msg] = list(ops[start:end])
        if self.parser.odd_replies and not self._strict:
            allowed = [msg for msg in msgs if not msg[1].startswith(_RESERVED_REPLIES)]
            if len(allowed) == len(msgs):
                self.router.route(msgs, 0, len(msgs), self, now_ns)
                return
        for msg in msgs:
            if self.options["pedantic"] and not (is_valid(msg[0]) and is_literal(msg[0])):
                self._error("Invalid Publish Subject")
            if msg[1].startswith(_RESERVED_REPLIES):
                self._error(f'Permissions Violation for Publish with Reply of "{_text(msg[1])}"')
                continue
            if self._verbose and not self.router.refuses(msg[0]):
                self._proto(encoder.OK)
            self.router.route((msg,), 0, 1, self, now_ns)

    def _control(self, op: Any, now_ns: int) -> None:
        kind = type(op)
        if kind is Ping:
            self._keepalive.heard_at_ns = now_ns
            self._proto(encoder.PONG)
            if self.connected and not self._pong_sent:
                self._pong_sent = True
                if self.options["protocol"] >= 1:
                    fields = self.server.info(self)
                    fields.update(connect_info=True, remote_account=self.router.name)
                    self._proto(encoder.info(fields))
        elif kind is Pong:
            self._keepalive.pong()
        elif kind is Sub:
            self._keepalive.heard_at_ns = now_ns
            self._subscribe(op)
        elif kind is Unsub:
            self._keepalive.heard_at_ns = now_ns
            self._unsubscribe(op)
        elif kind is Connect:
            self._connect(op.arg)
        else:
            assert kind is Err
            self.close("Parse Error")

    def _subscribe(self, op: Sub) -> None:
        if op.queue == _SYSTEM_QUEUE:
            self._error(f'Permissions Violation for Subscription to "{_text(op.subject)}" using queue "_sys_"')
            return
        limit = self.server.settings.clients.max_subscriptions
        if limit and len(self.subs) >= limit:
            self._error("maximum subscriptions exceeded")
            return
        # A sid in use keeps its first subscription; the client is not told.
        if op.sid not in self.subs:
            if not is_valid(op.subject):
                self._error("Invalid Subject")
                return
            sub = self.subs[op.sid] = Subscription(op.subject, op.queue, peer=self, sid=op.sid)
            self.router.add(sub)
        if self._verbose:
            self._proto(encoder.OK)

    def _unsubscribe(self, op: Unsub) -> None:
        sub = self.subs.get(op.sid)
        if sub is not None:
            if op.max > sub.delivered:
                self.router.limit(sub, op.max)
            else:
                del self.subs[op.sid]
                self.router.remove(sub)
        if self._verbose:
            self._proto(encoder.OK)

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
            subs = list(self.subs.values())
            self.subs = {}
            for sub in subs:
                self.router.remove(sub)
        self._login.decide(options)

    def logged_in(self, welcome: bool) -> None:
        """The rest of CONNECT, whose credentials were right or not."""
        options = self.options
        if not welcome or options.get("account") or options.get("new_account"):
            self._login.refuse()
            return
        if not self.connected:
            self.label += described(options, self.router.name)
        self.connected = True
        self._verbose = options["verbose"]
        self._strict = self._verbose or options["pedantic"]
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
            self._proto(encoder.OK)

    # Sending

    def _proto(self, data: bytes) -> None:
        self._outbound.write([data], len(data))

    def _error(self, text: str) -> None:
        self._proto(encoder.err(text))

    def send_info(self) -> None:
        """The server's present INFO, if this client can take one at any time (protocol 1, first PONG sent)."""
        if self._pong_sent and self.options["protocol"] >= 1:
            self._proto(encoder.info(self.server.info(self)))

    # Keeping alive and slowing down

    def _send_ping(self) -> None:
        self._proto(encoder.PING)

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


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
