"""The receivers of a traced message, in the order in which they would receive it.

    eg    a client's subscription                  js    a stream, which completes the entry after its decision
    se    a stream export, to another account      si    a service import, into another account

Receivers in other accounts are listed if their export or import allows traces. A message for the trace alone is passed
to the streams here, to the leafs, which record it by themselves, and to no other receiver.

Source: nats-server, server/msgtrace.go, server/client.go (deliverMsg, processMsgResults, processServiceImport).
"""

from __future__ import annotations

from typing import Any, Protocol

from broker.protocol import headers
from broker.protocol.run import Run
from broker.protocol.traced import DEST, DISABLED, TracedMsg
from broker.server.routing.router import Router
from broker.server.routing.routes import Routes
from broker.server.routing.subscription import Leaf, Relay, Source, Subjects, Subscription

__all__ = ["CLIENT", "Publisher", "Walk", "name_member", "text"]

_HOPS_MAX = 64

CLIENT = 0
"""The kind of a client's connection, as events have it."""


class Publisher(Source, Protocol):
    """The connection that published the message."""

    cid: int
    router: Router


class Walk:
    """Adds entries to ``events``, and to ``undecided`` those that streams complete."""

    def __init__(self, client: Publisher, at: str, events: list[dict[str, Any]],
                 undecided: list[dict[str, Any]]) -> None:
        self._client = client
        self._at = at
        self._events = events
        self._undecided = undecided
        self._passed: list[Relay] = []
        self._denied: set[Leaf] = set()

    def follow(self, router: Subjects, msg: TracedMsg, now_ns: int, routes: Routes | None = None, *,
               imported: bool = False) -> bool:
        """Add all receivers of ``msg`` here.

        Args: ``routes``: as for ``Router.route``; ``imported``: it came through a service import.
        Returns: whether there are any.
        """
        received = False
        subject = msg[0]
        for sub, obstacle in router.audience(subject, self._client, routes):
            if sub.relay is not None:
                received |= self._relay(sub.relay, msg, now_ns)
            elif sub.original is None:
                received |= self._receive(sub, sub, msg, router.name, now_ns, obstacle)
            elif not imported:
                assert sub.rename is not None
                to = sub.rename(subject)
                self._add("se", acc=sub.account, to=text(to))
                received |= not obstacle
                if sub.allow_trace:
                    self._receive(sub, sub.original, msg.as_changed((to, *msg[1:])), sub.account, now_ns, obstacle)
        if msg.trace.only:
            router.send_to_leafs((msg,), self._client, routes)
        return received

    def _relay(self, relay: Relay, msg: TracedMsg, now_ns: int) -> bool:
        hop = relay.hop(msg[0])
        if hop is None or relay in self._passed or len(self._passed) >= _HOPS_MAX:
            return False  # a delivered message does not pass a service twice either
        self._add("si", acc=hop.router.name, **{"from": text(msg[0])}, to=text(hop.to))
        if not hop.traceable:
            return False
        self._passed.append(relay)
        # The reply subject is left out: a stream's refusal of an undelivered message must not be sent. The header is
        # that of a delivered message (sharing/service_imports).
        block = headers.move(msg[3][:msg[2]], DEST, DISABLED)
        passed = msg.as_changed((hop.to, b"", len(block), block + msg[3][msg[2]:]))
        received = self.follow(hop.router, passed, now_ns, imported=True)
        self._passed.pop()
        return received

    def _receive(self, sub: Subscription, original: Subscription, msg: TracedMsg, account: str, now_ns: int,
                 obstacle: str) -> bool:
        if sub.stream:
            event = self._add("js", stream=sub.stream)
            self._undecided.append(event)
            if msg.trace.only and original.handler is not None:
                original.handler((msg,), 0, 1, self._client, now_ns)
            return True
        if sub.peer is None:
            return False
        if sub.leaf is not None:
            if not obstacle and msg.trace.only:
                sub.leaf.deliver(original, Run((msg,)))
            elif obstacle and sub.leaf not in self._denied:
                self._denied.add(sub.leaf)
                msg.trace.forward(msg, sub.leaf.identity(), obstacle)
            return not obstacle
        who = sub.peer.identity()
        elsewhere = {"acc": account} if account != self._client.router.name else {}
        self._add("eg", kind=CLIENT, cid=who.get("id", 0), **name_member(who), **elsewhere, sub=text(sub.subject),
                  **({"queue": text(sub.queue)} if sub.queue else {}), **({"error": obstacle} if obstacle else {}))
        return not obstacle

    def _add(self, event: str, **members: Any) -> dict[str, Any]:
        added = {"type": event, "ts": self._at, **members}
        self._events.append(added)
        return added


def name_member(identity: dict[str, Any]) -> dict[str, str]:
    """Return a client's name as a member, if it has one."""
    name = identity.get("name")
    return {"name": name} if name else {}


def text(value: bytes) -> str:
    """Decode bytes that clients sent, for JSON."""
    return value.decode("utf-8", "replace")
