"""The server as one of its connections sees it.

A connection is made by a server that it does not import: these protocols are all that it asks of it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol, TypeVar

from broker.clock import Clock
from broker.config.settings import Settings
from broker.server.accounts.directory import Accounts
from broker.server.auth.login import Authenticator
from broker.server.connection.outbound import Flusher, Outbound

__all__ = ["Entrance", "Host"]

C = TypeVar("C", contravariant=True)


class Entrance(Protocol):
    """The way by which connections come: the clients' port, WebSocket, or from within the process."""

    connection_type: str
    """As users' ``allowed_connection_types`` have it: STANDARD, WEBSOCKET or IN_PROCESS."""

    client_type: str
    """As monitoring shows it: nats or websocket."""

    id_label: str
    """What stands before a connection's number in the log."""

    @property
    def ping_interval_ns(self) -> int: ...

    @property
    def auth_timeout_ns(self) -> int:
        """The time to log in."""

    @property
    def authenticator(self) -> Authenticator | None:
        """None: everybody may connect."""

    def describe(self, info: dict[str, Any]) -> None:
        """Change those of INFO's fields that differ here."""


class Host(Protocol[C]):
    """``C`` is the type of its connections."""

    clock: Clock
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    accounts: Accounts
    flusher: Flusher
    stalled: list[Outbound]
    """Receivers far behind that the present read published to."""

    stale_connections: int
    stalled_clients: int

    @property
    def entrance(self) -> Entrance:
        """The clients' port."""

    @property
    def settings(self) -> Settings: ...

    def next_cid(self) -> int: ...

    def made(self) -> None:
        """A connection is open."""

    def lost(self) -> None:
        """A connection is gone; everything was written."""

    def admit(self, client: C) -> str:
        """Register ``client``. Returns: why it may not stay, or ""."""

    def left(self, client: C) -> None:
        """``client`` is closing."""

    def count_slow(self, client: C, reason: str) -> None: ...

    def info(self, client: C) -> dict[str, Any]:
        """INFO's fields for ``client``."""

    def identity(self, client: C) -> dict[str, Any]:
        """``client`` as JetStream's advisories show it."""

    def event_identity(self, at: str) -> dict[str, Any]:
        """The server as events show it, at a time."""
