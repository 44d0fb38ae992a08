"""An upstream: keeps one connection to another NATS system, through the first of its servers that accepts it.

    connect ──> connected ── lost ──> connect to the next server, after a pause with jitter

Owns: the addresses, the attempts, the log lines, the figures for monitoring. Does not own: what is copied (JetStream).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from broker.base.backoff import Backoff
from broker.client.connection import Connection, ConnectionFailed, Login, connect
from broker.config.leafnodes import LeafTls
from broker.config.upstreams import UpstreamSettings
from broker.jetstream.stream.upstream.link import Remote
from broker.upstreams.connection import RawClient, UpstreamConnection

__all__ = ["Upstream"]

log = logging.getLogger(__name__)

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.25, 10.0
_API = "$JS.API"


class Upstream:
    """One configured upstream. ``run`` connects until it is cancelled.

    Args: ``changed`` is called when it has connected or lost its connection.
    Attributes: ``error``: the reason why it is not connected; "" while it is.
    """

    def __init__(self, settings: UpstreamSettings, rng: random.Random, changed: Callable[[], object]) -> None:
        self.settings = settings
        self.error = "not connected yet"
        self.connects = 0
        self._rng = rng
        self._changed = changed
        self._link: UpstreamConnection | None = None
        self._connected_to = ""
        self._refused = ""
        self._urls = list(settings.urls)
        rng.shuffle(self._urls)

    def remote(self) -> Remote:
        """Return the way to the other system's JetStream. Raises: ConnectionError: it is not connected."""
        if self._link is None:
            raise ConnectionError(f"upstream {self.settings.name} is not connected: {self.error}")
        return Remote(self._link, _API, self.settings.inbox_prefix)

    async def run(self) -> None:
        """Keep a connection, until the task is cancelled."""
        backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, self._rng)
        while True:
            url = self._urls[0]
            client = RawClient()
            try:
                connection = await connect(self._login(url), client=client, name=f"jetblock upstream "
                                           f"{self.settings.name}", on_error=self._note)
            except Exception as error:  # whatever a foreign server causes in the client, the next attempt may succeed
                if not isinstance(error, ConnectionFailed):
                    log.exception('Upstream "%s": connecting failed', self.settings.name)
                self._fail(str(error))
                self._urls.append(self._urls.pop(0))
                await asyncio.sleep(backoff.next())
                continue
            try:
                await self._use(connection, client)
            finally:
                await connection.close()
            backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _use(self, connection: Connection, client: RawClient) -> None:
        """Serve as a link until the connection is lost."""
        name = self.settings.name
        self._add_discovered(client)
        link = self._link = UpstreamConnection(client)
        self._connected_to = connection.shown
        self.error = self._refused = ""
        self.connects += 1
        log.info('Upstream "%s" of account %s is connected to %s', name, self.settings.account, connection.shown)
        self._changed()
        commands = asyncio.create_task(link.run(), name=f"commands to upstream {name}")
        try:
            await connection.lost.wait()
        finally:
            self._link = None
            commands.cancel()
            await asyncio.gather(commands, return_exceptions=True)
        self.error = self._refused or f"the connection to {connection.shown} was lost"
        log.warning('Upstream "%s" of account %s: %s', name, self.settings.account, self.error)
        self._changed()

    def _login(self, url: str) -> Login:
        settings, tls = self.settings, self.settings.tls or LeafTls()
        return Login(url, user=settings.user, password=settings.password, token=settings.token,
                     creds=settings.credentials, seed=settings.nkey, tls_ca=tls.ca_file, tls_cert=tls.cert_file,
                     tls_key=tls.key_file, tls=settings.tls is not None, tls_first=tls.handshake_first,
                     tls_insecure=tls.insecure)

    def _fail(self, why: str) -> None:
        """Log an attempt that failed, unless the one before it failed for the same reason."""
        if why != self.error:
            log.error('Upstream "%s" of account %s: %s', self.settings.name, self.settings.account, why)
            self.error = why
            self._changed()

    def _note(self, error: Exception) -> None:
        """Log an error that the other system has sent, such as a permission that is missing."""
        text = " ".join(str(error).removeprefix("nats: ").split())
        if text and text != self._refused:
            self._refused = text
            log.warning('Upstream "%s" of account %s: the server says: %s', self.settings.name, self.settings.account,
                        text)

    def _add_discovered(self, client: RawClient) -> None:
        """Add the servers that the system offers, with the user of the first configured URL, after the configured."""
        first = urlsplit(self.settings.urls[0])
        user, at, _ = first.netloc.rpartition("@")
        known = {urlsplit(url).netloc.rpartition("@")[2] for url in self.settings.urls}
        own = [url for url in self._urls if url in self.settings.urls]
        offered = [found.netloc.rpartition("@")[2] for found in client.discovered_servers]
        self._urls = own + [f"{first.scheme}://{user}{at}{address}" for address in offered if address not in known]

    def row(self) -> dict[str, Any]:
        """Return the upstream as /varz shows it."""
        return {"name": self.settings.name, "account": self.settings.account, "connected": self._link is not None,
                "url": self._connected_to if self._link is not None else "", "connects": self.connects,
                **({"error": self.error} if self.error else {})}
