"""Connections that use up the open files: the store continues to work, and so do health checks, the log and reloads.

The limit is lowered while the broker runs (prlimit), so that some hundred connections reach it.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from tests.adversity.clients import connect, health, unexpected, until
from tests.certificates import Authority
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

LIMIT = 220


@contextmanager
def idle(port: int, count: int) -> Iterator[None]:
    """Open so many connections that send nothing."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", port), 60))
        yield
    finally:
        for each in opened:
            each.close()


def lower_limit(server: ServerProcess) -> None:
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@pytest.mark.parametrize("port", ["client", "tls", "websocket"])
async def test_idle_connections_leave_files_to_the_store(port: str, tmp_path: Path) -> None:
    """There are more connections than files, on each port: messages are stored, monitoring answers, the configuration
    is reloaded and another log file opened. When they leave, waiting clients are served."""
    config, log_file = tmp_path / "conf", tmp_path / "log"
    text = 'websocket { listen: "127.0.0.1:-1", no_tls: true, handshake_timeout: "60s" }\n'
    if port == "tls":
        files = Authority(tmp_path).server()
        text += f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}\nallow_non_tls: true\n'
    config.write_text(text)
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-c", str(config)) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"]))
        websocket = int((await broker.monitor("/varz"))["websocket"]["port"])
        lower_limit(broker)
        with idle(websocket if port == "websocket" else broker.port, LIMIT + 50):
            await broker.wait_line(r"Accept Error \(too many open files\): connections wait")
            assert open_files(broker) <= LIMIT - 50
            for _ in range(200):
                await js.publish("s", b"x")
            assert (await health(broker))[0] == 200
            config.write_text(f'{text}log_file: "{log_file}"\n')
            broker.send_signal(signal.SIGHUP)
            await until(lambda: _contains(log_file, "Reloaded server configuration"))
            late = asyncio.create_task(nats.connect(broker.url, connect_timeout=60))
        other = await late
        assert (await other.jetstream().publish("s", b"late")).seq == 201

        async def accepted_again() -> bool:
            # The line is in the first log if a descriptor was free for a moment before the reload.
            line = "connections are accepted again"
            return any(line in each for each in broker.stderr) or await _contains(log_file, line)

        # A paused listener tries again at intervals, so another port may serve its first client before this port logs.
        await until(accepted_again)
        lines = [*broker.stderr, *(await asyncio.to_thread(log_file.read_text)).splitlines()]
        errors = re.findall(r"Temporary (\w+) Accept Error", "\n".join(lines))
        assert len(errors) == len(set(errors)), errors
        assert not any("is not in the store yet" in line for line in lines)
        await nc.close()
        await other.close()
        assert not unexpected(broker)


async def _contains(file: Path, text: str) -> bool:
    return await asyncio.to_thread(lambda: file.exists() and text in file.read_text())


async def test_connections_that_come_and_go_at_the_limit(tmp_path: Path, nats_server: NatsServerProcess) -> None:
    """Each publish is acknowledged, as by nats-server, while others connect and leave as fast as they can."""
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}") as broker:
        for server in (nats_server, broker):
            nc = await connect(server.url)
            js = nc.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s"]))
            lower_limit(server)
            flood = asyncio.create_task(asyncio.to_thread(_flood, server.port, 3000))
            acked = 0
            while not flood.done():
                acked = (await js.publish("s", b"x", timeout=20)).seq
            await flood
            assert acked > 0
            await nc.close()
        assert not unexpected(broker)


def _flood(port: int, connections: int) -> None:
    held: list[socket.socket] = []
    for _ in range(connections):
        held.append(socket.create_connection(("127.0.0.1", port), 60))
        if len(held) > LIMIT + 20:
            for each in held[:30]:
                each.close()
            del held[:30]
    for each in held:
        each.close()


async def test_the_limit_is_raised_at_start_and_logged(tmp_path: Path) -> None:
    """The soft limit becomes the hard one, and the log has it, and the reserve. A warning is logged if
    ``max_connections`` exceeds it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = tmp_path / "conf"
    config.write_text("max_connections: 5000\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        broker = BrokerProcess("-c", str(config))
        await broker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    try:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
        await broker.wait_line(rf"Files: +at most {before[1]} open, the last 64 of them kept for the store")
        await broker.stop()
    finally:
        await broker.close()
    low = BrokerProcess("-c", str(config))
    low.command = ("prlimit", "--nofile=300:300", *low.command)
    async with low:
        await low.wait_line(r"max_connections is 5000, but this process may open only 300 files")
