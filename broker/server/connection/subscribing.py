"""A client's subscriptions: permissions, limits, and the effect of changes to them.

Source: nats-server, server/client.go (processSub, processUnsub, processSubsOnConfigReload).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from broker.protocol.operations import Sub, Unsub
from broker.protocol.run import Msg
from broker.protocol.subject import is_valid
from broker.server.auth.permissions import ReplyPermissions, SubscribeRules
from broker.server.connection.connect_options import go_quoted
from broker.server.routing.router import Router
from broker.server.routing.subscription import Peer, Subscription

__all__ = ["Subscribing", "quoted"]

log = logging.getLogger(__name__)

_SYSTEM_QUEUE: Final = b"_sys_"
_REMOVED_AT_ONCE: Final = 2000
"""Maximum number of subscriptions that one turn of the loop removes; it takes a few milliseconds."""

_CLOSED_AFTER_SECONDS: Final = 0.02


class Subscriber(Peer, Protocol):
    """The connection that subscribes."""

    label: str
    router: Router

    def send_error(self, text: str) -> None: ...

    def close(self, reason: str) -> None: ...


class Subscribing:
    """The subscriptions of one client, ``subs`` by sid.

    ``call_soon`` runs a function on a later turn of the loop, ``call_later`` after a number of seconds.
    """

    __deletable__ = ["_client"]  # noqa: RUF012 - mypyc, which compiles this module, reads this form alone
    __slots__ = ("_call_later", "_call_soon", "_client", "_hiding", "_max", "_max_tokens", "_replies", "_rules", "subs")

    def __init__(self, client: Subscriber, call_soon: Callable[[Callable[[], None]], object],
                 call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._client = client
        self._call_soon = call_soon
        self._call_later = call_later
        self._max = -1
        self._max_tokens = 0
        self._rules: SubscribeRules | None = None
        self._replies: ReplyPermissions | None = None
        self._hiding = False
        self.subs: dict[bytes, Subscription] = {}

    def restrict(self, rules: SubscribeRules | None, replies: ReplyPermissions | None) -> None:
        """Set the rules for subscriptions (None: all are permitted); ``replies`` records messages that permit a
        response."""
        self._rules = rules
        self._replies = replies
        self._hiding = False

    def limit(self, most: int, tokens: int) -> None:
        """Set the maximum number of subscriptions (-1: no limit) and of a subject's tokens (0: no limit).

        As on nats-server, a client that has reached a new maximum is closed a moment later, even one without
        subscriptions if the maximum is 0. Until then it is served, so that its login is answered. Existing
        subscriptions with longer subjects stay.
        """
        changed = most != self._max
        self._max = most
        self._max_tokens = tokens
        if changed and len(self.subs) >= most >= 0:
            self._client.send_error("maximum subscriptions exceeded")
            self._call_later(_CLOSED_AFTER_SECONDS, partial(self._client.close, "Maximum Subscriptions Exceeded"))

    def add(self, op: Sub) -> bool:
        """Add a subscription. Returns: False if it was refused."""
        rules = self._rules
        if op.queue == _SYSTEM_QUEUE or (rules is not None and not rules.permits(op.subject, op.queue)):
            self._refuse(op)
            return False
        if op.subject.count(b".") >= self._max_tokens > 0:
            self._refuse_length(op)
            return False
        if len(self.subs) >= self._max >= 0:
            self._client.send_error("maximum subscriptions exceeded")
            return False
        # A sid in use keeps its first subscription; the client gets no error.
        if op.sid not in self.subs:
            if not is_valid(op.subject):
                self._client.send_error("Invalid Subject")
                return False
            self._insert(Subscription(op.subject, op.queue, peer=self._client, sid=op.sid))
        return True

    def _insert(self, sub: Subscription) -> None:
        self.subs[sub.sid] = sub
        if self._rules is not None:
            sub.denies = self._rules.filter(sub.subject, sub.queue)
            self._hide(self._rules, sub)
        if self._replies is not None:
            sub.on_delivery = self._received
        self._client.router.add(sub)

    def _hide(self, rules: SubscribeRules, sub: Subscription) -> None:
        """Hide consumers' deliveries on denied subjects from ``sub``, once a subscription covers a denied subject.

        As on nats-server, the client's first subscription that covers a denied subject hides them from all of its
        subscriptions.
        """
        if self._hiding:
            sub.hides = rules.denials(sub.queue)
        elif sub.denies is not None:
            self._hiding = True
            for one in self.subs.values():
                one.hides = rules.denials(one.queue)

    def _refuse(self, op: Sub) -> None:
        subject, queue = quoted(op.subject), quoted(op.queue) if op.queue else ""
        self._client.send_error(
            f"Permissions Violation for Subscription to {subject}" + (queue and f" using queue {queue}"))
        log.error("%s - Subscription Violation - Subject %s, %sSID %s", self._client.label, subject,
                  queue and f"Queue: {queue}, ", op.sid.decode("utf-8", "backslashreplace"))

    def _refuse_length(self, op: Sub) -> None:
        subject = quoted(op.subject)
        self._client.send_error(f"Permissions Violation for Subscription to {subject}, too many tokens")
        log.error("%s - Subscription Violation Too Many Tokens - Subject %s, SID %s", self._client.label, subject,
                  op.sid.decode("utf-8", "backslashreplace"))

    def _received(self, msgs: Sequence[Msg]) -> None:
        """Record that messages were sent to the client, which may respond to them."""
        if self._replies is not None:
            self._replies.received([msg[1] for msg in msgs])

    def end(self, op: Unsub) -> None:
        """End a subscription now, or after a number of messages."""
        sub = self.subs.get(op.sid)
        if sub is not None:
            if op.max > sub.delivered:
                self._client.router.limit(sub, op.max)
            else:
                self._remove(sub)

    def expire(self, sub: Subscription) -> None:
        """Remove a subscription that received its last message."""
        if self.subs.get(sub.sid) is sub:
            self._remove(sub)

    def forget_connection(self) -> None:
        """Drop the reference to the connection, which has ended and has no subscriptions any more."""
        del self._client

    def end_all(self) -> None:
        """End all subscriptions: none receives more messages. If there are many, they are removed on later turns."""
        subs, self.subs = self.subs, {}
        router = self._client.router
        if len(subs) > _REMOVED_AT_ONCE:
            router.end(subs.values())
        self._remove_some(subs, router)

    def _remove_some(self, subs: dict[bytes, Subscription], router: Router) -> None:
        for _ in range(min(len(subs), _REMOVED_AT_ONCE)):
            router.remove(subs.popitem()[1])
        if subs:
            self._call_soon(lambda: self._remove_some(subs, router))

    def _remove(self, sub: Subscription) -> None:
        del self.subs[sub.sid]
        self._client.router.remove(sub)

    def reconsider(self, user: str) -> None:
        """Apply changed rules: end subscriptions that are no longer permitted, with an error."""
        for sub in list(self.subs.values()):
            self._remove(sub)
            if self._rules is None or self._rules.permits(sub.subject, sub.queue):
                # Insert a new object, since cached routes depend on the subscription's state at the time of the lookup.
                again = Subscription(sub.subject, sub.queue, peer=self._client, sid=sub.sid)
                again.delivered, again.max = sub.delivered, sub.max
                self._insert(again)
                continue
            what = quoted(sub.subject) + (f" using queue {quoted(sub.queue)}" if sub.queue else "")
            what += f" (sid {quoted(sub.sid)})"
            self._client.send_error(f"Permissions Violation for Subscription to {what}")
            log.info("Removed sub %s for %s - not authorized", what, go_quoted(user))


def quoted(name: bytes) -> str:
    return go_quoted(name.decode("utf-8", "surrogateescape"))
