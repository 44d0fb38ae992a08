"""A leaf connection: one account of this server, connected to one account of another server.

    LS+, LS-      ──> subscriptions of this account's router, which belong to the other server
    LMSG, HMSG    ──> LeafPublishing ──> the router
    the account's own interest changes ──> LS+, LS-
    the router delivers ──> LMSG, HMSG

Owns: the other server's subscriptions, the interest that it knows, and what may pass. Does not own: how the connection
begins (``solicited``, ``accepted``), the counts of the account's interest (``interest``).

Source: nats-server, server/leafnode.go (processLeafSub, processLeafUnsub, sendLeafNodeSubUpdate,
addLeafNodeConnection).
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from broker.access.accounts import SubjectPermission
from broker.config.settings import Settings
from broker.protocol import encoder, headers
from broker.protocol.leaf import encoder as leaf_encoder
from broker.protocol.leaf.parser import MAX_LINE, Info, Interest, LeafParser
from broker.protocol.operations import Connect, Err, Ping, Pong
from broker.protocol.run import AnyRun, Msg, Run
from broker.protocol.subject import is_literal, is_valid
from broker.protocol.traced import DEST, DISABLED, TracedMsg
from broker.server.accounts.account import Account
from broker.server.auth.permissions import PublishRules, SubscribeRules
from broker.server.connection.connect_options import go_quoted
from broker.server.connection.connection import Connection
from broker.server.connection.host import Entrance, Host
from broker.server.leaf.interest import AccountInterest, Key
from broker.server.leaf.publishing import EXEMPT, LeafPublishing
from broker.server.routing.outward import AT_ONCE
from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["RECONNECT_DELAY_NS", "LeafConnection", "LeafNodes", "Passage"]

log = logging.getLogger(__name__)

RECONNECT_DELAY_NS: Final = 30_000_000_000
"""Time before the next attempt after a loop or a refusal, as in nats-server."""

_JETSTREAM: Final = ("$JS.API.>", "$KV.>", "$OBJ.>")
"""Subjects that never cross: JetStream is reached by its domain, ``$JS.<domain>.API``."""

_RAFT: Final = ("$JSC.>", "$NRG.>")

_TOLD_BY_HUBS: Final = (*EXEMPT, b"$SYS.", b"$JS.")
"""Prefixes of the interest that a hub tells whatever its user may publish, like nats-server's service imports."""

_NO_TRACE: Final = (
    "Message delivered but remote does not support message tracing so no trace event generated from there",
    "Not delivered because remote does not support message tracing")
"""The error of another server that does not continue a trace. The second one is that of ``Trace.only``."""

_REMOVED_AT_ONCE: Final = 2000
"""Subscriptions that are removed, or inserted again, in one turn of the loop."""


class LeafNodes(Protocol):
    """All leaf connections of the server."""

    def interest_of(self, account: Account) -> AccountInterest:
        """Return the interest of an account with leaf connections."""

    def connected(self, leaf: LeafConnection) -> None:
        """Note that the handshake is complete."""

    def ended(self, leaf: LeafConnection) -> None:
        """Note that the connection is closing."""

    def count_slow(self, leaf: LeafConnection, reason: str) -> None: ...

    def identity(self, leaf: LeafConnection) -> dict[str, Any]:
        """Return ``leaf`` as JetStream's advisories show it."""


class Passage:
    """The subjects that may pass through one connection.

    Attributes:
        sends: the subjects of messages to the other server;
        wants: the subjects of the interest that the other server is informed about; None: all;
        receives: the subjects of messages from the other server; None: all.
    """

    def __init__(self, sends: SubjectPermission, wants: SubjectPermission | None,
                 receives: SubjectPermission | None) -> None:
        self.sends = SubscribeRules(sends.allow or (), sends.deny)
        self.wants = SubscribeRules(wants.allow or (), wants.deny) if wants is not None else None
        self.receives = PublishRules(receives.allow, receives.deny) if receives is not None else None


