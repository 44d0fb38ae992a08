"""The restrictions of the monitoring pages, made from the settings: networks, and a login that may be a bcrypt hash."""

from __future__ import annotations

import asyncio
import hmac
import os
from ipaddress import ip_network

from broker.base.shielded import shielded
from broker.config.settings import MonitoringSettings
from broker.monitor.access import Access
from broker.server.auth.passwords import BcryptCheck, compare

__all__ = ["access_of"]


def access_of(settings: MonitoringSettings) -> Access:
    """Return the restrictions."""
    networks = [ip_network(text, strict=False) for text in settings.allow]
    login = _Login(settings.user, settings.password).check if settings.user else None
    return Access(networks, login, probes=not settings.protect_health)


class _Login:
    """The one login of the pages.

    A comparison with a hash takes 50 ms or more, so it runs in a thread, one at a time. A login that was right before
    is accepted at once: otherwise anybody who sends wrong passwords would make Prometheus wait. A keyed digest of that
    login is kept, and no password.
    """

    def __init__(self, user: str, password: str) -> None:
        self._user = user.encode("utf-8", "surrogatepass")
        self._password = password
        self._key = os.urandom(32)
        self._right: bytes | None = None
        self._one = asyncio.Semaphore(1)

    async def check(self, user: str, password: str) -> bool:
        """Return whether a login is right. A wrong user takes as long as a wrong password."""
        known = hmac.compare_digest(self._user, user.encode())
        found = compare(self._password, password)
        if isinstance(found, BcryptCheck):
            digest = hmac.digest(self._key, f"{len(user)} {user}{password}".encode(), "sha256")
            if self._right is not None and hmac.compare_digest(digest, self._right):
                return True
            await self._one.acquire()
            # The thread cannot be cancelled, so the next one waits for it also if this peer has disconnected.
            thread = asyncio.ensure_future(asyncio.to_thread(found.run))
            thread.add_done_callback(lambda _: self._one.release())
            found = await shielded(thread)
            if found and known:
                self._right = digest
        return found and known
