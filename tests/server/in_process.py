"""A server inside the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from broker.access.accounts import AccountSettings
from broker.base import value
from broker.config.settings import AuthSettings, make_settings
from broker.server.auth.login import Authenticator
from broker.server.server import Server

__all__ = ["LOGIN_SECONDS", "running"]

LOGIN_SECONDS = 60

_AUTH = frozenset(value.fields(AuthSettings))


@asynccontextmanager
async def running(accounts: Iterable[AccountSettings] = (), *, authenticators: Sequence[Authenticator] = (),
                  **fields: Any) -> AsyncIterator[Server]:
    """Run a server on a port of its own; ``fields`` are its settings for clients and authentication.

    Clients have ``LOGIN_SECONDS`` to log in unless ``timeout_ns`` is given. The default of 2 s is sometimes too short
    for a test's own client on a busy machine.
    """
    fields.setdefault("timeout_ns", LOGIN_SECONDS * 1_000_000_000)
    server = Server(make_settings({
        "clients.host": "127.0.0.1", "clients.port": -1, "accounts.configured": tuple(accounts),
        **{f"auth.{name}" if name in _AUTH else f"clients.{name}": value for name, value in fields.items()}}),
        authenticators=authenticators)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
