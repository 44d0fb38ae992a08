"""The data behind the monitoring pages, as plain values; the pages use nothing else.

The server and connections already use nats-server's field names; the pages select, sort, paginate and join. ``Views``
names the sources, which are called for each request, on the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["ACCOUNTS_MAX", "STREAMS_MAX", "AccountView", "Buckets", "Connections", "Health", "JetStreamAccount",
           "JetStreamView", "Sample", "SublistFigures", "Subscriptions", "Traffic", "Views"]

STREAMS_MAX: Final = 500
"""Bound on streams with series of their own on /metrics, the first by account and name; totals count all streams."""
ACCOUNTS_MAX: Final = 100
"""Bound on accounts with series of their own on /metrics, the first by name."""


class Connections(Protocol):
    """The source of /connz's rows, in the order of their cid."""

    def __call__(self, *, closed: bool = False) -> list[Mapping[str, Any]]:
        """Return open or closed connections."""


class Subscriptions(Protocol):
    """The source of subscriptions, as /subsz shows them."""

    def __call__(self, account: str = "", subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
        """Return the number of subscriptions, and an iterator over them.

        Args: ``account`` selects one account ("": all); ``subject`` selects those that match it ("": all).
        """


@dataclass(slots=True)
class SublistFigures:
    """Counts of the subscriptions of an account, and of the cache of their matches."""

    subscriptions: int = 0
    cached: int = 0
    inserts: int = 0
    removes: int = 0
    matches: int = 0
    """Lookups of subjects for which no route was cached; messages to other subjects are not counted."""
    cache_hits: int = 0
    """Lookups that found the route of their family: one client's inboxes, one consumer's acks."""
    fanout_max: int = 0
    fanout_total: int = 0
    """Sum of the receivers of all ``cached`` subjects."""

    def add(self, other: SublistFigures) -> None:
        """Add the figures of another account."""
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
    """Counts of messages and bytes, from clients and to clients."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True)
class AccountView:
    """An account. ``exports``, ``imports`` and ``mappings`` are as /accountz shows them."""

    name: str
    is_system: bool = False
    jetstream: bool = False
    connections: int = 0
    leafs: int = 0
    """The number of leaf connections."""
    slow_consumers: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    leaf_traffic: Traffic = field(default_factory=Traffic)
    """The part of ``traffic`` that is from leaf connections and to them."""
    sublist: SublistFigures = field(default_factory=SublistFigures)
    updated: str = ""
    """Time at which the account's settings were last read."""
    name_tag: str = ""
    """A name for people; "" if it is the account's name."""
    exports: Sequence[dict[str, Any]] = ()
    imports: Sequence[dict[str, Any]] = ()
    mappings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    """Members from the account's JWT: ``jwt``, ``issuer_key``, ``tags``, ``decoded_jwt``, ``revoked_user``…"""


@dataclass(slots=True)
class JetStreamAccount:
    """The JetStream of an account."""

    name: str
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    """Bytes that the account's memory streams reserve; ``reserved_storage``: bytes that its stored streams reserve."""
    reserved_storage: int = 0
    max_memory: int = -1
    """The account's limit; -1: none."""
    max_storage: int = -1
    api_total: int = 0
    api_errors: int = 0
    streams: int = 0
    consumers: int = 0
    messages: int = 0
    list_streams: Callable[[bool], Iterable[dict[str, Any]]] = lambda consumers: ()
    """Function that returns the streams in the order of their names, each as ``{name, created, config, state}``.

    If its argument is true, a stream also has iterables ``consumer_detail`` and ``direct_consumer_detail``.
    """
    stream_exists: Callable[[str], bool] = lambda stream: False
    consumer_exists: Callable[[str, str], bool] = lambda stream, consumer: False


@dataclass(slots=True)
class JetStreamView:
    """JetStream's figures since the start of the process."""

    config: dict[str, Any]
    """``max_memory``, ``max_storage``, ``store_dir``, ``strict``…"""
    limits: dict[str, Any] = field(default_factory=dict)
    """The limits that are configured."""
    api_level: int = 0
    accounts: Sequence[JetStreamAccount] = ()
    failed: Sequence[tuple[str, str]] = ()
    """Account and stream name of each stream that could not be restored, or cannot be stored."""


class Buckets(NamedTuple):
    """A histogram. ``counts[i]`` counts durations between ``bounds[i-1]`` and ``bounds[i]`` seconds; the last has no
    bound."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum_s: float


class Sample(NamedTuple):
    """A series of /metrics: the name of its metric, its value, and the values of its labels."""

    name: str
    value: float | Buckets
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Health:
    """The broker's health: ``ok``, or another ``status`` (``standby``, ``unavailable``, ``error``) with the reason."""

    status: str = "ok"
    error: str = ""
    serving: bool = True
    """Flag: clients can connect, whatever JetStream's state is."""


@dataclass(slots=True)
class Views:
    """The sources of the pages' data."""

    server_id: str
    server_name: str
    now: Callable[[], str]
    varz: Callable[[], dict[str, Any]]
    """Source of /varz, without the sections ``jetstream`` and ``http_req_stats`` and the counts that are derived."""
    health: Callable[[], Health]
    connections: Connections
    subscriptions_of: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]
    """Source of the subscriptions of a row of ``connections``, as /connz shows them in detail, made one by one."""
    certificates_of: Callable[[Mapping[str, Any]], Sequence[dict[str, str]]]
    """Source of the verified client certificate of a row of ``connections``, if there is one."""
    subscriptions: Subscriptions
    accounts: Callable[[], list[AccountView]]
    system_account: str = "$SYS"
    """Name of the system account; "" if there is none."""
    jetstream: Callable[[], JetStreamView | None] = lambda: None
    """Source of JetStream's figures; it returns None if JetStream is off."""
    samples: Callable[[], Iterable[Sample]] = tuple
    """Source of the values on /metrics."""
    more: Callable[[str, Mapping[str, str]], Generator[None, None, tuple[int, Any]] | None] = lambda path, query: None
    """Source of further pages, by path and query, made in steps: the status, and JSON members or a text. None: there is
    no such page."""
    leafs: Callable[[str, bool], list[dict[str, Any]]] = lambda account, subscriptions: []
    """Source of the rows of /leafz, of one account ("": all), with their subscriptions if the flag is set."""
    requests: Counter[str] = field(default_factory=Counter)
    """Counts of HTTP requests by page."""

    def head(self) -> dict[str, Any]:
        """Return the JSON members with which each page begins."""
        return {"server_id": self.server_id, "now": self.now()}
