"""The routes of one account's subjects, cached until a matching subscription is added or removed.

Most subjects have an entry of their own. Two families of subjects rarely repeat, so each family shares one entry:

    _INBOX.<id>.<token>                       by _INBOX.<id>, when no subscription there depends on the token
    $JS.ACK.<stream>.<consumer>.<5 numbers>   by the first four tokens, when no subscription depends on the numbers

Does not own: the subscriptions (sublist), delivery (route), notification of observers about a change (router).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from itertools import chain, islice
from typing import Final
from weakref import WeakValueDictionary, ref

from broker.protocol.subject import is_literal
from broker.server.routing.ack_subjects import ACK, ACK_TOKENS, reads_acks
from broker.server.routing.inward import Inward
from broker.server.routing.leaf_route import LeafRoute, reaches_leaf
from broker.server.routing.outward import Outward
from broker.server.routing.route import RECEIVERS_MANY, Refusal, Route
from broker.server.routing.sublist import Match, Sublist
from broker.server.routing.subscription import Subscription

__all__ = ["ROUTES_KEPT", "Routes"]

ROUTES_KEPT: Final = 8192
"""Bound on the entries of each cache; beyond it the older half is dropped."""

_SCAN_MAX: Final = 2048
"""Maximum size of a cache that is searched for the routes that a wildcard affects; a larger one is cleared instead."""

_SCANS_PER_ROUTE: Final = 64
"""Number of cached keys that searches may compare for each newly cached route; it costs as much as finding the route
again. This bounds the searches that clients cause by subscribing to wildcards all the time."""

_RECEIVERS_KEPT: Final = 1 << 21
"""Bound on the receivers of all cached routes; beyond it all routes are dropped. A few wildcard subscriptions can make
thousands of large routes."""

_RECEIVERS_SOME: Final = 16
"""Making a route to so many receivers costs more than caching a subject. So one subject of each such set is cached at
once, which keeps the route for the others."""

_INBOXES: Final = (b"_INBOX.", b"_R_.", b"$JS.API.DIRECT.GET.", b"$JS.API.CONSUMER.CREATE.",
                   b"$JS.API.CONSUMER.DELETE.", b"$JS.EVENT.ADVISORY.CONSUMER.")
"""Prefixes of subjects that rarely repeat and share a route with subjects that differ in the last token only: replies
to clients and through service imports, gets of keys, creations and deletions of consumers."""

_DOT: Final = ord(".")
_NO_FAMILY: Final = (b"", 0)


class Routes:
    """The cached routes. ``refused`` has the prefixes of subjects to which clients may not publish.

    Attributes:
        ``by_subject``: the cache by subject, which callers read first;
        ``family``: the family of the subject that was resolved last, see ``resolve``;
        ``changes``: counts the changes of subscriptions;
        ``lookups``: counts the subjects without a cached route of their own;
        ``family_hits``: counts the lookups that found the route of their family;
        ``leaving``: counts the subscriptions that have ended and are not yet removed.
    """

    def __init__(self, subs: Sublist[Subscription], rng: random.Random, inward: Inward, outward: Outward,
                 refused: tuple[bytes, ...]) -> None:
        self._subs = subs
        self._rng = rng
        self._inward = inward
        self._outward = outward
        self._refused = refused
        self.by_subject: dict[bytes, Route] = {}
        self._dropped: dict[bytes, Route] = {}
        """The half of ``by_subject`` that was dropped last. Subjects that come again return from here."""
        # The keys of _inboxes are inbox prefixes (None: resolve each subject), those of _acks heads of acks' subjects.
        self._inboxes: dict[bytes, Route | None] = {}
        self._acks: dict[bytes, Route] = {}
        self._missed: list[bytes] = []
        """Subjects, in even places, and heads of subjects that were not cached while the cache was full: the last one
        for each hash. It is empty until the cache is full for the first time, because there may be very many
        accounts."""
        self._roots: set[bytes] = set()
        """The first two tokens of each key that is or was in ``by_subject``, ``_dropped`` or ``_inboxes``."""
        self._by_receivers: WeakValueDictionary[tuple[Subscription, ...], Route] = WeakValueDictionary()
        self.family = _NO_FAMILY
        self.lookups = self.family_hits = 0
        self.changes = 0
        self.leaving = 0
        self._ack_readers = 0
        self._particular = 0
        """The number of subscriptions with ``denies``, or of leafs: without any, no match needs to look for them."""

        self._queues: Collection[bytes] | None = None
        """The only queue groups that receive messages; None: all groups do."""
        self._outside = False
        """True if no handler of the broker receives messages."""
        self._narrows = False
        """True if some subscriptions receive nothing by ``_queues`` or ``_outside``."""
        self._scans_left = 0
        self._receivers_kept = 0
        self._nobody = Route(Match(), (), rng, inward, outward)
        self._refusal = Refusal(Match(), (), rng, inward, outward)

    def narrowed(self, queues: Collection[bytes]) -> Routes:
        """Return routes of the same subscriptions, without the queue groups that are not in ``queues``.

        They have caches of their own. The caller also notifies them of every change of the subscriptions.
        """
        other = self._copy()
        other._queues = queues
        return other

    def outside(self) -> Routes:
        """Return routes without the broker's own handlers and without services of other accounts.

        Responses to requests from other accounts do pass. The caller notifies them as those of ``narrowed``.
        """
        other = self._copy()
        other._outside = True
        return other

    def _copy(self) -> Routes:
        other = Routes(self._subs, self._rng, self._inward, self._outward, self._refused)
        other.leaving, other._ack_readers = self.leaving, self._ack_readers
        other._particular = self._particular
        other._narrows = True
        return other

    @property
    def caches(self) -> tuple[dict[bytes, Route] | dict[bytes, Route | None], ...]:
        """All caches of routes, by subject or by family of subjects."""
        return self.by_subject, self._dropped, self._inboxes, self._acks

    def route_of(self, subject: bytes) -> Route:
        """Return the route of a literal subject."""
        return self.by_subject.get(subject) or self.resolve(subject)

    # Changes.

    def added(self, sub: Subscription) -> None:
        """Drop the routes that the new subscription ``sub`` affects."""
        self._particular += sub.denies is not None or sub.leaf is not None
        self._ack_readers += reads_acks(sub.subject)
        self._forget(sub.subject)

    def removed(self, sub: Subscription) -> None:
        """Drop the routes that the removed subscription ``sub`` affects."""
        self._particular -= sub.denies is not None or sub.leaf is not None
        self._ack_readers -= reads_acks(sub.subject)
        self._forget(sub.subject)

    def will_leave(self, count: int) -> None:
        """Route no more messages to ``count`` subscriptions, which have ended and are removed on later turns."""
        self.leaving += count
        self.changes += 1
        self._clear()

    def limited(self, sub: Subscription) -> None:
        """Update the routes of ``sub``, which now has a limit of messages."""
        if is_literal(sub.subject):
            known = self.by_subject.get(sub.subject) or self._dropped.get(sub.subject)
            if known is not None:
                known.limit()
            return
        if (alone := sub.alone) is not None and (route := alone()) is not None:
            route.limit()
        self._forget(sub.subject)

    def _forget(self, subject: bytes) -> None:
        """Drop the routes that a subscription to ``subject`` may affect."""
        self.changes += 1
        prefix = _before_wildcard(subject)
        if prefix is None:
            self.by_subject.pop(subject, None)
            self._dropped.pop(subject, None)
            self._inboxes.pop(subject.rpartition(b".")[0], None)
            return
        dots = prefix.count(b".")
        unknown = dots > 0 and _root(prefix) not in self._roots
        if unknown and not self._acks:
            return  # this is the case for most subjects of new consumers and subscribers
        dotted = prefix + b"."
        for cache in self.caches:
            if not cache:
                continue
            if cache is self._acks and dots >= ACK_TOKENS - 6:
                cache.pop(prefix, None)  # keys of _acks have no more tokens than this prefix
            elif unknown and cache is not self._acks:
                continue
            elif not prefix or len(cache) > min(_SCAN_MAX, self._scans_left):
                cache.clear()
            else:
                self._scans_left -= len(cache)
                self._outward.work += len(cache) // 8
                for key in [key for key in cache if key.startswith(dotted) or key == prefix]:
                    del cache[key]

    # Lookups.

    def resolve(self, subject: bytes) -> Route:
        """Return the route of a subject that is not in ``by_subject``, and cache it there or by its family.

        Afterwards ``family`` identifies the other subjects with the same route by their head and their number of dots.
        These include an ack with an empty number, which its consumer rejects.
        """
        if subject[-1:] != b"." and subject.startswith(_INBOXES):
            head = subject.rpartition(b".")[0]
            route = self.inbox(head)
            if route is not None:
                self.family = (head + b".", head.count(b".") + 1)
                return route
        else:
            self.lookups += 1
            if subject[-1:] != b"." and subject.startswith(ACK) and not self._ack_readers:
                head = subject.rsplit(b".", 5)[0]
                route = self._acks.get(head)
                self.family_hits += route is not None
                if (route is None and subject.count(b".") == ACK_TOKENS - 1
                        and not self._denied_some(match := self.match(subject))):
                    route = self.route_of_match(match)
                    if len(self._acks) >= ROUTES_KEPT:
                        _halve(self._acks)
                    self._acks[head] = route
                    self._count_cached(route)
                if route is not None:
                    self.family = (head + b".", ACK_TOKENS - 1)
                    return route
        self.family = _NO_FAMILY
        known = self._dropped.pop(subject, None)
        if known is not None:
            self._keep(subject, known)
            return known
        refused = subject.startswith(self._refused)
        # Once the cache was full, no new subject fills the half that was dropped: it would soon be full again.
        full = len(self.by_subject) >= (ROUTES_KEPT // 2 if self._missed else ROUTES_KEPT)
        if full and not refused and (common := self._shared_route(subject)) is not None:
            return common
        route = self._refusal if refused else self.route_of_match(self._match(subject))
        # If subjects never repeat, caching one and dropping it later costs more than finding its route.
        if full and not self._came_before(subject, 0) and (
                route.kept or not _RECEIVERS_SOME <= len(route.receivers) <= RECEIVERS_MANY):
            return route
        self._keep(subject, route)
        self._record_root(subject)
        self._count_cached(route)
        return route

    def _keep(self, subject: bytes, route: Route) -> None:
        """Add an entry to ``by_subject``."""
        by_subject = self.by_subject
        if len(by_subject) >= ROUTES_KEPT:
            self._dropped = dict(islice(by_subject.items(), ROUTES_KEPT // 2))
            for dropped in self._dropped:
                del by_subject[dropped]
        by_subject[subject] = route

    def _shared_route(self, subject: bytes) -> Route | None:
        """Return the route of all subjects that differ from this one in the last token only; None if there is none.

        This serves sets of subjects that exceed the cache, such as the keys of a bucket. A prefix is looked up when it
        occurs a second time.
        """
        head = subject.rpartition(b".")[0]
        if not head or subject[-1] == _DOT:
            return None
        if not self._came_before(head, 1):
            return None
        if (route := self.inbox(head)) is not None:
            self.family = (head + b".", head.count(b".") + 1)
        return route

    def _came_before(self, key: bytes, kind: int) -> bool:
        """Return whether a subject (``kind`` 0), or a head of subjects (1), was missed before, and not too long ago."""
        if not self._missed:
            self._missed = [b""] * ROUTES_KEPT
        at = 2 * (hash(key) % (ROUTES_KEPT // 2)) + kind  # so that no head displaces its own subject each time
        if self._missed[at] == key:
            return True
        self._missed[at] = key
        return False

    def inbox(self, prefix: bytes) -> Route | None:
        """Return the route of all subjects one token longer than ``prefix``; None if their routes differ."""
        self.lookups += 1
        try:
            route = self._inboxes[prefix]
        except KeyError:
            match = self._subs.match_prefix(prefix)
            if match is not None and (self.leaving or self._narrows):
                self._narrow(match)
            route = self.route_of_match(match) if match is not None and not self._denied_some(match) else None
            if len(self._inboxes) >= ROUTES_KEPT:
                _halve(self._inboxes)
            self._inboxes[prefix] = route
            self._record_root(prefix)
            self._count_cached(route)
        else:
            self.family_hits += route is not None
        return route

    def _record_root(self, key: bytes) -> None:
        """Record that ``key`` is now in ``by_subject`` or ``_inboxes``."""
        if len(self._roots) >= 4 * ROUTES_KEPT:
            self._roots = {_root(one) for cache in (self.by_subject, self._dropped, self._inboxes) for one in cache}
        self._roots.add(_root(key))

    def _count_cached(self, route: Route | None) -> None:
        """Record that a route was cached, and clear the caches if their routes have too many receivers."""
        if route is not None and not route.kept and len(route.receivers) > 1:
            route.kept = True
            self._receivers_kept += len(route.receivers)
        self._scans_left = min(self._scans_left + _SCANS_PER_ROUTE, _SCAN_MAX * _SCANS_PER_ROUTE)
        if self._receivers_kept > _RECEIVERS_KEPT:
            self._clear()

    def _clear(self) -> None:
        for cache in self.caches:
            cache.clear()
        self._receivers_kept = 0

    def _match(self, subject: bytes) -> Match[Subscription]:
        """Return the subscriptions of a literal subject whose clients may receive it."""
        subs = self._subs
        before = subs.visited
        match = self.match(subject)
        self._outward.work += subs.visited - before
        if self._particular:
            self._outward.work += len(match.plain)
            _retain(match, lambda sub: sub.denies is None or not sub.denies(subject))
        return match

    def match(self, subject: bytes) -> Match[Subscription]:
        """Return the subscriptions that match a literal subject and have not ended."""
        match = self._subs.match(subject)
        if self.leaving or self._narrows:
            self._outward.work += len(match.plain)
            self._narrow(match)
        return match

    def _narrow(self, match: Match[Subscription]) -> None:
        """Remove the subscriptions that have ended, and the groups that receive nothing."""
        if self._queues is not None:
            match.groups = {name: group for name, group in match.groups.items() if name in self._queues}
        if self.leaving:
            _retain(match, _is_active)
        if self._outside:
            _retain(match, _is_outside)

    def _denied_some(self, match: Match[Subscription]) -> bool:
        """Return whether a permission may exclude some of these subscriptions, depending on the literal subject."""
        return bool(self._particular) and any(
            sub.denies is not None for subs in (match.plain, *match.groups.values()) for sub in subs)

    def route_of_match(self, match: Match[Subscription]) -> Route:
        """Return the route to the subscriptions of ``match``; equal receivers share one route."""
        plain = match.plain
        if self._particular and reaches_leaf(match):
            return self._leaf_route(match)
        if not match.groups:
            if len(plain) == 1:
                # Fast path for the usual case: the subscription has its route, at a third of the cost.
                sub = plain[0]
                if sub.alone is None or (known := sub.alone()) is None:
                    known = Route(match, (sub,), self._rng, self._inward, self._outward)
                    sub.alone = ref(known)
                return known
            if not plain:
                return self._nobody
        if match.groups:
            receivers = (*plain, *chain.from_iterable(match.groups.values()))
        else:
            receivers = tuple(plain)
        self._outward.work += len(receivers) // 2
        if len(receivers) > RECEIVERS_MANY:
            # Looking up a route by so many receivers would cost more than it saves.
            return Route(match, receivers, self._rng, self._inward, self._outward)
        route = self._by_receivers.get(receivers)
        if route is None:
            route = self._by_receivers[receivers] = Route(match, receivers, self._rng, self._inward, self._outward)
        return route

    def _leaf_route(self, match: Match[Subscription]) -> Route:
        receivers = (*match.plain, *chain.from_iterable(match.groups.values()))
        self._outward.work += len(receivers) // 2
        known = self._by_receivers.get(receivers) if len(receivers) <= RECEIVERS_MANY else None
        if known is None:
            known = LeafRoute(match, receivers, self._rng, self._inward, self._outward)
            if len(receivers) <= RECEIVERS_MANY:
                self._by_receivers[receivers] = known
        return known


def _is_active(sub: Subscription) -> bool:
    return not sub.ended


def _is_outside(sub: Subscription) -> bool:
    """Return whether a subscription is that of a connection, or takes responses to another account."""
    return (sub.original or sub).handler is None and (sub.relay is None or sub.subject.startswith(b"_R_."))


def _retain(match: Match[Subscription], wanted: Callable[[Subscription], bool]) -> None:
    """Remove the subscriptions that are not ``wanted``, and the groups that are then empty."""
    match.plain = [sub for sub in match.plain if wanted(sub)]
    kept = {name: [sub for sub in group if wanted(sub)] for name, group in match.groups.items()}
    match.groups = {name: group for name, group in kept.items() if group}


def _before_wildcard(subject: bytes) -> bytes | None:
    """Return the tokens before the first wildcard; None if there is no wildcard."""
    if b"*" not in subject and b">" not in subject:
        return None
    dotted = b".%b." % subject
    star, rest = dotted.find(b".*."), dotted.find(b".>.")
    first = rest if star < 0 or 0 <= rest < star else star
    return None if first < 0 else subject[:max(first - 1, 0)]


def _root(subject: bytes) -> bytes:
    """Return the first two tokens of ``subject``, or its only one."""
    end = subject.find(b".", subject.find(b".") + 1)
    return subject if end < 0 else subject[:end]


def _halve(cache: dict[bytes, Route] | dict[bytes, Route | None]) -> None:
    for key in list(islice(cache, len(cache) // 2)):
        del cache[key]
