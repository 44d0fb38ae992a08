"""The servers that a benchmark starts and stops: the real nats-server, jetblock, MinIO."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Self

__all__ = ["Minio", "Server", "environment", "jetblock", "nats_server", "with_tls"]

NATS_SERVER = pathlib.Path(sys.executable).parent / "nats-server"


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set these variables until the end of the block."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Process:
    """A child process with its own directory; both are removed at the end."""

    name = "process"

    def __init__(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="jetblock-bench-"))
        self.child: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def ready(self) -> bool:
        """Return whether the child answers."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def start(self) -> float:
        """Start the process and wait until it answers; return the seconds taken."""
        began = time.perf_counter()
        with open(self.dir / "log", "ab") as log:
            self.child = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.environment())
        while not self.ready():
            if self.child.poll() is not None or time.perf_counter() - began > 60:
                raise RuntimeError(f"{self.name} did not start:\n{self.log_tail()}")
            time.sleep(0.002)
        return time.perf_counter() - began

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.child and self.child.poll() is None:
            self.child.send_signal(how)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def cpu_s(self) -> float:
        """Processor time of the process so far, in seconds."""
        assert self.child
        return _cpu_s(pathlib.Path(f"/proc/{self.child.pid}/stat"))

    def loop_cpu_s(self) -> float:
        """Processor time of the first thread: in a broker, the event loop's."""
        assert self.child
        return _cpu_s(pathlib.Path(f"/proc/{self.child.pid}/task/{self.child.pid}/stat"))

    def log_tail(self) -> str:
        path = self.dir / "log"
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)


def _cpu_s(stat: pathlib.Path) -> float:
    words = stat.read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Server(Process):
    """A NATS server under test."""

    def __init__(self, name: str, words: list[str], env: dict[str, str] | None = None, config: str = "") -> None:
        super().__init__()
        self.name, self.words, self.env, self.config, self.http = name, words, env or {}, config, free_port()

    def command(self) -> list[str]:
        words = [*self.words, "-a", "127.0.0.1", "-p", str(self.port), "-m", str(self.http)]
        if self.config:
            (self.dir / "server.conf").write_text(self.config)
            words += ["-c", str(self.dir / "server.conf")]
        return [w.replace("{dir}", str(self.dir)) for w in words]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def varz(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/varz", timeout=10) as answer:
            return dict(json.load(answer))

    def puts(self) -> int:
        """Number of objects put so far, as the instrumented store counts them."""
        return int(self.varz()["jetblock"]["store"]["put"]["count"])

    def rss_mib(self) -> float:
        assert self.child
        for line in pathlib.Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")


def nats_server(*, jetstream: bool = True, sync: bool = False) -> Server:
    """Return the real nats-server, with its defaults or with an fsync before each PubAck."""
    config = 'jetstream { store_dir: "{dir}/js", sync_interval: always }' if sync else ""
    words = [str(NATS_SERVER), *(["-js", "-sd", "{dir}/js"] if jetstream and not sync else [])]
    server = Server("nats-server" + (" (sync always)" if sync else ""), words, config="")
    server.config = config.replace("{dir}", str(server.dir))
    return server


def jetblock(*, jetstream: bool = True, store: str = "", env: dict[str, str] | None = None, commit_interval: str = "",
             sync_interval: str = "") -> Server:
    """Return jetblock, on a fresh directory or on the given store."""
    words = [sys.executable, "-m", "broker", *(["--store", store or "file://{dir}/store"] if jetstream else [])]
    env = dict(env or {})
    if commit_interval:
        env["JETBLOCK_COMMIT_INTERVAL"] = commit_interval
    if sync_interval:
        env["JETBLOCK_SYNC_INTERVAL"] = sync_interval
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = root + os.pathsep + os.environ.get("PYTHONPATH", "")
    return Server("jetblock" + (f" (sync {sync_interval})" if sync_interval else ""), words, env)


def with_tls(server: Server) -> Server:
    """Return ``server``, with TLS for clients and a certificate made for it."""
    from tests.certificates import Authority

    files = Authority(server.dir).server()
    server.words += ["--tls", "--tlscert", files.cert, "--tlskey", files.key]
    return server


class Minio(Process):
    """A MinIO on a fresh directory with one bucket."""

    name = "minio"

    def __init__(self) -> None:
        super().__init__()
        self.env = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self.url = "s3://bench/store"

    def command(self) -> list[str]:
        from tests.real import parts

        (self.dir / "data" / "bench").mkdir(parents=True, exist_ok=True)  # A folder is a bucket for MinIO.
        return [str(parts.minio()), "server", str(self.dir / "data"), "--address", f"127.0.0.1:{self.port}",
                "--console-address", f"127.0.0.1:{free_port()}"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MINIO_ROOT_USER": "bench", "MINIO_ROOT_PASSWORD": "bench-secret"}

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/minio/health/ready", timeout=0.5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
