"""A broker inside this process that owns a store for the time of a command, and has no port.

It does what every broker does on a store: it takes a claim, waits for an owner that was killed, stores, compacts, and
seals at the end.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from nats.aio.transport import TcpTransport

from broker.access.accounts import DEFAULT_ACCOUNT, NO_LIMITS, AccountSettings, User
from broker.base.errors import StartError, StoreInUse
from broker.client.connection import Connection, ConnectionFailed, Login, connect
from broker.config.environment import master_keys
from broker.config.settings import ConfigError
from broker.runtime.embedded import Broker
from broker.storage.objectstore import StoreError

__all__ = ["InsideBroker"]


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


class InsideBroker:
    """The broker on the store ``url``, with the default account and ``accounts``.

    Args: ``name`` is the server's name, ``settings`` are others (``Broker``), and ``remedy`` says what to do if another
        broker has the store.
    An encrypted store needs its key in the environment.
    Raises: ConnectionFailed.
    """

    def __init__(self, url: str, accounts: Iterable[str], name: str, *, settings: Mapping[str, Any] | None = None,
                 remedy: str = "stop it") -> None:
        self._url, self._remedy = url, remedy
        self._password = secrets.token_hex(16)
        names = sorted({*accounts} - {DEFAULT_ACCOUNT, ""})
        users = tuple(User(one, self._password, one) for one in (DEFAULT_ACCOUNT, *names))
        accounts_settings = tuple(AccountSettings(one, NO_LIMITS) for one in (DEFAULT_ACCOUNT, *names))
        try:
            self._broker = Broker(url, port=None, settings={
                "auth.users": users, "accounts.configured": accounts_settings, "server_name": name,
                **master_keys(os.environ), **(settings or {})})
        except ConfigError as error:
            raise ConnectionFailed(str(error)) from None

    async def start(self) -> None:
        """Take the store. Raises: ConnectionFailed."""
        try:
            await self._broker.start()
        except StoreInUse:
            raise ConnectionFailed(f"{self._url}: a broker runs on this store: {self._remedy}") from None
        except (StartError, StoreError, ValueError) as error:
            raise ConnectionFailed(f"{self._url}: {error}") from None

    async def connect(self, account: str) -> Connection:
        """Connect to an account of the broker. Raises: ConnectionFailed."""
        login = Login("nats://inside", user=account or DEFAULT_ACCOUNT, password=self._password)
        connection = await connect(login, _Inside(self._broker))
        connection.shown = self._url
        return connection

    async def stop(self) -> None:
        """Store everything, and release the store."""
        await self._broker.stop()
