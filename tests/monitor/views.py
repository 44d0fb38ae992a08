"""Data for the monitoring pages that a test can change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from broker.monitor.endpoints import ENDPOINTS
from broker.monitor.options import from_query
from broker.monitor.views import (
    AccountView,
    Health,
    JetStreamAccount,
    JetStreamView,
    Sample,
    SublistFigures,
    Views,
)

VARZ = {"in_msgs": 1, "in_bytes": 2, "out_msgs": 3, "out_bytes": 4, "slow_consumers": 0, "stale_connections": 0}


def row(cid: int, **fields: Any) -> dict[str, Any]:
    """Return an entry of /connz."""
    return {"cid": cid, "start": f"2026-01-01T00:00:0{cid}Z", "last_activity": f"2026-01-01T00:00:0{cid}.5Z",
            "rtt": f"{cid}ms", "pending_bytes": 0, "in_msgs": 0, "out_msgs": 0, "in_bytes": 0, "out_bytes": 0,
            "subscriptions": 0, "account": "$G", **fields}


SUB = {"subject": "foo.*", "qgroup": "q", "sid": "1", "msgs": 3, "cid": 2}
OPEN = [row(1, out_msgs=5, last_activity="2026-01-01T00:00:05Z"),
        row(2, out_msgs=9, subscriptions=1, rtt="900µs", authorized_user="joe"),
        row(3, in_bytes=7, pending_bytes=4, account="OTHER")]
CLOSED = [row(8, stop="2026-01-01T00:00:08Z", reason="Stale Connection"),
          row(9, stop="2026-01-01T00:00:07.5Z", reason="Client Closed")]
STREAM = {"name": "S", "config": {"name": "S"}, "state": {"messages": 1}}


class Server:
    """Data of a server; ``asked_for`` collects the ids of connections whose subscriptions were requested."""

    def __init__(self) -> None:
        self.health = Health()
        self.jetstream: JetStreamView | None = JetStreamView(
            {"max_memory": 1, "max_storage": 2, "store_dir": "/x"}, accounts=[
                JetStreamAccount("$G", streams=1, consumers=1, list_streams=self.streams, stream_exists="S".__eq__,
                                 consumer_exists=lambda stream, consumer: (stream, consumer) == ("S", "C"))])
        self.samples: list[Sample] = []
        self.asked_for: list[int] = []
        self.views = Views(
            "NID", "me", now=lambda: "2026-01-01T00:00:09.5Z", varz=lambda: dict(VARZ), health=lambda: self.health,
            connections=self.connections, subscriptions_of=self.subscriptions_of, certificates_of=lambda found: [],
            subscriptions=self.subscriptions, jetstream=lambda: self.jetstream, samples=lambda: self.samples,
            accounts=lambda: [AccountView("$G", connections=2, sublist=SublistFigures(7)), AccountView("OTHER"),
                              AccountView("$SYS", is_system=True)])

    def connections(self, *, closed: bool = False) -> list[Mapping[str, Any]]:
        return [dict(found) for found in (CLOSED if closed else OPEN)]

    def subscriptions_of(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.asked_for.append(found["cid"])
        return [SUB] if found["cid"] == 2 else []

    def subscriptions(self, account: str = "", subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
        return 9, ({"subject": f"s.{n}"} for n in range(9))

    def streams(self, consumers: bool) -> Iterable[dict[str, Any]]:
        return [STREAM | ({"consumer_detail": [{"name": "C", "config": {}}]} if consumers else {})]

    def page(self, name: str, **query: str) -> dict[str, Any]:
        """Make a page. Raises: BadOption."""
        endpoint = ENDPOINTS[name]
        return endpoint.build(self.views, from_query(endpoint.options, query))
