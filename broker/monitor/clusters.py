"""The pages /routez, /gatewayz, /leafz, /ipqueuesz and /raftz about servers that work together.

A broker is in no cluster, so all pages but /leafz show what a nats-server without a cluster shows.
"""

from __future__ import annotations

from typing import Any

from broker.monitor.options import GatewayzOptions, IpqueueszOptions, LeafzOptions, RoutezOptions
from broker.monitor.views import Views

__all__ = ["NO_RAFT", "gatewayz", "ipqueuesz", "leafz", "routez"]

NO_RAFT = "No Raft nodes registered"
"""The answer of /raftz, which has the status 404."""


def routez(views: Views, _: RoutezOptions) -> dict[str, Any]:
    """Return the page: there are no routes."""
    head = views.head()
    return {"server_id": head["server_id"], "server_name": views.server_name, "now": head["now"], "num_routes": 0,
            "routes": []}


def gatewayz(views: Views, _: GatewayzOptions) -> dict[str, Any]:
    """Return the page: there are no gateways."""
    return views.head() | {"outbound_gateways": {}, "inbound_gateways": {}}


def leafz(views: Views, options: LeafzOptions) -> dict[str, Any]:
    """Return the page: the leaf connections, those of one account if it is named."""
    rows = views.leafs(options.account, options.subscriptions)
    return views.head() | {"leafnodes": len(rows), "leafs": rows}


def ipqueuesz(_: Views, __: IpqueueszOptions) -> dict[str, Any]:
    """Return the page: with one event loop, there are no queues between threads."""
    return {}
