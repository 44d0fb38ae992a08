"""The monitoring pages of NATS Streaming, as JSON values: /streaming/serverz, storez, clientsz, channelsz, isFTActive.

A page is made in steps, because a gateway may have a million subscriptions.

Source: nats-streaming-server, server/monitor.go.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.base.descriptors import open_files_max
from broker.base.gotime import format_time
from broker.config.streaming import LIMIT_KEYS, ChannelLimits

if TYPE_CHECKING:
    from broker.streaming.gateway import Gateway
    from broker.streaming.subscription import Subscription

__all__ = ["StreamingPages"]

Page = Generator[None, None, tuple[int, Any]]
"""A generator that returns the HTTP status, and the page: JSON members, or a text."""

_VERSION = "0.25.6"
"""The version of nats-streaming-server whose behaviour is the reference."""
_LIMIT = 1024
_INTEGER = re.compile("[+-]?[0-9]{1,18}")


class StreamingPages:
    """The pages of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._clock = gateway.clock
        self._started_ns = gateway.clock.now_ns()
        self._started_mono_ns = gateway.clock.monotonic_ns()

    def page(self, path: str, query: Mapping[str, str]) -> Page | None:
        """Return the page at a path below ``/streaming``, or None if there is none."""
        match path:
            case "/streaming":
                return self._index()
            case "/streaming/isFTActive":
                return self._is_active()
            case "/streaming/serverz":
                return self._serverz()
            case "/streaming/storez":
                return self._storez()
            case "/streaming/clientsz":
                return self._clientsz(query)
            case "/streaming/channelsz":
                return self._channelsz(query)
        return None

    @staticmethod
    def _index() -> Page:
        links = "".join(f"<a href=./streaming/{name}z>{name}</a><br/>\n" for name in (
            "server", "store", "clients", "channels"))
        yield
        return 200, f"<!doctype html>\n<title>NATS Streaming</title>\n<h1>NATS Streaming</h1>\n{links}"

    def _is_active(self) -> Page:
        """Answer as a server of a fault-tolerant group: without content while another one is active."""
        yield
        return 200 if self._gateway.serving else 204, ""

    def _head(self) -> dict[str, Any]:
        return {"cluster_id": self._gateway.settings.cluster_id, "server_id": self._gateway.server_id,
                "now": format_time(self._clock.now_ns())}

    def _totals(self) -> dict[str, int]:
        streams = [stream for name in self._names() if (stream := self._gateway.channels.existing(name)) is not None]
        return {"total_msgs": sum(stream.msgs for stream in streams),
                "total_bytes": sum(stream.size_bytes for stream in streams)}

    def _names(self) -> Sequence[str]:
        return self._gateway.channels.names() if self._gateway.serving else ()

    def _serverz(self) -> Page:
        gateway = self._gateway
        head = self._head()
        traffic = gateway.traffic
        yield
        return 200, {
            "cluster_id": head["cluster_id"], "server_id": head["server_id"], "version": _VERSION,
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "state": "STANDALONE" if gateway.serving else "FT_STANDBY", "now": head["now"],
            "start_time": format_time(self._started_ns),
            "uptime": _uptime((self._clock.monotonic_ns() - self._started_mono_ns) // 1_000_000_000),
            "clients": len(gateway.clients), "subscriptions": gateway.subscriptions.total if gateway.serving else 0,
            "channels": len(self._names()), **self._totals(), "in_msgs": traffic.in_msgs,
            "in_bytes": traffic.in_bytes, "out_msgs": traffic.out_msgs, "out_bytes": traffic.out_bytes,
            "open_fds": len(os.listdir("/dev/fd")), "max_fds": open_files_max()}

    def _storez(self) -> Page:
        settings = self._gateway.settings
        limits: dict[str, Any] = {"max_channels": settings.max_channels, **_limits(settings.general)}
        if settings.channels:
            limits["channels"] = {pattern: _limits(settings.limits_of(pattern)) for pattern, _ in settings.channels}
        yield
        return 200, {**self._head(), "type": "JETSTREAM", "limits": limits, **self._totals()}

    def _clientsz(self, query: Mapping[str, str]) -> Page:
        clients = self._gateway.clients
        with_subs = _integer(query.get("subs", "")) == 1
        if wanted := query.get("client", ""):
            if wanted not in clients:
                return 404, f"Client {wanted} not found"
            return 200, (yield from self._client(wanted, with_subs=with_subs))
        offset, limit = _window(query)
        shown = []
        for name in sorted(clients)[offset:offset + limit]:
            if name in clients:
                shown.append((yield from self._client(name, with_subs=with_subs)))
        return 200, {**self._head(), "offset": offset, "limit": limit, "count": len(shown), "total": len(clients),
                     "clients": shown}

    def _client(self, name: str, *, with_subs: bool) -> Generator[None, None, dict[str, Any]]:
        subs = self._gateway.subscriptions.of_client(name)
        shown: dict[str, Any] = {"id": name, "hb_inbox": self._gateway.clients[name].heartbeat_inbox,
                                 "subs_count": len(subs)}
        if with_subs and subs:
            by_channel: dict[str, list[dict[str, Any]]] = {}
            for sub in subs:
                by_channel.setdefault(sub.channel, []).append(self._subscription(sub))
                yield
            shown["subscriptions"] = by_channel
        return shown

    def _channelsz(self, query: Mapping[str, str]) -> Page:
        names = sorted(self._names())
        with_subs = _integer(query.get("subs", "")) == 1
        if wanted := query.get("channel", ""):
            if wanted not in names:
                return 404, f"Channel {wanted} not found"
            return 200, (yield from self._channel(wanted, with_subs=with_subs))
        offset, limit = _window(query)
        shown = names[offset:offset + limit]
        page = {**self._head(), "offset": offset, "limit": limit, "count": len(shown), "total": len(names)}
        if not with_subs:
            return 200, page | ({"names": shown} if shown else {})
        channels = []
        for name in shown:
            channels.append((yield from self._channel(name, with_subs=True)))
        return 200, page | ({"channels": channels} if channels else {})

    def _channel(self, name: str, *, with_subs: bool) -> Generator[None, None, dict[str, Any]]:
        stream = self._gateway.channels.existing(name)
        msgs, size, last = (0, 0, 0) if stream is None else (stream.msgs, stream.size_bytes, stream.last_seq)
        first = stream.first_seq if stream is not None and last else 0
        shown: dict[str, Any] = {"name": name, "msgs": msgs, "bytes": size, "first_seq": first, "last_seq": last,
                                 "subs_count": self._gateway.subscriptions.count(name)}
        if with_subs:
            subs = []
            for sub in self._gateway.subscriptions.of_channel(name):
                subs.append(self._subscription(sub))
                yield
            if subs:
                shown["subscriptions"] = subs
        yield
        return shown

    def _subscription(self, sub: Subscription) -> dict[str, Any]:
        last_sent, pending = self._gateway.subscriptions.group(sub).progress(sub)
        shown: dict[str, Any] = {"client_id": sub.client_id, "inbox": sub.inbox,
                                 "ack_inbox": f"{self._gateway.subjects.ack}.{sub.ack_id}"}
        if sub.queue:
            shown["queue_name"] = f"{sub.durable}:{sub.queue}" if sub.durable else sub.queue
        elif sub.durable:
            shown["durable_name"] = sub.durable
        return shown | {"is_durable": bool(sub.durable), "is_offline": not sub.online,
                        "max_inflight": sub.max_in_flight, "ack_wait": sub.ack_wait_seconds, "last_sent": last_sent,
                        "pending_count": pending, "is_stalled": pending >= sub.max_in_flight}


def _limits(limits: ChannelLimits) -> dict[str, int]:
    shown = {names[0]: getattr(limits, field) for field, names in LIMIT_KEYS.items()}
    shown["max_subscriptions"] = shown.pop("max_subs")
    return shown


def _integer(text: str) -> int:
    """Return a number; 0 for another text, as Go's Atoi does."""
    return int(text) if _INTEGER.fullmatch(text) else 0


def _window(query: Mapping[str, str]) -> tuple[int, int]:
    limit = _integer(query.get("limit", ""))
    return max(_integer(query.get("offset", "")), 0), limit if limit > 0 else _LIMIT


def _uptime(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    years = days // 365
    parts = [(years, f"{years}y"), (days, f"{days % 365}d"), (hours, f"{hours % 24}h"), (minutes, f"{minutes % 60}m")]
    return "".join(text for amount, text in parts if amount) + f"{seconds % 60}s"
