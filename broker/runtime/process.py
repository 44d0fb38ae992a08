"""The broker as a process: its loop, signals, log, pid and ports files, and exit status.

    SIGTERM SIGINT   clean shutdown, status 0; a second one exits at once, status 1
    SIGUSR2          lame duck mode: clients are asked to connect elsewhere, then a clean shutdown
    SIGUSR1          reopening the log file
    SIGHUP           reload of the configuration; if a changed setting needs a restart, nothing changes

The broker itself is ``broker.runtime.app``; this module starts and stops it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.base.descriptors import raise_limit
from broker.base.errors import StartError
from broker.base.garbage import Collector
from broker.config.settings import Settings
from broker.runtime.app import App
from broker.runtime.logging import LogLines
from broker.runtime.process_files import PortsFile, write_pid_file
from broker.runtime.reload import ReloadError

if TYPE_CHECKING:
    from broker.front.supervisor import Supervisor

__all__ = ["serve"]

log = logging.getLogger(__name__)

_NAMES = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupt", signal.SIGUSR1: "user defined signal 1",
          signal.SIGUSR2: "user defined signal 2", signal.SIGHUP: "hangup"}


def serve(settings: Settings, read: Callable[[], Settings] | None) -> int:
    """Run a broker until it is stopped, and end the process; ``read`` reads its configuration file again.

    Returns: the exit status, if the log file cannot be opened.
    """
    try:
        lines = LogLines(settings.logging)
    except OSError as error:
        print(f"jetblock: cannot write the log file {settings.logging.file}: {error.strerror}", file=sys.stderr)
        return 1
    # Threads that encode and put segments hold the interpreter for up to this long before the loop gets it back; the
    # default of 5 ms would be the loop's lag under load.
    sys.setswitchinterval(0.0005)
    raise_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        status = runner.run(_Process(settings, lines, read).run())
    # The loop no longer handles SIGINT, and the process ends anyway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Everything is closed. To take the interpreter's objects apart one by one would take longer than all the rest of
    # the stop.
    logging.shutdown()
    os._exit(status)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no build for this platform: slower, otherwise the same
        return None
    return uvloop.Loop


class _Process:
    """A run of the process: it starts the broker, waits for a reason to end, and stops it."""

    def __init__(self, settings: Settings, lines: LogLines, read: Callable[[], Settings] | None) -> None:
        self._settings = settings
        self._lines = lines
        self._app: App | Supervisor
        if settings.front.workers:
            # Imported only if there are workers.
            from broker.front.supervisor import Supervisor
            from broker.runtime.pages import Pages

            self._app = Supervisor(settings, read=read, worker=f"{__package__}.worker", make_pages=Pages)
        else:
            self._app = App(settings, read=read)
        self._app.parts |= {"log": self._prepare_log, "pid file": self._prepare_pid_file}
        self._collector = Collector()
        self._ended = asyncio.Event()
        self._lame_duck: asyncio.Task[None] | None = None
        self._ports_file = PortsFile(settings.process.ports_file_dir) if settings.process.ports_file_dir else None

    async def run(self) -> int:
        """Run the broker and return the exit status."""
        loop = asyncio.get_running_loop()
        # Garbage collection is off during a start (see broker.cli), but not during a long one, such as a standby's. To
        # enable it alone would have the first one examine all that was made until then, in one turn.
        loop.call_later(1.0, self._collector.start)
        for number in _NAMES:
            loop.add_signal_handler(number, self._signalled, number)
        starting = asyncio.create_task(self._start(), name="start")
        failed = asyncio.create_task(self._app.failed(), name="failed")
        ended = asyncio.create_task(self._ended.wait(), name="ended")
        try:
            await asyncio.wait((starting, ended, failed), return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not starting.result():
                return 1
            await asyncio.wait((ended, failed), return_when=asyncio.FIRST_COMPLETED)
            status = 0
            if failed.done():
                log.critical("%s", failed.result())
                status = 1
            return status
        finally:
            tasks = [task for task in (starting, failed, ended, self._lame_duck) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop()
            self._collector.stop()

    async def _start(self) -> bool:
        settings = self._settings
        try:
            if settings.process.pid_file:
                self._write_pid_file(settings.process.pid_file)
            await self._app.start()
        except StartError as error:
            log.critical("%s", error)
            return False
        except OSError as error:
            log.critical("%s", error)
            return False
        self._write_ports_file()
        self._collector.start()
        log.info("Server is ready")
        return True

    def _write_pid_file(self, path: str) -> None:
        try:
            write_pid_file(path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise StartError(f"Could not write pidfile: open {path}: {why}") from None

    def _write_ports_file(self) -> None:
        """Write the ports file. A failure does not end the process, as in nats-server: clients can connect without
        it."""
        if self._ports_file is None:
            return
        try:
            self._ports_file.write(self._app.ports())
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            log.error("Error writing ports file (%s): open %s: %s", self._ports_file.path, self._ports_file.path, why)

    async def _stop(self) -> None:
        log.info("Initiating Shutdown...")
        await self._app.stop()
        if self._ports_file is not None:
            self._ports_file.remove()
        log.info("Server Exiting..")

    def _signalled(self, number: signal.Signals) -> None:
        log.info('Trapped "%s" signal', _NAMES[number])
        if number == signal.SIGUSR1:
            if self._lines.reopen():
                log.info("File log re-opened")
            else:
                log.info("File log re-open ignored, not a file logger")
        elif number == signal.SIGHUP:
            self._app.reload(self._reloaded)
        elif number == signal.SIGUSR2:
            if self._lame_duck is None:
                self._lame_duck = asyncio.create_task(self._go_lame(), name="lame duck")
        elif self._ended.is_set():
            log.warning("Second signal: ending at once")
            os._exit(1)
        else:
            self._ended.set()

    def _reloaded(self, errors: str) -> None:
        for line in errors.splitlines():
            log.error("Failed to reload server configuration: %s", line)

    def _prepare_log(self, settings: Settings) -> Callable[[], None]:
        if settings.logging == self._app.settings.logging:
            return lambda: None
        try:
            return self._lines.prepare(settings.logging)
        except OSError as error:
            raise ReloadError(f"cannot write the log file {settings.logging.file}: {error.strerror}") from None

    def _prepare_pid_file(self, settings: Settings) -> Callable[[], None]:
        path = settings.process.pid_file
        return lambda: self._write_new_pid_file(path) if path != self._app.settings.process.pid_file else None

    def _write_new_pid_file(self, path: str) -> None:
        """Write the new pid file; the previous file stays, as on nats-server."""
        try:
            if path:
                self._write_pid_file(path)
        except StartError as error:
            log.error("%s", error)

    async def _go_lame(self) -> None:
        await self._app.lame_duck()
        self._ended.set()
