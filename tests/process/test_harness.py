"""The harness itself, shown on the real nats-server: start, kill, restart on the same ports, clean end."""

from __future__ import annotations

import pytest

from tests.harness import NatsServerProcess, ServerFailed


async def test_real_server_restarts_on_its_ports(nats_server: NatsServerProcess) -> None:
    """Ports come from the ports file and stay the same over a SIGKILL."""
    url, monitor_url = nats_server.url, nats_server.monitor_url
    assert (await nats_server.monitor("/varz"))["port"] == nats_server.port
    await nats_server.kill()
    assert nats_server.returncode == -9
    await nats_server.restart()
    assert (nats_server.url, nats_server.monitor_url) == (url, monitor_url)
    assert await nats_server.stop() == 0


async def test_failure_to_start_shows_the_lines() -> None:
    """An error raised by the harness ends with what the process wrote."""
    process = NatsServerProcess("-c", "/nowhere/at/all.conf")
    with pytest.raises(ServerFailed, match="no such file"):
        await process.start()
    await process.close()
