"""Measured requests whose response nobody waits for any more: their metric says so at once, not when their time is over.

Only measured ones are watched; any other response is simply not delivered.

Source: nats-server, server/accounts.go (checkForReverseEntry).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.protocol.subject import is_literal, matches
from broker.server.routing.route import Subscription
from broker.server.routing.router import Router

__all__ = ["LostInterest"]


class LostInterest:
    """The measured requests of one account's clients."""

    def __init__(self, router: Router) -> None:
        self._router = router
        # By the client's reply subject, then by the service's.
        self._watched: dict[bytes, dict[bytes, Callable[[bytes], None]]] = {}

    def watch(self, reply: bytes, expected: bytes, lost: Callable[[bytes], None]) -> None:
        """Call ``lost(expected)`` once nobody subscribes to ``reply``."""
        self._watched.setdefault(reply, {})[expected] = lost
        self._router.on_removed = self._removed

    def forget(self, reply: bytes, expected: bytes) -> None:
        """The request has ended otherwise."""
        watched = self._watched.get(reply)
        if watched is not None and watched.pop(expected, None) is not None and not watched:
            del self._watched[reply]
            if not self._watched:
                self._router.on_removed = None

    def _removed(self, sub: Subscription) -> None:
        if is_literal(sub.subject):
            replies = [sub.subject] if sub.subject in self._watched else []
        else:
            replies = [reply for reply in self._watched if matches(sub.subject, reply)]
        for reply in replies:
            if not self._router.interest(reply):
                for expected, lost in list(self._watched.get(reply, {}).items()):
                    lost(expected)
