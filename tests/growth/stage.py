"""The stage of a growth case: one separate broker, raw clients, and the stop watch.

    def play(stage: Stage, n: int) -> None:
        client = stage.client()                          # connected; `stage.client(user="a", password="p")`
        client.request("$JS.API.STREAM.CREATE.S", {…})   # the reply, decoded; not yet measured
        with stage.measured():                           # exactly once; ends when the broker is at rest
            client.send(b"SUB a 1\r\n" * n)
            client.sync()                                # PING, and everything up to its PONG

Clients are blocking sockets: one thread plays all parts, in the order of the program. While a client sends, it reads
the broker's output, so that neither side waits for the other.
"""

from __future__ import annotations

import http.client
import json
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["Client", "Figures", "Stage", "Template"]

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 100.0
"""Upper bound of any wait: more than any case needs whose growth is right."""

_REST_S = 0.02
_REST_CPU_S = 0.001
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Figures:
    """The broker's processor time in all its threads, its longest turn, and the number of turns.

    Attributes: ``pace_s``: the processor time of ``metered.reference_work`` just after the work.
    """

    cpu_s: float
    turn_s: float
    turns: int
    pace_s: float


class Template:
    """The process from which brokers are forked; started for the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, arguments: list[str], errors: Path) -> socket.socket:
        """Start a broker. Returns: its control socket."""
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.growth.metered", str(theirs.fileno())], cwd=ROOT,
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        ours, control = socket.socketpair()
        with control:
            request = json.dumps({"arguments": arguments, "errors": str(errors)}).encode()
            socket.send_fds(self._socket, [request], [control.fileno()])
        return ours

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(SECONDS)
        self._process = self._socket = None


class Stage:
    """A running broker; a context manager.

    Args: ``config``: the text of its configuration file; ``jetstream``: with streams in its own directory.
    Attributes: ``figures`` after ``measured``; ``started``: those of the start, which include reading the
    configuration.
    """

    def __init__(self, template: Template, config: str = "", *, jetstream: bool = False) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="jetblock-growth-"))
        self._config = self._directory / "server.conf"
        self._errors = self._directory / "errors"
        self.figures: Figures | None = None
        self._clients: list[Client] = []
        self.write(config)
        arguments = ["-c", str(self._config), "-a", "127.0.0.1", "-p", "-1", "-m", "-1",
                     "--ports_file_dir", str(self._directory)]
        if jetstream:
            arguments += ["-js", "-sd", str(self._directory / "store")]
        try:
            self._control = template.fork(arguments, self._errors)
            self._control.settimeout(SECONDS)
            self._answers = self._control.makefile("r")
            ports = self._ports()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self.port = int(ports["nats"][0].rpartition(":")[2])
        self._http_port = int(ports["monitoring"][0].rpartition(":")[2])
        self._rest()
        self.started = self._read_figures()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self._answers.close()
        self._control.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def client(self, **options: Any) -> Client:
        """Return a client that has sent CONNECT and received an answer; ``options`` are fields of CONNECT, ``password``
        for ``pass``."""
        client = Client(self.port)
        self._clients.append(client)
        client.connect(**options)
        return client

    def raw(self) -> Client:
        """Return a client that has sent nothing yet."""
        client = Client(self.port)
        self._clients.append(client)
        return client

    def page(self, path: str) -> bytes:
        """Return a monitoring page's body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, (path, answer.status, body[:500])
            return body
        finally:
            connection.close()

    def write(self, config: str) -> None:
        """Write the configuration file."""
        self._config.write_text(config)

    def reload(self) -> None:
        """Have the broker read its configuration file again; return when it has."""
        seen = self._lines("Reloaded server configuration")
        self._ask("reload")
        end = time.monotonic() + SECONDS
        while self._lines("Reloaded server configuration") == seen:
            failed = re.search(r".*Failed to reload.*", self.log())
            assert failed is None, failed
            assert time.monotonic() < end, self.log()[-2000:]
            time.sleep(0.005)

    def log(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure from here until the block has ended and the broker is at rest."""
        assert self.figures is None, "a case measures once"
        self._rest()
        self._ask("start")
        yield
        self._rest()
        self.figures = self._read_figures()

    def _read_figures(self) -> Figures:
        return Figures(**self._ask("figures"), **self._ask("pace"))

    def _rest(self) -> None:
        """Wait until the broker does next to nothing, so that all work after a reply has ended, slices and threads
        included."""
        end = time.monotonic() + SECONDS
        before = self._ask("figures")["cpu_s"]
        while time.monotonic() < end:
            time.sleep(_REST_S)
            now = self._ask("figures")["cpu_s"]
            if now - before < _REST_CPU_S:
                return
            before = now
        raise AssertionError("the broker does not come to rest")

    def _ask(self, command: str) -> dict[str, Any]:
        try:
            self._control.sendall(command.encode() + b"\n")
            answer = self._answers.readline()
        except ConnectionError:
            answer = ""
        assert answer, "the broker has ended:\n" + self.log()[-2000:]
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def _ports(self) -> dict[str, list[str]]:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for path in self._directory.glob("*.ports"):
                ports: dict[str, list[str]] = json.loads(path.read_text())
                return ports
            self._ask("figures")
            time.sleep(0.005)
        raise AssertionError("the broker does not start:\n" + self.log()[-2000:])

    def _lines(self, text: str) -> int:
        return self.log().count(text)


class Client:
    """A client on a blocking socket. The bytes that it reads are kept until the next ``sync`` or ``request`` returns
    them."""

    def __init__(self, port: int) -> None:
        self.closed = False
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._read: list[bytes] = []
        self._tail = b""
        self._pongs = 0
        self._requests = 0

    def connect(self, **options: Any) -> None:
        if "password" in options:
            options["pass"] = options.pop("password")
        fields = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
                  "lang": "test", "version": "1", **options}
        self.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\n")
        answer = self.sync()
        assert not self.closed, answer[-500:]

    def send(self, data: bytes) -> None:
        """Send everything, and read meanwhile; nothing more is sent to a connection that the broker has closed."""
        rest = memoryview(data)
        self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        try:
            while rest and not self.closed:
                events = self._wait()
                if events & selectors.EVENT_READ:
                    self._receive()
                if events & selectors.EVENT_WRITE and not self.closed:
                    try:
                        rest = rest[self._socket.send(rest):]
                    except BlockingIOError:
                        pass
                    except OSError:
                        self.closed = True
        finally:
            self._selector.modify(self._socket, selectors.EVENT_READ)

    def sync(self) -> bytes:
        """Send PING, and wait for its PONG or the end of the connection. Returns: everything read since the last
        time."""
        wanted = self._pongs + 1
        self.send(b"PING\r\n")
        while self._pongs < wanted and not self.closed:
            self._wait()
            self._receive()
        return self._pop_read()

    def read_until(self, pattern: bytes) -> bytes:
        """Wait until ``pattern``, a regular expression, has been read, or the connection ends. Returns: as ``sync``."""
        data = self._pop_read()
        while not re.search(pattern, data) and not self.closed:
            self._wait()
            self._receive()
            data += self._pop_read()
        return data

    def read_to_end(self) -> bytes:
        """Wait until the broker has closed the connection. Returns: as ``sync``."""
        while not self.closed:
            self._wait()
            self._receive()
        return self._pop_read()

    def request(self, subject: str, body: object = b"", headers: bytes = b"") -> Any:
        """Publish a request and wait for its reply. Returns: the reply's payload, decoded if it is JSON.

        Args: ``body``: bytes, or a value that is sent as JSON; ``headers``: a whole block, with its blank line.
        """
        if not self._requests:
            self.send(b"SUB _INBOX.growth.* growth\r\n")
        self._requests += 1
        reply = b"_INBOX.growth.%d" % self._requests
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        if headers:
            self.send(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply, len(headers),
                                                         len(headers) + len(payload),
                                                        headers, payload))
        else:
            self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(payload), payload))
        line = rb"H?MSG " + re.escape(reply) + rb" growth (?:(\d+) )?(\d+)\r\n"
        data = self.read_until(line)
        match = re.search(line, data)
        assert match is not None, data[-500:]
        hlen, size = int(match[1] or 0), int(match[2])
        data = data[match.end():]
        while len(data) < size + 2 and not self.closed:
            self._wait()
            self._receive()
            data += self._pop_read()
        content = data[hlen:size]
        return json.loads(content) if content[:1] in (b"{", b"[") else content

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._selector.close()
            self._socket.close()
        self.closed = True

    def _wait(self) -> int:
        events = self._selector.select(SECONDS)
        assert events, "the broker does not answer"
        return events[0][1]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        self._read.append(data)
        # A PONG may be cut in two.
        window = self._tail + data
        self._pongs += window.count(b"PONG\r\n")
        if b"PING\r\n" in window:
            self._socket.send(b"PONG\r\n")
        self._tail = window[-5:]

    def _pop_read(self) -> bytes:
        data, self._read = b"".join(self._read), []
        return data
