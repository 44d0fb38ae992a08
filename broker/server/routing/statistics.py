"""Figures about an account's subscriptions, for monitoring. Source: nats-server, server/sublist.go (SublistStats)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["RoutingStatistics", "routing_statistics", "subscriptions"]


class RoutingStatistics(NamedTuple):
    """Counts of subscriptions, routes and lookups. A message whose route is cached counts no lookup, so it costs
    nothing."""

    subscriptions: int
    inserts: int
    removes: int
    cached: int
    """Cached routes, by subject or family of subjects."""

    lookups: int
    family_hits: int
    """Lookups that found the route of their family: one client's inboxes, one consumer's acks."""

    fanout_max: int
    fanout_total: int
    """Sum of the receivers of all cached routes."""


def routing_statistics(router: Router) -> RoutingStatistics:
    """Return the figures of a router; each of its caches is bounded."""
    fanouts = [len(route.receivers) for cache in router.routes.caches for route in cache.values() if route is not None]
    subs = router.subs
    routes, subs = router.routes, router.subs
    return RoutingStatistics(subs.count, subs.inserts, subs.removes, len(fanouts), routes.lookups, routes.family_hits,
                             max(fanouts, default=0), sum(fanouts))


def subscriptions(router: Router, subject: bytes = b"") -> tuple[int, Iterator[Subscription]]:
    """Return the number of all subscriptions, or of those that match a literal subject, and an iterator over them."""
    if not subject:
        return router.subs.count, iter(router.subs)
    match = router.subs.match(subject)
    found = [*match.plain, *chain.from_iterable(match.groups.values())]
    return len(found), iter(found)
