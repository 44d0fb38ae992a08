"""Message tracing: for a publish with ``Nats-Trace-Dest``, an event lists where the message went.

    Nats-Trace-Dest: SUBJECT     one event (a MsgTraceEvent) is published there; ``trace disabled`` turns tracing off
    Nats-Trace-Only: true|1|on   in addition the message itself is neither delivered nor stored, nor answered
    Nats-Trace-Hop: 2.1          from another server: the first one that its second one sent the message to
    traceparent: …-01            like Nats-Trace-Dest, if the account has a destination (``msg_trace``)

The event lists the ingress (``in``) with the error that ended the message there, a mapping of the subject (``sm``),
the entries found on the way (trace_walk), and the other servers that it is sent to. These publish events of their own.
The event is published when all streams that receive the message have decided about it.

Source: nats-server 2.15, server/msgtrace.go.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.base.gojson.encoding import marshal
from broker.base.gotime import format_time
from broker.protocol import headers
from broker.protocol.content_encoding import encoded
from broker.protocol.run import Msg
from broker.protocol.subject import is_literal, is_valid
from broker.protocol.traced import DEST, DISABLED, TracedMsg
from broker.server.connection import trace_walk
from broker.server.connection.trace_walk import CLIENT, Walk, text
from broker.server.routing.neighbours import Tracing
from broker.server.routing.router import Router
from broker.server.routing.routes import Routes

__all__ = ["MessageTrace", "begin", "may_begin"]

_log = logging.getLogger(__name__)

_ONLY = b"Nats-Trace-Only"
_YES = (b"true", b"1", b"on")
_HOP = b"Nats-Trace-Hop"
_ORIGIN = b"Nats-Trace-Origin-Account"
_PARENT = b"traceparent"
_FLAGS = re.compile(rb"[0-7+-][0-9a-fA-F]")
_CRLF = b"\r\n"
_LEAF = 4

_Headers = dict[bytes, list[bytes]]


class Publisher(trace_walk.Publisher, Protocol):
    """The connection that published the message."""

    label: str
    from_server: bool
    """Flag: the connection is that of another server, which has begun the trace."""

    def server_identity(self, at: str) -> dict[str, Any]:
        """Return the server as events show it, at the time ``at``."""


class MessageTrace:
    """The trace of one message of ``client`` (``broker.protocol.traced.Trace``).

    Attributes: ``only``: flag, the message is not delivered; ``size``: its bytes.
    """

    def __init__(self, client: Publisher, msg: Msg, headers: _Headers, dest: bytes, only: bool, now_ns: int) -> None:
        self._client = client
        self._router = client.router
        self._msg = msg
        self._headers = headers
        self._dest = dest
        self._now_ns = now_ns
        self._at = at = format_time(now_ns)
        self._ingress: dict[str, Any] = {
            "type": "in", "ts": at, "kind": _LEAF if client.from_server else CLIENT, "cid": client.cid,
            **trace_walk.name_member(client.identity()), "acc": client.router.name, "subj": text(msg[0])}
        self._events = [self._ingress]
        self._undecided: list[dict[str, Any]] = []
        self._routed = False
        self._hops = 0
        """The number of other servers that the message goes to."""
        self._hop = headers.get(_HOP, [b""])[0] if client.from_server else b""
        self._forwarded = False

        self.only = only
        self.size = len(msg[3])

    def mapped(self, subject: bytes) -> None:
        """Add that the account maps the message's subject to ``subject``."""
        self._events.append({"type": "sm", "ts": self._at, "to": text(subject)})

    def refused(self, error: str) -> None:
        """Add that the client may not publish the message, which ends here."""
        self._ingress["error"] = error
        self.routed()

    def follow(self, msg: Msg, routes: Routes | None = None) -> TracedMsg:
        """Find the receivers of ``msg``, which is mapped already. A message for the trace alone ends here.

        Args: ``routes``: as for ``Router.route``.
        Returns: the message, with its trace.
        """
        traced = TracedMsg.of(msg, self)
        walk = Walk(self._client, self._at, self._events, self._undecided)
        received = walk.follow(self._router, traced, self._now_ns, routes)
        if self.only:
            if not received and not self._forwarded and msg[1] and self._client.wants_no_responders:
                self._client.no_responders(msg[0], msg[1])
            self.routed()
        return traced

    def forward(self, msg: Msg, to: dict[str, Any], error: str = "") -> Msg:
        self._hops += 1
        hop = b"%b.%d" % (self._hop, self._hops) if self._hop else b"%d" % self._hops
        subject, reply, hlen, body = msg
        block = body[:hlen]
        account = to.get("acc", "")
        self._events.append({
            "type": "eg", "ts": self._at, "kind": _LEAF, "cid": to.get("id", 0), **trace_walk.name_member(to),
            "hop": text(hop), **({"acc": account} if account != self._router.name else {}),
            **({"error": error} if error else {})})
        self._forwarded = self._forwarded or not error
        block = headers.move(block, _HOP, hop)
        return subject, reply, len(block), block + body[hlen:]

    def routed(self) -> None:
        """Record that the message has been routed: the event waits for streams only."""
        self._routed = True
        self._publish_when_complete()

    def decided(self, stream: str, subject: bytes, *, no_interest: bool = False, error: str = "") -> None:
        for event in self._undecided:
            if event["stream"] == stream:
                self._undecided.remove(event)
                event.update({"subject": text(subject)} if subject else {},
                             **({"nointerest": True} if no_interest else {}), **({"error": error} if error else {}))
                self._publish_when_complete()
                return

    def _publish_when_complete(self) -> None:
        if self._undecided or not self._routed:
            return
        _, _, hlen, body = self._msg
        block = body[:hlen]
        shown = {text(name): list(map(text, values)) for name, values in self._headers.items()}
        event = {"server": self._client.server_identity(self._at), "request": {"header": shown, "msgsize": self.size},
                 **({"hops": self._hops} if self._hops else {}), "events": self._events}
        payload = marshal(event)
        self._router.publish(self._dest, b"", *encoded(payload, block))


