"""The broker as a process: log lines for other programs, signals, files, exit statuses, compared with nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest

from broker import COMPILED
from tests.certificates import Authority
from tests.harness import ROOT, BrokerProcess, NatsServerProcess, ServerProcess, fetch

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])


def run(*words: str, environ: dict[str, str] | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run jetblock with these arguments to its end."""
    return subprocess.run([sys.executable, "-m", "broker", *words], capture_output=True, text=True, timeout=30, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})}, check=False)


def test_version() -> None:
    """The first line has nats-server's form, which other programs parse."""
    for word in ("--version", "-v", "version"):
        done = run(word)
        assert done.returncode == 0
        assert done.stdout.splitlines()[0] == "nats-server: v2.15.1"
        assert re.fullmatch(r"jetblock: v\d+\.\d+\.\d+", done.stdout.splitlines()[1])
        assert done.stdout.splitlines()[2] == f"hot path: {'compiled' if COMPILED else 'pure Python'}"


@pytest.mark.shows("operation.flags")
def test_help_and_unknown_flags() -> None:
    """Both print the usage; an unknown flag or word is an error, with a suggestion."""
    for word in ("--help", "-h", "help"):
        done = run(word)
        assert (done.returncode, "--store <url>" in done.stdout) == (0, True)
    done = run("-foo")
    assert (done.returncode, "--store <url>" in done.stdout) == (1, True)
    assert done.stderr == "flag provided but not defined: -foo\n"
    for flag, meant in (("--prot", "--port"), ("--stor_dir", "--store_dir"), ("--jetsream", "--jetstream"),
                        ("--http-port", "--http_port"), ("-dv", "-DV")):
        done = run(flag)
        assert (done.returncode, done.stderr) == (
            1, f"flag provided but not defined: -{flag.lstrip('-')}; did you mean {meant}?\n")
    assert run("inspct").stderr == 'jetblock: unrecognized command: "inspct"; did you mean inspect?\n'
    done = run("stray")
    assert (done.returncode, done.stderr) == (1, 'jetblock: unrecognized command: "stray"\n')


def test_print_config(tmp_path: Path) -> None:
    """The printed settings are those of flags, environment and file, and are a valid configuration."""
    path, shown = tmp_path / "x.conf", tmp_path / "shown.conf"
    path.write_text("port: 1\nmax_payload: 1KB\nauthorization { user: u, password: hunter2 }")
    done = run("--print-config", "-c", str(path), "--port", "5000", environ={"JETBLOCK_MAX_PENDING": "3MB"})
    assert (done.returncode, done.stderr) == (0, "")
    assert {"port: 5000", "max_payload: 1024", "max_pending: 3145728", '  password: "[REDACTED]"'} <= {
        *done.stdout.splitlines()}
    assert "hunter2" not in done.stdout
    shown.write_text(done.stdout)
    refused = run("-t", "-c", str(shown))
    assert refused.returncode == 1
    assert ('password is "[REDACTED]", which stands for a secret in what --print-config shows: write the secret itself'
            in refused.stderr)
    shown.write_text(done.stdout.replace("[REDACTED]", "hunter2"))
    assert run("-t", "-c", str(shown)).returncode == 0
    assert run("--print-config", "-c", str(shown)).stdout == done.stdout
    masked = run("-p", "-1", environ={"JETBLOCK_WEBSOCKET_TOKEN": "[REDACTED]"})
    assert masked.returncode == 1
    assert 'websocket.authorization.token is "[REDACTED]", which stands for a secret' in masked.stderr
    assert run("--print-config", "-p", "x").returncode == 1


@pytest.mark.shows("auth.no_auth_user")
@BOTH
async def test_no_auth_user(process: type[ServerProcess], tmp_path: Path) -> None:
    """A client without credentials logs in as that user, and wrong credentials are refused."""
    path = tmp_path / "x.conf"
    path.write_text("authorization { users [ {user: a, password: b} ] }\nno_auth_user: a")
    async with process("-c", str(path)) as broker:
        await (await nats.connect(broker.url)).close()
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(broker.url, user="a", password="x", allow_reconnect=False)


