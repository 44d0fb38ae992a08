"""A broker inside a Python program or a test, on a port of its own, or on none.

    from jetblock import Broker

    async with Broker() as broker:                    # streams in memory; Broker("data/streams"): in a directory
        nc = await nats.connect(broker.url)

    async with Broker(port=None) as broker:           # no port: only this program can connect
        reader, writer = await broker.connect()       # streams that speak the NATS protocol

The broker runs on the event loop that ``start`` is called on. Code that blocks this loop blocks the broker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.base.errors import StoreInUse
from broker.base.store_url import has_scheme, parse_store_url
from broker.config.load import settings_of_program
from broker.config.settings import ConfigError, Settings, make_settings
from broker.runtime.app import App

__all__ = ["Broker"]


class Broker:
    """A broker: a context manager, or an object to ``start`` and ``stop``, as often as wanted."""

    def __init__(self, store: str | os.PathLike[str] | None = "memory://", *, host: str = "127.0.0.1",
                 port: int | None = -1, settings: Mapping[str, Any] | None = None, standby: bool = False) -> None:
        """Args:
        store: the place of the streams: a directory, or a URL with file://, s3:// or memory://; None: no JetStream.
        port: -1 for any free port, which later starts use again; None: no port, see ``connect``.
        settings: other settings, by their paths in ``broker.config.settings``. A text is read as in a configuration
            file: ``{"auth.user": "app", "storage.lease_ns": "10s", "clients.max_payload": "2MB"}``.
        standby: whether ``start`` waits while another broker uses the store.

        Raises: ConfigError.
        """
        self.settings: Settings = settings_of_program({
            "clients.host": host, "clients.port": port or 0, "clients.listen": port is not None,
            "jetstream.enabled": store is not None,
            "storage.url": _url(store) if store is not None else "", **(settings or {})})
        self._standby = standby
        self._app: App | None = None
        self._port = port or 0

    async def start(self) -> None:
        """Start the broker; return when clients can connect. Raises: StartError; StoreInUse, which is one."""
        if self._app is not None:
            raise RuntimeError("the broker is running")
        settings = make_settings({"clients.port": self._port}, self.settings)
        app = App(settings, standby=self._standby)
        try:
            await app.start()
        except StoreInUse as error:
            await app.stop()
            raise StoreInUse(f"{error}: stop it, or wait for its end with Broker(..., standby=True)") from None
        except BaseException:
            await app.stop()
            raise
        self._app = app
        self._port = app.server.port

    async def stop(self) -> None:
        """Stop cleanly: commit and acknowledge what is sequenced, then disconnect the clients."""
        app, self._app = self._app, None
        if app is not None:
            await app.stop()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a client's connection within this process, which needs no port. The first line to read is INFO."""
        return await asyncio.open_connection(sock=await self._running().server.connect())

    @property
    def port(self) -> int:
        """The port, after the first start; 0: none."""
        return self._port

    @property
    def url(self) -> str:
        """The URL for ``nats.connect``."""
        app = self._running()
        if not self.settings.clients.listen:
            raise RuntimeError("the broker has no port: use connect, or give it one")
        return app.ports()["nats"][0]

    def _running(self) -> App:
        if self._app is None:
            raise RuntimeError("the broker is not running: start it, or use it by `async with`")
        return self._app

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.stop()


def _url(store: str | os.PathLike[str]) -> str:
    """Return the URL of a store that is named by a URL or by a directory. Raises: ConfigError."""
    text = os.fspath(store)
    if not isinstance(store, str) or not has_scheme(text):
        return f"file://{Path(text).absolute()}"
    try:
        parse_store_url(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return text
