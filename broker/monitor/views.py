"""The data behind the monitoring pages, as plain values; the pages use nothing else.

Server and connections already use nats-server's field names; the pages select, sort, paginate and join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Connections", "Health", "JetStreamView", "Views"]


class Connections(Protocol):
    """Rows of /connz in the order of their cid."""

    def __call__(self, *, closed: bool = False, subs: bool = True) -> list[dict[str, Any]]:
        """Open or closed connections; ``subs`` False leaves out ``subscriptions_list_detail``."""


@dataclass(slots=True)
class JetStreamView:
    """JetStream's figures since the start of the process; ``list_streams`` in the API's own JSON."""

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
    """Each as ``{name, created, config, state, consumer_detail: [ConsumerInfo…]}``; called only if shown."""


@dataclass(slots=True)
class Health:
    """``ok``, or another ``status`` (``standby``, ``unavailable``, ``error``) with the reason."""

    status: str = "ok"
    error: str = ""
    serving: bool = True
    """Whether clients can connect, regardless of JetStream's state."""


@dataclass(slots=True)
class Views:
    """Sources of the pages' data, called for every request on the event loop."""

    varz: Callable[[], dict[str, Any]]
    """The server's part of /varz: ``server_id``, ``server_name``, counts, ``start``, ``uptime``…"""
    health: Callable[[], Health]
    connections: Connections
    subscription_count: Callable[[], int]
    jetstream: Callable[[], JetStreamView | None] = lambda: None
    """None: JetStream is off."""
