"""A client's publishes on their way to the router: permissions, and the checks and answers that CONNECT requested.

    a run of messages ──┬── nothing to check ──────────────────────> Router.route, unchanged
                        ├── permissions: cut where one is missing ─> Router.route, in parts; -ERR
                        └── verbose, pedantic, traced ─────────────> Router.route, one by one

If the account maps subjects, these steps use the mapped subjects, except the check of a pedantic client's subjects,
which uses the subject that the client sent.

Reply subjects that are reserved for servers are refused, too; the parser flags reads that may contain one.

A run may be too much work for one turn of the loop, if its messages have many receivers, or receivers that are hard to
find. Then ``publish`` keeps the rest of the run, already mapped and partly checked, and ``resume`` continues with it.

Source: nats-server, server/client.go (processInboundClientMsg).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from broker.protocol import encoder
from broker.protocol.parser import Parser
from broker.protocol.run import Msg
from broker.protocol.subject import is_literal, is_valid
from broker.server.auth.permissions import PublishRules, ReplyPermissions
from broker.server.connection import message_trace
from broker.server.connection.subscribing import quoted
from broker.server.routing.outward import AT_ONCE

__all__ = ["Publishing"]

_RESERVED_REPLIES: Final = (b"_R_.", b"$JS.ACK.", b"_GR_.")


_Stage = Callable[[Sequence[Any], int, int, int], int]


class Publisher(message_trace.Publisher, Protocol):
    """The connection that publishes."""

    parser: Parser

    def send_line(self, line: bytes) -> None: ...

    def send_error(self, text: str) -> None: ...

    def refuse_reply(self, reply: bytes) -> None:
        """Refuse a publish with a reply subject that clients may not use."""


class Publishing:
    """The publishes of one client. ``replies``: reply subjects permitted in addition to the rules; None: none."""

    __slots__ = ("_begun", "_checked", "_client", "_must_check", "_parser", "_pedantic", "_rest", "_rules", "_verbose",
                 "replies")

    def __init__(self, client: Publisher) -> None:
        self._client = client
        self._parser = client.parser
        self._rules: PublishRules | None = None
        self.replies: ReplyPermissions | None = None
        self._rest: tuple[_Stage, Sequence[Any], int, int] | None = None
        self._begun = False
        """Flag: the next message's subject was already checked, when the message's line arrived."""
        self._checked = 0
        """The end of the messages in ``_rest`` that are already checked: a permitted response must be counted only
        once."""
        self.set_options(verbose=True, pedantic=True)

    def forget_connection(self) -> None:
        """Drop the reference to the connection, which has ended."""
        del self._client

    def set_options(self, *, verbose: bool, pedantic: bool) -> None:
        """Set the client's options of CONNECT."""
        self._verbose = verbose
        self._pedantic = pedantic
        self._must_check = verbose or self._rules is not None

    def restrict(self, rules: PublishRules | None, replies: ReplyPermissions | None) -> None:
        """Set the rules for the subjects that the user may publish to; None: all are permitted."""
        self._rules = rules
        self.replies = replies
        self.set_options(verbose=self._verbose, pedantic=self._pedantic)

    def publish(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> bool:
        """Route ops[start:end], which are messages. Returns: False if ``resume`` must route the last ones."""
        parser = self._parser
        router = self._client.router
        traced = parser.traced or message_trace.may_begin(router, ops[start:end])
        singly = traced or self._pedantic
        if router.mapper is not None and not singly and (mapped := router.mapper.map_run(ops, start, end)) is not None:
            ops, start, end = mapped, 0, len(mapped)
        if not (self._must_check or parser.reserved_replies or singly):
            done = router.route(ops, start, end, self._client, now_ns)
            if done < end:
                self._rest = self._route, ops, done, end
                return False
            return True
        self._rest = self._publish_singly if singly else self._publish_checked, ops, start, end
        return self.resume(now_ns)

    def resume(self, now_ns: int) -> bool:
        """Route the messages that ``publish`` did not. Returns: False if ``resume`` must be called again."""
        if self._rest is None:
            return True
        stage, ops, start, end = self._rest
        done = stage(ops, start, end, now_ns)
        if done < end:
            self._rest = stage, ops, done, end
            return False
        self._rest = None
        self._checked = 0
        return True

    # Stages: each publishes a part of ops[start:end] and returns the end of that part.

    def _route(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        return self._client.router.route(ops, start, end, self._client, now_ns)

    def _publish_singly(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        """Publish, one by one, a run of a pedantic client, or a run in which a message may request a trace."""
        client = self._client
        outward = client.router.outward
        for at in range(start, end):
            self._publish_one(ops[at], now_ns)
            if outward.work > AT_ONCE or client.fan_outs:
                return at + 1
        return end

    def _publish_one(self, op: Msg, now_ns: int) -> None:
        client, mapper = self._client, self._client.router.mapper
        self._checked = 0
        if self._pedantic and not self._begun:
            self._check_subject(op[0])
        self._begun = False
        msg, trace = message_trace.begin(client, op, self._may_trace_to, now_ns)
        if msg is None:
            return
        if mapper is not None and mapper.applies(msg[0]):
            msg = (mapper.map(msg[0]), *msg[1:])
            if trace is not None:
                trace.mapped(msg[0])
        if trace is None:
            self._publish_checked((msg,), 0, 1, now_ns)
        elif error := self._violation(msg):
            self._publish_checked((msg,), 0, 1, now_ns)
            trace.refused(error)
        elif trace.only:
            trace.follow(msg)
            if self._verbose:
                client.send_line(encoder.OK)
        else:
            self._publish_checked((trace.follow(msg),), 0, 1, now_ns)
            trace.routed()

    def check_begun(self, subject: bytes) -> None:
        """Check the subject of a pedantic client's message whose line has arrived; its payload may never arrive."""
        if self._pedantic and not self._begun:
            self._begun = True
            self._check_subject(subject)

    def _check_subject(self, subject: bytes) -> None:
        if not (is_valid(subject) and is_literal(subject)):
            self._client.send_error("Invalid Publish Subject")

    def trace_too_large(self, msg: Msg, size: int, now_ns: int) -> None:
        """Trace a message of ``size`` bytes, which ends the connection. ``msg`` holds the part that has arrived."""
        if msg[2]:
            _, trace = message_trace.begin(self._client, msg, self._may_trace_to, now_ns)
            if trace is not None:
                trace.size = size
                trace.refused("maximum payload exceeded")

    def _violation(self, msg: Msg) -> str:
        """Return the error with which ``_publish_checked`` will refuse a message; "" if it will route the message."""
        subject, reply = msg[:2]
        if self._client.router.refuses(subject) or not self._permits(subject):
            return f"Permissions Violation for Publish to {quoted(subject)}"
        if reply.startswith(_RESERVED_REPLIES):
            return f"Permissions Violation for Publish with Reply of {quoted(reply)}"
        return ""

    def _may_trace_to(self, dest: bytes) -> bool:
        """Return whether the client may send trace events to ``dest``; permission for responses is not enough."""
        return not self._client.router.refuses(dest) and (self._rules is None or self._rules.permits(dest))

    def _publish_checked(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        if self._verbose:
            return self._publish_each(ops, start, end, now_ns)
        rules = self._rules
        reserved = self._parser.reserved_replies
        if not reserved and (rules is None or all(map(rules.permits, {msg[0] for msg in ops[start:end]}))):
            return self._route(ops, start, end, now_ns)
        first = start
        for at in range(max(start, self._checked), end):
            subject, reply = ops[at][:2]
            if reserved and reply.startswith(_RESERVED_REPLIES):
                pass
            elif rules is None or rules.permits(subject) or (self.replies is not None and self.replies.use(subject)):
                continue
            # Delivering an earlier message of this run may permit this one as its response, so they are routed first.
            if first < at and ((done := self._route(ops, first, at, now_ns)) < at or self._client.fan_outs):
                self._checked = at
                return done
            first = at if self._permit_or_refuse(subject, reply) else at + 1
        self._checked = end
        return self._route(ops, first, end, now_ns) if first < end else end

    def _publish_each(self, ops: Sequence[Any], start: int, end: int, now_ns: int) -> int:
        """Publish one by one for a verbose client, and answer each message."""
        client = self._client
        outward = client.router.outward
        for at in range(start, end):
            subject, reply = ops[at][:2]
            if self._permit_or_refuse(subject, reply):
                if not client.router.refuses(subject):
                    client.send_line(encoder.OK)
                client.router.route(ops, at, at + 1, client, now_ns)
                if outward.work > AT_ONCE or client.fan_outs:
                    return at + 1
        return end

    def _permit_or_refuse(self, subject: bytes, reply: bytes) -> bool:
        """Refuse a message that may not be routed. Returns: whether it may be routed."""
        rules, replies = self._rules, self.replies
        if rules is not None and not rules.permits(subject) and not (replies is not None and replies.use(subject)):
            self._client.refuse_publish(subject)
            return False
        if reply.startswith(_RESERVED_REPLIES):
            self._client.refuse_reply(reply)
            return False
        return True

    def _permits(self, subject: bytes) -> bool:
        """Return whether ``subject`` may be published to, without using up a response."""
        return (self._rules is None or self._rules.permits(subject)
                or (self.replies is not None and self.replies.permits(subject)))
