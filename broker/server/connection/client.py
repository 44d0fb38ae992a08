"""A client's connection: CONNECT, its login, its subscriptions by sid, and the lines of the client protocol.

Owns: CONNECT's options, the logged-in user, and the bytes sent to the client. Does not own: what every connection does
(connection), login (handshake), permitted publishes (publishing) and subscriptions (subscribing).

Source: nats-server, server/client.go (processConnect, processPing).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

from broker.access.accounts import Permissions
from broker.protocol import encoder
from broker.protocol.encoder import encode, encode_one
from broker.protocol.operations import Connect, Err, Ping, Pong, Sub, Unsub
from broker.protocol.parser import Parser
from broker.protocol.run import AnyRun, Msg, Run
from broker.server.auth.login import Login, Refusal
from broker.server.connection.connect_options import CONNECT_DEFAULTS, described, go_quoted, read_connect
from broker.server.connection.connection import Connection
from broker.server.connection.handshake import EVERYBODY, Handshake
from broker.server.connection.host import ClientHost, Entrance
from broker.server.connection.limits import Limits
from broker.server.connection.publishing import Publishing
from broker.server.connection.subscribing import Subscribing, quoted
from broker.server.routing.outward import AT_ONCE
from broker.server.routing.subscription import Subscription

__all__ = ["Client"]

log = logging.getLogger(__name__)

_SID = attrgetter("sid")
_BODY = itemgetter(3)

_CONNECT_WORK: Final = AT_ONCE // 50
"""The work of a CONNECT, in deliveries; with a large JSON object it takes 0.1 ms."""


class Client(Connection):
    """A client's connection: a ``Peer`` to the router, a ``Source`` to JetStream."""

    server: ClientHost[Client]
    parser: Parser
    from_server = False
    _handshake: Handshake
    _publishing: Publishing

    def __init__(self, server: ClientHost[Client], entrance: Entrance | None = None) -> None:
        """Args: ``entrance``: None means the client port."""
        settings = server.settings.clients
        super().__init__(server, entrance or server.entrance, Parser(settings.max_control_line, settings.max_payload))
        self.login: Login = EVERYBODY
        self.options: dict[str, Any] = dict(CONNECT_DEFAULTS)
        self.nonce = b""
        self.proxy_key = ""
        """The public key of the trusted proxy between the client and this server; "" if there is none."""

        self.cookies: dict[str, str] = {}
        """Values from cookies, by the names of the CONNECT fields that they replace if CONNECT lacks those."""

        self.headers = False
        self.no_echo = False
        self.wants_no_responders = False
        self.connected = False
        self._verbose = True
        self._pong_sent = False
        self._publishing = Publishing(self)
        self._subscribing = Subscribing(self, self._loop.call_soon, self._loop.call_later)
        self._handshake = Handshake(server, self.entrance, self)

    # Opening and closing

    def greet(self) -> None:
        """Send the first INFO at once: clients that begin with TLS must receive INFO before TLS answers."""
        self.send_line(encoder.info(self.server.info(self)))
        self._outbound.flush()

    def begin(self) -> None:
        """Start the authentication timeout; the transport does not change any more."""
        if self._handshake.pending:
            self._handshake.set_timer()
        super().begin()

    def _admit(self) -> str:
        return self.server.admit(self)

    def _leave(self) -> None:
        self._handshake.close()
        # The server reads the subscriptions of a closed connection, so they end afterwards.
        self.server.remove_client(self)
        self._subscribing.end_all()

    def _break_cycles(self) -> None:
        super()._break_cycles()
        self._handshake.forget_connection()
        self._publishing.forget_connection()
        self._subscribing.forget_connection()

    def _count_slow(self, reason: str) -> None:
        self.server.count_slow(self, reason)

    # For the router (Peer), and for JetStream (Source)

    @property
    def subs(self) -> dict[bytes, Subscription]:
        """The subscriptions by sid."""
        return self._subscribing.subs

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        """Queue ``run`` as messages of ``sub``."""
        if not self.headers:
            run = run.without_headers()
        buffers = encode(run, sub.sid)
        # This repeats ``_queue``, which would be one more call for each receiver of a fan-out.
        outbound = self._outbound
        outbound.write(buffers, len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers)))
        self.out_msgs += run.count
        self.out_bytes += run.bytes
        if outbound.stalled:
            self.server.stalled.append(outbound)

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        """Queue messages, each for the subscription at the same place in ``subs``."""
        if not self.headers:
            msgs = [(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in msgs]
        if len(msgs) == 1:
            data = encode_one(subs[0].sid, msgs[0])
            self._queue([data], len(data), 1, len(msgs[0][3]))
            return
        data = b"".join(map(encode_one, map(_SID, subs), msgs))
        self._queue([data], len(data), len(msgs), sum(map(len, map(_BODY, msgs))))

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        """Queue a run of one message for each of ``subs``."""
        if not self.headers:
            run = run.without_headers()
        data = encoder.encode_for_all(run, map(_SID, subs))
        count = len(subs)
        self._queue([data], len(data), count, run.bytes * count)

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

    # Serving

    def serve_early(self, early: bytes) -> None:
        """Serve the bytes that arrived after CONNECT while its login was checked."""
        self._reading.receive_first(early)

    def _execute(self, op: Any, now_ns: int) -> None:
        kind = type(op)
        if kind is Ping:
            self._keepalive.input_at_ns = now_ns
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
            self.last_at_ns = self._keepalive.input_at_ns = now_ns
            if self._subscribing.add(op) and self._verbose:
                self.send_line(encoder.OK)
        elif kind is Unsub:
            self.last_at_ns = self._keepalive.input_at_ns = now_ns
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
        # Until the first PONG, the time from accept to CONNECT is an estimate of the round-trip time.
        keepalive.rtt_ns = keepalive.rtt_ns or max(self._clock.now_ns() - self.started_at_ns, 1)
        keepalive.start()
        options = self.options
        options.update(fields)
        options.update({name: value for name, value in self.cookies.items() if not options.get(name)})
        if self.connected:
            # A second CONNECT may be for another account, so it starts without subscriptions.
            self._subscribing.end_all()
        self._handshake.connect(options)

    def become_user(self, login: Login) -> bool:
        """Move the connection to the account and user of ``login``. Returns: False if it was closed instead."""
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
        self._apply_limits()
        self._apply_rules(login)
        return not self.closed

    def exceed_account(self) -> None:
        """Close the connection because its account has reached its maximum of connections."""
        log.error("%s - maximum account active connections exceeded", self.label)
        self.fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")

    def _apply_limits(self) -> None:
        clients = self.server.settings.clients
        limits = Limits.of(clients, self.account, self.login)
        self.parser.limit(clients.max_control_line, limits.max_payload)
        self._subscribing.limit(limits.max_subscriptions, clients.max_sub_tokens)

    def _apply_rules(self, login: Login) -> None:
        rules = login.rules
        replies = rules.replies(self._clock.monotonic_ns) if rules is not None else None
        self._publishing.restrict(rules.publish if rules is not None else None, replies)
        self._subscribing.restrict(rules.subscribe if rules is not None else None, replies)

    def update_login(self, login: Login) -> None:
        """Apply changes of the user's rules and of the account's limits."""
        rules_before = _permissions(self.login)
        self.login = login
        self._apply_limits()
        # Apply rules only if they changed: that visits each subscription, and all clients of an account are updated in
        # one turn.
        if not self.closed and _permissions(login) != rules_before:
            self._apply_rules(login)
            self._subscribing.reconsider(login.user)
        elif self._publishing.replies is not None:
            # As in nats-server, the client may no longer respond to messages that it received before.
            self._publishing.replies.clear()

    def settings_changed(self) -> None:
        super().settings_changed()
        self._apply_limits()

    def users_changed(self, names: Collection[str]) -> None:
        """Check the login again after a change of the users; ``names`` are the current ones."""
        self._handshake.recheck_login(names)

    def apply_decision(self, decision: Login | Refusal) -> None:
        """Apply the decision about this user after its account has changed."""
        self._handshake.apply_decision(decision)

    def finish_connect(self, login: Login) -> None:
        """Finish CONNECT after its credentials were accepted."""
        options = self.options
        if not self.become_user(login):
            return
        if options.get("account") or options.get("new_account"):
            self._handshake.refuse(Refusal(after_login=True))
            return
        self.server.publish_login(self)
        if not self.connected:
            name, tag = self.account.name, self.account.settings.name_tag
            self.label += described(options, f"{name}/{tag}" if tag else name, login.user, login.kind)
        self.connected = True
        self._verbose = options["verbose"]
        self._publishing.set_options(verbose=self._verbose, pedantic=options["pedantic"])
        self.no_echo = not options["echo"]
        header_support = not self.server.settings.clients.no_header_support
        self.headers = self.parser.headers = header_support and bool(options.get("headers"))
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

    def send_info(self, **fields: object) -> bool:
        """Send the current INFO with ``fields``, unless the client has an old protocol or awaits its first PONG.

        Returns: whether it was sent.
        """
        accepts: bool = self._pong_sent and self.options["protocol"] >= 1
        if accepts:
            self.send_line(encoder.info({**self.server.info(self), **fields}))
        return accepts

    def close_refused(self, refusal: Refusal) -> None:
        """Close after a refused login, with an error that does not give the cause."""
        self.fail("Authorization Violation", refusal.reason)
        self.server.publish_refusal(self, refusal)


def _permissions(login: Login) -> Permissions | None:
    return login.rules.permissions if login.rules is not None else None
