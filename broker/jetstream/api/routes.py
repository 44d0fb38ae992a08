"""The subjects of $JS.API, and the part that serves each.

    pull request   CONSUMER.MSG.NEXT.<stream>.<consumer>   to its consumer, not one of ``routes``
    direct get     DIRECT.GET.<stream>[.<subject>]         to direct_get.py, not one of ``routes``
    the rest       one of ``routes``
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.api.request import Route
    from broker.jetstream.bus import BatchHandler, Bus, Msg, Source, Subscription

__all__ = ["API_PREFIX", "DIRECT_GET", "MSG_NEXT", "TYPE_PREFIX", "lane_of", "route_of", "routes", "subscribe_api"]

TYPE_PREFIX = "io.nats.jetstream.api.v1."
API_PREFIX = b"$JS.API."
MSG_NEXT = b"CONSUMER.MSG.NEXT."
DIRECT_GET = b"DIRECT.GET."


@cache
def routes() -> dict[tuple[str, ...], Route]:
    """Return the routes by subject. Handlers are imported for the first request,
    so that a start does not wait for them."""
    from broker.jetstream.api import backups, consumers, erasures, inbox, messages, streams

    return {**streams.ROUTES, **backups.ROUTES, **consumers.ROUTES, **messages.ROUTES, **inbox.ROUTES,
            **erasures.ROUTES}


def subscribe_api(bus: Bus, domain: str, handler: BatchHandler) -> list[Subscription]:
    """Subscribe ``handler`` to $JS.API, and to $JS.<domain>.API with its subjects rewritten to $JS.API."""
    subscriptions = [bus.subscribe(API_PREFIX + b">", handler)]
    if domain:
        prefix = b"$JS.%b.API." % domain.encode()
        cut = len(prefix)

        def on_domain_requests(ops: Sequence[Msg], start: int, end: int, source: Source | None,
                               now_ns: int) -> Collection[int]:
            renamed = [(API_PREFIX + subject[cut:], reply, hlen, body) for subject, reply, hlen, body in ops[start:end]]
            return [start + i for i in handler(renamed, 0, len(renamed), source, now_ns) or ()]

        subscriptions.append(bus.subscribe(prefix + b">", on_domain_requests))
    return subscriptions


def route_of(tokens: list[str]) -> Route | None:
    """Return the route that serves these tokens, trying the most literal form first."""
    if "" in tokens:
        return None
    known = routes()
    for stars in range(3):
        literal = len(tokens) - stars
        route = known.get((*tokens[:literal], *("*",) * stars))
        if route is not None:
            return route
    return known.get((*tokens[:2], "*", "*", ">")) if len(tokens) > 4 else None


def lane_of(tokens: list[str]) -> str:
    """Return the stream that a request is about: the token after its verbs, which vary in number; "" for none."""
    verbs = 3 if tokens[1:2] in (["MSG"], ["DURABLE"], ["LEADER"], ["PEER"]) else 2
    return tokens[verbs] if len(tokens) > verbs else ""
