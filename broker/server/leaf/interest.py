"""The interest of one account: its subscriptions, counted by subject and queue group, for its leaf connections.

    a subscription is added or removed ──> the count of (subject, queue) ──> each leaf: LS+ or LS- if its share changed

A leaf is informed about the subscriptions of this server, and about those of other leafs:

    to a hub      those of spokes, never those that another hub sent
    to a spoke    all but its own and those of spokes of the same cluster

Owns: the counts. Does not own: which lines a leaf may be sent (connection); the subscriptions (router).

Source: nats-server, server/leafnode.go (updateSmap, initLeafNodeSmapAndSendSubs).
"""

from __future__ import annotations

import asyncio
import secrets
import string
from collections import Counter
from typing import Final, Protocol

from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["LOOP", "AccountInterest", "Informed", "Key"]

LOOP: Final = b"$LDS."
"""Prefix of the subjects by which an account recognises its own interest, if it comes back through a loop."""

_AT_ONCE: Final = 4000
"""Number of subscriptions counted, and of lines made, in one turn of the loop: a few milliseconds."""

Key = tuple[bytes, bytes]
"""Subject and queue group; the group is b"" for plain subscriptions."""


class Informed(Protocol):
    """A leaf connection."""

    hub: bool
    """Flag: this server is the hub of the connection."""

    group: str
    """The cluster of the other server, or another text that is unique to the connection."""

    isolated: bool
    """Flag: the other server is not informed about the subscriptions of further leafs."""

    def inform(self, key: Key, weight: int) -> None:
        """Send the number of subscriptions, unless the other server knows it already."""


class _Entry:
    """The counts of one key."""

    __slots__ = ("groups", "hubs", "local", "spokes")

    def __init__(self) -> None:
        self.local = 0
        self.spokes = 0
        self.hubs = 0
        self.groups: Counter[str] | None = None
        """The spokes' part by their groups."""

    def weight_for(self, leaf: Informed) -> int:
        if leaf.isolated:
            return self.local
        if not leaf.hub:
            return self.local + self.spokes
        own = self.groups[leaf.group] if self.groups is not None else 0
        return self.local + self.spokes + self.hubs - own


class AccountInterest:
    """The counts of one account, which begin with ``count_existing``."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._entries: dict[Key, _Entry] = {}
        self._leafs: list[Informed] = []
        self._mapped: frozenset[bytes] = frozenset()
        self._seen: set[Subscription] | None = None
        self._ending: set[Subscription] = set()
        """Subscriptions that had ended when they were to be counted; most are removed from the router later."""

        self.loop_subject = LOOP + "".join(secrets.choice(string.ascii_letters + string.digits)
                                           for _ in range(22)).encode()
        self._entry((self.loop_subject, b"")).local += 1

    async def count_existing(self) -> None:
        """Count the subscriptions that exist, on several turns of the loop, and all later ones."""
        seen = self._seen = set()
        self._router.interest_observer = self
        self.mappings_changed()
        for number, sub in enumerate(self._router.subs, 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            if sub in seen:
                continue
            if sub.ended:
                self._ending.add(sub)
            else:
                seen.add(sub)
                self._change(sub, sub.weight if sub.queue else 1)
        self._seen = None

    def mappings_changed(self) -> None:
        """Count the sources of the account's mappings, to which other servers may publish."""
        mapper = self._router.mapper
        sources = frozenset(mapper.sources) if mapper is not None else frozenset()
        for subject in sources ^ self._mapped:
            self._entry((subject, b"")).local += 1 if subject in sources else -1
            self._changed((subject, b""))
        self._mapped = sources

    # For the router (InterestObserver)

    def added(self, sub: Subscription) -> None:
        if self._seen is not None:
            self._seen.add(sub)
        self._change(sub, sub.weight if sub.queue else 1)

    def removed(self, sub: Subscription) -> None:
        if sub in self._ending:
            self._ending.discard(sub)
        elif self._seen is None or sub in self._seen:
            self._change(sub, -sub.weight if sub.queue else -1)

    def reweighted(self, sub: Subscription, weight: int) -> None:
        """Record that another server's subscription stands for ``weight`` subscriptions now."""
        before, sub.weight = sub.weight, weight
        self._change(sub, weight - before)

    # For leaf connections

    async def inform(self, leaf: Informed) -> None:
        """Send ``leaf`` all interest, on several turns of the loop, and all changes until ``forget``.

        A leaf whose permissions have changed may be informed again: it knows most of the interest already.
        """
        if leaf not in self._leafs:
            self._leafs.append(leaf)
        for number, key in enumerate(list(self._entries), 1):
            if leaf not in self._leafs:
                return
            entry = self._entries.get(key)
            leaf.inform(key, entry.weight_for(leaf) if entry is not None else 0)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)

    def forget(self, leaf: Informed) -> None:
        """Inform ``leaf`` about nothing more; an unknown one is ignored."""
        if leaf in self._leafs:
            self._leafs.remove(leaf)

    def _entry(self, key: Key) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        return entry

    def _change(self, sub: Subscription, by: int) -> None:
        key = (sub.subject, sub.queue)
        entry = self._entry(key)
        leaf = sub.leaf
        if leaf is None:
            entry.local += by
        elif leaf.hub:
            entry.spokes += by
            entry.groups = entry.groups or Counter()
            entry.groups[leaf.group] += by
        else:
            entry.hubs += by
        self._changed(key)

    def _changed(self, key: Key) -> None:
        entry = self._entries[key]
        for leaf in self._leafs:
            leaf.inform(key, entry.weight_for(leaf))
        if not (entry.local or entry.spokes or entry.hubs):
            del self._entries[key]
