"""What the monitoring pages show, as plain values: who has the facts fills these in, and the pages look no further.

Counts are since the start of the process. Instants are Unix UTC nanoseconds, durations nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConnectionView", "Health", "JetStreamView", "RouterView", "ServerView", "SubscriptionView", "Views"]


@dataclass(slots=True)
class ServerView:
    """The server as a whole."""

    server_id: str
    server_name: str
    version: str
    host: str
    port: int
    """The true port; 0 while no client may connect (a standby)."""
    start_at_ns: int
    connections: int = 0
    total_connections: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    subscriptions: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    stalled_clients: int = 0
    auth_required: bool = False
    connect_urls: list[str] = field(default_factory=list)
    http_host: str = ""
    http_port: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of /varz that only repeat the configuration (``max_payload``, ``ping_interval``…)."""


@dataclass(slots=True)
class SubscriptionView:
    subject: str
    sid: str
    queue: str = ""
    msgs: int = 0
    """Messages delivered to it."""
    max_msgs: int = 0
    """After which it ends; 0: it does not."""
    cid: int = 0
    account: str = "$G"


@dataclass(slots=True)
class ConnectionView:
    """One open client connection."""

    cid: int
    ip: str
    port: int
    start_at_ns: int
    last_activity_at_ns: int
    subscriptions: int
    list_subscriptions: Callable[[], Iterable[SubscriptionView]]
    """Asked only where a page shows them: a connection may have a million."""
    rtt_ns: int = 0
    """0: not measured yet."""
    pending_bytes: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    account: str = "$G"


@dataclass(slots=True)
class RouterView:
    """The subject space's own figures."""

    num_subscriptions: int
    num_cache: int = 0
    num_inserts: int = 0
    num_removes: int = 0
    num_matches: int = 0
    cache_hit_rate: float = 0.0
    max_fanout: int = 0
    avg_fanout: float = 0.0


@dataclass(slots=True)
class JetStreamView:
    """JetStream's figures; ``streams`` in the API's own JSON, with what /jsz adds."""

    config: dict[str, Any]
    """``max_memory``, ``max_storage``, ``store_dir``, ``strict``…"""
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    api_level: int = 0
    api_total: int = 0
    api_errors: int = 0
    streams: int = 0
    consumers: int = 0
    messages: int = 0
    bytes: int = 0
    list_streams: Callable[[], Iterable[dict[str, Any]]] = tuple
    """Each as ``{name, created, config, state, consumer_detail: [ConsumerInfo…]}``."""


@dataclass(slots=True)
class Health:
    """``ok``, or a ``status`` (``standby``, ``unavailable``, ``error``) and why."""

    status: str = "ok"
    error: str = ""


@dataclass(slots=True)
class Views:
    """Where the pages get each of these; called anew for every request, on the event loop."""

    server: Callable[[], ServerView]
    health: Callable[[], Health]
    connections: Callable[[], Iterable[ConnectionView]] = tuple
    subscriptions: Callable[[], Iterable[SubscriptionView]] = tuple
    router: Callable[[], RouterView] = lambda: RouterView(0)
    jetstream: Callable[[], JetStreamView | None] = lambda: None
