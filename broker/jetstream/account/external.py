"""Origins of mirrors and sources that are named with an API prefix (``external``).

The prefix names, in this order:

    1. a service that the account imports from another account of this broker
    2. the domain of a server that is connected as a leaf node, or any other responder to that prefix
    3. a hub of this server whose JetStream has no domain, by ``$JS.<name>.API``, with the name of its cluster or server
    4. an upstream of the account, by ``$JS.<name>.API``

    external { api: "JS.b.API", deliver: "deliver.a" }     in account A, which imports from account B

    JS.b.API.CONSUMER.CREATE.S   ── mappings, service imports ──>   $JS.API.CONSUMER.CREATE.S in B
    deliver.a.M.<id>             <── a stream import from B ──      deliver.a.M.<id> in B

nats-server copies through a consumer, which it creates by that request and which delivers to that subject. This broker
reads the other account's stream directly, with the same permission: only if such a request and such deliveries would
pass. Streams of other servers are copied through such a consumer (upstream ``remote``).

Owns: finding the account or the other server, and waking followers when an origin may have changed.
Does not own: the streams (account), what followers do (upstream).

Source: nats-server, server/stream.go, setupMirrorConsumer, trySetupSourceConsumer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.jetstream.stream.upstream.link import Remote
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import is_literal, is_valid

if TYPE_CHECKING:
    from broker.jetstream.account.leafs import Leafs
    from broker.jetstream.bus import BatchHandler, Bus, Subscription
    from broker.jetstream.config.stream import StreamSource
    from broker.jetstream.stream.upstream.follower import Follower

__all__ = ["ExternalFollowers", "locate"]

_API = b"$JS.API."
_PLAIN = "$JS.API"
_CREATE = b"CONSUMER.CREATE."


def locate(given: StreamSource, account: str, bus: Bus, upstream: Callable[[str, str], Remote | None],
           leafs: Leafs | None, *, mirror: bool) -> str | Remote:
    """Return the name of the account whose stream ``given`` names, or the way to it if another server has it.

    Args: ``account`` is the copy's account, on ``bus``; ``upstream(account, api)`` returns the account's upstream that
        answers below ``api``; ``leafs`` are the leaf nodes, if there are any.
    Raises: ApiError 10029 (for a mirror) or 10045 if nobody is reached; 10056 if the API subject is another stream's.
    """
    external = given.external
    if external is None:
        raise ValueError("the origin is of the same account")

    def failed(why: str) -> ApiError:
        return ApiError(ApiErrors.MIRROR_CONSUMER_SETUP_FAILED if mirror else ApiErrors.SOURCE_CONSUMER_SETUP_FAILED,
                        err=why)

    request, kind = _create_request(given, mirror=mirror), "M" if mirror else "S"
    valid = is_literal(request) and is_valid(request)
    arrived = bus.destination(request) if valid else None
    if arrived is not None and arrived[1].startswith(_API + _CREATE):
        name, subject = arrived
        if subject.removeprefix(_API + _CREATE).split(b".")[0] != given.name.encode():
            raise ApiError(ApiErrors.STREAM_MISMATCH)
        delivery = _joined(external.deliver or "$JS", kind, "00000000")
        if not bus.receives(name, delivery):
            raise failed(f"account {name} cannot deliver to {delivery.decode()}: "
                         f"the account needs an import of that stream")
        return name
    if valid and bus.has_client_interest(request):
        return Remote(bus, external.api, _joined(external.deliver or "$JS", kind).decode())
    prefix, _, name = external.api.removesuffix(".API").rpartition(".")
    if valid and prefix == "$JS" and leafs is not None and leafs.reaches(account, name):
        link = _HubLink(bus, partial(leafs.request, account, name))
        return Remote(link, _PLAIN, _joined(external.deliver or "$JS", kind).decode())
    try:
        found = upstream(account, external.api) if valid else None
    except ConnectionError as error:
        raise failed(str(error)) from None
    if found is None:
        raise failed(f"no JetStream API is reached by {request.decode()}: the account needs an import of that service, "
                     f"a leaf node with that domain, or an upstream")
    return found._replace(deliver=_joined(external.deliver, kind).decode()) if external.deliver else found


def _create_request(given: StreamSource, *, mirror: bool) -> bytes:
    """Return the subject by which nats-server would create the consumer."""
    assert given.external is not None
    filters = [one.src for one in given.subject_transforms] or [given.filter_subject]
    tail = f"CONSUMER.CREATE.{given.name}"
    if len(filters) == 1 and filters[0]:
        # Imports match the filter's wildcards as plain tokens, so a literal in their place passes the same imports.
        tail += f".JS_{'MIRROR' if mirror else 'SRC'}_00000000.{filters[0].replace('*', '_').replace('>', '_')}"
    return _joined(given.external.api, tail)


def _joined(*parts: str) -> bytes:
    return ".".join(parts).replace("..", ".").encode()


class _HubLink:
    """An account's bus whose requests to ``$JS.API`` go to a hub without a domain, as no client's requests do."""

    def __init__(self, bus: Bus, request: Callable[[bytes, bytes, int, bytes], int]) -> None:
        self._bus = bus
        self._request = request

    def subscribe(self, subject: bytes, handler: BatchHandler) -> Subscription:
        return self._bus.subscribe(subject, handler)

    def unsubscribe(self, subscription: Subscription) -> None:
        self._bus.unsubscribe(subscription)

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        send = self._request if subject.startswith(_API) else self._bus.publish
        return send(subject, reply, hlen, body)


class ExternalFollowers:
    """The followers, in all accounts, whose origins are named with ``external``."""

    def __init__(self) -> None:
        self._by_origin: dict[str, set[Follower]] = {}

    def add(self, follower: Follower) -> None:
        self._by_origin.setdefault(follower.given.name, set()).add(follower)

    def discard(self, follower: Follower) -> None:
        others = self._by_origin.get(follower.given.name)
        if others is not None:
            others.discard(follower)
            if not others:
                del self._by_origin[follower.given.name]

    def changed(self, name: str) -> None:
        """Wake the followers of streams of that name: one was created or removed in some account."""
        for follower in self._by_origin.get(name, ()):
            follower.wake()

    def wake_all(self) -> None:
        """Wake all followers: accounts, or the subjects that they share, have changed."""
        for name in self._by_origin:
            self.changed(name)
