"""The composition root: creates the components from the settings, and starts and stops them in order.

    start   the ports, bound: if one is in use, the store is not touched
            the store, JetStream on it (a standby waits here without the client port, its monitoring pages up)
            the listener for clients: not before a client that connects finds everything ready
            the monitoring pages
    lost    another broker took the shard: the clients are disconnected, and it starts over as a standby
    stop    the listener and the clients, JetStream (committing what was sequenced), the store, the pages
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from broker import NATS_SERVER_VERSION, __version__
from broker.clock import Clock, GuardedClock
from broker.config.settings import ConfigError, Settings
from broker.errors import StartError
from broker.gotime import format_duration
from broker.runtime.loop_lag import LoopLag
from broker.runtime.process_files import urls
from broker.runtime.reload import Prepare, ReloadError, changed, lines, refuse_fixed
from broker.runtime.system_pages import SystemPages
from broker.server.listeners.certificates import TlsParameters
from broker.server.server import Server
from broker.server.system.requests import RequestError

if TYPE_CHECKING:
    from broker.jetstream.engine import JetStream
    from broker.maintenance.scrub import Finding
    from broker.monitor.listener import MonitorServer
    from broker.monitor.views import Views
    from broker.runtime.shard_host import ShardHost
    from broker.server.accounts.account import Account
    from broker.storage.log.log import Log

__all__ = ["App", "StartError"]

log = logging.getLogger(__name__)

_QUIET_START_SECONDS = 2.0
"""A start that takes longer serves its monitoring pages meanwhile."""


class App:
    """One broker. ``start`` once, then ``stop`` once, also after a failed or cancelled start."""

    def __init__(self, settings: Settings, clock: Clock | None = None, rng: random.Random | None = None, *,
                 read: Callable[[], Settings] | None = None) -> None:
        """Args: ``read`` reads the settings again, for ``reload``; raises ConfigError if invalid. None: no file."""
        self.settings = settings
        self._read = read
        self.reloaders: list[Prepare] = []
        """Parts other than the server that settings apply to."""

        self.clock = clock or GuardedClock()
        self.rng = rng or random.Random()
        self.server = Server(settings, self.clock, self.rng)
        self._serve_system_account()
        self.lag = LoopLag()
        self.jetstream: JetStream | None = None
        self.shard_host: ShardHost | None = None
        self._monitor: MonitorServer | None = None
        self._monitoring = False
        self._serving = False
        self._settling = False
        """Whether ``_serve`` is running, which starts over by itself if the shard is lost."""
        self._waiting: asyncio.Task[None] | None = None
        self._stepping_down: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._why = ""

    async def start(self) -> None:
        """Returns when clients can connect; a standby's start takes until it has taken over. Raises: StartError."""
        settings, server = self.settings, self.server
        log.info("Starting jetblock %s, compatible with nats-server %s", __version__, NATS_SERVER_VERSION)
        log.info("  Version:  %s", NATS_SERVER_VERSION)
        log.info("  Name:     %s", server.server_name)
        log.info("  ID:       %s", server.server_id)
        for notice in (*settings.notices, *server.warnings):
            log.warning("%s", notice)
        try:
            server.load()
            await server.delegation.resolve_system()
        except ValueError as error:
            raise StartError(str(error)) from None
        await self._bind()
        # Health checks must find a long replay alive; a short start has no pages before its end.
        pages = asyncio.get_running_loop().call_later(_QUIET_START_SECONDS, self._show_pages)
        try:
            if settings.jetstream.enabled:
                await self._start_jetstream()
            await self._serve()
        finally:
            pages.cancel()
        # Last, since launchers take an answer from /varz to mean that clients may connect; a standby has its pages
        # as soon as it begins to wait.
        if self._waiting is not None:
            await self._waiting
        await self._start_monitor()
        # Not earlier: the imports and reads of a start delay no client.
        self.lag.start()

    async def stop(self) -> None:
        """Shut down cleanly: accept no connections, commit and acknowledge what was sequenced, then close clients."""
        self._serving = False
        self.lag.stop()
        if self._stepping_down is not None:
            self._stepping_down.cancel()
            await asyncio.gather(self._stepping_down, return_exceptions=True)
        self.server.stop_listening()
        if self.jetstream is not None:
            await self.jetstream.close(tell=True)
        if self.shard_host is not None:
            await self.shard_host.give_back()
        if self.jetstream is not None:
            await self.jetstream.stop()
        await self.server.close()
        if self.shard_host is not None:
            await self.shard_host.close()
        if self._monitor is not None:
            await self._monitor.close()

    async def failed(self) -> str:
        """Wait for a reason other than a signal to end the process (another broker of our name took the store…)."""
        await self._failed.wait()
        return self._why

    def _fail(self, why: str) -> None:
        if not self._failed.is_set():
            self._why = why
            self._failed.set()

    # ---- other settings while it runs --------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the settings again and apply them. Raises: ReloadError, and nothing has changed."""
        if self._read is None:
            raise ReloadError("can only reload config when a file is provided using -c or --config")
        old = self.settings
        try:
            new = self._read()
            differences = changed(old, new)
            refuse_fixed(differences, old, new)
            ready = [prepare(new) for prepare in (self.server.prepare, *self.reloaders)]
        except (ConfigError, ValueError) as error:
            raise ReloadError(str(error)) from None
        for apply in ready:
            apply()
        self.settings = new
        self._reload_jetstream()
        for line in lines(differences, new):
            log.info("%s", line)
        log.info("Reloaded server configuration")

    def _serve_system_account(self) -> None:
        """Let users of the system account ask for the monitoring pages, and reload."""
        system = self.server.system
        if system is not None:
            pages = SystemPages(lambda: self.views)
            system.provide(pages.of_server(), pages.of_account(), self._reload_on_request,
                           lambda: self.jetstream.streaming if self.jetstream is not None else ())

    def _reload_on_request(self) -> None:
        try:
            self.reload()
        except ReloadError as error:
            raise RequestError(str(error)) from None

    def _reload_jetstream(self) -> None:
        """Its accounts follow the server's."""
        js = self.jetstream
        if js is None:
            return
        from broker.jetstream.wire.errors import ApiError

        accounts = {account.name: account for account in self.server.accounts if self._answers_in(account)}
        for name in js.apis.keys() - accounts.keys():
            js.remove_account(name)
        for name, account in accounts.items():
            try:
                if name in js.apis:
                    js.change_limits(name, account.settings.jetstream)
                else:
                    js.add_account(name, account.router, account.settings.jetstream)
            except ApiError as error:
                log.error("Error enabling jetstream on account %r: %s", name, error)
        js.external.look_again()

    async def lame_duck(self) -> None:
        """Send the clients elsewhere; returns when the lame duck period is over."""
        await self.server.lame_duck()

    def ports(self) -> dict[str, list[str]]:
        """The content of the ports file: URLs by kind, the preferred one first."""
        found = {"nats": urls("nats", self.settings.clients.host, self.server.port)}
        websocket = self.server.websocket
        if websocket is not None:
            found["websocket"] = urls(websocket.scheme, websocket.settings.host, websocket.port)
        if self._monitor is not None:
            found["monitoring"] = urls(self._monitor.scheme, self._monitor.host, self._monitor.port)
        return found

    # ---- JetStream ---------------------------------------------------------------------------------------------------

    async def _start_jetstream(self) -> None:
        # Imported only if JetStream is enabled.
        from broker.jetstream.engine import JetStream
        from broker.runtime.shard_host import ShardHost

        assert isinstance(self.clock, GuardedClock)
        settings = self.settings
        if settings.storage.url.startswith("file://"):
            prepare_directory(settings.storage.url.removeprefix("file://"))
        self.shard_host = ShardHost(settings.storage, settings.server_name, self.clock, self._lost)
        url = self.shard_host.store.url
        self.shard_host.on_standby = self._begin_to_wait
        self.shard_host.on_turn = self._bind_for_clients
        limits = settings.jetstream.server
        log.info("Starting JetStream")
        log.info("  Max Memory:      %s", _friendly_bytes(limits.max_memory))
        log.info("  Max Storage:     %s", _friendly_bytes(limits.max_storage))
        log.info('  Store Directory: "%s"', url.removeprefix("file://"))
        await self.shard_host.check()
        self.jetstream = JetStream(self.clock, self.rng, settings.jetstream, server_name=self.server.server_name,
                                   direct_bytes_max=settings.clients.max_pending)
        for account in self.server.accounts:
            if self._answers_in(account):
                await self._add_to_jetstream(account)
        if (system := self.server.accounts.system) is not None:
            self.jetstream.serve_system(system.name, system.router)
        self.server.delegation.on_account = self._account_came
        self.shard_host.on_damage = self._tell_damage
        self.jetstream.listen()

    def _tell_damage(self, finding: Finding) -> None:
        assert self.jetstream is not None
        for affected in finding.affected:
            if (account := self.jetstream.accounts.get(affected.account)) is not None:
                account.events.damaged(affected.stream, finding.problem.object, finding.problem.what, affected.first_seq,
                                       affected.last_seq)

    def _answers_in(self, account: Account) -> bool:
        """Whether JetStream answers requests in the account: one without its own may import another account's."""
        imports = self.server.accounts.exchange.imports_service(account.name, b"$JS.API.INFO")
        return not account.is_system and (account.settings.jetstream is not None or not imports)

    async def _add_to_jetstream(self, account: Account) -> None:
        from broker.jetstream.wire.errors import ApiError

        assert self.jetstream is not None
        try:
            await self.jetstream.add_account(account.name, account.router, account.settings.jetstream)
        except ApiError as error:
            raise StartError(f"Can't start JetStream: Error enabling jetstream on configured accounts: Error enabling "
                             f"jetstream on account {account.name!r}: {error}") from None

    def _account_came(self, account: Account) -> Awaitable[None] | None:
        """An account was added or changed while the broker runs; its users wait for its streams."""
        from broker.jetstream.wire.errors import ApiError

        js = self.jetstream
        if js is None or account.is_system:
            return None
        js.external.look_again()
        try:
            if account.name in js.apis:
                return js.change_limits(account.name, account.settings.jetstream)
            return js.add_account(account.name, account.router, account.settings.jetstream)
        except ApiError as error:
            log.error("Error configuring jetstream for account [%s]: %s", account.name, error)
        return None

    async def _look_up_owners(self, names: Iterable[str]) -> None:
        """Have the accounts that own stored streams, which no user has asked for yet."""
        from broker.server.operator.accounts import AccountError

        assert self.server.delegation.operator is not None
        for name in names:
            try:
                await self.server.delegation.operator.get(name)
            except AccountError as error:
                log.warning("Account %s, which has streams, is not known: %s", name, error)

    async def _serve(self) -> None:
        """Returns when clients can connect, however often the shard is lost on the way. Raises: StartError."""
        self._settling = True
        while True:
            shard_log = await self._take_over() if self.shard_host is not None else None
            if shard_log is None or shard_log.failure is None:
                await self._listen()
            if shard_log is None or shard_log.failure is None:
                break
            await self._leave()
        self._settling = False

    async def _take_over(self) -> Log:
        """Acquire the shard and open its streams. Raises: StartError."""
        from broker.jetstream.inbox.inbox import InboxSettings

        assert self.shard_host is not None
        assert self.jetstream is not None
        shard = await self.shard_host.acquire()
        recovered = shard.recovered
        log.info("Epoch %d: %d streams, %d segments replayed", shard.log.epoch, len(shard.state.streams),
                 recovered.segments)
        log.info("%s", commit_cost(shard.log.settings.commit_interval_ns, shard.log.store.puts_cost))
        if shard.log.store.put_unsynced is not None:
            log.info("Syncs: every %s; a power cut may take what was acknowledged since the last one",
                     format_duration(self.settings.storage.sync_interval_ns or 0))
        if self.server.delegation.operator is not None:
            owners = {state.account for state in shard.state.streams.values()} - self.jetstream.apis.keys()
            await self._look_up_owners(sorted(owners))
        storage = self.settings.storage
        await self.jetstream.open(shard.log, self.shard_host.reader, let_go=shard.sweeper.let_go, inbox=InboxSettings(
            poll_ns=storage.inbox_interval_ns, staged_grace_ns=storage.staged_grace_ns, max_payload=self._max_payload))
        return shard.log

    def _max_payload(self, name: str) -> int:
        """Of an account's messages, by the settings as they are now."""
        most, account = self.settings.clients.max_payload, self.server.accounts.get(name)
        return most if account is None else account.settings.payload_bytes_max(most)

    async def _bind(self) -> None:
        """Bind the ports, or fail before anything else is touched. Raises: StartError."""
        await self._bind_for_clients()
        try:
            self._monitor = self._make_monitor()
        except ValueError as error:
            raise StartError(str(error)) from None
        if self._monitor is not None:
            host, port = self._monitor.host, self._monitor.port
            try:
                await self._monitor.bind()
            except (OSError, UnicodeError) as error:
                raise StartError(f"Can't start monitoring: {_cannot_listen(host, port, error)}") from None

    async def _bind_for_clients(self) -> None:
        if (websocket := self.server.websocket) is not None:
            host, port = websocket.settings.host, websocket.port
            try:
                await websocket.bind()
            except (OSError, UnicodeError) as error:
                why = _cannot_listen(host, port, error)
                raise StartError(f"Unable to listen for websocket connections on port: {why}") from None
        with self._clients_port():
            await self.server.bind()

    async def _listen(self) -> None:
        with self._clients_port():
            await self.server.start()
        self._serving = True

    @contextmanager
    def _clients_port(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeError) as error:
            why = _cannot_listen(self.settings.clients.host, self.settings.clients.port, error)
            raise StartError(f"Error listening on port: {why}") from None

    def _lost(self, error: BaseException) -> None:
        """The log failed: everything in memory that is not persisted is now worthless."""
        from broker.storage.put import Fenced

        assert self.shard_host is not None
        if not isinstance(error, Fenced):
            self._fail(str(error))
        elif self.shard_host.is_our_double(error):
            self._fail(str(self.shard_host.double(error)))
        else:
            log.warning("%s; closing all clients, and waiting as a standby", error)
            if not self._settling:
                self._stepping_down = asyncio.create_task(self._step_down(), name="step down")

    async def _step_down(self) -> None:
        try:
            await self._leave()
            await self._serve()
        except StartError as error:
            self._fail(str(error))
        except Exception as error:
            # Otherwise the process would go on without clients, and no one would notice.
            log.exception("becoming a standby failed")
            self._fail(f"becoming a standby failed: {error!r}")
        else:
            log.info("Server is ready")

    async def _leave(self) -> None:
        """Close the clients and give up the shard; returns after T, so as not to race the new owner."""
        assert self.shard_host is not None
        assert self.jetstream is not None
        self._serving = False
        await self.jetstream.close()
        await self.server.close()
        await self.shard_host.abandon()
        await asyncio.sleep(self.settings.storage.lease_ns / 1e9)

    # ---- what monitoring shows ---------------------------------------------------------------------------------------

    def _begin_to_wait(self) -> None:
        """Another broker owns the store: free the client port, and show the standby status in health checks."""
        self.server.unbind()
        self._show_pages()

    def _show_pages(self) -> None:
        """Serve the monitoring pages before clients may connect."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._monitor_standby(), name="pages of a standby")

    async def _monitor_standby(self) -> None:
        try:
            await self._start_monitor()
        except StartError as error:
            self._fail(str(error))

    async def _start_monitor(self) -> None:
        monitor = self._monitor
        if monitor is None or self._monitoring:
            return
        self._monitoring = True
        try:
            await monitor.start()
        except OSError as error:
            raise StartError(f"Can't start monitoring: {_cannot_listen(monitor.host, monitor.port, error)}") from None
        log.info("Starting %s monitor on %s", monitor.scheme, _host_port(monitor.host, monitor.port))

    def _make_monitor(self) -> MonitorServer | None:
        settings = self.settings.monitoring
        port = settings.port if settings.port is not None else settings.https_port
        if port is None:
            return None
        # Imported only if the pages are enabled.
        from broker.monitor.listener import MonitorServer

        tls = None
        if settings.https_port is not None:
            tls = _pages_context(self.settings)
            self.reloaders.append(self._prepare_monitor)
        return MonitorServer(self.views, settings.host or self.settings.clients.host, port, base_path=settings.base_path,
                             tls=tls)

    def _prepare_monitor(self, settings: Settings) -> Callable[[], None]:
        """Load the certificates anew. Raises: ValueError."""
        context = _pages_context(settings)

        def apply() -> None:
            if self._monitor is not None:
                self._monitor.use(context)

        return apply

    @cached_property
    def views(self) -> Views:
        """The data of the monitoring pages."""
        from broker.runtime.sources import Sources

        return Sources(self).views

    @property
    def serving(self) -> bool:
        """Whether clients may connect."""
        return self._serving

    @property
    def monitored_at(self) -> dict[str, Any]:
        """``http_host``, ``http_port`` and ``https_port`` of /varz."""
        monitor = self._monitor
        if monitor is None:
            return {"http_host": self.settings.monitoring.host or self.settings.clients.host, "http_port": 0, "https_port": 0}
        return {"http_host": monitor.host, "http_port": 0, "https_port": 0, f"{monitor.scheme}_port": monitor.port}


def commit_cost(interval_ns: int, puts_cost: bool) -> str:
    """What the commit interval means for latency and the bill; the table is in docs/STORES.md, "What commits cost"."""
    if not interval_ns:
        return "Commits: at once, as often as the store takes them" + (
            "; each put is paid for, see commit_interval" if puts_cost else "")
    puts = 1e9 / interval_ns
    dollars = puts * 86_400 * 30 * 0.005 / 1000
    return (f"Commits: at most one put every {interval_ns / 1e6:g} ms, {puts:.0f} a second; at $0.005 for a thousand puts "
            f"that is at most ${dollars:,.0f} a month under constant load")


def _pages_context(settings: Settings) -> SSLContext:
    """The TLS of the pages: the clients' port's, without asking for certificates. Raises: ValueError."""
    return TlsParameters(replace(settings.tls, verify=False, verify_and_map=False)).context


def prepare_directory(path: str) -> None:
    """Create the store's directory. Raises: StartError in nats-server's words, which launchers look for."""
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StartError(f"Can't start JetStream: storage directory is not a directory: {path}") from None
    except OSError as error:
        raise StartError(f"Can't start JetStream: could not create storage directory - mkdir {path}: "
                         f"{(error.strerror or str(error)).lower()}") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"Can't start JetStream: storage directory is not writable: {path}")


def _friendly_bytes(size: int) -> str:
    """A size as nats-server's log shows it; -1: none."""
    if size < 0:
        return "unlimited"
    power = min(max(size.bit_length() - 1, 0) // 10, 6)
    return f"{size / (1 << 10 * power):.2f} {'KMGTPE'[power - 1]}B" if power else f"{size} B"


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(host: str, port: int, error: Exception) -> str:
    """The error in nats-server's words; launchers look for ``port`` and for ``address already in use``."""
    where = _host_port(host, max(port, 0))
    if isinstance(error, socket.gaierror | UnicodeError):
        return f'{where}, "listen tcp: lookup {host}: no such host"'
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number).lower() if number in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) else str(error)
    return f'{where}, "listen tcp {where}: bind: {why}"'
