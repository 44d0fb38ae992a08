"""The server's figures: published periodically, often at first, and only for subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.access.accounts import User
from broker.server.system.statsz import Statsz, figures
from tests.server.in_process import running
from tests.server.system.listening import Listener

pytestmark = pytest.mark.shows("monitoring.statsz")

VARZ: dict[str, Any] = {
    "start": "2026-01-01T00:00:00Z", "mem": 1, "cores": 2, "cpu": 3.5, "connections": 4, "total_connections": 5,
    "subscriptions": 6, "in_msgs": 7, "in_bytes": 8, "out_msgs": 9, "out_bytes": 10, "slow_consumers": 0,
    "stale_connections": 0, "stalled_clients": 0, "gomaxprocs": 1, "slow_consumer_stats": {"clients": 0},
    "stale_connection_stats": {"clients": 0}, "jetstream": {}}


class Timers:
    """The timers of a loop, with the seconds after which each should run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def call_later(self, seconds: float, call: Callable[..., None], *given: object) -> asyncio.TimerHandle:
        self.seconds.append(seconds)
        return asyncio.get_running_loop().call_later(seconds, call, *given)


async def test_published_by_itself() -> None:
    """The first message comes soon, the next ones at growing intervals; none without subscribers, none after the
    end."""
    made = 0

    def message() -> bytes:
        nonlocal made
        made += 1
        return b"%d" % made

    async with running(users=(User("sys", "p", "$SYS"),)) as server:
        assert server.accounts.system is not None
        statsz = Statsz(server.accounts.system.router, "ID", message)
        statsz.publish()
        assert made == 0
        async with Listener(f"nats://127.0.0.1:{server.port}", "$SYS.SERVER.*.STATSZ") as listener:
            timers = Timers()
            statsz.start(timers)  # type: ignore[arg-type]
            for number in (1, 2):
                assert await listener.next("$SYS.SERVER.ID.STATSZ") == number
            assert timers.seconds[:2] == sorted(set(timers.seconds[:2]))
            assert timers.seconds[0] < 1
            statsz.stop()
            statsz.publish()
            assert await listener.next("$SYS.SERVER.ID.STATSZ") == 3


def test_figures() -> None:
    """The figures come from /varz; counts of zero are left out, and so is the streams' directory."""
    stats = figures(VARZ, active_accounts=2)
    assert stats == {
        "start": "2026-01-01T00:00:00Z", "mem": 1, "cores": 2, "cpu": 3.5, "connections": 4, "total_connections": 5,
        "active_accounts": 2, "subscriptions": 6, "sent": {"msgs": 9, "bytes": 10},
        "sent_to_clients": {"msgs": 9, "bytes": 10}, "received": {"msgs": 7, "bytes": 8},
        "received_from_clients": {"msgs": 7, "bytes": 8}, "slow_consumers": 0, "active_servers": 1, "gomaxprocs": 1}
    busy = figures(VARZ | {"slow_consumers": 1, "slow_consumer_stats": {"clients": 1}, "stale_connections": 2,
                           "stale_connection_stats": {"clients": 2}, "stalled_clients": 3,
                           "jetstream": {"config": {"max_memory": 1, "store_dir": "/x"}, "stats": {}, "limits": {}}}, 0)
    assert busy["slow_consumer_stats"] == {"clients": 1}
    assert (busy["stale_connections"], busy["stale_connection_stats"], busy["stalled_clients"]) == (2, {"clients": 2},
                                                                                                    3)
    assert busy["jetstream"] == {"config": {"max_memory": 1}, "stats": {}, "limits": {}}
