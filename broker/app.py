"""Where the parts meet: settings become components, which are started in one order and stopped in the other.

    start   monitoring pages (up while all else is still on its way, a standby included)
            the store, JetStream on it
            the listener for clients: the last step, so that who can connect finds everything there
    stop    the listener and the clients, JetStream (what was sequenced is committed), the store, the pages
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
from typing import TYPE_CHECKING, Any

from broker.clock import Clock, SystemClock
from broker.config.settings import Settings
from broker.process_files import urls
from broker.server.listener import Server
from broker.server.options import COMPATIBLE_VERSION, ServerOptions

if TYPE_CHECKING:
    from broker.monitor.http import MonitorServer
    from broker.monitor.views import Health

__all__ = ["App", "StartError"]

log = logging.getLogger(__name__)


class StartError(Exception):
    """Why the broker cannot start; the process ends with status 1."""


class App:
    """One broker. ``start`` once, then ``stop`` once, also after a failed or cancelled start."""

    def __init__(self, settings: Settings, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.server = Server(server_options(settings), self.clock, rng=rng or random.Random())
        self._monitor: MonitorServer | None = None
        self._started = False
        self._failure: asyncio.Future[str] | None = None

    async def start(self) -> None:
        """Returns when clients can connect; a standby's start takes until it has taken over. Raises: StartError."""
        settings, server = self.settings, self.server
        log.info("Starting nats-server")
        log.info("  Version:  %s", COMPATIBLE_VERSION)
        log.info("  Name:     %s", server.server_name)
        log.info("  ID:       %s", server.server_id)
        for notice in settings.notices:
            log.warning("%s", notice)
        if settings.http_port is not None:
            await self._start_monitor(settings.http_port)
        try:
            await server.start()
        except (OSError, UnicodeError) as error:
            why = _cannot_listen(settings.host, settings.port, error)
            raise StartError(f"Error listening on port: {why}") from None
        self._started = True

    async def stop(self) -> None:
        """The clean end."""
        await self.server.close()
        if self._monitor is not None:
            await self._monitor.close()

    async def failed(self) -> str:
        """Wait for a reason to end the process that no signal gave (another broker took the store…)."""
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
        return await self._failure

    async def lame_duck(self) -> None:
        """Send the clients elsewhere; returns when the time for that is over."""
        await self.server.lame_duck()

    def ports(self) -> dict[str, list[str]]:
        """What the ports file says: URLs by kind, the one to use first."""
        found = {"nats": urls("nats", self.settings.host, self.server.port)}
        if self._monitor is not None:
            found["monitoring"] = urls("http", self._monitor.host, self._monitor.port)
        return found

    async def _start_monitor(self, port: int) -> None:
        # Only who has the pages pays for importing them.
        from broker.monitor.http import MonitorServer
        from broker.monitor.pages import Pages
        from broker.monitor.views import Views

        settings = self.settings
        views = Views(varz=self._varz, health=self._health, connections=self.server.connections,
                      subscription_count=lambda: self.server.router.subscription_count)
        host = settings.http_host or settings.host
        monitor = MonitorServer(Pages(views, self.clock, settings.http_base_path), self.clock, host, port)
        try:
            await monitor.start()
        except (OSError, UnicodeError) as error:
            raise StartError(f"Can't start monitoring: {_cannot_listen(host, port, error)}") from None
        self._monitor = monitor
        log.info("Starting http monitor on %s", _host_port(monitor.host, monitor.port))

    def _varz(self) -> dict[str, Any]:
        page = self.server.varz()
        if self._monitor is not None:
            page |= {"http_host": self._monitor.host, "http_port": self._monitor.port}
        if self.settings.server_tags:
            page["tags"] = list(self.settings.server_tags)
        return page

    def _health(self) -> Health:
        from broker.monitor.views import Health

        return Health() if self._started else Health("unavailable", "starting")


def server_options(settings: Settings) -> ServerOptions:
    """What the client side is told."""
    return ServerOptions(
        host=settings.host, port=settings.port, server_name=settings.server_name or "",
        jetstream=settings.jetstream, domain=settings.jetstream_domain or "", headers=not settings.no_header_support,
        max_payload=settings.max_payload, max_control_line=settings.max_control_line, max_pending=settings.max_pending,
        max_connections=max(settings.max_connections, 0), max_subscriptions=max(settings.max_subscriptions, 0),
        ping_interval_ns=settings.ping_interval_ns, ping_max=settings.ping_max,
        write_deadline_ns=settings.write_deadline_ns, lame_duck_duration_ns=settings.lame_duck_duration_ns,
        lame_duck_grace_ns=settings.lame_duck_grace_period_ns, user=settings.user or "",
        password=settings.password or "", token=settings.token or "",
        users=[(user.user, user.password) for user in settings.users], auth_timeout_ns=settings.auth_timeout_ns)


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(host: str, port: int, error: Exception) -> str:
    """As nats-server says it; launchers look for the word ``port`` and for ``address already in use``."""
    where = _host_port(host, max(port, 0))
    if isinstance(error, socket.gaierror | UnicodeError):
        return f'{where}, "listen tcp: lookup {host}: no such host"'
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number).lower() if number in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) else str(error)
    return f'{where}, "listen tcp {where}: bind: {why}"'