def jetstream_denials(account: Account, default_domains: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the subjects that cross in neither direction: none in an account whose default domain is empty."""
    if not account.is_system and (account.name, "") in default_domains:
        return ()
    return (*_JETSTREAM, *(_RAFT if account.is_system else ()))


def domain_denials(settings: Settings) -> tuple[str, ...]:
    """Return the subjects that are not sent to another server, because this one serves its domain.

    Brokers that share a store serve the domain together.
    """
    domain = settings.jetstream.domain
    return (f"$JS.{domain}.API.>",) if domain and not settings.storage.is_shared else ()


class _OpenHandshake:
    """The handshake of a connection whose operations are served as they come."""

    pending = False
    checking = False

    def may_serve(self, data: bytes) -> bool:
        return True


class LeafConnection(Connection):
    """The base of both roles. A ``Leaf`` to the router, a ``Source`` to JetStream."""

    parser: LeafParser
    _publishing: LeafPublishing
    wants_no_responders = False
    no_echo = True
    from_server = True
    accepted: bool
    hub: bool
    """Flag: this server is the hub of the connection; usually the side that accepted it."""

    proxy_key = ""

    def __init__(self, server: Host, nodes: LeafNodes, entrance: Entrance) -> None:
        super().__init__(server, entrance, LeafParser(MAX_LINE, server.settings.clients.max_payload))
        self._nodes = nodes
        self._publishing = LeafPublishing(self)
        self._handshake = _OpenHandshake()
        self._trace = None
        self.subs: dict[Key, Subscription] = {}
        self._outdated: list[Subscription] = []
        """The other server's subscriptions that were inserted with earlier permissions."""

        self._known: dict[Key, int] = {}
        """The interest that the other server knows."""

        self.passage = Passage(SubjectPermission(), None, None)
        self.registered = False
        """Flag: the handshake is complete."""

        self._early: list[Interest] | None = None
        """The other server's interest that waits until it knows this server's; None: it does not wait."""

        self._confirmations: list[tuple[int, Callable[[], None]]] = []
        """The calls of ``confirm``, each with the number of PONGs until the other server has processed what it waits
        for."""

        self.remote_name = ""
        """The other server's name."""

        self.remote_account = ""
        """The account's name at the other server."""

        self.remote_domain = ""
        """The other server's JetStream domain."""

        self.group = ""
        self.isolated = False
        self.traces = False
        """Flag: the other server continues the traces of messages."""

        self.peer_payload_max = 0
        """The most bytes of a message that the other server takes, as far as is known; 0: unknown."""

        self._own_api = b"$JS.%b.API.>" % server.settings.jetstream.domain.encode()

    # Opening and closing

    def greet(self) -> None:
        """Send nothing: the subclass begins the dialogue."""

    def _admit(self) -> str:
        return ""

    def register(self, passage: Passage) -> None:
        """Complete the handshake: join the account, and serve the other server's interest after ``informed``.

        A request that followed the other server's interest before it knows the reply's inbox would get no reply.
        """
        self.passage = passage
        self._publishing.rules = passage.receives
        self.group = self.group or f"\0{self.cid}"
        self.registered = True
        self.account.join(self, leaf=True)
        self._early = []
        self._reading.hold()
        self._nodes.connected(self)

    def informed(self) -> None:
        """Serve the other server's interest from now on: this server's has been sent."""
        early, self._early = self._early, None
        if early is None:
            return
        for op in early:
            if self.closed:
                return
            self._change_interest(op)
        self._reading.release()

    def confirm(self, done: Callable[[], None]) -> None:
        """Call ``done`` once the other server has processed all that was sent until now."""
        self._confirmations.append((self._keepalive.unanswered + len(self._confirmations) + 1, done))
        self.send_line(encoder.PING)

    def _receive_pong(self) -> None:
        self._keepalive.pong()
        if self._confirmations:
            due = [(pongs - 1, done) for pongs, done in self._confirmations]
            self._confirmations = [one for one in due if one[0] > 0]
            for pongs, done in due:
                if not pongs:
                    done()

    def change_passage(self, passage: Passage) -> None:
        """Apply other permissions to a connection that is in use."""
        self.passage = passage
        self._publishing.rules = passage.receives
        under_way, self._outdated = bool(self._outdated), list(self.subs.values())
        if not under_way:
            self._insert_again()

    def _insert_again(self) -> None:
        """Insert outdated subscriptions with the present permissions, on several turns of the loop."""
        for _ in range(min(len(self._outdated), _REMOVED_AT_ONCE)):
            sub = self._outdated.pop()
            if self.subs.get((sub.subject, sub.queue)) is sub:
                self._remove(sub)
                self._insert(sub.subject, sub.queue, sub.weight)
        if self._outdated and not self.closed:
            self._loop.call_soon(self._insert_again)

    def _leave(self) -> None:
        if self.registered:
            self.account.leave(self)
            self._nodes.interest_of(self.account).forget(self)
        subs = list(self.subs.values())
        self.subs.clear()
        self._known.clear()
        if len(subs) > _REMOVED_AT_ONCE:
            self.router.end(subs)
        self._remove_some(subs, self.router)
        self._nodes.ended(self)

    def _remove_some(self, subs: list[Subscription], router: Router) -> None:
        for _ in range(min(len(subs), _REMOVED_AT_ONCE)):
            router.remove(subs.pop())
        if subs:
            self._loop.call_soon(self._remove_some, subs, router)

    @property
    def _write_deadline(self) -> tuple[int, bool]:
        settings = self.server.settings
        own = settings.leafnodes
        return own.write_deadline_ns or settings.clients.write_deadline_ns, own.write_timeout != "close"

    def _break_cycles(self) -> None:
        super()._break_cycles()
        self._publishing.forget_connection()

    def _count_slow(self, reason: str) -> None:
        self._nodes.count_slow(self, reason)

    # Interest

    def inform(self, key: Key, weight: int) -> None:
        """Send the number of subscriptions, unless the other server knows it already."""
        subject, queue = key
        if subject == self._own_api and not queue:
            return  # the other server knows the subjects below it, which the account maps to $JS.API
        if weight and not queue:
            weight = 1
        wants = self.passage.wants
        if (weight and wants is not None and not wants.permits_some(subject, queue)
                and not subject.startswith(_TOLD_BY_HUBS if self.hub else EXEMPT)):
            weight = 0
        if weight != self._known.get(key, 0):
            if weight:
                self._known[key] = weight
            else:
                del self._known[key]
            self.send_line(leaf_encoder.interest(subject, queue, weight))

    def _change_interest(self, op: Interest) -> None:
        """Insert, change or remove a subscription of the other server."""
        if self._early is not None:
            self._early.append(op)
            return
        subject, queue, weight = op
        sub = self.subs.get((subject, queue))
        if not weight:
            if sub is not None:
                del self.subs[subject, queue]
                self._remove(sub)
        elif not is_valid(subject):
            self.fail("Invalid Subject", "Protocol Violation")
        elif subject == self._nodes.interest_of(self.account).loop_subject:
            self._close_loop()
        elif sub is not None:
            if queue and sub.weight != weight:
                self._nodes.interest_of(self.account).reweighted(sub, weight)
        elif is_literal(subject) and not subject.startswith(EXEMPT) and not self.passage.sends.permits(subject, queue):
            self._refuse_interest(subject)
        else:
            self._insert(subject, queue, weight)

    def _insert(self, subject: bytes, queue: bytes, weight: int) -> None:
        sub = Subscription(subject, queue, peer=self)
        sub.leaf, sub.weight = self, weight
        if not subject.startswith(EXEMPT):
            sub.denies = self.passage.sends.filter_some(subject, queue)
        self.subs[subject, queue] = sub
        self.router.add(sub)

    def _remove(self, sub: Subscription) -> None:
        self.router.remove(sub)

    def _close_loop(self) -> None:
        """Close the connection, through which this account's own interest came back."""
        text = (f'Loop detected for leafnode account="{self.account.name}". '
                f"Delaying attempt to reconnect for {RECONNECT_DELAY_NS // 1_000_000_000}s")
        log.error("%s - %s", self.label, text)
        self.fail(text, "Protocol Violation")

    @abstractmethod
    def _refuse_interest(self, subject: bytes) -> None:
        """Handle interest in a literal subject that the other server may not receive."""

    # For the router (Leaf), and for JetStream (Source)

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        """Queue ``run`` as messages for ``sub`` alone."""
        self._deliver(run.msgs, run.bytes, (sub.queue,) if sub.queue else (), b"")

    def deliver_routed(self, run: Run, queues: Sequence[bytes], to: bytes) -> None:
        """Queue ``run`` once for plain subscriptions and one member of each of ``queues``."""
        self._deliver(run.msgs, run.bytes, queues, to)

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        """Queue messages, each for the subscription at the same place in ``subs``."""
        for sub, msg in zip(subs, msgs, strict=True):
            self._deliver((msg,), len(msg[3]), (sub.queue,) if sub.queue else (), b"")

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        """Queue a run of one message for each of ``subs``."""
        for sub in subs:
            self.deliver(sub, run)

    def _deliver(self, msgs: Sequence[Msg], body_bytes: int, queues: Sequence[bytes], to: bytes) -> None:
        if isinstance(traced := msgs[0], TracedMsg):
            error = "" if self._continues(traced) else _NO_TRACE[traced.trace.only]
            forwarded = traced.trace.forward(traced, self.identity(), error)
            if error and traced.trace.only:
                return
            msgs, body_bytes = (forwarded,), len(forwarded[3])
        if self.peer_payload_max and body_bytes > self.peer_payload_max:
            msgs = self._without_oversized(msgs)
            body_bytes = sum(len(msg[3]) for msg in msgs)
        if not self.parser.headers:
            msgs = [(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in msgs]
        buffers = leaf_encoder.encode(msgs, queues, to)
        self._queue(buffers, sum(map(len, buffers)), len(msgs), body_bytes)

    def _continues(self, traced: TracedMsg) -> bool:
        """Return whether the other server will continue a trace; not behind a service import, which turns it off."""
        return self.traces and self.parser.headers and headers.get(traced[3][:traced[2]], DEST) != DISABLED

    def _without_oversized(self, msgs: Sequence[Msg]) -> list[Msg]:
        """Return the messages that the other server takes: it would close the connection at any other."""
        kept = []
        for msg in msgs:
            if len(msg[3]) <= self.peer_payload_max:
                kept.append(msg)
            else:
                log.error("%s - A message of %d bytes to %s cannot be sent: max_payload of the other server is %d",
                          self.label, len(msg[3]), go_quoted(msg[0].decode("utf-8", "replace")), self.peer_payload_max)
        return kept

    def expire(self, sub: Subscription) -> None:
        """Do nothing: the other server ends its subscriptions itself."""

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Do nothing: the server of the requesting client decides whether nobody responds."""

    def refuse_publish(self, subject: bytes) -> None:
        """Drop a message that may not pass."""

    def identity(self) -> dict[str, Any]:
        return self._nodes.identity(self)

    def hold(self) -> None:
        """Do nothing: JetStream refuses another server's messages instead of holding them back."""

    def release(self) -> None:
        """See ``hold``."""

    def _stall(self, read_bytes: int) -> None:
        """Do nothing: another server is never slowed down for a slow receiver."""
        self.server.stalled.clear()

    # Serving

    def _execute(self, op: Any, now_ns: int) -> None:
        kind = type(op)
        if kind is Interest:
            if self.registered:
                self.last_at_ns = self._keepalive.input_at_ns = now_ns
                self._change_interest(op)
                self.router.outward.work += AT_ONCE // 500
        elif kind is Ping:
            self._keepalive.input_at_ns = now_ns
            self.send_line(encoder.PONG)
        elif kind is Pong:
            self._receive_pong()
        elif kind is Info:
            self._receive_info(op.arg)
            self.router.outward.work += AT_ONCE // 10
        elif kind is Connect:
            self._receive_connect(op.arg)
        else:
            assert kind is Err
            text = op.arg.decode("utf-8", "replace").strip("'")
            log.error("%s - Leafnode Error '%s'", self.label, text)
            self.router.outward.work += AT_ONCE // 100
            self._receive_error(text)

    @abstractmethod
    def _receive_info(self, arg: bytes) -> None:
        """Handle an INFO of the other server."""

    @abstractmethod
    def _receive_connect(self, arg: bytes) -> None:
        """Handle a CONNECT of the other server."""

    def _receive_error(self, text: str) -> None:
        """Handle an error of the other server, which then closes the connection."""


def texts(value: Any) -> tuple[str, ...]:
    """Return the texts in a list of another server's JSON; none for anything that is no list."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def permission_of(info: Any) -> SubjectPermission | None:
    """Return a permission as INFO has it: ``{"allow": […], "deny": […]}``; None for anything else."""
    if not isinstance(info, dict):
        return None
    allow, deny = texts(info.get("allow")), texts(info.get("deny"))
    return SubjectPermission(allow or None, deny)


def with_denials(permission: SubjectPermission | None, denied: Iterable[str]) -> SubjectPermission:
    """Return ``permission``, or everything, without the ``denied`` subjects."""
    before = permission or SubjectPermission()
    return SubjectPermission(before.allow, (*before.deny, *denied))