@pytest.mark.shows("operation.check")
def test_bad_configuration(tmp_path: Path) -> None:
    """A bad configuration ends with status 1 and the line that other programs search for."""
    path = tmp_path / "x.conf"
    for text, wanted in (("x: 1", f'nats-server: {path}:1:0: unknown field "x"\n'), ("port: [", "Parse error"),
                         ("ocsp: true", "not supported by this version of jetblock")):
        path.write_text(text)
        done = run("-c", str(path))
        assert done.returncode == 1
        assert wanted in done.stderr
    done = run("-p", "-1", environ={"JETBLOCK_PUTS_IN_FLIGHT": "many"})
    assert (done.returncode, "JETBLOCK_PUTS_IN_FLIGHT must be a whole number" in done.stderr) == (1, True)
    path.write_text("port: 4222")
    assert run("-t", "-c", str(path)).returncode == 0


def test_whose_error_it_is(tmp_path: Path) -> None:
    """Errors that nats-server reports, too, begin with its name; jetblock's own errors begin with jetblock's."""
    path = tmp_path / "x.conf"
    path.write_text("x: 1")
    assert run("-c", str(path)).stderr.startswith(f"nats-server: {path}:1:0: unknown field")
    path.write_text("authorization { token: t, user: u, password: p }")
    assert run("-c", str(path)).stderr.startswith("nats-server: ")
    assert run("-c", str(tmp_path / "none")).stderr.startswith("nats-server: open ")
    path.write_text("port: -1")
    assert run("-t", "-c", str(path)).stderr.startswith(f"nats-server: configuration file {path} is valid")
    for words in (("--store", "bucket/prefix"), ("-c", str(path), "--store", "x"), ("--signal", "stop"), ("scrub",),
                  ("-l", str(tmp_path / "none" / "log"))):
        done = run(*words)
        assert (done.returncode, done.stderr.startswith("jetblock: ")) == (1, True), done.stderr
    done = run("-p", "-1", environ={"JETBLOCK_PUTS_IN_FLIGHT": "many"})
    assert done.stderr.startswith("jetblock: environment")


def test_address_that_cannot_be_listened_on() -> None:
    """An address that cannot be used ends with status 1 and a fatal line that names the port."""
    with BlockedPort() as port:
        done = run("-a", "127.0.0.1", "-p", str(port))
    assert done.returncode == 1
    assert re.search(r"\[FTL\] Error listening on port: 127\.0\.0\.1:\d+, .*address already in use", done.stderr)
    assert "another process listens there: stop it, or choose another port (port, or -p)" in done.stderr
    with BlockedPort() as port:
        done = run("-a", "127.0.0.1", "-p", "-1", "-m", str(port))
    assert (done.returncode, "choose another port (http_port, or -m)" in done.stderr) == (1, True)
    done = run("-a", "192.0.2.1", "-p", "-1")
    assert (done.returncode, "this machine has no such address" in done.stderr) == (1, True)
    done = run("-a", "999.999.999.999", "-p", "-1")
    assert (done.returncode, "no such host" in done.stderr) == (1, True)


def test_store_directory_that_cannot_be(tmp_path: Path) -> None:
    """A directory that cannot be used ends with status 1 and the words that other programs search for."""
    file = tmp_path / "file"
    file.write_text("no directory")
    for path in (file, file / "below"):
        done = run("-js", "-sd", str(path), "-p", "-1")
        assert done.returncode == 1
        assert re.search(r"\[FTL\] .*storage directory is not a directory", done.stderr), done.stderr
    done = run("-js", "-sd", "/proc/nothing/here", "-p", "-1")
    assert done.returncode == 1
    assert re.search(r"\[FTL\] .*could not create storage directory", done.stderr), done.stderr


def test_pid_file_that_cannot_be_written(tmp_path: Path) -> None:
    """A pid file that cannot be written ends with status 1, nats-server's words and the given path."""
    (tmp_path / "file").write_text("")
    for path, why in ((tmp_path / "no" / "pid", "no such file or directory"), (tmp_path / "file" / "pid",
                      "not a directory"), (tmp_path, "is a directory")):
        done = run("-P", str(path), "-p", "-1")
        assert done.returncode == 1
        assert f"[FTL] Could not write pidfile: open {path}: {why}\n" in done.stderr
        assert "Errno" not in done.stderr


