"""Message tracing: for a publish with ``Nats-Trace-Dest``, an event says where the message went.

    Nats-Trace-Dest: SUBJECT     one event (a MsgTraceEvent) is published there; ``trace disabled`` turns it off
    Nats-Trace-Only: true|1|on   and the message itself is neither delivered nor stored, nor answered
    traceparent: …-01            the same as Nats-Trace-Dest, where the account has a destination (``msg_trace``)

The event lists the ingress (``in``), a mapping of the subject (``sm``), and each client subscription (``eg``) and stream
(``js``) that the message goes to, as routing sees them; not later events, such as a stream that refuses the message or a
client that is closed. A service import (``si``) and a stream export (``se``) are listed, and what is beyond them if the
other account's export or import allows traces.

Source: nats-server 2.15, server/msgtrace.go.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Protocol

from broker.gotime import format_time
from broker.protocol import headers
from broker.protocol.parser import Msg
from broker.protocol.subject import is_literal, is_valid
from broker.server.routing.neighbours import Tracing
from broker.server.routing.route import Peer, Relay, Subjects, Subscription
from broker.server.routing.router import Router

__all__ = ["Traced", "asks_for_trace", "traced"]

_log = logging.getLogger(__name__)

_DEST = b"Nats-Trace-Dest"
_ONLY = b"Nats-Trace-Only"
_DISABLED = b"trace disabled"
_YES = (b"true", b"1", b"on")
_PARENT = b"traceparent"
_FLAGS = re.compile(rb"[0-9a-fA-F]{2}")
_HOPS_MAX = 64


class Publisher(Peer, Protocol):
    """The connection that published the message."""

    cid: int
    router: Router

    def server_identity(self, at: str) -> dict[str, Any]:
        """The server as events show it, at the time ``at``."""


class Traced:
    """A message to trace. ``only``: it is not delivered. ``dest``: where the event goes, if that is a subject."""

    __slots__ = ("_mapped", "_msg", "dest", "only")

    def __init__(self, msg: Msg, dest: bytes, only: bool) -> None:
        self._msg = msg
        self._mapped: bytes | None = None
        self.dest = dest
        self.only = only

    @property
    def publishable(self) -> bool:
        """Whether ``dest`` is a subject that can be published to."""
        return is_valid(self.dest) and is_literal(self.dest)

    def map(self, subject: bytes) -> None:
        """The account maps the message's subject to this one."""
        self._mapped = subject

    def tell(self, client: Publisher, now_ns: int) -> None:
        """Publish the event for a message of ``client``; call it before the message is routed."""
        subject, reply, hlen, body = self._msg
        router = client.router
        walk = _Walk(client, format_time(now_ns))
        walk.add("in", kind=0, cid=client.cid, name=client.identity().get("name", ""), acc=router.name, subj=_text(subject))
        if self._mapped is not None:
            walk.add("sm", to=_text(self._mapped))
        received = walk.follow(router, subject if self._mapped is None else self._mapped)
        if self.only and not received and reply and client.wants_no_responders:
            client.no_responders(subject, reply)
        if not self.publishable:
            _log.error('cid:%d - Destination "%s" is not valid, won\'t be able to trace events', client.cid,
                       _text(self.dest))
            return
        shown: dict[str, list[str]] = {}
        for name, value in headers.items(body[:hlen]):
            shown.setdefault(_text(name), []).append(_text(value))
        event = {"server": client.server_identity(walk.at), "request": {"header": shown, "msgsize": len(body)},
                 "events": walk.events}
        router.publish(self.dest, b"", 0, json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())


class _Walk:
    """The events of one message of ``client``, collected in the order in which it would be delivered."""

    def __init__(self, client: Publisher, at: str) -> None:
        self._client = client
        self._depth = 0
        self.at = at
        self.events: list[dict[str, Any]] = []

    def add(self, event: str, **members: Any) -> None:
        self.events.append({"type": event, "ts": self.at, **members})

    def follow(self, router: Subjects, subject: bytes, *, imported: bool = False) -> bool:
        """Add all receivers of ``subject``. Returns: whether there are any. ``imported``: it came by a service import."""
        received = False
        for sub in router.receivers(subject, self._client):
            if sub.relay is not None:
                received |= self._relay(sub.relay, subject)
            elif sub.original is None:
                received |= self._receive(sub, subject, router.name)
            elif not imported:
                received = True
                assert sub.rename is not None
                to = sub.rename(subject)
                self.add("se", acc=sub.account, to=_text(to))
                if sub.allow_trace:
                    self._receive(sub, to, sub.account)
        return received

    def _relay(self, relay: Relay, subject: bytes) -> bool:
        hop = relay.hop(subject)
        if hop is None or self._depth >= _HOPS_MAX:
            return False
        self.add("si", acc=hop.router.name, **{"from": _text(subject)}, to=_text(hop.to))
        if not hop.traceable:
            return False
        self._depth += 1
        received = self.follow(hop.router, hop.to, imported=True)
        self._depth -= 1
        return received

    def _receive(self, sub: Subscription, subject: bytes, account: str) -> bool:
        if sub.stream:
            self.add("js", stream=sub.stream, subject=_text(subject))
            return True
        if sub.peer is not None:
            who = sub.peer.identity()
            elsewhere = {"acc": account} if account != self._client.router.name else {}
            self.add("eg", kind=0, cid=who.get("id", 0), name=who.get("name", ""), **elsewhere, sub=_text(sub.subject),
                     **({"queue": _text(sub.queue)} if sub.queue else {}))
        return sub.peer is not None


def traced(msg: Msg, tracing: Tracing | None = None) -> Traced | None:
    """The trace that ``msg`` asks for, or None; ``tracing``: what the account does about ``traceparent``."""
    hlen = msg[2]
    if not hlen:
        return None
    block = msg[3][:hlen]
    if _DEST in block and (dest := headers.get(block, _DEST)):
        if dest == _DISABLED:
            return None
        return Traced(msg, dest, (headers.get(block, _ONLY) or b"").lower() in _YES)
    if tracing is not None and asks_for_trace(block) and tracing.sampled():
        return Traced(msg, tracing.dest, False)
    return None


def asks_for_trace(block: bytes) -> bool:
    """Whether a ``traceparent`` header says that it is sampled."""
    if _PARENT not in block.lower():
        return False
    for name, value in headers.items(block):
        parts = value.split(b"-")
        if name.lower() == _PARENT and len(parts) == 4 and _FLAGS.fullmatch(parts[3]) and int(parts[3], 16) & 1:
            return True
    return False


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
