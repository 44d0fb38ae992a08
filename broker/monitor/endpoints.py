"""The pages by name, for HTTP and for requests to the system account: their options, and the functions that make them.

    endpoint = ENDPOINTS["CONNZ"]
    endpoint.build(views, from_query(endpoint.options, {"acc": "A"}))         /connz?acc=A
    endpoint.build(views, from_json(endpoint.options, {"acc": "A"}))          $SYS.REQ.SERVER.PING.CONNZ {"acc": "A"}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from broker.monitor.accountz import accountz, accstatz
from broker.monitor.clusters import gatewayz, ipqueuesz, leafz, routez
from broker.monitor.connz import connz, connz_in_steps
from broker.monitor.healthz import healthz
from broker.monitor.jsz import jsz, jsz_in_steps
from broker.monitor.options import (
    AccountzOptions,
    AccstatzOptions,
    ConnzOptions,
    GatewayzOptions,
    HealthzOptions,
    IpqueueszOptions,
    JszOptions,
    LeafzOptions,
    NoOptions,
    RoutezOptions,
    SubszOptions,
)
from broker.monitor.subsz import subsz, subsz_in_steps
from broker.monitor.varz import varz
from broker.monitor.views import Views

__all__ = ["ENDPOINTS", "Endpoint"]


class Endpoint(NamedTuple):
    """A page. ``build(views, options)`` makes it from an instance of ``options``. Raises: BadOption."""

    path: str
    options: type
    build: Callable[[Views, Any], dict[str, Any]]
    in_steps: Callable[[Views, Any], Generator[None, None, dict[str, Any]]] | None = None
    """Generator that makes a page that may be long, in steps, and returns it."""


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "VARZ": Endpoint("/varz", NoOptions, varz),
    "JSZ": Endpoint("/jsz", JszOptions, jsz, jsz_in_steps),
    "CONNZ": Endpoint("/connz", ConnzOptions, connz, connz_in_steps),
    "ACCOUNTZ": Endpoint("/accountz", AccountzOptions, accountz),
    "ACCSTATZ": Endpoint("/accstatz", AccstatzOptions, accstatz),
    "SUBSZ": Endpoint("/subsz", SubszOptions, subsz, subsz_in_steps),
    "ROUTEZ": Endpoint("/routez", RoutezOptions, routez),
    "LEAFZ": Endpoint("/leafz", LeafzOptions, leafz),
    "GATEWAYZ": Endpoint("/gatewayz", GatewayzOptions, gatewayz),
    "HEALTHZ": Endpoint("/healthz", HealthzOptions, healthz),
    "IPQUEUESZ": Endpoint("/ipqueuesz", IpqueueszOptions, ipqueuesz),
}