@pytest.mark.parametrize("flag", ["-l", "-P", "-c", "--ports_file_dir", "-sd"])
async def test_no_raw_error_of_a_path(flag: str, tmp_path: Path) -> None:
    """Each path that cannot be used is an error of one line, with the path and the reason, without an error number."""
    (tmp_path / "file").write_text("port: -1")
    path = str(tmp_path / "file" / "below")
    server = BrokerProcess("-js", flag, path) if flag != "--ports_file_dir" else BrokerProcess(
        "-a", "127.0.0.1", "-p", "-1", monitor=False, listen=False)
    try:
        if flag == "--ports_file_dir":
            server._directory = Path(path)
            await server.start(ready=False)
            await server.wait_line("Error writing ports file")
            await server.wait_line("Server is ready")
        else:
            await server.start(ready=False)
            assert await server.wait_end() == 1
        said = [line for line in server.stderr if path in line]
        assert len(said) == 1
        assert "not a directory" in said[0].lower()
        assert not any("Errno" in line or "Traceback" in line for line in server.stderr)
    finally:
        await server.close()


class BlockedPort:
    """Somebody else listens there."""

    def __enter__(self) -> int:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.shows("operation.log_lines", "operation.pid_file")
@BOTH
async def test_lines_and_files_of_a_start(process: type[ServerProcess], tmp_path: Path) -> None:
    """Both servers write the same log lines in order, the same ports file, and a pid file without a newline."""
    ports = tmp_path / "ports"
    ports.mkdir()
    pid_file = tmp_path / "pid"
    async with process("-P", str(pid_file), "-n", "somebody") as server:
        lines = list(server.stderr)
        form = rf"\[{server.pid}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} \[INF\] .*\n"
        assert all(re.fullmatch(form, line) for line in lines), lines
        listening = next(i for i, line in enumerate(lines) if
                         f"Listening for client connections on 127.0.0.1:{server.port}" in line)
        ready = next(i for i, line in enumerate(lines) if "Server is ready" in line)
        assert listening < ready
        assert pid_file.read_text() == str(server.pid)
        assert server.ports == {"nats": [f"nats://127.0.0.1:{server.port}"], "monitoring": [server.monitor_url]}
        assert (await server.monitor("/varz"))["server_name"] == "somebody"
        assert (await fetch(server.monitor_url + "/healthz"))[0] == 200


@BOTH
async def test_lines_about_configuration_and_tls(process: type[ServerProcess], tmp_path: Path) -> None:
    """Both servers log the file with its digest, at the start and after a reload, and the TLS mode of clients."""
    certificate = Authority(tmp_path).server()
    files = f'cert_file: "{certificate.cert}", key_file: "{certificate.key}"'
    path = tmp_path / "x.conf"
    using = rf"Using configuration file: {re.escape(str(path))} \(sha256:[0-9a-f]{{64}}\)"
    for text, said in ((f"tls {{ {files} }}", "TLS required for client connections"),
                       (f"tls {{ {files} }}\nallow_non_tls: true", "TLS available for client connections"),
                       (f"tls {{ {files}, handshake_first: true }}",
                        'Clients that are not using "TLS Handshake First" option will fail to connect')):
        path.write_text(text)
        async with process("-c", str(path)) as server:
            lines = [line.split("] ", 2)[-1].strip() for line in server.stderr]
            assert [bool(re.fullmatch(using, line)) for line in lines].count(True) == 1, lines
            assert said in lines
            if "\n" in text:
                path.write_text(f"{text}\nmax_payload: 1000")
                digest = run("-t", "-c", str(path)).stderr.rsplit("(", 1)[1].strip(")\n")
                server.send_signal(signal.SIGHUP)
                await server.wait_line(rf"Reloaded server configuration \({digest}\)")


def test_a_directory_named_twice(tmp_path: Path) -> None:
    """A directory named by flag and file, or twice in a file, is refused at the place where nats-server refuses it."""
    path = tmp_path / "x.conf"
    for text, words in ((f'jetstream {{ store_dir: "{tmp_path / "a"}" }}', ["-sd", str(tmp_path / "b")]),
                        (f'store_dir: "{tmp_path / "a"}"\njetstream: true', ["-sd", str(tmp_path / "a")]),
                        (f'store_dir: "{tmp_path / "a"}"\njetstream {{ store_dir: "{tmp_path / "b"}" }}', [])):
        path.write_text(text)
        for _ in range(5):  # nats-server reads keys in a random order: one time in eight it names the first directory
            theirs = subprocess.run([*NatsServerProcess.command, "-p", "-1", "-c", str(path), *words],
                                    capture_output=True, text=True, timeout=60, check=False)
            if "x.conf:1:0:" not in theirs.stderr:
                break
        ours = run("-p", "-1", "-c", str(path), *words)
        assert (theirs.returncode, ours.returncode) == (1, 1)
        assert ours.stderr.startswith(theirs.stderr.strip()), ours.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.conf"]


