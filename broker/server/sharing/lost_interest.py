"""Measured requests whose response nobody waits for any more: their metric says so at once, not when their time is over.

Only measured ones are watched; any other response is simply not delivered.

Source: nats-server, server/accounts.go (checkForReverseEntry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from broker.protocol.subject import is_literal
from broker.server.routing.router import Router
from broker.server.routing.sublist import Sublist
from broker.server.routing.subscription import Subscription
from broker.server.sharing.responses import CallLater

__all__ = ["LostInterest"]

_DELAY_S = 0.05
_AT_ONCE = 2000
"""Requests looked at in one turn of the loop."""


class LostInterest:
    """The measured requests of one account's clients.

    Very many may wait, and any of them may have lost its interest with a subscription with wildcards: what such ones leave
    behind is looked for together, and in slices.
    """

    def __init__(self, router: Router, call_later: CallLater) -> None:
        self._router = router
        self._call_later = call_later
        self._gone: Sublist[Subscription] = Sublist()
        """Subscriptions with wildcards that were removed and not looked at yet."""
        self._looking = False
        # By the client's reply subject, then by the service's.
        self._watched: dict[bytes, dict[bytes, Callable[[bytes], None]]] = {}

    def watch(self, reply: bytes, expected: bytes, lost: Callable[[bytes], None]) -> None:
        """Call ``lost(expected)`` once nobody subscribes to ``reply``."""
        self._watched.setdefault(reply, {})[expected] = lost
        self._router.observe_removals(self._removed)

    def forget(self, reply: bytes, expected: bytes) -> None:
        """The request has ended otherwise."""
        watched = self._watched.get(reply)
        if watched is not None and watched.pop(expected, None) is not None and not watched:
            del self._watched[reply]
            if not self._watched:
                self._router.stop_observing_removals(self._removed)

    def _removed(self, sub: Subscription) -> None:
        if is_literal(sub.subject):
            if sub.subject in self._watched:
                self._look_at(sub.subject)
        else:
            self._gone.insert(sub)
            if not self._looking:
                self._looking = True
                self._call_later(_DELAY_S, self._look)

    def _look(self) -> None:
        gone, self._gone = self._gone, Sublist()
        self._look_at_some(iter(list(self._watched)), gone)

    def _look_at_some(self, replies: Iterator[bytes], gone: Sublist[Subscription]) -> None:
        some = list(islice(replies, _AT_ONCE))
        for reply in some:
            match = gone.match(reply)
            if match.plain or match.groups:
                self._look_at(reply)
        if len(some) == _AT_ONCE:
            self._call_later(0, lambda: self._look_at_some(replies, gone))
        else:
            self._looking = bool(self._gone.count)
            if self._looking:
                self._call_later(_DELAY_S, self._look)

    def _look_at(self, reply: bytes) -> None:
        if not self._router.interest(reply):
            for expected, lost in list(self._watched.get(reply, {}).items()):
                lost(expected)
