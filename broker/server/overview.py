"""The server's parts as monitoring shows them, where they are too many to be shown unasked. No I/O.

Source: nats-server, server/monitor.go (newSubsDetailList, makePeerCerts, Subsz).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker.server.connection.statistics import peer_certificates, subscription_row
from broker.server.routing.statistics import subscriptions
from broker.server.server import Server

__all__ = ["certificates_of", "subscriptions_of", "subsz_rows"]


def subscriptions_of(server: Server, row: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The subscriptions of an entry of ``Server.connections``; of a closed one, the first of them."""
    if (closed := row.get("subscriptions_list_detail")) is not None:
        return closed  # type: ignore[no-any-return]
    client = server.clients.get(row["cid"])
    return [subscription_row(sub) for sub in client.subs.values()] if client is not None else []


def certificates_of(server: Server, row: dict[str, Any]) -> list[dict[str, str]]:
    """The certificate that the client of an entry of ``Server.connections`` was verified by; none if it is closed."""
    client = server.clients.get(row["cid"])
    return peer_certificates(client) if client is not None else []


def subsz_rows(server: Server, account: str = "", subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
    """/subsz entries of one account (""; all) that match a literal subject ("": all): how many, and each."""
    found = [(one.name, *subscriptions(one.router, subject.encode())) for one in server.accounts
             if account in ("", one.name)]
    rows = ({"account": name, "account_tag": name, **subscription_row(sub)} for name, _, subs in found for sub in subs)
    return sum(count for _, count, _ in found), rows
