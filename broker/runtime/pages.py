"""The port of the monitoring pages and its TLS, made from the settings.

Does not own the moment at which it is served (``app``), the listener (``monitor.listener``), nor the data of the pages
(``sources``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from ssl import SSLContext
from typing import Any

from broker.base.errors import StartError
from broker.config.settings import Settings
from broker.monitor.listener import MonitorServer
from broker.runtime.listening import host_port, or_start_error
from broker.runtime.pages_access import access_of
from broker.server.listeners.certificates import TlsParameters

__all__ = ["Pages"]

log = logging.getLogger(__name__)

_CANNOT = "Can't start monitoring"


class Pages:
    """The pages of one broker whose settings have a port for them. ``bind``, ``start``, ``close`` once each."""

    def __init__(self, settings: Settings, views: object, **how: Any) -> None:
        """Load the certificates. ``how`` is for ``MonitorServer``. Raises: StartError if they cannot be used."""
        own = settings.monitoring
        port = own.port if own.port is not None else own.https_port
        assert port is not None
        self._secure = own.https_port is not None
        try:
            tls = _context(settings) if self._secure else None
        except ValueError as error:
            raise StartError(str(error)) from None
        self._server = MonitorServer(views, own.host or settings.clients.host, port, base_path=own.base_path, tls=tls,
                                     access=access_of(own), **how)
        self._started = False

    @property
    def scheme(self) -> str:
        return self._server.scheme

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> dict[str, Any]:
        """``http_host``, ``http_port`` and ``https_port`` of /varz."""
        return {"http_host": self.host, "http_port": 0, "https_port": 0, f"{self.scheme}_port": self.port}

    async def bind(self) -> None:
        """Bind the port, without accepting connections. Raises: StartError."""
        with self._or_start_error():
            await self._server.bind()

    async def start(self) -> None:
        """Begin to serve, unless ``start`` was called before. Raises: StartError."""
        if self._started:
            return
        self._started = True
        with self._or_start_error():
            await self._server.start()
        log.info("Starting %s monitor on %s", self.scheme, host_port(self.host, self.port))

    def _or_start_error(self) -> AbstractContextManager[None]:
        setting = "https_port, or -ms" if self._secure else "http_port, or -m"
        return or_start_error(_CANNOT, self.host, self.port, setting)

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Load the certificates again; return a function that applies them and the restrictions. Raises: ValueError."""
        context = _context(settings) if self._secure else None
        access = access_of(settings.monitoring)

        def apply() -> None:
            self._server.access = access
            if context is not None:
                self._server.use(context)

        return apply

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()


def _context(settings: Settings) -> SSLContext:
    """Return the TLS context of the clients' port, without asking for certificates. Raises: ValueError."""
    return TlsParameters(settings.tls.replace(verify=False, verify_and_map=False)).context