@pytest.mark.parametrize(("command", "module"), [
    ("backup", "broker.maintenance.copy_cli"), ("fsck", "broker.maintenance.fsck_cli"),
    ("inspect", "broker.inspect.cli"),
    ("migrate", "broker.migration.cli"), ("archive", "broker.archive.cli"), ("cost", "broker.maintenance.cost_cli"),
    ("adopt", "broker.runtime.adopt_cli"),
    ("pipeline", "broker.pipeline.cli")])
def test_a_command_interrupted_while_it_is_imported(command: str, module: str, tmp_path: Path) -> None:
    """Ctrl-C before the command handles it ends the command with a line, not with a traceback."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
""")
    done = subprocess.run([sys.executable, "-m", "broker", command], capture_output=True, text=True, check=False,
                          timeout=60, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"jetblock {command}: interrupted\n")


@pytest.mark.parametrize("name", ["python -m broker", "jetblock"])
def test_interrupted_at_the_start(name: str, tmp_path: Path) -> None:
    """SIGINT before the broker handles signals ends the process without output; here it waits for its file, a FIFO."""
    fifo = tmp_path / "x.conf"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "broker"] if " " in name else [
        sys.executable, "-c", "import sys; from broker.__main__ import main; sys.argv[0] = 'jetblock'; main()"]
    process = subprocess.Popen([*command, "-c", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               cwd=ROOT)
    with fifo.open("w"):  # opens once the process reads it
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGINT, "")


@pytest.mark.shows("operation.signals")
@BOTH
@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupt")])
async def test_clean_end(process: type[ServerProcess], number: signal.Signals, name: str) -> None:
    """A clean end with a client connected has status 0, notifies the client, and removes the ports file."""
    async with process() as server:
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        await nats.connect(server.url, allow_reconnect=False, closed_cb=on_closed)
        started = time.monotonic()
        assert await server.stop(number) == 0
        # Less than any time-out on the way: a write deadline is 10 s.
        assert time.monotonic() - started < 9
        assert any(f'Trapped "{name}" signal' in line for line in server.stderr)
        assert "Server Exiting.." in server.stderr[-1]
        assert not list(server._directory.glob("*.ports"))
        async with asyncio.timeout(30):
            await closed.wait()


@pytest.mark.shows("core.lame_duck")
@BOTH
async def test_lame_duck(process: type[ServerProcess], tmp_path: Path) -> None:
    """After SIGUSR2 a connected client is notified, new clients are refused, and without clients the broker ends with
    0."""
    config = tmp_path / "x.conf"
    for grace_s in (3, 12):  # on a busy machine it may be over when the client connects
        config.write_text(f'lame_duck_duration: "60s"\nlame_duck_grace_period: "{grace_s}s"\n')
        async with process("-c", str(config)) as server:
            notified = asyncio.Event()

            async def on_lame_duck(notified: asyncio.Event = notified) -> None:
                notified.set()

            client = await nats.connect(server.url, lame_duck_mode_cb=on_lame_duck, allow_reconnect=False)
            server.send_signal(signal.SIGUSR2)
            async with asyncio.timeout(30):
                await notified.wait()
            stayed = client.is_connected
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", server.port)
            await client.close()
            assert await server.wait_end() == 0
        if stayed:
            break
    assert stayed


@BOTH
async def test_log_file(process: type[ServerProcess], tmp_path: Path) -> None:
    """``-l`` logs to a file; after the file was moved, SIGUSR1 opens a new one by its name."""
    path = tmp_path / "x.log"
    server = process("-l", str(path))
    try:
        await server.start(ready=False)
        await until(lambda: path.exists() and "Server is ready" in path.read_text())
        path.rename(tmp_path / "x.log.1")
        server.send_signal(signal.SIGUSR1)
        await until(lambda: path.exists() and "re-opened" in path.read_text())
        assert await server.stop() == 0
        assert "Server Exiting.." in path.read_text()
        assert not server.stderr
    finally:
        await server.close()


