"""An account's subscriptions as monitoring shows them. Source: nats-server, server/sublist.go (SublistStats)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["RoutingStatistics", "routing_statistics", "subscriptions"]


class RoutingStatistics(NamedTuple):
    """Messages to a subject whose route is cached are not counted, so that a message costs nothing."""

    subscriptions: int
    inserts: int
    removes: int
    cached: int
    """Cached routes, by subject or family of subjects."""

    lookups: int
    family_hits: int
    """Lookups that shared the route of their family: one client's inboxes, one consumer's acks."""

    fanout_max: int
    fanout_total: int
    """Receivers of all cached routes together."""


def routing_statistics(router: Router) -> RoutingStatistics:
    """The figures of a router, whose caches all have a bound."""
    fanouts = [len(route.receivers) for cache in router.routes.caches for route in cache.values() if route is not None]
    subs = router.subs
    return RoutingStatistics(subs.count, subs.inserts, subs.removes, len(fanouts), router.routes.lookups, router.routes.family_hits,
                             max(fanouts, default=0), sum(fanouts))


def subscriptions(router: Router, subject: bytes = b"") -> tuple[int, Iterator[Subscription]]:
    """All subscriptions, or those that match a literal subject: how many, and each."""
    if not subject:
        return router.subs.count, iter(router.subs)
    match = router.subs.match(subject)
    found = [*match.plain, *chain.from_iterable(match.groups.values())]
    return len(found), iter(found)
