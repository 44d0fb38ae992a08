"""The API of the system account, which has no JetStream of its own. Its clients may watch the requests of all accounts.

    ACCOUNT.PURGE.<account>     deletes all streams of an account, also of one that no longer exists
    cluster administration      no answer
    the rest                    10039

Source: nats-server 2.15, server/jetstream_api.go, apiDispatch and jsLeaderAccountPurgeRequest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.api.routes import API_PREFIX, TYPE_PREFIX, subscribe_api
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source, Subscription

__all__ = ["SystemApi"]

_log = logging.getLogger(__name__)

_REQUEST_INFO: Final = b"Nats-Request-Info"
_ACCOUNT: Final = b"ACCOUNT."
_PURGE: Final = b"ACCOUNT.PURGE."
_OF_CLUSTERS: Final = frozenset({b"META.LEADER.STEPDOWN", b"META.RESCUE", b"SERVER.REMOVE", b"SERVER.EVACUATE"})
_AT_ONCE: Final = 100
"""The largest number of waiting purges; more are dropped unanswered, as the requests of other accounts are."""


class SystemApi:
    """The API of the system account ``name``; ``purge(account)`` returns once the account's streams are deleted."""

    def __init__(self, name: str, bus: Bus, domain: str, purge: Callable[[str], Awaitable[None]]) -> None:
        self.name = name
        self._bus = bus
        self._domain = domain
        self._purge = purge
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Subscribe to the API."""
        self._subscriptions += subscribe_api(self._bus, self._domain, self.on_requests)

    async def stop(self) -> None:
        """Unsubscribe and ``drop``."""
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        self._subscriptions.clear()
        await self.drop()

    async def drop(self) -> None:
        """Cancel the running requests, without answers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_requests(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle a run of requests, as a handler of the bus. Requests from clients of other accounts are ignored."""
        if source is None or source.identity().get("acc") != self.name:
            return
        for subject, reply, _, _ in ops[start:end]:
            rest = subject[len(API_PREFIX):]
            if rest.startswith(_PURGE) and b"." not in rest[len(_PURGE):]:
                self._begin_purge(rest[len(_PURGE):].decode("utf-8", "replace"), reply)
            elif not rest.startswith(_ACCOUNT) and rest not in _OF_CLUSTERS:
                self._answer(reply, "account_info_response" if rest == b"INFO" else "system_response",
                             ApiError(ApiErrors.NOT_ENABLED_FOR_ACCOUNT))

    def show(self, request: Msg, source: Source | None) -> None:
        """Publish a request of any account's client to the subscribers of ``$JS.API.>``, with the client's identity.

        They cannot answer it: unlike nats-server's, the copy has no reply subject.
        """
        subject, _, hlen, body = request
        if source is None or not self._bus.has_client_interest(subject):
            return
        info = wire.dump(source.identity())
        block = headers.set(headers.remove(body[:hlen], _REQUEST_INFO) if hlen else b"", _REQUEST_INFO, info)
        self._bus.publish(subject, b"", len(block), block + body[hlen:])

    def _begin_purge(self, account: str, reply: bytes) -> None:
        if len(self._tasks) >= _AT_ONCE:
            _log.warning("JetStream API: %d purges of accounts are waiting, dropping that of %s", len(self._tasks),
                         account)
            return
        task = asyncio.get_running_loop().create_task(self._serve_purge(account, reply),
                                                      name=f"purge account {account}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_purge(self, account: str, reply: bytes) -> None:
        error: ApiError | None = None
        try:
            if "/" in account or "\\" in account:
                raise ApiError(ApiErrors.STREAM_GENERAL, err="account name can not contain path separators")
            await self._purge(account)
        except ApiError as refused:
            error = refused
        except (StoreError, FormatError) as failed:
            _log.warning("JetStream API: account %s could not be purged: %s", account, failed)
            error = ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        self._answer(reply, "account_purge_response", error)

    def _answer(self, reply: bytes, kind: str, error: ApiError | None) -> None:
        if reply:
            members: dict[str, Any] = {"initiated": True} if error is None else {"error": error.to_json()}
            self._bus.publish(reply, b"", 0, wire.dump({"type": TYPE_PREFIX + kind, **members}))