async def until(condition: object, seconds: float = 30) -> None:
    """Wait for a condition on a file by polling."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (a file is what changes)
            await asyncio.sleep(0.01)


@pytest.mark.shows("operation.signals")
async def test_other_signals() -> None:
    """After SIGUSR1 without a log file, and after SIGHUP, the broker logs a line and continues."""
    async with BrokerProcess() as server:
        server.send_signal(signal.SIGUSR1)
        await server.wait_line("File log re-open ignored, not a file logger")
        server.send_signal(signal.SIGHUP)
        await server.wait_line(r"\[ERR\] Failed to reload server configuration: can only reload config when a file is "
                               r"provided "
                               "using -c or --config")
        await (await nats.connect(server.url)).close()


@BOTH
@pytest.mark.parametrize("named", [False, True])
async def test_temporary_store_is_warned_of(process: type[ServerProcess], named: bool, tmp_path: Path) -> None:
    """``-js`` alone logs that a reboot may lose the streams; with a directory there is no such line."""
    flags = ("-js", *(("-sd", str(tmp_path / "store")) if named else ()))
    async with process(*flags, environ={"TMPDIR": str(tmp_path)}) as server:
        said = [line for line in server.stderr
                if "[WRN] Temporary storage directory used, data could be lost on system reboot" in line]
        assert len(said) == (0 if named else 1)


@pytest.mark.shows("operation.signals", "operation.lame_duck_command")
async def test_signals_by_the_command(tmp_path: Path) -> None:
    """``--signal`` reaches a running broker by its id or its pid file; a missing process is an error."""
    pid_file = tmp_path / "pid"
    async with BrokerProcess("-P", str(pid_file)) as server:
        assert (await asyncio.to_thread(run, "--signal", f"reopen={server.pid}")).returncode == 0
        await server.wait_line("user defined signal 1")
        assert (await asyncio.to_thread(run, "-sl", f"quit={pid_file}")).returncode == 0
        assert await server.wait_end() == 0
    for word in ("stop", "stop=", "dance=1", "stop=/nowhere", "stop=99999999", "stop=0"):
        done = await asyncio.to_thread(run, "--signal", word)
        assert (done.returncode, done.stderr.startswith("jetblock: ")) == (1, True), word


async def test_configuration_of_a_run(tmp_path: Path) -> None:
    """A file's settings are in force: limits, user, port, monitoring under a base path, ports file."""
    ports = tmp_path / "ports"
    ports.mkdir()
    config = tmp_path / "x.conf"
    config.write_text(f'''
        listen: 127.0.0.1:-1
        http: "127.0.0.1:-1"
        http_base_path: /nats
        server_name: configured
        max_payload: 1k
        max_closed_clients: 1
        ports_file_dir: "{ports}"
        authorization {{ user: joe, password: secret }}
        jetstream: disabled
    ''')
    server = BrokerProcess("-c", str(config), listen=False, monitor=False)
    async with server:
        own = json.loads((server._directory / f"nats-server_{server.pid}.ports").read_text())
        assert not list(ports.iterdir()), "the flag beats the file"
        with pytest.raises(nats.errors.Error):
            await nats.connect(own["nats"][0], max_reconnect_attempts=0, allow_reconnect=False)
        client = await nats.connect(own["nats"][0], user="joe", password="secret")
        assert (client.max_payload, client._server_info["server_name"]) == (1000, "configured")
        status, body = await fetch(own["monitoring"][0] + "/nats/varz")
        assert (status, json.loads(body)["max_payload"]) == (200, 1000)
        await (await nats.connect(own["nats"][0], user="joe", password="secret", name="the last")).close()
        # The one that was refused has made room for it, as soon as its end is seen.
        async with asyncio.timeout(30):
            while True:
                _, body = await fetch(own["monitoring"][0] + "/nats/connz?state=closed")
                closed = [row.get("name") for row in json.loads(body)["connections"]]
                assert len(closed) <= 1
                if closed == ["the last"]:
                    break
                await asyncio.sleep(0.02)
        await client.close()


async def test_ipv6() -> None:
    """Addresses with colons are in brackets in the log and in the ports file."""
    server = BrokerProcess("-a", "::1", "-p", "-1", listen=False, monitor=False)
    try:
        async with server:
            found = await server.wait_line(r"Listening for client connections on (\[::1\]:\d+)")
            assert server.ports["nats"] == [f"nats://{found[1]}"]
            await (await nats.connect(server.url)).close()
    except AssertionError:
        if "cannot assign" in server.tail().lower() or "not supported" in server.tail().lower():
            pytest.skip("no IPv6 on this machine")
        raise


