"""The metrics of all workers, added up, with nats-server's figures about clients in place of theirs.

Series that differ in a label are kept apart. Of a metric that is 1 while all is well, the lowest is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

__all__ = ["metrics_of"]

_LEAST: Final = frozenset({"jetblock_healthy", "jetblock_serving", "jetblock_store_up", "jetblock_lease_valid"})
_ACCOUNT: Final = {
    "jetblock_account_connections": ("conns",), "jetblock_account_subscriptions": ("num_subscriptions",),
    "jetblock_account_received_messages": ("received", "msgs"),
    "jetblock_account_received_bytes": ("received", "bytes"),
    "jetblock_account_sent_messages": ("sent", "msgs"), "jetblock_account_sent_bytes": ("sent", "bytes")}
"""Metrics of accounts, without the ending of counters, and the members of a row of nats-server's /accstatz."""


def metrics_of(workers: Sequence[str], front: Mapping[str, float], accounts: Iterable[Mapping[str, Any]],
               accept: str) -> tuple[bytes, str]:
    """Return the page and its content type.

    Args: ``workers``: their pages, as text; ``front``: nats-server's values by the names of their series;
        ``accounts``: rows of /accstatz.
    """
    families: dict[str, Metric] = {}
    for page in workers:
        for family in text_string_to_metric_families(page):
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples += family.samples
    registry = CollectorRegistry()
    registry.register(_Added(families.values(), front, list(accounts)))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class _Added(Collector):
    def __init__(self, families: Iterable[Metric], front: Mapping[str, float],
                 accounts: Sequence[Mapping[str, Any]]) -> None:
        self._families = families
        self._front = front
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            made = Metric(family.name, family.documentation, family.type)
            if (path := _ACCOUNT.get(family.name)) is not None:
                ending = "_total" if family.type == "counter" else ""
                for row in self._accounts:
                    value: Any = row
                    for name in path:
                        value = value.get(name, 0)
                    made.add_sample(family.name + ending, {"account": row.get("acc", "")}, value)
                yield made
                continue
            values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                key = sample.name, tuple(sample.labels.items())
                before = values.get(key)
                values[key] = (sample.value if before is None else min(before, sample.value) if family.name in _LEAST
                               else before + sample.value)
            for (name, labels), value in values.items():
                made.add_sample(name, dict(labels), self._front.get(name, value) if not labels else value)
            yield made
