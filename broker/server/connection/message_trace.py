"""Message tracing: for a publish with ``Nats-Trace-Dest``, an event says where the message went.

    Nats-Trace-Dest: SUBJECT     one event (a MsgTraceEvent) is published there; ``trace disabled`` turns it off
    Nats-Trace-Only: true|1|on   and the message itself is neither delivered nor stored, nor answered

The event lists the ingress (``in``) and each client subscription (``eg``) and stream (``js``) that the message goes to,
as routing sees them; not later events, such as a stream that refuses the message or a client that is closed.

Source: nats-server 2.15, server/msgtrace.go.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Protocol

from broker.gotime import format_time
from broker.protocol import headers
from broker.protocol.parser import Msg
from broker.protocol.subject import is_literal, is_valid
from broker.server.routing.route import Peer
from broker.server.routing.router import Router

__all__ = ["Traced", "traced"]

_log = logging.getLogger(__name__)

_DEST = b"Nats-Trace-Dest"
_ONLY = b"Nats-Trace-Only"
_DISABLED = b"trace disabled"
_YES = (b"true", b"1", b"on")


class Publisher(Peer, Protocol):
    """The connection that published the message."""

    cid: int
    router: Router

    def server_identity(self, at: str) -> dict[str, Any]:
        """The server as events show it, at the time ``at``."""


class Traced:
    """A message to trace. ``only``: it is not delivered. ``dest``: where the event goes, if that is a subject."""

    __slots__ = ("_msg", "dest", "only")

    def __init__(self, msg: Msg, dest: bytes, only: bool) -> None:
        self._msg = msg
        self.dest = dest
        self.only = only

    @property
    def publishable(self) -> bool:
        """Whether ``dest`` is a subject that can be published to."""
        return is_valid(self.dest) and is_literal(self.dest)

    def tell(self, client: Publisher, now_ns: int) -> None:
        """Publish the event for a message of ``client``; call it before the message is routed."""
        subject, reply, hlen, body = self._msg
        router = client.router
        identity = client.identity()
        at = format_time(now_ns)
        events: list[dict[str, Any]] = [
            {"type": "in", "ts": at, "kind": 0, "cid": client.cid, "name": identity.get("name", ""), "acc": router.name,
             "subj": _text(subject)}]
        for sub in router.receivers(subject, client):
            if sub.stream:
                events.append({"type": "js", "ts": at, "stream": sub.stream, "subject": _text(subject)})
            elif sub.peer is not None:
                who = sub.peer.identity()
                events.append({"type": "eg", "ts": at, "kind": 0, "cid": who.get("id", 0), "name": who.get("name", ""),
                               "sub": _text(sub.subject), **({"queue": _text(sub.queue)} if sub.queue else {})})
        if self.only and len(events) == 1 and reply and client.wants_no_responders:
            client.no_responders(subject, reply)
        if not self.publishable:
            _log.error('cid:%d - Destination "%s" is not valid, won\'t be able to trace events', client.cid,
                       _text(self.dest))
            return
        shown: dict[str, list[str]] = {}
        for name, value in headers.items(body[:hlen]):
            shown.setdefault(_text(name), []).append(_text(value))
        event = {"server": client.server_identity(at), "request": {"header": shown, "msgsize": len(body)},
                 "events": events}
        router.publish(self.dest, b"", 0, json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())


def traced(msg: Msg) -> Traced | None:
    """The trace that ``msg`` asks for, or None."""
    hlen = msg[2]
    if not hlen or msg[3].find(_DEST, 0, hlen) < 0:
        return None
    block = msg[3][:hlen]
    dest = headers.get(block, _DEST)
    if not dest or dest == _DISABLED:
        return None
    only = (headers.get(block, _ONLY) or b"").lower() in _YES
    return Traced(msg, dest, only)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
