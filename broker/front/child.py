"""A server process that is kept running: a dead one is started again, after a delay that grows.

    start ──> ready ──> ended ──[delay]──> start …            stop: SIGTERM, and SIGKILL if that takes too long

Owns: the process, its standard error, which becomes lines of this process's log, and the delays. Does not own: its
configuration (``configuration``); the decision when it must run (``supervisor``).

A child of a supervisor that was killed must not stay. On Linux the kernel ends it; a worker also reads the end of its
standard input.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from broker.base.backoff import Backoff
from broker.base.shielded import shielded

__all__ = ["Child", "ChildFailed"]

log = logging.getLogger(__name__)

_LINE: Final = re.compile(r"\[\d+\] (?:\S+ \S+ )?\[(INF|WRN|ERR|FTL|DBG|TRC)\] (.*)", re.DOTALL)
_LEVELS: Final = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR, "FTL": logging.CRITICAL,
                  "DBG": logging.DEBUG, "TRC": 5}
_READY: Final = "Server is ready"
_RELOADED: Final = "Reloaded server configuration"
_NOT_RELOADED: Final = "Failed to reload server configuration: "
_LINE_BYTES_MAX: Final = 1 << 20
_STEADY_SECONDS: Final = 10.0
"""A process that was ready for this long is started again without the delay of earlier failures."""

_STOP_SECONDS: Final = 30.0
_RELOAD_SECONDS: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1


class ChildFailed(Exception):
    """The process ended before it was ready, or refused a reload; the text is its last error."""


class Child:
    """One process. ``start`` and ``stop`` may be repeated."""

    def __init__(self, name: str, command: Callable[[], Sequence[str]], environ: Mapping[str, str],
                 on_line: Callable[[str], None] = lambda text: None, files: Sequence[int] = ()) -> None:
        """Args:
        name: the beginning of its lines in the log.
        command: called before each start of the process.
        on_line: called with the text of each line of its log, and with "" at the end of the process.
        files: descriptors that the process inherits.
        """
        self.name = name
        self.ready = asyncio.Event()
        """Set while the process serves."""

        self.starts = 0
        self._command = command
        self._environ = dict(environ)
        self._on_line = on_line
        self._files = files
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[str] | None = None
        self._reloaded: asyncio.Future[str] | None = None
        self._last_error = ""
        self._fatal: list[str] = []
        self._level = logging.INFO

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def kept(self) -> bool:
        """Flag: the process runs, or is about to be started again."""
        return self._keeping is not None

    async def start(self) -> None:
        """Start the process, and return when it is ready. Raises: ChildFailed if it ends before, the first time."""
        if self._keeping is None:
            self._failed = asyncio.get_running_loop().create_future()
            self.starts = 0
            self._keeping = asyncio.create_task(self._keep(), name=f"keep {self.name}")
        assert self._failed is not None
        ready = asyncio.ensure_future(self.ready.wait())
        try:
            await asyncio.wait((ready, self._failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self.ready.is_set() and self._failed.done():
            why = self._failed.result()
            await self.stop()
            raise ChildFailed(why)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process, and start no other one."""
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        process = self._process
        if process is not None:
            self.send(number)
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await shielded(keeping)
                return
            except TimeoutError:
                log.error("%s did not end within %g s; killing it", self.name, _STOP_SECONDS)
                self.send(signal.SIGKILL)
                await asyncio.wait((keeping,))
                return
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def ended(self) -> None:
        """Wait until the process, which was asked to end by itself, has ended; start no other one."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            await asyncio.wait((keeping,))

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def reload(self) -> None:
        """Let the process read its configuration again. Raises: ChildFailed if it refuses it."""
        self._reloaded = asyncio.get_running_loop().create_future()
        self.send(signal.SIGHUP)
        try:
            async with asyncio.timeout(_RELOAD_SECONDS):
                error = await self._reloaded
        except TimeoutError:
            error = f"no answer within {_RELOAD_SECONDS:g} s"
        finally:
            self._reloaded = None
        if error:
            raise ChildFailed(error)

    async def _keep(self) -> None:
        backoff = Backoff(0.1, 5.0)
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                status = await self._run()
            except OSError as error:
                status, self._last_error = -1, f"cannot start {self._command()[0]}: {(error.strerror or str(error))}"
            was_ready, why = self.ready.is_set(), "\n".join(self._fatal) or self._last_error
            self.ready.clear()
            self._process = None
            self._on_line("")
            if self._keeping is None:
                return
            assert self._failed is not None
            if not was_ready and self.starts <= 1:
                if not self._failed.done():
                    self._failed.set_result(why or f"{self.name} ended with status {status}")
                return
            if was_ready and loop.time() - begun > _STEADY_SECONDS:
                backoff.reset()
            delay = backoff.next()
            log.error("%s ended with %s; starting it again in %g s", self.name, _status(status), delay)
            await asyncio.sleep(delay)

    async def _run(self) -> int:
        """Run the process once, and return its status."""
        self.starts += 1
        self._last_error = ""
        self._fatal.clear()
        process = await asyncio.create_subprocess_exec(
            *self._command(), env=self._environ, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, limit=_LINE_BYTES_MAX, preexec_fn=partial(_prepare, os.getpid()),
            pass_fds=self._files)
        self._process = process
        log.info("Started %s as process %d", self.name, process.pid)
        assert process.stderr is not None
        if self._keeping is None:
            process.terminate()
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # a line that is longer than the buffer, which is dropped
                continue
            if not line:
                return await process.wait()
            self._log(line.decode("utf-8", "replace").rstrip("\r\n"))

    def _log(self, line: str) -> None:
        found = _LINE.fullmatch(line)
        text = found[2] if found else line
        if found:
            self._level = _LEVELS[found[1]]
        if self._level == logging.CRITICAL and self.starts == 1 and not self.ready.is_set():
            self._fatal.append(text)  # the text of ChildFailed, which the supervisor logs
        elif text != _READY:  # programs wait for this line, which the supervisor logs when all is ready
            log.log(self._level, "[%s] %s", self.name, text)
        if self._level >= logging.ERROR and found:
            self._last_error = text
        if not found and not self.ready.is_set() and line.strip():
            self._last_error = line  # an error of nats-server's command line
        if text == _READY:
            self.ready.set()
        elif self._reloaded is not None and not self._reloaded.done():
            if text.startswith(_RELOADED):
                self._reloaded.set_result("")
            elif text.startswith(_NOT_RELOADED):
                self._reloaded.set_result(text.removeprefix(_NOT_RELOADED))
        self._on_line(text)


def _status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _prepare(supervisor: int) -> None:
    """Prepare a new process: the terminal's signals are for the supervisor, and its end is this process's end (Linux).

    A session of its own would be scheduled apart from the supervisor's, where the kernel groups processes by sessions.
    """
    os.setpgid(0, 0)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:  # it ended before the call above
            os._exit(1)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
