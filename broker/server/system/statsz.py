"""The server's main figures, published while somebody subscribes: ``$SYS.SERVER.<id>.STATSZ``.

They are published often at first, for observers of a server's start, then every ten seconds.

Source: nats-server, server/events.go (ServerStats, sendStatsz, heartbeatStatsz).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.server.routing.router import Router

__all__ = ["Statsz", "figures"]

_FIRST_SECONDS: Final = 0.25
_SECONDS: Final = 10.0


class Statsz:
    """Publishes the figures. ``message`` makes the message; it is called only if there is a subscriber."""

    def __init__(self, router: Router, server_id: str, message: Callable[[], bytes]) -> None:
        self._router = router
        self._subject = f"$SYS.SERVER.{server_id}.STATSZ".encode()
        self.message = message
        self._seconds = _FIRST_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop()
        self._seconds = _FIRST_SECONDS
        self._timer = loop.call_later(self._seconds, self._beat, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def publish(self) -> None:
        if self._router.interest(self._subject):
            self._router.publish(self._subject, b"", 0, self.message())

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._seconds = min(2 * self._seconds, _SECONDS)
        self._timer = loop.call_later(self._seconds, self._beat, loop)
        self.publish()


def figures(varz: Mapping[str, Any], active_accounts: int) -> dict[str, Any]:
    """Return the figures, taken from /varz."""
    sent = {"msgs": varz["out_msgs"], "bytes": varz["out_bytes"]}
    received = {"msgs": varz["in_msgs"], "bytes": varz["in_bytes"]}
    stats: dict[str, Any] = {
        **{name: varz[name] for name in ("start", "mem", "cores", "cpu", "connections", "total_connections")},
        "active_accounts": active_accounts, "subscriptions": varz["subscriptions"],
        "sent": sent, "sent_to_clients": sent, "received": received, "received_from_clients": received,
        "slow_consumers": varz["slow_consumers"]}
    for total, parts in (("slow_consumers", "slow_consumer_stats"), ("stale_connections", "stale_connection_stats")):
        if varz[total]:
            stats |= {total: varz[total], parts: varz[parts]}
    if varz["stalled_clients"]:
        stats["stalled_clients"] = varz["stalled_clients"]
    stats["active_servers"] = 1
    if jetstream := varz.get("jetstream"):
        config = {name: value for name, value in jetstream["config"].items() if name != "store_dir"}
        stats["jetstream"] = {**jetstream, "config": config}
    stats["gomaxprocs"] = varz["gomaxprocs"]
    return stats
