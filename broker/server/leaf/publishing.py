"""The messages of a leaf connection on their way to the router.

    queue groups      a message reaches the groups that it names; without names, none, unless a mapping changed its
                      subject
    mappings          apply as to clients' messages
    $JS.ACK.…@subj    the reply of a delivery that another server routes by its inbox; receivers see ``subj``
    rules             what the other server may send

A message has been through another server, so it is never answered with "no responders", and never held back. The other
server may have begun a trace of it, which continues here.

Source: nats-server, server/leafnode.go (processInboundLeafMsg), server/client.go (processMsgResults).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from broker.protocol.framing import Framing
from broker.protocol.leaf.parser import split_route
from broker.protocol.run import Msg
from broker.server.auth.permissions import PublishRules
from broker.server.connection import message_trace
from broker.server.routing.outward import AT_ONCE

__all__ = ["EXEMPT", "LeafPublishing"]

_ACK: Final = b"$JS.ACK."

_DELIVERIES_AT_ONCE: Final = 256

EXEMPT: Final = (b"_R_.", b"$JS.ACK.", b"$LDS.", b"$GR.", b"_GR_.")
"""Prefixes of subjects between servers, which no permission forbids."""


class LeafPublisher(message_trace.Publisher, Protocol):
    """The leaf connection."""

    closed: bool
    registered: bool
    """Flag: the handshake is complete."""

    @property
    def parser(self) -> Framing: ...

    def refuse_publish(self, subject: bytes) -> None:
        """Handle a message to a subject that the other server may not publish to."""


class LeafPublishing:
    """The messages of one leaf connection. ``rules``: the subjects that it may publish to; None: all."""

    __slots__ = ("_leaf", "_rest", "_traced", "rules")

    def __init__(self, leaf: LeafPublisher) -> None:
        self._leaf = leaf
        self._rest: tuple[Sequence[Any], int, int] | None = None
        self._traced = False
        """Flag: a message of ``_rest`` may have a trace."""

        self.rules: PublishRules | None = None

    def forget_connection(self) -> None:
        """Drop the reference to the connection, which has ended."""
        del self._leaf

    def publish(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> bool:
        """Route ops[start:end], which are messages. Returns: False if ``resume`` must route the last ones."""
        if not self._leaf.registered:
            return True
        self._rest = ops, start, end
        self._traced = self._leaf.parser.traced or message_trace.may_begin(self._leaf.router, ops[start:end])
        return self.resume(now_ns)

    def resume(self, now_ns: int) -> bool:
        """Route the messages that ``publish`` did not. Returns: False if ``resume`` must be called again."""
        if self._rest is None:
            return True
        ops, start, end = self._rest
        leaf = self._leaf
        while start < end:
            start = self._route(ops, start, end, now_ns)
            if leaf.closed:
                break
            if start < end and (leaf.router.outward.work > AT_ONCE or leaf.fan_outs):
                self._rest = ops, start, end
                return False
        self._rest = None
        return True

    def _route(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        """Route a part of ops[start:end], and return its end."""
        leaf, rules = self._leaf, self.rules
        if self._traced:
            if self._route_traced(ops[start], now_ns):
                return start + 1
            end = start + 1
        last = end
        if rules is not None:
            end = self._permitted_end(rules, ops, start, end)
            if end == start:
                leaf.refuse_publish(ops[start][0])
                return start + 1
            last = end
        if leaf.parser.reserved_replies:
            end = next((at for at in range(start, end) if _is_routed(ops[at][1])), end)
        if end == start:
            if (end := self._route_deliveries(ops, start, last, now_ns)) > start:
                return end
            self._route_one(ops[start], now_ns)
            return start + 1
        return self._route_plain(ops, start, end, now_ns)

    def _route_plain(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        """Route messages for plain subscriptions, as far as one turn of the loop allows. Returns: the end."""
        leaf = self._leaf
        router = leaf.router
        mapper = router.mapper
        mapped = mapper.map_run(ops, start, end) if mapper is not None else None
        if mapped is None:
            return router.route(ops, start, end, leaf, now_ns, router.narrowed(()))
        # Queue groups receive a message whose subject was mapped: the other server could not know these groups.
        changed = mapped[0][0] != ops[start][0]
        same = next((i for i in range(1, end - start) if (mapped[i][0] != ops[start + i][0]) is not changed),
                    end - start)
        return start + router.route(mapped, 0, same, leaf, now_ns, None if changed else router.narrowed(()))

    def _route_deliveries(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        """Route deliveries of a consumer to one inbox that no mapping changes, as many as follow each other.

        Returns: their end.
        """
        leaf = self._leaf
        to: bytes = ops[start][0]
        msgs: list[Msg] = []
        mapper = leaf.router.mapper
        if mapper is not None and (mapper.map(to) != to or mapper.map_run(ops, start, start + 1) is not None):
            return start
        for at in range(start, min(end, start + _DELIVERIES_AT_ONCE)):
            subject, reply, hlen, body = ops[at]
            cut = reply.rfind(b"@")
            if subject != to or not reply.startswith(_ACK) or not 0 < cut < len(reply) - 1 or b" " in reply:
                break
            msgs.append((reply[cut + 1:], reply[:cut], hlen, body))
        if msgs:
            leaf.router.deliver_as(to, msgs, leaf, now_ns, leaf.router.narrowed(()))
        return start + len(msgs)

    def _route_traced(self, op: Msg, now_ns: int) -> bool:
        """Route a message that has a trace. Returns: whether that is done; False: the message has none."""
        leaf = self._leaf
        msg, trace = message_trace.begin(leaf, op, self._may_trace_to, now_ns)
        if msg is None:
            return True
        if trace is None:
            return False
        subject, routed, hlen, body = msg
        reply, queues = split_route(routed)
        routes = leaf.router.narrowed(tuple(sorted(queues)))
        if leaf.router.mapper is not None and (mapped := leaf.router.mapper.map(subject)) != subject:
            trace.mapped(mapped)
            subject, routes = mapped, routes if queues else leaf.router.routes
        if self.rules is not None and not self.rules.permits(op[0]):
            leaf.refuse_publish(op[0])
        else:
            traced = trace.follow((subject, reply, hlen, body), routes)
            if trace.only:
                return True
            leaf.router.route((traced,), 0, 1, leaf, now_ns, routes)
        trace.routed()
        return True

    def _may_trace_to(self, dest: bytes) -> bool:
        """Return whether the other server may send trace events to ``dest``."""
        return not self._leaf.router.refuses(dest) and (self.rules is None or self.rules.permits(dest))

    def _route_one(self, msg: Msg, now_ns: int) -> None:
        """Route a message that names queue groups, or has its subject in its reply."""
        leaf = self._leaf
        router = leaf.router
        to, routed, hlen, body = msg
        reply, queues = split_route(routed)
        routes = router.narrowed(tuple(sorted(queues)))
        if router.mapper is not None and (mapped := router.mapper.map(to)) != to:
            to, routes = mapped, router.routes
        if reply.startswith(_ACK) and 0 < (cut := reply.rfind(b"@")) < len(reply) - 1:
            router.deliver_as(to, [(reply[cut + 1:], reply[:cut], hlen, body)], leaf, now_ns, routes)
        else:
            router.route(((to, reply, hlen, body),), 0, 1, leaf, now_ns, routes)

    @staticmethod
    def _permitted_end(rules: PublishRules, ops: Sequence[Any], start: int, end: int) -> int:
        """Return the end of the messages that may be published."""
        permits = rules.permits
        for at in range(start, end):
            subject = ops[at][0]
            if not permits(subject) and not subject.startswith(EXEMPT):
                return at
        return end

    def check_begun(self, subject: bytes) -> None:
        """Do nothing: another server's messages are checked when they are complete."""

    def trace_too_large(self, msg: Msg, size: int, now_ns: int) -> None:
        """Do nothing: a message of another server is not traced here."""


def _is_routed(reply: bytes) -> bool:
    """Return whether a message names queue groups, or has its subject in its reply."""
    return b" " in reply or (b"@" in reply and reply.startswith(_ACK))
