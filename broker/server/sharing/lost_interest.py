"""Lost interest: ends the measurement of a request at once if nobody waits for its response any more.

Only measured requests are watched; a response to any other is simply not delivered.

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
"""Number of requests that are checked in one turn of the loop."""


class LostInterest:
    """The measured requests of one account's clients.

    Very many may wait, and the removal of one wildcard subscription may affect any of them. So the requests are checked
    later, for all removed wildcard subscriptions together, and in slices.
    """

    def __init__(self, router: Router, call_later: CallLater) -> None:
        self._router = router
        self._call_later = call_later
        self._gone: Sublist[Subscription] = Sublist()
        """Removed wildcard subscriptions for which the requests are not checked yet."""
        self._scheduled = False
        # By the client's reply subject, then by the service's reply subject.
        self._watched: dict[bytes, dict[bytes, Callable[[bytes], None]]] = {}

    def watch(self, reply: bytes, expected: bytes, lost: Callable[[bytes], None]) -> None:
        """Call ``lost(expected)`` once nobody subscribes to ``reply``."""
        self._watched.setdefault(reply, {})[expected] = lost
        self._router.observe_removals(self._removed)

    def forget(self, reply: bytes, expected: bytes) -> None:
        """Stop watching a request, which has ended otherwise."""
        watched = self._watched.get(reply)
        if watched is not None and watched.pop(expected, None) is not None and not watched:
            del self._watched[reply]
            if not self._watched:
                self._router.stop_observing_removals(self._removed)

    def _removed(self, sub: Subscription) -> None:
        if is_literal(sub.subject):
            if sub.subject in self._watched:
                self._check_reply(sub.subject)
        else:
            self._gone.insert(sub)
            if not self._scheduled:
                self._scheduled = True
                self._call_later(_DELAY_S, self._check_watched)

    def _check_watched(self) -> None:
        gone, self._gone = self._gone, Sublist()
        self._check_some(iter(list(self._watched)), gone)

    def _check_some(self, replies: Iterator[bytes], gone: Sublist[Subscription]) -> None:
        some = list(islice(replies, _AT_ONCE))
        for reply in some:
            match = gone.match(reply)
            if match.plain or match.groups:
                self._check_reply(reply)
        if len(some) == _AT_ONCE:
            self._call_later(0, lambda: self._check_some(replies, gone))
        else:
            self._scheduled = bool(self._gone.count)
            if self._scheduled:
                self._call_later(_DELAY_S, self._check_watched)

    def _check_reply(self, reply: bytes) -> None:
        if not self._router.interest(reply):
            for expected, lost in list(self._watched.get(reply, {}).items()):
                lost(expected)
