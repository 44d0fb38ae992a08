"""Real S3 servers for tests: MinIO and SeaweedFS on free loopback ports, one of each for the session, ended by pid.

Only tests/conftest.py may import the fixtures: each further import would make another fixture, and another server. If a
server is not available, the test is skipped with a reason that begins with ``MISSING``, which ``report_missing`` prints
at the end. If JETBLOCK_TEST_S3 is set, ``minio`` is the service that AWS_ENDPOINT_URL and the AWS credentials name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.real import parts

__all__ = ["MISSING", "S3Server", "free_port", "minio", "own_minio", "report_missing", "seaweed",
           "session_of"]

MISSING = "real part missing: "
_USER, _SECRET = "jetblock-test", "jetblock-test-secret"
_START_TIMEOUT_S = 60


@dataclass
class S3Server:
    """A running S3 endpoint with an empty bucket."""

    name: str
    endpoint: str
    env: dict[str, str]
    """The environment of a process that uses the server: AWS_ENDPOINT_URL and credentials."""
    process: subprocess.Popen[bytes] | None = None
    bucket: str = field(default_factory=lambda: f"jetblock-{secrets.token_hex(4)}")
    run: Callable[[dict[str, str]], subprocess.Popen[bytes]] | None = None
    """A function that starts a server with these credentials on the same data and port."""

    def new_url(self) -> str:
        """Return a new store: a prefix of the bucket that nothing else uses."""
        return f"s3://{self.bucket}/{secrets.token_hex(6)}"

    def make_bucket(self, name: str) -> None:
        """Make a bucket and put a first object, for which SeaweedFS needs seconds.

        Raises: the errors of botocore while the server is not ready.
        """
        from botocore.config import Config
        from botocore.session import Session

        session = Session()
        session.set_credentials(self.env["AWS_ACCESS_KEY_ID"], self.env["AWS_SECRET_ACCESS_KEY"],
                                self.env.get("AWS_SESSION_TOKEN"))
        client = session.create_client(
            "s3", region_name=self.env["AWS_REGION"], endpoint_url=self.endpoint,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=2,
                          read_timeout=10))
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=name)  # type: ignore[attr-defined]
        client.put_object(Bucket=name, Key="ready", Body=bytes(1 << 20))  # type: ignore[attr-defined]

    def end(self) -> None:
        """End the server that was started here, at once: SeaweedFS takes more than 10 s for SIGTERM."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def start_again(self, user: str = "", secret: str = "") -> None:
        """Start the ended server again with the same data and port, and with new credentials if they are given."""
        assert self.run is not None
        if user:
            self.env |= {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret}
        self.process = self.run(self.env)
        if not _ready(self):
            raise RuntimeError(f"{self.name} does not start again")


def session_of(server: S3Server, policy: str) -> dict[str, str]:
    """Return the environment of a process with the rights of ``policy``. MinIO grants that without its admin client."""
    from botocore.session import Session

    session = Session()
    session.set_credentials(server.env["AWS_ACCESS_KEY_ID"], server.env["AWS_SECRET_ACCESS_KEY"])
    sts = session.create_client("sts", region_name=server.env["AWS_REGION"], endpoint_url=server.endpoint)
    role = sts.assume_role(  # type: ignore[attr-defined]
        RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="broker", Policy=policy)
    key = role["Credentials"]
    return {**server.env, "AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_SESSION_TOKEN": key["SessionToken"]}


def free_port() -> int:
    """Return a loopback TCP port on which nobody listens just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start MinIO, or return the endpoint that the environment gives."""
    if os.environ.get("JETBLOCK_TEST_S3"):
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        kept = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        given = S3Server("given", endpoint, env | {"AWS_ENDPOINT_URL": endpoint,
                                                   "AWS_REGION": os.environ.get("AWS_REGION", "us-east-1")})
        given.make_bucket(given.bucket)
        yield given
        return
    server = _start("minio", tmp_path_factory.mktemp("minio"), _minio_command)
    yield server
    server.end()


@contextlib.contextmanager
def own_minio(folder: Path) -> Iterator[S3Server]:
    """Start a MinIO that one test may end and start again."""
    server = _start("minio", folder, _minio_command)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start SeaweedFS, a second S3 server, so that one server's habits are not taken for S3's rules."""
    server = _start("seaweed", tmp_path_factory.mktemp("seaweed"), _seaweed_command)
    yield server
    server.end()


def report_missing(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end the missing real parts, and the number of tests that did not run without them."""
    counts: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MISSING in reason:
            what = reason.partition(MISSING)[2]
            counts[what] = counts.get(what, 0) + 1
    for what, count in sorted(counts.items()):
        terminalreporter.write_line(f"NOT RUN: {count} tests, for want of {what}", red=True)


def _minio_command(folder: Path, port: int) -> list[str]:
    return [_binary(parts.minio), "server", str(folder), "--quiet", "--address", f"127.0.0.1:{port}",
            "--console-address", f"127.0.0.1:{free_port()}"]


def _seaweed_command(folder: Path, port: int) -> list[str]:
    ports = [f"-{part}={free_port()}" for part in (
        "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
        "s3.port.grpc")]
    return [_binary(parts.weed), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
            # the default ports are the same for all servers
            f"-s3.port={port}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            *ports, "-volume.max=8", "-master.volumeSizeLimitMB=256", "-master.telemetry=false"]


def _binary(get: Callable[[], Path]) -> str:
    try:
        return str(get())
    except parts.PartMissing as e:
        pytest.skip(f"{MISSING}{get.__name__}: {e}")


def _start(name: str, folder: Path, command: Callable[[Path, int], list[str]]) -> S3Server:
    """Start a server and make its bucket; use another port if somebody took the first one meanwhile."""
    log = folder / "server.log"
    data = folder / "data"
    data.mkdir()
    for attempt in range(3):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        line = command(data, port)

        def run(env: dict[str, str], line: list[str] = line) -> subprocess.Popen[bytes]:
            environment = os.environ | {
                "MINIO_ROOT_USER": env["AWS_ACCESS_KEY_ID"], "MINIO_ROOT_PASSWORD": env["AWS_SECRET_ACCESS_KEY"],
                "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
            with log.open("ab") as out:
                return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment,
                                        cwd=folder, preexec_fn=_die_with_parent)

        env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": _USER, "AWS_SECRET_ACCESS_KEY": _SECRET,
               "AWS_REGION": "us-east-1"}
        server = S3Server(name, endpoint, env, run(env), run=run)
        try:
            if _ready(server):
                return server
        except BaseException:
            server.end()
            raise
        server.end()
        print(f"{name} did not start, attempt {attempt}", file=sys.stderr)
    raise RuntimeError(f"{name} does not start:\n" + log.read_text(errors="replace")[-3000:])


def _ready(server: S3Server) -> bool:
    """Wait until the bucket is made; return False if the server ended, or took too long."""
    assert server.process is not None
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until:
        if server.process.poll() is not None:
            return False
        try:
            if server.name == "minio":
                urlopen(server.endpoint + "/minio/health/ready", timeout=2).close()
            server.make_bucket(server.bucket)
        except Exception:
            time.sleep(0.05)
        else:
            return True
    return False


def _die_with_parent() -> None:
    """Let the server die with the test run, so that a killed run leaves none behind (Linux)."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
