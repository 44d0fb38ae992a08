"""A browser's session: the server that its user is logged in to, and when it was last used.

The key of a session is random and made at the login, so that nobody can know it before. The browser keeps it in a
cookie that scripts cannot read. Credentials are in the console's memory alone, and are forgotten with the session.

    login page ── Sessions.open ──> a ticket, for this browser, once ── POST /enter ──> the cookie
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.console.login import BadLogin
from broker.console.monitor import Monitor
from broker.console.server import Server
from broker.console.streams import Streams

if TYPE_CHECKING:
    from broker.console.login import Login

__all__ = ["Session", "Sessions", "Settings"]

_SWEEP_SECONDS = 30.0
_TICKET_SECONDS = 60.0
_SESSIONS_MAX = 1000
_SHARED = "shared"
"""The key of the session of a console that has credentials of its own."""


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
    sessions: Sessions
    used: float = field(default_factory=time.monotonic)
    ended: bool = False
    logged_out: bool = False
    dark: bool | None = None
    """None: as the browser prefers."""

    @property
    def streams(self) -> Streams:
        return Streams(self.server)

    @property
    def sees_store(self) -> bool:
        """True if the store's page is for this user: it shows more than a restricted user may ask for."""
        return bool(self.settings.store) and not self.server.restricted

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
        self._tickets: dict[str, tuple[str, str, float]] = {}
        """By ticket: the session's key, the browser, and when the ticket was made."""
        self._monitor = Monitor(settings.monitor) if settings.monitor else None
        self._sweeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def get(self, key: str) -> Session | None:
        """Return the session with a browser's key; if nobody needs to log in, the one for all. Raises: BadLogin."""
        if self.settings.logged_in:
            key = _SHARED
            async with self._opening:  # a browser opens several pages at once
                if key not in self._sessions:
                    await self._open(key, self.settings.login)
        session = self._sessions.get(key)
        if session is None:
            return None
        if time.monotonic() - session.used > self.settings.idle_seconds and not self.settings.logged_in:
            await self.end(key)
            return None
        session.touch()
        return session

    async def open(self, browser: str, login: Login) -> str:
        """Log in; return the ticket for which this browser gets the session's key. Raises: BadLogin."""
        key, ticket = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        await self._open(key, login)
        self._tickets[ticket] = key, browser, time.monotonic()
        return ticket

    async def enter(self, ticket: str, browser: str, before: str) -> str | None:
        """Return the session's key for a ticket, once; end the browser's session ``before``. None: a wrong ticket."""
        key, owner, made = self._tickets.pop(ticket, ("", "", 0.0))
        if not key or owner != browser or time.monotonic() - made > _TICKET_SECONDS:
            await self.end(key)
            return None
        await self.end(before)
        return key

    async def _open(self, key: str, login: Login) -> None:
        if len(self._sessions) >= _SESSIONS_MAX:
            raise BadLogin(f"The console has {_SESSIONS_MAX} sessions already; try again later.")
        server = await Server.connect(login, read_only=self.settings.read_only)
        self._sessions[key] = Session(server, self.settings, self._monitor, self)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="end unused sessions")

    async def end(self, key: str) -> None:
        """End the session with this key, if there is one."""
        if (session := self._sessions.pop(key, None)) is not None:
            session.ended = True
            await session.server.close()

    async def log_out(self, session: Session) -> None:
        """End a session as its user asks."""
        session.logged_out = True
        for key, one in list(self._sessions.items()):
            if one is session:
                await self.end(key)

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
            await asyncio.sleep(min(_SWEEP_SECONDS, self.settings.idle_seconds / 2))
            now = time.monotonic()
            for ticket, (key, _, made) in list(self._tickets.items()):
                if now - made > _TICKET_SECONDS:
                    del self._tickets[ticket]
                    await self.end(key)
            for key, session in list(self._sessions.items()):
                if now - session.used > self.settings.idle_seconds:
                    await self.end(key)
