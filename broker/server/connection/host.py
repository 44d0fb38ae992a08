"""The server from the point of view of one connection.

A connection does not import the server that creates it; it requires only these protocols.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol, TypeVar

from broker.base.clock import Clock
from broker.config.settings import Settings
from broker.server.accounts.directory import Accounts
from broker.server.auth.login import Authenticator, Refusal
from broker.server.auth.proxies import TrustedProxies
from broker.server.connection.outbound import Flusher, Outbound

__all__ = ["ClientHost", "Entrance", "Host"]

C = TypeVar("C", contravariant=True)


class Entrance(Protocol):
    """The way in which connections arrive: the client port, the WebSocket port, or from within the process."""

    connection_type: str
    """The name in users' ``allowed_connection_types``: STANDARD, WEBSOCKET or IN_PROCESS."""

    client_type: str
    """The name in monitoring: nats or websocket."""

    id_label: str
    """The prefix of a connection's number in the log."""

    @property
    def ping_interval_ns(self) -> int: ...

    @property
    def auth_timeout_ns(self) -> int:
        """The time in which a client must log in."""

    @property
    def authenticator(self) -> Authenticator | None:
        """The authenticator; None if anyone may connect."""

    @property
    def proxies(self) -> TrustedProxies | None:
        """The trusted proxies; None if there are none."""

    def describe(self, info: dict[str, Any]) -> None:
        """Change the INFO fields that differ for this entrance."""


class Host(Protocol):
    """The server, as every kind of connection sees it."""

    clock: Clock
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    accounts: Accounts
    flusher: Flusher
    stalled: list[Outbound]
    """Receivers that are far behind and got messages from the current read."""

    stale_connections: int
    stalled_clients: int

    @property
    def settings(self) -> Settings: ...

    def next_cid(self) -> int: ...

    def count_opened(self) -> None:
        """Count an open connection."""

    def count_closed(self) -> None:
        """Count a closed connection, whose output was all written or dropped."""

    def event_identity(self, at: str) -> dict[str, Any]:
        """Return the server as events show it, at the time ``at``."""


class ClientHost(Host, Protocol[C]):
    """The server, as clients see it; ``C`` is their type."""

    @property
    def entrance(self) -> Entrance:
        """The client port."""

    def admit(self, client: C) -> str:
        """Register ``client``. Returns: why it may not stay; "" if it may."""

    def remove_client(self, client: C) -> None:
        """Remove ``client``, which is closing."""

    def publish_login(self, client: C) -> None:
        """Note that ``client`` was accepted as a user."""

    def publish_refusal(self, client: C, refusal: Refusal) -> None:
        """Note that ``client`` was refused as a user, and is closing."""

    def count_slow(self, client: C, reason: str) -> None: ...

    def info(self, client: C) -> dict[str, Any]:
        """Return INFO's fields for ``client``."""

    def identity(self, client: C) -> dict[str, Any]:
        """Return ``client`` as JetStream's advisories show it."""
