"""Keeps a nats-server and the brokers behind it running, as one server to its operator.

    start   the workers; once they own their streams, nats-server; return when nats-server knows all that they want
    lost    a dead process is started again; while no worker owns the streams, clients are refused, as by a standby
    reload  both configurations are made again; all start again if the accounts with JetStream are others
    stop    the workers, which commit and acknowledge what they have, then nats-server

It offers what ``runtime.process`` needs of a broker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from broker import NATS_SERVER_VERSION, __version__
from broker.base.errors import StartError
from broker.base.nkeys import SERVER, public_key
from broker.base.reloads import Reloads
from broker.config.settings import ConfigError, Settings, make_settings, settings_table
from broker.front import nats_server
from broker.front.accounts import limit_notices, linked_names
from broker.front.addresses import Addresses
from broker.front.child import Child, ChildFailed
from broker.front.configuration import Link, front_lines, is_clustered, worker_settings

__all__ = ["Supervisor", "configuration_errors"]

log = logging.getLogger(__name__)

_FRONT: Final = "nats-server"
_INFORMED: Final = re.compile(r".* - Leafnode connection knows the interest of account (.*)")
_OTHER_OWNER: Final = re.compile("standby: another broker holds the lock ")
_FOR_NATS_SERVER: Final = re.compile(
    r"(PATH|HOME|TMPDIR|TZ|LANG|LC_.*|LD_LIBRARY_PATH|(SSL|GO|NATS_).*|(https?|all|no)_proxy)$",
    re.IGNORECASE)
"""The environment variables that nats-server gets."""

_LINKS_SECONDS: Final = 30.0
_QUIET_START_SECONDS: Final = 2.0
"""A start that takes longer than this serves the monitoring pages before it has ended."""


class MonitoringPages(Protocol):
    """The port of the monitoring pages."""

    @property
    def scheme(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def address(self) -> dict[str, Any]: ...
    async def bind(self) -> None: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def prepare(self, settings: Settings) -> Callable[[], None]: ...


class Supervisor:
    """nats-server and its workers. ``start`` and ``stop`` once each."""

    def __init__(self, settings: Settings, *, read: Callable[[], Settings] | None = None, worker: str,
                 make_pages: Callable[..., MonitoringPages]) -> None:
        """Args:
        make_pages: makes the monitoring pages' port from the settings, what the pages show, and their module.
        read: reads the settings again; None: there is no file.
        worker: the module that is a worker's main program.
        """
        if not settings.server_name:
            settings = make_settings({"server_name": public_key(SERVER, secrets.token_bytes(32))}, settings)
        self.settings = settings
        self.parts: dict[str, Callable[[Settings], Callable[[], None]]] = {}
        """The parts of this process that apply new settings."""

        self._read = read
        self._folder: Path | None = None
        self._ports = _Ports()
        self._port = settings.clients.port
        self._pages_path = f"/{secrets.token_urlsafe(16)}"
        self._pages_port = self._ports.reserve()
        self._links = [Link(f"{settings.server_name}-w{number}", self._ports.reserve(), self._ports.reserve(),
                            secrets.token_urlsafe(24)) for number in range(1, settings.front.workers + 1)]
        self._accounts = linked_names(settings)
        self._program = ""
        self._places: list[str] = []
        environ = {name: value for name, value in os.environ.items()
                   if not name.startswith("JETBLOCK_") or name.startswith(("JETBLOCK_PURE", "JETBLOCK_TEST_"))}
        # nats-server has no use for the keys of a bucket, which are in the environment of many processes.
        self._front = Child(_FRONT, lambda: (self._program, "-c", str(self._front_file), *settings.front.flags),
                            {name: value for name, value in environ.items() if _FOR_NATS_SERVER.match(name)},
                            self._front_logged)
        self._worker_files = [_unnamed_file() for _ in self._links]
        self._workers = [
            Child(f"worker {number + 1}",
                  lambda file=file: (sys.executable, "-m", worker, str(file)),  # type: ignore[misc]
                  environ, lambda text, number=number: self._worker_logged(number, text), [file])  # type: ignore[misc]
            for number, file in enumerate(self._worker_files)]
        self._informed: list[set[str]] = [set() for _ in self._links]
        self._pages: MonitoringPages | None = None
        self._early_pages: asyncio.Task[None] | None = None
        if settings.monitoring.port is not None or settings.monitoring.https_port is not None:
            self._pages = make_pages(settings, self._addresses(), module=f"{__package__}.web")
            self.parts["pages"] = self._pages.prepare
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._front_ports: dict[str, list[str]] = {}
        self._reloads = Reloads(self._read_and_apply, ConfigError, ChildFailed, ValueError)
        self._failed = asyncio.Event()
        self._why = ""

    @property
    def _front_file(self) -> Path:
        assert self._folder is not None
        return self._folder / "nats-server.conf"

    async def start(self) -> None:
        """Return when clients can connect. Raises: StartError."""
        settings = self.settings
        log.info("Starting jetblock %s, compatible with nats-server %s", __version__, NATS_SERVER_VERSION)
        log.info("  Name:     %s", settings.server_name)
        if settings.file:
            log.info("Using configuration file: %s (%s)", settings.file, settings.digest)
        for notice in (*settings.notices, *limit_notices(settings)):
            log.warning("%s", notice)
        self._program = await nats_server.find(settings.front.nats_server)
        if self._port < 0:
            self._port = self._ports.reserve(settings.clients.host)
        if self._pages is not None:
            await self._pages.bind()
            # Health checks must find a long start alive; a short one has no pages before its end.
            self._early_pages = asyncio.create_task(self._show_early(self._pages), name="pages of a start")
        try:
            self._write(settings)
            if errors := await nats_server.check(self._program, str(self._front_file), self._places):
                raise StartError(f"nats-server refuses the configuration: {errors}")
            if is_clustered(settings):
                await self._front.start()
            await asyncio.gather(*(worker.start() for worker in self._workers))
            await self._front.start()
        except ChildFailed as error:
            raise StartError(str(error)) from None
        await self._linked()
        if settings.process.ports_file_dir and self._folder is not None:
            self._front_ports = await nats_server.take_ports(self._folder, self._front.pid)
        if self._pages is not None:
            await self._pages.start()
        self._watching = asyncio.create_task(self._watch(), name="watch the workers")
        log.info("Listening for client connections on %s:%d", settings.clients.host, self._port)

    async def stop(self) -> None:
        """End the workers, then nats-server."""
        await self._reloads.cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await self._front.stop()
        if self._early_pages is not None:
            self._early_pages.cancel()
        if self._pages is not None:
            await self._pages.close()
        self._ports.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        for file in self._worker_files:
            os.close(file)

    async def failed(self) -> str:
        """Wait for an error that must end the process, and return its text."""
        await self._failed.wait()
        return self._why

    async def lame_duck(self) -> None:
        """Let nats-server ask its clients to connect elsewhere; return when it has ended."""
        if self._watching is not None:
            self._watching.cancel()
        self._front.send(signal.SIGUSR2)
        await self._front.ended()

    def ports(self) -> dict[str, list[str]]:
        """The content of the ports file: URLs by kind."""
        host = self.settings.clients.host
        # The monitoring pages of nats-server are for this process alone.
        found = {kind: urls for kind, urls in self._front_ports.items() if kind != "monitoring"}
        found["nats"] = [f"nats://{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{self._port}"]
        if self._pages is not None:
            found["monitoring"] = [f"{self._pages.scheme}://{self._pages.host}:{self._pages.port}"]
        return found

    # ---- reloads

    def reload(self, done: Callable[[str], object]) -> None:
        """Read the settings again and apply them; ``done`` is called with the errors, or with ""."""
        self._reloads.begin(done)

    async def _read_and_apply(self) -> None:
        """Raises: ConfigError, ChildFailed, ValueError: nothing has changed."""
        if self._read is None:
            raise ConfigError("can only reload config when a file is provided using -c or --config")
        new = await asyncio.to_thread(self._read)
        new = make_settings({"server_name": new.server_name or self.settings.server_name}, new)
        old, accounts = self.settings, linked_names(new)
        fixed = ["server_name", "clients.host", "clients.port", *(
            row.path for row in settings_table()
            if row.reload is None and row.path.startswith(("front.", "monitoring.", "process.")))]
        if wrong := [f"config reload not supported for {path}: old={old[path]}, new={new[path]}" for path in fixed
                     if old[path] != new[path]]:
            raise ConfigError("\n".join(wrong))
        ready = [prepare(new) for prepare in self.parts.values()]
        before = self._accounts
        self._accounts = accounts
        try:
            self._write(new)
            if errors := await nats_server.check(self._program, str(self._front_file), self._places):
                raise ChildFailed(errors)
            # The workers first: what nats-server adds needs them.
            if accounts == before:
                for worker in self._workers:
                    await worker.reload()
                await self._front.reload()
        except ChildFailed:
            self._accounts = before
            self._write(old)
            for worker in self._workers:
                if worker.ready.is_set():
                    with suppress(ChildFailed):
                        await worker.reload()  # to the end: a later reload must not be taken for this one
            raise
        for apply in ready:
            apply()
        self.settings = new
        if accounts != before:
            log.info("Other accounts have JetStream now: starting nats-server and the workers again")
            await self._start_again()
        log.info("Reloaded server configuration (%s)", new.digest)

    async def _start_again(self) -> None:
        """End all processes and start them with their new configurations."""
        if self._watching is not None:
            self._watching.cancel()
        try:
            await asyncio.gather(*(worker.stop() for worker in self._workers))
            await self._front.stop()
            await asyncio.gather(*(worker.start() for worker in self._workers))
            await self._front.start()
            await self._linked()
        except ChildFailed as error:
            self._fail(str(error))
            return
        self._watching = asyncio.create_task(self._watch(), name="watch the workers")

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        self._failed.set()

    # ---- pages

    def _addresses(self) -> Addresses:
        return Addresses(f"http://127.0.0.1:{self._pages_port}{self._pages_path}", self._page_address,
                         tuple(self._links), lambda: sum(map(len, self._informed)))

    def _page_address(self) -> dict[str, Any]:
        return self._pages.address if self._pages is not None else {}

    async def _show_early(self, pages: MonitoringPages) -> None:
        await asyncio.sleep(_QUIET_START_SECONDS)
        await pages.start()

    def _write(self, settings: Settings) -> None:
        """Write the configurations; the folder is this user's alone. Raises: ChildFailed: the disk refuses them."""
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="jetblock-"))
            lines = front_lines(settings, self._links, self._accounts, pages_port=self._pages_port,
                                pages_path=self._pages_path, port=self._port,
                                ports_folder=str(self._folder) if settings.process.ports_file_dir else "")
            self._places = _write_lines(self._front_file, lines)
            for number, (link, file) in enumerate(zip(self._links, self._worker_files, strict=True)):
                data = pickle.dumps(worker_settings(settings, link, self._accounts, number))
                os.ftruncate(file, os.pwrite(file, data, 0))
        except OSError as error:
            raise ChildFailed(f"cannot write the configuration of nats-server: {error}") from None

    # ---- the children

    def _front_logged(self, text: str) -> None:
        if not text:
            for informed in self._informed:
                informed.clear()

    def _worker_logged(self, number: int, text: str) -> None:
        informed = self._informed[number]
        if found := _INFORMED.fullmatch(text):
            informed.add(found[1])
            self._changed.set()
        elif not text:
            informed.clear()
        elif len(self._workers) == 1 and (text.endswith("waiting as a standby") or _OTHER_OWNER.match(text)):
            self._workers[number].ready.clear()
            informed.clear()
            self._changed.set()

    async def _linked(self) -> None:
        """Wait until nats-server knows what the workers subscribe to in all accounts."""
        try:
            async with asyncio.timeout(_LINKS_SECONDS):
                while any(informed < set(self._accounts) for informed in self._informed):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("Not all workers are connected yet")

    async def _watch(self) -> None:
        """Let clients connect only while a worker owns the streams, or other servers may provide JetStream."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if is_clustered(self.settings) or any(worker.ready.is_set() for worker in self._workers):
                continue
            log.warning("No worker owns the streams: closing all clients")
            await self._front.stop()
            await asyncio.gather(*(worker.ready.wait() for worker in self._workers))
            try:
                await self._front.start()
            except ChildFailed as error:
                self._fail(str(error))
                return
            await self._linked()
            log.info("Server is ready")


async def configuration_errors(settings: Settings) -> str:
    """Return nats-server's errors about its configuration; "" if there are none. Raises: StartError."""
    program = await nats_server.find(settings.front.nats_server)
    with tempfile.TemporaryDirectory(prefix="jetblock-") as folder:
        path = Path(folder, "nats-server.conf")
        links = [Link("worker", 1, 1, "secret")]  # some of its blocks are valid only if JetStream can be reached
        places = _write_lines(path, front_lines(settings, links, linked_names(settings), pages_port=-1,
                                                pages_path="/", port=settings.clients.port))
        return await nats_server.check(program, str(path), places)


class _Ports:
    """Ports of this machine that are kept free for the children, also while they do not run (Linux)."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def reserve(self, host: str = "127.0.0.1") -> int:
        """Return a free port. Nobody listens on this socket, so a child may bind the port beside it."""
        holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port = int(holder.getsockname()[1])
        if sys.platform == "linux":
            self._held.append(holder)
        else:
            holder.close()
        return port

    def close(self) -> None:
        while self._held:
            self._held.pop().close()


def _write_lines(path: Path, lines: Sequence[tuple[str, str]]) -> list[str]:
    """Write the lines to a file, and return their places."""
    _write_whole(path, "".join(f"{text}\n" for text, _ in lines).encode())
    return [place for _, place in lines]


def _unnamed_file() -> int:
    """Return the descriptor of a file that ends with the processes that have it: settings have the master key and the
    keys of the bucket, which must not stay on a disk after a kill."""
    if sys.platform == "linux":
        return os.memfd_create("jetblock-settings")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.chmod(0o600)
    temporary.replace(path)