@pytest.mark.shows("operation.pid_file")
async def test_ports_file_appears_whole(tmp_path: Path) -> None:
    """The ports file is readable by everybody, and no temporary file is left."""
    async with BrokerProcess() as server:
        files = list(server._directory.iterdir())
        assert [path.name for path in files] == [f"nats-server_{server.pid}.ports"]
        assert stat.S_IMODE(files[0].stat().st_mode) & 0o400


async def test_second_signal_ends_at_once() -> None:
    """A second signal ends the process at once: the operator does not want to wait."""
    async with BrokerProcess() as server:
        os.kill(server.pid, signal.SIGSTOP)
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)
        os.kill(server.pid, signal.SIGCONT)
        assert await server.wait_end() in (0, 1)


NEVER = ("pydantic", "botocore", "aiobotocore", "aiohttp", "prometheus_client", "cryptography", "nacl", "websockets",
         "bcrypt",
         "cramjam", "nats", "numpy", "pyarrow", "pyspark", "broker.runtime.embedded", "broker.inspect",
         "broker.maintenance",
         "broker.migration", "broker.monitor", "broker.pipeline", "broker.jetstream.archive", "broker.jetstream.backup",
         "broker.jwt.claims", "broker.server.auth.callout", "broker.server.auth.tokens", "broker.server.operator",
         "broker.server.listeners.opening", "broker.server.listeners.proxy_protocol", "ctypes", "gzip", "tempfile")
"""Modules that few brokers need, or need only after the start."""
OF_FILES = ("broker.config.file", "broker.config.reading", "broker.config.syntax", "broker.jwt.token")
"""Modules that only a start with a configuration file needs."""
OF_STREAMS = ("broker.jetstream.stream.stream", "broker.jetstream.stream.publish", "broker.jetstream.stream.retention",
              "broker.jetstream.stream.state", "broker.jetstream.stream.upstream.follower", "broker.jetstream.consumer",
              "broker.jetstream.config", "broker.jetstream.api.streams", "broker.jetstream.api.consumers",
              "broker.jetstream.api.messages", "broker.jetstream.api.backups", "broker.jetstream.api.direct_get")
"""Modules for the first stream, consumer or request, which are loaded half a second after the start."""


@pytest.mark.parametrize("flags, without", [
    ([], (*NEVER, *OF_FILES, "broker.jetstream", "broker.storage", "broker.cluster", "msgpack", "zstandard")),
    (["-js"], (*NEVER, *OF_FILES, *OF_STREAMS)),
    (["-js", "-c"], (*NEVER, *OF_STREAMS)),
], ids=["core", "jetstream", "file"])
def test_nothing_is_imported_without_need(flags: list[str], without: tuple[str, ...], tmp_path: Path) -> None:
    """Until ``Server is ready``, modules of features that are not configured are not imported.

    Imports are nearly all of a start, and nearly every client test pays for one. How long it takes is measured by
    `python -m bench`; what is imported does not depend on the machine.
    """
    if "-c" in flags:
        config = tmp_path / "plain.conf"
        config.write_text("server_name: plain\naccounts { A { users: [ { user: a, password: a } ] } }\n")
        flags = [*flags, str(config)]
    command = [sys.executable, "-X", "importtime", "-m", "broker", "-a", "127.0.0.1", "-p", "-1", "-sd",
               str(tmp_path / "store")]
    imported = set()
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("import time:"):
                    imported.add(line.rpartition("|")[2].strip())
                elif "Server is ready" in line:
                    break
            else:
                pytest.fail("it did not start")
        finally:
            process.kill()
    assert {"broker.runtime.process", "asyncio"} <= imported
    assert not sorted(name for name in imported if any(name == one or name.startswith(f"{one}.") for one in without))


async def test_the_first_request_waits_for_no_import(tmp_path: Path) -> None:
    """All modules for JetStream's first stream are loaded without a request: a stream and a consumer import no more."""
    code = """
import asyncio, sys
from broker.runtime.embedded import Broker
async def main(directory):
    async with Broker(directory) as broker:
        await broker._app._loading
        import nats
        client = await nats.connect(broker.url)
        there = set(sys.modules)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_direct=True)
        await js.publish("s", b"x")
        await (await js.pull_subscribe("s", durable="d")).fetch(1)
        await js.get_last_msg("S", "s", direct=True)
        print(sorted(name for name in set(sys.modules) - there if name.startswith("broker.")))
        await client.close()
asyncio.run(main(sys.argv[1]))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path / "store"), cwd=ROOT,
                                                   stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out.decode().strip()) == (0, "[]")
