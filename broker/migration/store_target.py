"""A store as the target: a broker inside this process owns it during the run, and has no port.

It does what every broker does on a store: it takes a claim, waits for an owner that was killed, stores, compacts, and
seals at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from nats.aio.transport import TcpTransport

from broker.access.accounts import DEFAULT_ACCOUNT, NO_LIMITS, AccountSettings, User
from broker.base.errors import StartError, StoreInUse
from broker.client.connection import Connection, Login, connect
from broker.config.settings import ConfigError
from broker.migration.errors import CannotMigrate
from broker.runtime.embedded import Broker
from broker.storage.objectstore import StoreError

__all__ = ["StoreTarget"]


class _Inside(TcpTransport):
    """A client's transport into the broker of this process."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._broker = broker

    def __bool__(self) -> bool:
        """Return True, because nats-py uses a transport of its own if this is False."""
        return True

    async def connect(self, *_: Any, **__: Any) -> None:
        self._bare_io_reader, self._bare_io_writer = await self._broker.connect()
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer


class StoreTarget:
    """The broker on the store ``url``, with the default account and ``accounts``. Raises: CannotMigrate."""

    def __init__(self, url: str, accounts: Iterable[str]) -> None:
        self._url = url
        self._password = secrets.token_hex(16)
        names = sorted({*accounts} - {DEFAULT_ACCOUNT, ""})
        users = tuple(User(name, self._password, name) for name in (DEFAULT_ACCOUNT, *names))
        accounts_settings = tuple(AccountSettings(name, NO_LIMITS) for name in (DEFAULT_ACCOUNT, *names))
        try:
            self._broker = Broker(url, port=None, settings={
                "auth.users": users, "accounts.configured": accounts_settings, "server_name": "jetblock-migrate"})
        except ConfigError as error:
            raise CannotMigrate(str(error)) from None

    async def start(self) -> None:
        """Take the store. Raises: CannotMigrate."""
        try:
            await self._broker.start()
        except StoreInUse:
            raise CannotMigrate(f"{self._url}: a broker runs on this store: stop it, or give its URL (nats://…) as the "
                                f"target") from None
        except (StartError, StoreError, ValueError) as error:
            raise CannotMigrate(f"{self._url}: {error}") from None

    async def connect(self, account: str) -> Connection:
        """Connect to an account of the broker. Raises: CannotMigrate."""
        login = Login("nats://inside", user=account or DEFAULT_ACCOUNT, password=self._password)
        connection = await connect(login, _Inside(self._broker))
        connection.shown = self._url
        return connection

    async def stop(self) -> None:
        """Store everything, and release the store."""
        await self._broker.stop()
