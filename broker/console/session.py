"""A browser's session: the server that its user is logged in to, and when it was last used.

A session is found by the identifier in a signed cookie, which holds nothing else. Its credentials are in the console's
memory alone, and are forgotten with it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.console.monitor import Monitor
from broker.console.server import Server
from broker.console.streams import Streams

if TYPE_CHECKING:
    from broker.console.login import Login

__all__ = ["Session", "Sessions", "Settings"]

_SWEEP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The console's options.

    Attributes:
        ``login``: the server, and credentials if the command line has them; then nobody is asked for a login.
        ``logged_in``: True if ``login`` has all that is needed.
        ``monitor``: the address of the server's monitoring port; "" for none.
        ``store``: the address of a store that jetblock keeps; "" for none.
        ``read_only``: True if no page may change anything.
        ``idle_seconds``: how long an unused session lasts.
    """

    login: Login
    logged_in: bool = False
    monitor: str = ""
    store: str = ""
    read_only: bool = False
    idle_seconds: float = 1800.0


@dataclass(slots=True)
class Session:
    """One browser's session."""

    server: Server
    settings: Settings
    monitor: Monitor | None
    used: float = field(default_factory=time.monotonic)
    ended: bool = False
    dark: bool | None = None
    """None: as the browser prefers."""

    @property
    def streams(self) -> Streams:
        return Streams(self.server)

    def may(self, call: str) -> bool:
        """Return whether a page may offer a request of JetStream's API that changes something."""
        return self.server.may_call(call)

    def touch(self) -> None:
        """Note that the session is used."""
        self.used = time.monotonic()


class Sessions:
    """All sessions of a console."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._sessions: dict[str, Session] = {}
        self._monitor = Monitor(settings.monitor) if settings.monitor else None
        self._sweeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def get(self, key: str) -> Session | None:
        """Return the session of a browser; if nobody needs to log in, open one. Raises: BadLogin."""
        if key not in self._sessions and self.settings.logged_in:
            async with self._opening:  # a browser opens several pages at once
                if key not in self._sessions:
                    await self.open(key, self.settings.login)
        session = self._sessions.get(key)
        if session is not None:
            session.touch()
        return session

    async def open(self, key: str, login: Login) -> Session:
        """Log in, in place of the browser's last session. Raises: BadLogin."""
        server = await Server.connect(login, read_only=self.settings.read_only)
        await self.end(key)
        self._sessions[key] = session = Session(server, self.settings, self._monitor)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="end unused sessions")
        return session

    async def end(self, key: str) -> None:
        """Log out."""
        if (session := self._sessions.pop(key, None)) is not None:
            session.ended = True
            await session.server.close()

    async def close(self) -> None:
        """End all sessions."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for key in list(self._sessions):
            await self.end(key)
        if self._monitor is not None:
            await self._monitor.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self.settings.idle_seconds))
            for key, session in list(self._sessions.items()):
                if time.monotonic() - session.used > self.settings.idle_seconds:
                    await self.end(key)
