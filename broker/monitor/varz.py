"""The page /varz about the server. Source: nats-server, server/monitor.go (createVarz, updateVarzRuntimeFields)."""

from __future__ import annotations

from typing import Any

from broker.monitor.jsz import jetstream_stats
from broker.monitor.options import NoOptions
from broker.monitor.views import Views

__all__ = ["varz"]


def varz(views: Views, _: NoOptions) -> dict[str, Any]:
    """Return the page."""
    view = views.varz()
    slow_leafs = view.pop("slow_leafs", 0)
    jetstream = views.jetstream()
    if views.system_account:
        view["system_account"] = views.system_account
    return {
        **view, "cluster": {}, "gateway": {}, "mqtt": {},
        "jetstream": {"config": jetstream.config, "stats": jetstream_stats(jetstream), "limits": jetstream.limits}
        if jetstream else {},
        "routes": 0, "remotes": 0,
        "http_req_stats": dict(sorted(views.requests.items())),
        "slow_consumer_stats": {"clients": view["slow_consumers"], "routes": 0, "gateways": 0,
                                "leafs": slow_leafs},
        "stale_connection_stats": {"clients": view["stale_connections"], "routes": 0, "gateways": 0, "leafs": 0},
        # Streams are in an object store, so no waits for a disk are counted; jetblock's own metrics have the store's
        # waits.
        "disk_io_wait_stats": {"waiters": 0, "waits": 0, "wait_time": 0, "max_wait_time": 0},
    }
