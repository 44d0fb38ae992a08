"""The page /connz about open and closed connections.

Source: nats-server, server/monitor.go (Connz), server/monitor_sort_opts.go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from itertools import compress
from typing import Any, Final

from broker.base.gotime import parse_duration
from broker.monitor.options import CLOSED, LIMIT, OPEN, BadOption, ConnzOptions
from broker.monitor.steps import Steps, at_once, collect
from broker.monitor.views import Views
from broker.protocol.subject import collide

__all__ = ["connz", "connz_in_steps"]

_SORTS: Final[dict[str, tuple[Callable[[Mapping[str, Any]], Any], bool]]] = {
    # Option: sort key, and whether the highest comes first. Connection ids are in order of the start.
    "cid": (lambda row: row["cid"], False), "start": (lambda row: row["cid"], False),
    "subs": (lambda row: row["subscriptions"], True), "pending": (lambda row: row["pending_bytes"], True),
    "msgs_to": (lambda row: row["out_msgs"], True), "msgs_from": (lambda row: row["in_msgs"], True),
    "bytes_to": (lambda row: row["out_bytes"], True), "bytes_from": (lambda row: row["in_bytes"], True),
    # Without the trailing Z, timestamps sort as text.
    "last": (lambda row: row["last_activity"][:-1], True), "idle": (lambda row: row["last_activity"][:-1], False),
    "uptime": (lambda row: row["start"][:-1], True),
    "stop": (lambda row: row["stop"][:-1], True), "reason": (lambda row: row["reason"], False),
    "rtt": (lambda row: parse_duration(row.get("rtt", "0s")), True),
}
_ROWS: Final = 64
"""Number of connections that one step shows."""

Row = Mapping[str, Any]

_CLOSED_SORTS: Final = ("stop", "reason")

_GLOBAL_ACCOUNT: Final = "$G"
_WITH_AUTH: Final = frozenset({"authorized_user", "account", "jwt", "issuer_key", "name_tag", "tags"})
"""Members of a row that are shown only with ``auth``."""

_NOT_SHOWN: Final = _WITH_AUTH | {"subscriptions_list_detail"}


def connz(views: Views, options: ConnzOptions) -> dict[str, Any]:
    """Return the page at once. Raises: BadOption."""
    return at_once(connz_in_steps(views, options))


def connz_in_steps(views: Views, options: ConnzOptions) -> Steps:
    """Make the page, with a few connections or subscriptions in each step. Raises: BadOption.

    Connections that begin or end meanwhile may be shown or not.
    """
    sort, account, filter_subject = options.sort or "cid", options.account, options.filter_subject
    if sort not in _SORTS:
        raise BadOption(f"invalid sorting option: {sort}")
    if sort in _CLOSED_SORTS and options.state != CLOSED:
        raise BadOption(f"sort by {sort} only valid on closed connections")
    if filter_subject in ("", ">"):
        filter_subject = ""
    elif not account:
        raise BadOption("filter by subject only valid with account filtering")
    limit = options.limit if options.limit > 0 else LIMIT
    page = {**views.head(), "num_connections": 0, "total": 0, "offset": max(options.offset, 0),
            "limit": 1 if options.cid else limit, "connections": []}
    if account and all(found.name != account for found in views.accounts()):
        return page | {"server_id": "", "connections": None}

    def in_account(rows: list[Row]) -> Generator[None, None, list[Row]]:
        return (yield from _chosen(rows, lambda row: row["account"] == account)) if account else rows

    rows = (yield from in_account(views.connections())) if options.state != CLOSED else []
    total = len(rows)
    if options.cid:
        rows = [row for row in rows if row["cid"] == options.cid]
    elif filter_subject:
        receive = []
        for row in rows:
            if (yield from _receives(views, row, filter_subject.encode())):
                receive.append(row)
            yield
        rows = receive
    if options.state != OPEN:
        closed = yield from in_account(views.connections(closed=True))
        total += len(closed)
        if not options.cid:
            rows = rows + closed
        elif not rows:
            rows = [row for row in closed if row["cid"] == options.cid]
    if options.user:
        rows = yield from _chosen(rows, lambda row: row.get("authorized_user") == options.user)
    if options.mqtt_client:
        rows = []  # there is no MQTT
    key, highest_first = _SORTS[sort]
    keys = yield from collect(rows, key)
    order = sorted(range(len(rows)), key=keys.__getitem__, reverse=highest_first)
    rows = [rows[at] for at in order[page["offset"]:page["offset"] + page["limit"]]]
    shown = []
    for number, row in enumerate(rows):
        shown.append((yield from _shown(views, row, options)))
        if number % _ROWS == _ROWS - 1:
            yield
    return page | {"num_connections": len(rows), "total": total, "connections": shown}


def _chosen(rows: list[Row], wanted: Callable[[Row], bool]) -> Generator[None, None, list[Row]]:
    flags = yield from collect(rows, wanted)
    return list(compress(rows, flags))


def _receives(views: Views, row: Row, subject: bytes) -> Generator[None, None, bool]:
    found = yield from collect(views.subscriptions_of(row), lambda sub: collide(subject, sub["subject"].encode()))
    return any(found)


def _shown(views: Views, row: Row, options: ConnzOptions) -> Steps:
    """Return the requested members of a row."""
    shown = {name: value for name, value in row.items() if name not in _NOT_SHOWN}
    if options.subscriptions_detail:
        if details := (yield from collect(views.subscriptions_of(row), lambda sub: sub)):
            shown["subscriptions_list_detail"] = details
    elif options.subscriptions and (
            subjects := (yield from collect(views.subscriptions_of(row), lambda sub: sub["subject"]))):
        shown["subscriptions_list"] = subjects
    if options.auth:
        shown |= {name: value for name, value in row.items() if name in _WITH_AUTH}
        if certificates := views.certificates_of(row):
            shown["tls_peer_certs"] = list(certificates)
        shown.setdefault("name_tag", row["account"])
        if row["account"] == _GLOBAL_ACCOUNT:
            del shown["account"]
    return shown
