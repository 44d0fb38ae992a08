"""Starts brokers by forking a process that has imported the broker's modules: most of a start's time is imports.

    test process                      template                            broker
    ServerTemplate.start ── argv, environment, pipes ──> fork ──────────> broker.__main__.main()
             <── its process ID ──────┘
             <── exit status, on a pipe ── wait <──────────────────────── ends

A forked broker has its own process ID, environment, folder, standard error and signals, like any other. It does not
have a command line of its own. So tests about the command, the interpreter or the limits of a process start one by
``exec``, as does ``BrokerProcess`` if the environment has a variable that counts when the interpreter starts.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from tests.botocore_files import keep_files, load_files

__all__ = ["ForkedProcess", "ServerTemplate", "die_with_parent"]

ROOT = Path(__file__).resolve().parent.parent
_LIBC = ctypes.CDLL(None)
_IMPORTED: Final = ("broker.cli", "broker.config.load", "broker.runtime.process", "broker.runtime.shard_set",
                    "broker.runtime.store_host", "broker.runtime.jetstream_accounts", "broker.runtime.sources",
                    "broker.runtime.pages", "broker.monitor.listener", "broker.monitor.endpoints",
                    "broker.monitor.web", "broker.monitor.stacks", "broker.jetstream.engine",
                    "broker.jetstream.inbox.inbox", "broker.jetstream.api.disabled", "pydantic_settings",
                    "aiohttp.web", "aiobotocore.session", "uvloop")
"""The modules that a start imports, if they are installed."""


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, so that a killed test run leaves no servers behind (Linux)."""
    with suppress(OSError, AttributeError):
        _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class ForkedProcess:
    """A forked broker, with those members of ``asyncio.subprocess.Process`` that ``ServerProcess`` uses."""

    def __init__(self, pid: int, stderr: asyncio.StreamReader, status: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = status

    async def wait(self) -> int:
        """Wait for the end; return the exit status, or the negated number of a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(struct.unpack("i", await self._status.readexactly(4))[0])
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ServerTemplate:
    """The process that forks brokers for this test process, from its first use on (Linux)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-m", __name__, str(theirs.fileno())), env=environ, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                preexec_fn=die_with_parent)

    async def start(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path, *,
                    limit: int) -> ForkedProcess:
        """Start a broker; ``limit`` is that of the stream of its standard error."""
        request = json.dumps([arguments, dict(environ), str(cwd)]).encode()
        error, error_end = os.pipe()
        status, status_end = os.pipe()
        try:
            pid = await asyncio.to_thread(self._fork, request, [error_end, status_end])
        finally:
            os.close(error_end)
            os.close(status_end)
        return ForkedProcess(pid, await _reader(error, limit), await _reader(status, limit))

    def _fork(self, request: bytes, pipes: list[int]) -> int:
        with self._turn:
            socket.send_fds(self._control, [request], pipes)
            return int(self._control.recv(64))


async def _reader(pipe: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader),
                                                       os.fdopen(pipe, "rb", buffering=0))
    return reader


def _serve(control: socket.socket) -> None:
    """Fork a broker for each request and report how it ended, until the test process closes its socket."""
    for name in _IMPORTED:
        with suppress(ImportError):
            import_module(name)
    keep_files()
    load_files()
    from broker.jetstream.api.first_use import import_first_used

    import_first_used()
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    reports: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report(reports)
        if control.fileno() in ready:
            request, pipes, _, _ = socket.recv_fds(control, 1 << 20, 2)
            if not request:
                return
            arguments, environ, cwd = json.loads(request)
            error, report = pipes
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                os.dup2(error, 2)
                for other in (woken, wake, error, report, *reports.values()):
                    os.close(other)
                _become_broker(arguments, environ, cwd)
            os.close(error)
            reports[pid] = report
            control.send(str(pid).encode())


def _report(reports: dict[int, int]) -> None:
    """Write the wait statuses of all brokers that have ended to their pipes."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = reports.pop(ended[0])
            with suppress(BrokenPipeError):
                os.write(pipe, struct.pack("i", ended[1]))
            os.close(pipe)


def _become_broker(arguments: list[str], environ: dict[str, str], cwd: str) -> NoReturn:
    die_with_parent()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    random.seed()
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = [sys.argv[0], *arguments]
    status = 1
    try:
        import_module("broker.__main__").main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
