"""The data behind the monitoring pages, as plain values; the pages use nothing else.

Server and connections already use nats-server's field names; the pages select, sort, paginate and join. ``Views`` names
the sources, which are called for each request, on the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["ACCOUNTS_MAX", "STREAMS_MAX", "AccountView", "Buckets", "Connections", "Health", "JetStreamAccount",
           "JetStreamView", "Sample", "SublistFigures", "Subscriptions", "Traffic", "Views"]

STREAMS_MAX: Final = 500
"""Streams with series of their own on /metrics, the first by account and name; totals are over all."""
ACCOUNTS_MAX: Final = 100
"""Accounts with series of their own, the first by name."""


class Connections(Protocol):
    """Rows of /connz in the order of their cid."""

    def __call__(self, *, closed: bool = False) -> list[Mapping[str, Any]]:
        """Open or closed connections."""


class Subscriptions(Protocol):
    """Subscriptions, as /subsz shows them."""

    def __call__(self, account: str = "", subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
        """How many there are, and all of them: in one account (""; all), that ``subject`` would reach ("": all)."""


@dataclass(slots=True)
class SublistFigures:
    """The subscriptions of one account, and the cache of their matches."""

    subscriptions: int = 0
    cached: int = 0
    inserts: int = 0
    removes: int = 0
    matches: int = 0
    """Subjects looked up that no route was cached for; messages to others are not counted."""
    cache_hits: int = 0
    """Those that shared the route of their family (one client's inboxes, one consumer's acks)."""
    fanout_max: int = 0
    fanout_total: int = 0
    """Receivers of all ``cached`` subjects together."""

    def add(self, other: SublistFigures) -> None:
        """Add another account's."""
        self.subscriptions += other.subscriptions
        self.cached += other.cached
        self.inserts += other.inserts
        self.removes += other.removes
        self.matches += other.matches
        self.cache_hits += other.cache_hits
        self.fanout_max = max(self.fanout_max, other.fanout_max)
        self.fanout_total += other.fanout_total


@dataclass(slots=True)
class Traffic:
    """Messages and bytes from clients and to them."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True)
class AccountView:
    """One account. ``exports``, ``imports`` and ``mappings`` are as /accountz shows them."""

    name: str
    is_system: bool = False
    jetstream: bool = False
    connections: int = 0
    slow_consumers: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    sublist: SublistFigures = field(default_factory=SublistFigures)
    updated: str = ""
    """When its settings were last read."""
    name_tag: str = ""
    """A name for people; "": its name."""
    exports: Sequence[dict[str, Any]] = ()
    imports: Sequence[dict[str, Any]] = ()
    mappings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    """What an account has by its JWT: ``jwt``, ``issuer_key``, ``tags``, ``decoded_jwt``, ``revoked_user``…"""


@dataclass(slots=True)
class JetStreamAccount:
    """One account's JetStream."""

    name: str
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    """Bytes reserved by its streams."""
    reserved_storage: int = 0
    max_memory: int = -1
    """Its limit; -1: none."""
    max_storage: int = -1
    api_total: int = 0
    api_errors: int = 0
    streams: int = 0
    consumers: int = 0
    messages: int = 0
    list_streams: Callable[[bool], Iterable[dict[str, Any]]] = lambda consumers: ()
    """Each stream as ``{name, created, config, state}``, in the order of their names, with iterables ``consumer_detail`` and
    ``direct_consumer_detail`` if the argument is true; called only if shown."""
    stream_exists: Callable[[str], bool] = lambda stream: False
    consumer_exists: Callable[[str, str], bool] = lambda stream, consumer: False


@dataclass(slots=True)
class JetStreamView:
    """JetStream's figures since the start of the process."""

    config: dict[str, Any]
    """``max_memory``, ``max_storage``, ``store_dir``, ``strict``…"""
    limits: dict[str, Any] = field(default_factory=dict)
    """Those that are configured."""
    api_level: int = 0
    accounts: Sequence[JetStreamAccount] = ()
    failed: Sequence[tuple[str, str]] = ()
    """Account and stream of each that could not be restored, or cannot be stored."""


class Buckets(NamedTuple):
    """A histogram: ``counts[i]`` durations up to ``bounds[i]`` seconds and above the bound before; the last has none."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum_s: float


class Sample(NamedTuple):
    """One series of /metrics: of which metric, its value, and the values of its labels."""

    name: str
    value: float | Buckets
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Health:
    """``ok``, or another ``status`` (``standby``, ``unavailable``, ``error``) with the reason."""

    status: str = "ok"
    error: str = ""
    serving: bool = True
    """Whether clients can connect, regardless of JetStream's state."""


@dataclass(slots=True)
class Views:
    """The sources of the pages' data."""

    server_id: str
    server_name: str
    now: Callable[[], str]
    varz: Callable[[], dict[str, Any]]
    """/varz, but for the sections ``jetstream``, ``http_req_stats`` and what all connections are counted by."""
    health: Callable[[], Health]
    connections: Connections
    subscriptions_of: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]
    """The subscriptions of a row of ``connections``, as /connz shows them in detail; each is made when it is asked for."""
    certificates_of: Callable[[Mapping[str, Any]], Sequence[dict[str, str]]]
    """The certificate that the client of such a row was verified by, if any."""
    subscriptions: Subscriptions
    accounts: Callable[[], list[AccountView]]
    system_account: str = "$SYS"
    """"": there is none."""
    jetstream: Callable[[], JetStreamView | None] = lambda: None
    """None: JetStream is off."""
    samples: Callable[[], Iterable[Sample]] = tuple
    """/metrics."""
    requests: Counter[str] = field(default_factory=Counter)
    """HTTP requests by page."""

    def head(self) -> dict[str, Any]:
        """The members that pages begin with."""
        return {"server_id": self.server_id, "now": self.now()}