def begin(client: Publisher, msg: Msg, may_trace_to: Callable[[bytes], bool],
          now_ns: int) -> tuple[Msg | None, MessageTrace | None]:
    """Decide whether to trace ``msg``. ``may_trace_to`` returns whether the client may send events to a subject.

    Returns: the message to route, None if it ends here; its trace, None if there is none.
    """
    block = msg[3][:msg[2]]
    shown = _headers(block)
    if shown is None:
        return msg, None
    only = False
    if dests := shown.get(DEST):
        dest = dests[0]
        only = shown.get(_ONLY, [b""])[0].lower() in _YES
    elif _ORIGIN not in shown:
        tracing: Tracing | None = client.router.tracing
        if tracing is None:
            return msg, None
        if not client.from_server and not tracing.sampled():
            return _untraced(msg), None
        dest = tracing.dest
    if origin := shown.get(_ORIGIN):
        _log.error('%s - Message tracing disabled because of header "%s" with value="%s"', client.label, text(_ORIGIN),
                   text(origin[0]))
        return None if only else _untraced(msg), None
    if not (is_valid(dest) and is_literal(dest)):
        _log.error('%s - Destination "%s" is not valid, won\'t be able to trace events', client.label, text(dest))
        return None if only else msg, None
    if not may_trace_to(dest):
        client.refuse_publish(dest)
        return None, None
    return msg, MessageTrace(client, msg, shown, dest, only, now_ns)


def may_begin(router: Router, msgs: Sequence[Msg]) -> bool:
    """Return whether ``begin`` must examine these messages, because one of them may carry an outer trace."""
    return router.tracing is not None and any(hlen and _PARENT in body[:hlen].lower() for _, _, hlen, body in msgs)


def _headers(block: bytes) -> _Headers | None:
    """Return the headers that have a value, in order; None if none requests a trace, or if ``DEST`` turns tracing off.

    A line without a colon belongs to the next header's name, as in nats-server (genHeaderMapIfTraceHeadersPresent).
    """
    first, _, rest = block.partition(_CRLF)
    if first != headers.VERSION:
        return None
    found: _Headers = {}
    asked = False
    while True:
        name, colon, rest = rest.partition(b":")
        value, end, rest = rest.partition(_CRLF)
        if not colon or not end:
            break
        value = value.strip(b" \t")
        if not (name and value):
            continue
        if name == DEST:
            if value == DISABLED and DEST not in found:
                return None
            asked = True
        elif not asked and name.lower() == _PARENT:
            parts = value.split(b"-")
            asked = len(parts) == 4 and _FLAGS.fullmatch(parts[3]) is not None and bool(int(parts[3], 16) & 1)
        found.setdefault(name, []).append(value)
    return found if asked else None


def _untraced(msg: Msg) -> Msg:
    """Return the message with a header that prevents tracing elsewhere."""
    subject, reply, hlen, body = msg
    block = headers.move(body[:hlen], DEST, DISABLED)
    return subject, reply, len(block), block + body[hlen:]
