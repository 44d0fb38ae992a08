"""Latency of exported services: the choice of requests to measure, and the metric published for each.

    start ──request──> service ──response──> end
      └── requestor's RTT      └── responder's RTT, subtracted from the service's time

A request is measured by chance (``sampling`` in percent), or because its tracing headers request it:

    Uber-Trace-Id, B3 or X-B3-*, Traceparent

The metric is published in the exporting account. If there was no response, its status gives the cause: 400, the
request had no reply subject; 408, nobody waits for the response any more; 503, nobody received the request; 504, no
response came in time.

Source: nats-server, server/accounts.go (ServiceLatency, shouldSample, sendTrackingLatency).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

from broker.access.sharing import Latency
from broker.base.gojson.encoding import marshal
from broker.base.gotime import format_time
from broker.protocol import headers
from broker.server.routing.router import Router
from broker.server.routing.subscription import Source
from broker.server.sharing.request_info import OwnClient

__all__ = ["HEADERS_MAX", "Measurement", "Meter", "sampled_by_headers"]

_TYPE: Final = "io.nats.server.metric.v1.service_latency"
_ERRORS: Final = {"bad request": (400, "Bad Request"), "interest lost": (408, "Request Timeout"),
                  "no delivery": (503, "Service Unavailable"), "timeout": (504, "Service Timeout")}

HEADERS_MAX: Final = 2048
"""Bound on the characters of the tracing headers that a metric shows: four times the size that tracers should keep
to."""

Headers = dict[str, list[str]]


class Meter:
    """Measures one service; ``router`` is the exporting account's."""

    def __init__(self, settings: Latency, router: Router, rng: random.Random, now_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._router = router
        self._rng = rng
        self._now_ns = now_ns

    def measure(self, source: Source | OwnClient, account: str, block: bytes, *, share: bool) -> Measurement | None:
        """Return the measurement of a request from ``source`` with the header ``block``; None if it is not measured."""
        sampling = self._settings.sampling
        found: Headers = {}
        if sampling < 100 and not (sampling and self._rng.randrange(100) <= sampling):
            asked = sampled_by_headers(block)
            if asked is None:
                return None
            found = asked
        return Measurement(self, source, account, found, self._now_ns(), share)

    def now_ns(self) -> int:
        return self._now_ns()

    def publish(self, members: dict[str, Any]) -> None:
        metric = {"type": _TYPE, "id": f"{self._rng.getrandbits(112):022x}"[:22],
                  "timestamp": format_time(self._now_ns()), **members}
        data = marshal(metric)
        self._router.publish(self._settings.subject.encode(), b"", 0, data)


class Measurement:
    """The measurement of one request."""

    __slots__ = ("_account", "_began_ns", "_headers", "_meter", "_share", "_source", "on_end")

    def __init__(self, meter: Meter, source: Source | OwnClient, account: str, found: Headers, began_ns: int,
                 share: bool) -> None:
        self._meter = meter
        self._source = source
        self._account = account
        self._headers = found
        self._began_ns = began_ns
        self._share = share
        self.on_end: Callable[[], None] | None = None

    def answered(self, responder: Source | None) -> None:
        """Publish the metric of a response from ``responder``; None: from the broker itself."""
        taken_ns = self._meter.now_ns() - self._began_ns
        after_ns = time.perf_counter_ns()
        request_rtt, response_rtt = _rtt(self._source), _rtt(responder)
        self._publish(200, "", responder.identity() if responder is not None else None, {
            "service": max(taken_ns - response_rtt, 0),
            "system": (system := time.perf_counter_ns() - after_ns if response_rtt else 0),
            "total": request_rtt + taken_ns + system})

    def failed(self, why: str) -> None:
        """Publish the metric of a request without a response."""
        status, text = _ERRORS[why]
        self._publish(status, text, None, {"service": 0, "system": 0, "total": 0})

    def dropped(self) -> None:
        """End the measurement without a metric: the service is not exported any more."""
        if self.on_end is not None:
            self.on_end()

    def _publish(self, status: int, error: str, responder: dict[str, Any] | None, times: dict[str, int]) -> None:
        if self.on_end is not None:
            self.on_end()
        members: dict[str, Any] = {"status": status}
        if error:
            members["description"] = error
        known = self._source.identity()
        members["requestor"] = known if self._share else {
            name: known[name] for name in ("acc", "rtt") if name in known} or {"acc": self._account}
        if responder is not None:
            members["responder"] = responder
        if self._headers:
            members["header"] = self._headers
        self._meter.publish(members | {"start": format_time(self._began_ns - _rtt(self._source))} | times)


def _rtt(peer: Source | OwnClient | None) -> int:
    return peer.rtt_ns if peer is not None else 0


def sampled_by_headers(block: bytes) -> Headers | None:
    """Return the tracing headers that request a measurement; None if none does."""
    if not block:
        return None
    found: Headers = {}
    for name, value in headers.items(block):
        # Go's net/textproto writes names in this way.
        canonical = "-".join(part.capitalize() for part in name.decode("utf-8", "replace").split("-"))
        found.setdefault(canonical, []).append(value.decode("utf-8", "replace"))
    for tracer, asks, belongs in _TRACERS:
        if tracer in found:
            if not asks(found[tracer][0]):
                return None
            return _bounded({one: found[one] for one in found if one == tracer or belongs(one)})
    return None


def _bounded(found: Headers) -> Headers:
    """Return the shortest members of ``found`` that together fit into ``HEADERS_MAX`` characters.

    The bound is needed because a million requests may wait for their responses.
    """
    kept: Headers = {}
    room = HEADERS_MAX
    sizes = {name: len(name) + sum(map(len, values)) for name, values in found.items()}
    for name in sorted(found, key=lambda name: sizes[name]):
        room -= sizes[name]
        if room < 0:
            break
        kept[name] = found[name]
    return kept


def _uber(value: str) -> bool:
    """Read trace:span:parent:flags. Bit 0 of the flags, one or two hexadecimal digits, requests a measurement."""
    parts = value.split(":")
    return len(parts) == 4 and 1 <= len(parts[3]) <= 2 and _low_bit(parts[3])


def _b3(value: str) -> bool:
    """Read trace-span-sampled-parent, or the sampled flag alone. Only 0 declines a measurement."""
    parts = value.split("-")
    return not (parts[2] == "0" if len(parts) > 2 else parts == ["0"])


def _traceparent(value: str) -> bool:
    """Read version-trace-span-flags. Bit 0 of the flags requests a measurement."""
    parts = value.split("-")
    return len(parts) == 4 and len(parts[3]) == 2 and _low_bit(parts[3])


def _low_bit(digits: str) -> bool:
    try:
        return bool(int(digits, 16) & 1)
    except ValueError:
        return False


_B3: Final = ("X-B3-Sampled", "X-B3-Traceid", "X-B3-Parentspanid", "X-B3-Spanid")

_TRACERS: Final[tuple[tuple[str, Callable[[str], bool], Callable[[str], bool]], ...]] = (
    ("Uber-Trace-Id", _uber, lambda name: name.startswith("Uberctx-")),
    ("X-B3-Sampled", lambda value: value != "0", _B3.__contains__),
    ("X-B3-Traceid", lambda value: True, _B3.__contains__),
    ("B3", _b3, lambda name: False),
    ("Traceparent", _traceparent, lambda name: name == "Tracestate"))
"""Tracers in nats-server's order: the header; whether its value requests a measurement; the headers shown with it."""
