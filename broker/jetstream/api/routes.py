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

__all__ = ["API_PREFIX", "DIRECT_GET", "MSG_NEXT", "OF_CLUSTERS", "TYPE_PREFIX", "lane_of", "led_subjects", "name_in",
           "route_of", "routes", "subscribe_api", "subscribe_stream"]

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


def subscribe_api(bus: Bus, domain: str, handler: BatchHandler,
                  rest: Collection[bytes] = (b">",)) -> list[Subscription]:
    """Subscribe ``handler`` to $JS.API, and to $JS.<domain>.API with its subjects rewritten to $JS.API.

    Args: ``rest``: the subjects below $JS.API.
    """
    subscriptions = [bus.subscribe(API_PREFIX + one, handler) for one in rest]
    if domain:
        prefix = b"$JS.%b.API." % domain.encode()
        cut = len(prefix)

        def on_domain_requests(ops: Sequence[Msg], start: int, end: int, source: Source | None,
                               now_ns: int) -> Collection[int]:
            renamed = [(API_PREFIX + subject[cut:], reply, hlen, body) for subject, reply, hlen, body in ops[start:end]]
            return [start + i for i in handler(renamed, 0, len(renamed), source, now_ns) or ()]

        subscriptions += [bus.subscribe(prefix + one, on_domain_requests) for one in rest]
    return subscriptions


@cache
def led_subjects() -> tuple[bytes, ...]:
    """Return the subjects that the owner of shard 0 subscribes to: all but pull requests and direct gets, which only
    the owner of their stream gets."""
    consumers = sorted({words[1] for words in routes() if words[0] == "CONSUMER"})
    return (b"INFO", b"STREAM.>", b"JETBLOCK.>", *(f"CONSUMER.{verb}.>".encode() for verb in consumers))


def subscribe_stream(bus: Bus, domain: str, stream: str, handler: BatchHandler, *, pulls: bool = True,
                     ) -> list[Subscription]:
    """Subscribe ``handler`` to the requests about one stream, as ``subscribe_api``. ``pulls``: pull requests, too."""
    name = stream.encode()

    def on_similar_requests(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        about = [op for op in ops[start:end]
                 if not (rest := op[0][len(API_PREFIX):]).startswith(_UNLIKE) and name_in(rest) == stream]
        handler(about, 0, len(about), source, now_ns)

    similar = [b"STREAM.*." + name, b"CONSUMER.*." + name, b"CONSUMER.*.%b.>" % name, b"JETBLOCK.*." + name]
    others = [b"STREAM.MSG.*." + name, b"CONSUMER.DURABLE.CREATE.%b.>" % name, DIRECT_GET + name,
              DIRECT_GET + name + b".>", *((MSG_NEXT + name + b".>",) if pulls else ())]
    return subscribe_api(bus, domain, on_similar_requests, similar) + subscribe_api(bus, domain, handler, others)


OF_CLUSTERS = (b"CONSUMER.LEADER.", b"STREAM.CANCEL_MOVE.", b"STREAM.LEADER.", b"STREAM.PEER.")
"""The beginnings of requests about Raft peers, which the owner of shard 0 refuses for all streams."""

_UNLIKE = (b"CONSUMER.DURABLE.", b"CONSUMER.LEADER.", b"CONSUMER.MSG.", b"STREAM.CANCEL_MOVE.")
"""The beginnings of requests that match one of the ``similar`` subjects of some stream and are not about it."""


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


def name_in(rest: bytes) -> str:
    """Return the stream that the request to this subject below $JS.API is about; "" for none."""
    return lane_of(rest.decode("utf-8", "replace").split("."))
