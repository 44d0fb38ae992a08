"""The harness itself, tested with the real nats-server: start, kill, restart on the same ports, clean end."""

from __future__ import annotations

import asyncio

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
    """An error of the harness ends with the process's standard error."""
    process = NatsServerProcess("-c", "/nowhere/at/all.conf")
    with pytest.raises(ServerFailed, match="no such file"):
        await process.start()
    await process.close()


async def test_a_cancellation_is_not_lost_when_the_answer_comes_with_it() -> None:
    """A cancelled task ends, also if its client has just received an answer: see ``tests.wait_for``."""
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(asyncio.wait_for(answer, 5))
    await asyncio.sleep(0)
    answer.set_result("here")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.wait_for(asyncio.sleep(0, "there"), 5) == "there"
    for seconds in (0, 0.01):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), seconds)
