"""The composition root: creates the components from the settings, and starts and stops them in order.

    start   bind the ports: if one is in use, the store is not touched
            open the store, and JetStream on it (a standby waits here: it serves monitoring pages, and has no client
            port) listen for clients, once everything that a client may use is ready serve the monitoring pages
    lost    another broker took the shard: disconnect the clients, and start again as a standby
    stop    close the listener, JetStream (which commits what is sequenced), the clients, the store, the pages
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker import NATS_SERVER_VERSION, __version__
from broker.base.clock import Clock, GuardedClock
from broker.base.descriptors import open_files_max, reserved
from broker.base.errors import StartError
from broker.base.gotime import format_duration
from broker.base.nats_server_store import find_store_dir
from broker.base.reloads import Reloads
from broker.config.settings import ClientSettings, ConfigError, Settings
from broker.runtime.costs import commit_cost, heartbeat_cost
from broker.runtime.listening import or_start_error
from broker.runtime.loop_lag import LoopLag
from broker.runtime.process_files import urls
from broker.runtime.reload import Prepare, ReloadError, changed, lines, refuse_fixed
from broker.runtime.system_pages import SystemPages
from broker.server.server import Server

if TYPE_CHECKING:
    from broker.jetstream.engine import JetStream
    from broker.maintenance.scrub import Finding
    from broker.monitor.views import Views
    from broker.runtime.jetstream_accounts import JetStreamAccounts
    from broker.runtime.otel import OtelTracer
    from broker.runtime.own_shards import OwnShards
    from broker.runtime.pages import Pages
    from broker.runtime.shard_owner import ShardOwner
    from broker.runtime.shard_set import ShardSet
    from broker.runtime.shared_store import SharedStore
    from broker.runtime.store_host import StoreHost
    from broker.storage.shard import Shard
    from broker.streaming.gateway import Gateway
    from broker.streaming.pages import StreamingPages
    from broker.upstreams.upstreams import Upstreams

__all__ = ["App", "StartError"]

log = logging.getLogger(__name__)

_QUIET_START_SECONDS = 2.0
"""A start that takes longer than this serves the monitoring pages before it has ended."""


class App:
    """A broker. Call ``start`` once, then ``stop`` once, also after a failed or cancelled start."""

    def __init__(self, settings: Settings, clock: Clock | None = None, rng: random.Random | None = None, *,
                 read: Callable[[], Settings] | None = None, standby: bool = True) -> None:
        """Args:
        read: reads the settings again, for ``reload``, and raises ConfigError if they are invalid; None: there is no
        file. standby: whether ``start`` waits while another broker owns the store; otherwise it raises StoreInUse.
        """
        self.settings = settings
        self._standby = standby
        self._read = read
        self.clock = clock or GuardedClock()
        self.rng = rng or random.Random()
        self._tracer = _tracer(settings, self.clock) if settings.jetstream.otlp_endpoint else None
        self.server = Server(settings, self.clock, self.rng, tracer=self._tracer)
        self.parts: dict[str, Prepare] = {"server": self.server.prepare}
        """The parts that new settings apply to while the broker runs. The declaration of a setting names its part."""

        self._serve_system_account()
        self.lag = LoopLag()
        self.jetstream: JetStream | None = None
        self.gateway: Gateway | None = None
        """The gateway for NATS Streaming clients, if it is configured."""
        self.streaming_pages: StreamingPages | None = None
        self.upstreams: Upstreams | None = None
        """The other NATS systems whose streams are copied; None if none are configured."""
        self.store_host: StoreHost | None = None
        self.shards: ShardSet | OwnShards | None = None
        self._shared_store: SharedStore | None = None
        """The store, if several brokers own it."""
        self._accounts: JetStreamAccounts | None = None
        self.pages: Pages | None = None
        self._serving = False
        self._acquiring = False
        """True if ``_serve`` is running. It starts again by itself if the shard is lost."""
        self._waiting: asyncio.Task[None] | None = None
        self._stepping_down: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._reloads = Reloads(self._read_and_apply, ReloadError)
        self._failed = asyncio.Event()
        self._why = ""

    async def start(self) -> None:
        """Return when clients can connect; a standby's start lasts until it has taken over. Raises: StartError."""
        settings, server = self.settings, self.server
        log.info("Starting jetblock %s, compatible with nats-server %s", __version__, NATS_SERVER_VERSION)
        log.info("  Version:  %s", NATS_SERVER_VERSION)
        log.info("  Name:     %s", server.server_name)
        log.info("  ID:       %s", server.server_id)
        if settings.file:
            log.info("Using configuration file: %s (%s)", settings.file, settings.digest)
        files = open_files_max()
        log.info("  Files:    at most %d open, the last %d of them kept for the store, the logs and the configuration",
                 files, reserved(files))
        connections = settings.clients.max_connections
        if files - reserved(files) < connections != ClientSettings().max_connections:
            log.warning("max_connections is %d, but this process may open only %d files: raise the limit (ulimit -n, "
                        "or LimitNOFILE of systemd)", connections, files)
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
        # Last: programs that start a broker take an answer from /varz to mean that clients may connect. A standby
        # serves its pages as soon as it begins to wait.
        if self._waiting is not None:
            await self._waiting
        await self._start_pages()
        # The lag is measured from here on: the imports and reads of a start delay no client.
        self.lag.start()
        if self.jetstream is not None:
            self._loading = asyncio.create_task(self.jetstream.load_modules(), name="load modules of JetStream")

    async def stop(self) -> None:
        """Shut down cleanly: accept no connections, commit and acknowledge what was sequenced, then close clients."""
        self._serving = False
        await self._reloads.cancel()
        self.lag.stop()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._stepping_down is not None:
            self._stepping_down.cancel()
            await asyncio.gather(self._stepping_down, return_exceptions=True)
        self.server.stop_listening()
        if self.gateway is not None:
            await self.gateway.close()
        if self.upstreams is not None:
            await self.upstreams.stop()
        if self._shared_store is not None:
            await self._shared_store.hand_over_all()
        if self.shards is not None:
            await self.shards.stop_taking()
        if self.jetstream is not None:
            await self.jetstream.close(notify=True)
        if self.shards is not None:
            await self.shards.give_back()
        if self.jetstream is not None:
            await self.jetstream.stop()
        await self.server.close()
        if self.store_host is not None:
            await self.store_host.close()
        if self.pages is not None:
            await self.pages.close()
        if self._tracer is not None:
            await self._tracer.close()

    async def failed(self) -> str:
        """Wait for an error that must end the process, and return its text: for example, a broker of our name took
        over."""
        await self._failed.wait()
        return self._why

    def _fail(self, why: str) -> None:
        if not self._failed.is_set():
            self._why = why
            self._failed.set()

    # ---- reloads -----------------------------------------------------------------------------------------------------

    def reload(self, done: Callable[[str], object]) -> None:
        """Read the settings again and apply them, after reloads that began before.

        ``done`` is called at the end: with "", or with a line for each error; after an error nothing has changed.
        """
        self._reloads.begin(done)

    async def _read_and_apply(self) -> None:
        """Apply the settings as they are read now. Raises: ReloadError; then nothing has changed."""
        if self._read is None:
            raise ReloadError("can only reload config when a file is provided using -c or --config")
        try:
            # In a thread: reading thousands of users takes a tenth of a second, and clients must not wait for it.
            new = await asyncio.to_thread(self._read)
            old = self.settings
            differences = changed(old, new)
            refuse_fixed(differences, self.parts, old, new)
            ready = [prepare(new) for prepare in self.parts.values()]
        except (ConfigError, ValueError) as error:
            raise ReloadError(str(error)) from None
        for apply in ready:
            apply()
        self.settings = new
        if self._accounts is not None:
            self._accounts.reloaded()
        for line in lines(differences, new):
            log.info("%s", line)
        log.info("Reloaded server configuration (%s)", new.digest)

    def _serve_system_account(self) -> None:
        """Let users of the system account request the monitoring pages and a reload."""
        system = self.server.system
        if system is not None:
            pages = SystemPages(lambda: self.views)
            system.provide(pages.of_server(), pages.of_account(), self.reload,
                           lambda: self.jetstream.streaming if self.jetstream is not None else ())

    async def lame_duck(self) -> None:
        """Ask the clients to connect elsewhere; return when the lame duck period is over."""
        await self.server.lame_duck()

    def ports(self) -> dict[str, list[str]]:
        """The content of the ports file: URLs by kind, the preferred one first."""
        found = {"nats": urls("nats", self.settings.clients.host, self.server.port)}
        websocket = self.server.websocket
        if websocket is not None:
            found["websocket"] = urls(websocket.scheme, websocket.settings.host, websocket.port)
        if self.pages is not None:
            found["monitoring"] = urls(self.pages.scheme, self.pages.host, self.pages.port)
        return found

    # ---- JetStream ---------------------------------------------------------------------------------------------------

    async def _start_jetstream(self) -> None:
        # Imported only if JetStream is enabled.
        from broker.jetstream.engine import JetStream
        from broker.runtime.jetstream_accounts import JetStreamAccounts
        from broker.runtime.shard_set import ShardSet
        from broker.runtime.store_host import StoreHost

        assert isinstance(self.clock, GuardedClock)
        settings = self.settings
        if settings.storage.url.startswith("file://"):
            prepare_directory(directory := settings.storage.url.removeprefix("file://"))
            refuse_nats_server(directory)
        self.store_host = StoreHost(settings.storage, settings.server_name, self.clock,
                                    lambda: self.settings.clients.max_payload)
        if not settings.storage.is_shared:
            self.shards = ShardSet(self.store_host, self._lost, waits=self._begin_to_wait,
                                   before_claim=self._bind_for_clients, damaged=self._report_damage)
        url = self.store_host.store.url
        limits = settings.jetstream.server
        log.info("Starting JetStream")
        log.info("  Max Memory:      %s", _friendly_bytes(limits.max_memory))
        log.info("  Max Storage:     %s", _friendly_bytes(limits.max_storage))
        log.info('  Store Directory: "%s"', url.removeprefix("file://"))
        await self.store_host.check()
        self.jetstream = JetStream(self.clock, self.rng, settings.jetstream, server_name=self.server.server_name,
                                   direct_bytes_max=settings.clients.max_pending)
        if settings.streaming.enabled:
            # Imported only if it is configured.
            from broker.streaming.gateway import Gateway
            from broker.streaming.pages import StreamingPages

            self.gateway = Gateway(self.jetstream, settings.streaming)
            self.streaming_pages = StreamingPages(self.gateway)
        if settings.jetstream.upstreams:
            # Imported only if one is configured.
            from broker.upstreams.upstreams import Upstreams

            self.upstreams = Upstreams(settings.jetstream.upstreams, self.rng, self.jetstream.external.wake_all)
            self.jetstream.upstreams = self.upstreams.remote
        self.jetstream.leaf_nodes = lambda: self.server.leafs
        if settings.storage.is_shared:
            self._share_store(self.jetstream, self.store_host)
        self._accounts = JetStreamAccounts(self.jetstream, self.server)
        await self._accounts.start()
        self.jetstream.listen()

    def _share_store(self, jetstream: JetStream, host: StoreHost) -> None:
        """Let JetStream own some shards of the store, beside other brokers."""
        from broker.runtime.shared_store import SharedStore

        system = self.server.accounts.system
        assert system is not None
        self._shared_store = SharedStore(
            host, jetstream, system.router, self.server.server_id, self.server.server_name, damaged=self._report_damage,
            open_shard=self._open_shard, fail=self._fail,
            connected=lambda: self.server.leafs is None or bool(self.server.leafs.connections),
            has_clients=lambda: bool(self.server.clients))
        self.shards = self._shared_store.shards
        self._shared_store.start()

    async def _open_shard(self, owner: ShardOwner, shard: Shard, *, more: bool = False) -> None:
        """Open the streams of a shard; ``more``: other shards follow before any is served."""
        from broker.jetstream.inbox.inbox import InboxSettings

        assert self.jetstream is not None
        assert self._accounts is not None
        storage = self.settings.storage
        await self._accounts.resolve({state.account for state in shard.state.streams.values()})
        inbox = InboxSettings(poll_ns=storage.inbox_interval_ns, staged_grace_ns=storage.staged_grace_ns,
                              max_payload=self._max_payload)
        await self.jetstream.open(shard.number, shard.log, owner.reader, release_runs=shard.sweeper.release_runs,
                                  inbox=inbox, eraser=shard.eraser, merger=shard.merger, more=more)

    def _report_damage(self, finding: Finding) -> None:
        """Send an advisory for each stream that a damaged object affects."""
        assert self.jetstream is not None
        for affected in finding.affected:
            if (account := self.jetstream.accounts.get(affected.account)) is not None:
                account.events.damaged(affected.stream, finding.problem.object, finding.problem.what,
                                       affected.first_seq, affected.last_seq)

    async def _serve(self) -> None:
        """Take the shard and listen for clients, again if the shard is lost meanwhile. Raises: StartError."""
        self._acquiring = True
        while True:
            shards = self.shards
            if shards is not None:
                await self._take(shards)
            if shards is None or not shards.failed:
                await self._listen()
                await self._check_partition()
            if shards is None or not shards.failed:
                break
            await self._give_up_shard()
        self._acquiring = False

    async def _check_partition(self) -> None:
        """Check NATS Streaming's channels, once the leaf nodes are connected. Raises: StartError."""
        if self.gateway is not None and self.settings.streaming.partitioning:
            try:
                await self.gateway.check_partition(self._fail)
            except ValueError as error:
                raise StartError(f"Can't start NATS Streaming: {error}") from None

    async def _take(self, shards: ShardSet | OwnShards) -> None:
        """Take all shards, or those that are this broker's own. Raises: StartError."""
        from broker.runtime.shard_set import ShardSet  # imported only if JetStream is enabled

        if isinstance(shards, ShardSet):
            await self._take_over(shards)
        else:
            await self._take_own(shards)

    async def _take_own(self, shards: OwnShards) -> None:
        """Begin to take the shards. Raises: StartError."""
        starting = asyncio.create_task(shards.start(), name="take the shards")
        failing = asyncio.create_task(self._failed.wait(), name="wait for a failure")
        try:
            await asyncio.wait((starting, failing), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.is_set():
                raise StartError(self._why)
            await starting
        finally:
            failing.cancel()
            starting.cancel()
            await asyncio.gather(starting, failing, return_exceptions=True)

    async def _take_over(self, shards: ShardSet) -> None:
        """Acquire the shards and open their streams. Raises: StartError."""
        from broker.jetstream.wire.errors import ApiError
        from broker.storage.put import Fenced

        try:
            taken = await shards.acquire(wait=self._standby)
        except Fenced:
            return  # the caller sees that a shard has failed
        self._standby = True  # an owner that is fenced waits as a standby
        for shard in taken:
            log.info("%sEpoch %d: %d streams, %d segments replayed",
                     f"Shard {shard.number}: " if len(taken) > 1 else "", shard.log.epoch, len(shard.state.streams),
                     shard.recovered.segments)
        shard = taken[0]
        log.info("%s", commit_cost(shard.log.settings.commit_interval_ns, at_aws=shard.log.store.at_aws))
        if len(taken) > 1 and shard.log.settings.lease_ns is not None:
            log.info("%s", heartbeat_cost(len(taken), shard.log.settings.lease_ns, at_aws=shard.log.store.at_aws))
        if shard.log.store.put_unsynced is not None:
            log.info("Syncs: every %s; a power cut may take what was acknowledged since the last one",
                     format_duration(self.settings.storage.sync_interval_ns or 0))
        for owner in shards:
            if (shard_taken := owner.shard) is None or shard_taken.log.failure is not None:
                return
            await self._open_shard(owner, shard_taken, more=shard_taken is not taken[-1])
        if self.gateway is not None:
            try:
                await self.gateway.open()
            except (ValueError, ApiError) as error:
                raise StartError(f"Can't start NATS Streaming: {error}") from None
            except Exception:
                if not shards.failed:
                    raise

    def _max_payload(self, name: str) -> int:
        """Return the most bytes of a message in an account, by the settings as they are now."""
        most, account = self.settings.clients.max_payload, self.server.accounts.get(name)
        return most if account is None else account.settings.payload_bytes_max(most)

    async def _bind(self) -> None:
        """Bind the ports before anything else is touched. Raises: StartError."""
        await self._bind_for_clients()
        if self.settings.monitoring.port is not None or self.settings.monitoring.https_port is not None:
            # Imported only if the pages are enabled.
            from broker.runtime.pages import Pages

            self.pages = Pages(self.settings, self.views)
            self.parts["pages"] = self.pages.prepare  # HTTPS has the certificate of the clients' port
            await self.pages.bind()

    async def _bind_for_clients(self) -> None:
        if (websocket := self.server.websocket) is not None:
            with or_start_error("Unable to listen for websocket connections on port", websocket.settings.host,
                                websocket.port, "websocket { port }"):
                await websocket.bind()
        if (leafs := self.server.leafs) is not None and leafs.port is not None:
            with or_start_error("Error listening on leafnode port", leafs.port.settings.host, leafs.port.port,
                                "leafnodes { port }"):
                await leafs.port.bind()
        with self._clients_port():
            await self.server.bind()

    async def _listen(self) -> None:
        with self._clients_port():
            await self.server.start()
        if self.upstreams is not None:
            self.upstreams.start()
        self._serving = True

    def _clients_port(self) -> AbstractContextManager[None]:
        clients = self.settings.clients
        return or_start_error("Error listening on port", clients.host, clients.port, "port, or -p")

    def _lost(self, error: BaseException) -> None:
        """Handle the log's failure: end the process, or become a standby. What is in memory and not persisted is
        dropped."""
        from broker.storage.put import Fenced

        assert self.shards is not None
        if not isinstance(error, Fenced):
            self._fail(str(error))
        elif self.shards.first.is_our_double(error):
            self._fail(str(self.shards.first.double(error)))
        else:
            log.warning("%s; closing all clients, and waiting as a standby", error)
            if not self._acquiring and (self._stepping_down is None or self._stepping_down.done()):
                self._stepping_down = asyncio.create_task(self._step_down(), name="step down")

    async def _step_down(self) -> None:
        try:
            await self._give_up_shard()
            await self._serve()
        except StartError as error:
            self._fail(str(error))
        except Exception as error:
            # Otherwise the process would run without clients, and nobody would notice.
            log.exception("becoming a standby failed")
            self._fail(f"becoming a standby failed: {error!r}")
        else:
            log.info("Server is ready")

    async def _give_up_shard(self) -> None:
        """Close the clients and abandon the shards; return after T, so as not to compete with the new owner."""
        assert self.shards is not None
        assert self.jetstream is not None
        self._serving = False
        if self.gateway is not None:
            await self.gateway.close()
        if self.upstreams is not None:
            await self.upstreams.stop()
        await self.jetstream.close()
        await self.server.close()
        await self.shards.abandon()
        await asyncio.sleep(self.settings.storage.lease_ns / 1e9)

    # ---- monitoring --------------------------------------------------------------------------------------------------

    def _begin_to_wait(self) -> None:
        """Free the client port, and show the status of a standby in health checks: another broker owns the store."""
        self.server.unbind()
        self._show_pages()

    def _show_pages(self) -> None:
        """Serve the monitoring pages before clients may connect."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._show_early(), name="pages of a standby")

    async def _show_early(self) -> None:
        try:
            await self._start_pages()
        except StartError as error:
            self._fail(str(error))

    async def _start_pages(self) -> None:
        if self.pages is not None:
            await self.pages.start()

    @property
    def shard_owner(self) -> ShardOwner | None:
        """The owner of shard 0; None without JetStream."""
        return None if self.shards is None else self.shards.first

    @cached_property
    def views(self) -> Views:
        """The data of the monitoring pages."""
        from broker.runtime.sources import Sources

        return Sources(self).views

    @property
    def serving(self) -> bool:
        """Return whether clients may connect."""
        return self._serving

    @property
    def monitored_at(self) -> dict[str, Any]:
        """``http_host``, ``http_port`` and ``https_port`` of /varz."""
        if self.pages is not None:
            return self.pages.address
        return {"http_host": self.settings.monitoring.host or self.settings.clients.host, "http_port": 0,
                "https_port": 0}


def prepare_directory(path: str) -> None:
    """Create the store's directory. Raises: StartError in nats-server's words, which programs that start it search
    for."""
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


def refuse_nats_server(directory: str) -> None:
    """Refuse a directory with nats-server's streams: a broker on it would be empty, as if they were gone.

    Raises: StartError.
    """
    from broker.storage.paths import FORMAT  # imported only if JetStream is enabled

    if os.path.exists(os.path.join(directory, *FORMAT.split("/"))):
        return
    if (theirs := find_store_dir(directory)) is not None:
        raise StartError(f"Can't start JetStream: {theirs}, which jetblock does not read: move them with `jetblock "
                         f"migrate {directory} file://NEW_DIRECTORY` and start on the new directory, or name another "
                         "one to begin empty")


def _friendly_bytes(size: int) -> str:
    """Return a size as nats-server's log shows it; -1 means that there is no limit."""
    if size < 0:
        return "unlimited"
    power = min(max(size.bit_length() - 1, 0) // 10, 6)
    return f"{size / (1 << 10 * power):.2f} {'KMGTPE'[power - 1]}B" if power else f"{size} B"


def _tracer(settings: Settings, clock: Clock) -> OtelTracer:
    """Return the tracer of messages. Raises: StartError if its packages are not installed."""
    try:
        # Imported only if it is configured.
        from broker.runtime.otel import OtelTracer
    except ImportError as error:
        raise StartError(f"otlp_endpoint needs the packages of OpenTelemetry ({error}): pip install 'jetblock[otel]', "
                         "or remove the setting") from None
    return OtelTracer(settings.jetstream.otlp_endpoint, settings.server_name, clock)
