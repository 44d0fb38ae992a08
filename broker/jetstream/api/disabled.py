"""The API of an account for which JetStream is not enabled.

A refusal has the form of the answer to the same request of an enabled account: its type and its zeros. Pull requests
and direct gets get "no responders". Requests that only a cluster serves are refused as in any account.

Source: nats-server 2.15, run with such an account.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.base.clock import Clock
from broker.config.settings import JetStreamSettings
from broker.jetstream.api.request import Tracked
from broker.jetstream.api.routes import API_PREFIX, DIRECT_GET, MSG_NEXT, TYPE_PREFIX, route_of, subscribe_api
from broker.jetstream.settings import level_refused
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.advisories import AccountEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.api.request import Route, Show
    from broker.jetstream.bus import Bus, Msg, Source, Subscription

__all__ = ["DisabledApi"]


class DisabledApi:
    """The API that refuses every request with 10039."""

    def __init__(self, name: str, bus: Bus, clock: Clock, rng: random.Random, settings: JetStreamSettings,
                 server_name: str, show: Show) -> None:
        self.name = name
        self._show = show
        self.bus = bus
        self._events = AccountEvents(bus, clock, rng, settings.domain, server_name)
        self._subscriptions: list[Subscription] = []

    def start(self) -> None:
        """Subscribe to the API by its plain name only.

        The API under the domain's name may be imported from another account. If it is not, the account's mappings turn
        it into the plain name.
        """
        self._subscriptions += subscribe_api(self.bus, "", self.on_requests)

    def stop_listening(self) -> None:
        """Unsubscribe."""
        for subscription in self._subscriptions:
            self.bus.unsubscribe(subscription)
        self._subscriptions.clear()

    async def stop(self) -> None:
        """Unsubscribe."""
        self.stop_listening()

    async def drop(self) -> None:
        """Do nothing: no request is ever in progress."""

    def on_requests(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> list[int]:
        """Refuse a run of requests, as a handler of the bus.

        Returns: the indexes of pull requests and direct gets, which it does not answer.
        """
        unserved: list[int] = []
        for at in range(start, end):
            op = ops[at]
            subject = op[0]
            rest = subject[len(API_PREFIX):]
            if not rest.startswith((MSG_NEXT, DIRECT_GET)):
                self._show(op, source)
                route = route_of(rest.decode("utf-8", "replace").split("."))
                if route is not None and route.tracked is not Tracked.NONE:
                    self._refuse(route, op, source)
            else:
                unserved.append(at)
        return unserved

    def _refuse(self, route: Route, op: Msg, source: Source | None) -> None:
        from broker.jetstream.api.streams import clustered_only  # imported for the first request

        subject, reply, hlen, body = op
        if hlen and level_refused(body[:hlen]):
            error = ApiError(ApiErrors.REQUIRED_API_LEVEL)
        else:
            error = ApiError(ApiErrors.CLUSTER_REQUIRED if route.handler is clustered_only
                             else ApiErrors.NOT_ENABLED_FOR_ACCOUNT)
        data = wire.dump({"type": TYPE_PREFIX + route.type, "error": error.to_json(), **route.zeros})
        if reply:
            self.bus.respond(reply, 0, data)
        if self._events.audited():
            self._events.audit(source, subject.decode("utf-8", "replace"), body[hlen:], data)
