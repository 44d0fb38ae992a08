"""The server's connections and subscriptions for monitoring, made only on request, as they may be very many. No I/O.

Source: nats-server, server/monitor.go (newSubsDetailList, makePeerCerts, Subsz).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

from broker.server.connection.client import Client
from broker.server.connection.statistics import peer_certificates, subscription_row
from broker.server.routing.statistics import subscriptions
from broker.server.server import Server

__all__ = ["certificates_of", "connections", "subscriptions_of", "subsz_rows"]

_COLUMNS: Final[dict[str, Callable[[Client], Any]]] = {
    "cid": attrgetter("cid"), "account": attrgetter("account.name"), "subscriptions": lambda client: len(client.subs),
    "pending_bytes": attrgetter("pending_bytes"), "in_msgs": attrgetter("in_msgs"), "out_msgs": attrgetter("out_msgs"),
    "in_bytes": attrgetter("in_bytes"), "out_bytes": attrgetter("out_bytes")}
"""The columns by which rows are usually filtered and sorted; they do not need the whole row."""


class _OpenConnection(Mapping[str, Any]):
    """An entry of /connz that is made when it is shown: of ten thousand connections, a page shows a thousand."""

    __slots__ = ("_client", "_made", "_make")

    def __init__(self, client: Client, make: Callable[[Client], dict[str, Any]]) -> None:
        self._client = client
        self._make = make
        self._made: dict[str, Any] | None = None

    def _whole(self) -> dict[str, Any]:
        if self._made is None:
            self._made = self._make(self._client)
        return self._made

    def __getitem__(self, name: str) -> Any:
        column = _COLUMNS.get(name)
        return column(self._client) if column is not None and self._made is None else self._whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())


def connections(server: Server, *, closed: bool = False) -> list[Mapping[str, Any]]:
    """Return the entries of ``Server.connections``; those of open connections are made when they are shown."""
    if closed:
        return [*server.connections(closed=True)]
    return [_OpenConnection(client, server.row) for client in server.clients.values()]


def subscriptions_of(server: Server, row: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Return the subscriptions of an entry of ``Server.connections``, one by one.

    A closed connection has only the first of its subscriptions.
    """
    if (closed := row.get("subscriptions_list_detail")) is not None:
        return closed  # type: ignore[no-any-return]
    client = server.clients.get(row["cid"])
    return map(subscription_row, list(client.subs.values())) if client is not None else ()


def certificates_of(server: Server, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the certificate that verified the client of an entry of ``Server.connections``; [] if it is closed."""
    client = server.clients.get(row["cid"])
    return peer_certificates(client) if client is not None else []


def subsz_rows(server: Server, account: str = "", subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
    """Return the number of /subsz entries of one account ("": all) that match a subject ("": all), and the entries."""
    found = [(one.name, *subscriptions(one.router, subject.encode())) for one in server.accounts
             if account in ("", one.name)]
    rows = ({"account": name, "account_tag": name, **subscription_row(sub)} for name, _, subs in found for sub in subs)
    return sum(count for _, count, _ in found), rows
