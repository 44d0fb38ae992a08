"""The monitoring pages: from a path and query to a status and body. No I/O; figures come from ``Views``.

Field names, parameters and error texts are nats-server's (server/monitor.go), so that dashboards, exporters and client
tests work with both. Pages about features that jetblock lacks answer 404, like any unknown path.
"""

from __future__ import annotations

import html
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from broker.clock import Clock
from broker.gotime import parse_duration
from broker.monitor.views import JetStreamView, Views
from broker.protocol.subject import is_literal, matches

__all__ = ["BadQuery", "Page", "Pages"]

_OF_USERS: Final = {"authorized_user", "account", "jwt", "issuer_key", "name_tag", "tags"}
"""Members of a row on /connz that are asked for by ``auth``."""

LIMIT = 1024
"""Default number of rows per page, as in nats-server."""

_CALLBACK = re.compile(r"[A-Za-z_$][\w$.]{0,127}")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})

_SORTS: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {
    # Option: sort key, and whether the highest comes first. Connection ids are in order of start.
    "cid": (lambda row: row["cid"], False), "start": (lambda row: row["cid"], False),
    "uptime": (lambda row: row["cid"], False),
    "subs": (lambda row: row["subscriptions"], True), "pending": (lambda row: row["pending_bytes"], True),
    "msgs_to": (lambda row: row["out_msgs"], True), "msgs_from": (lambda row: row["in_msgs"], True),
    "bytes_to": (lambda row: row["out_bytes"], True), "bytes_from": (lambda row: row["in_bytes"], True),
    # Without the trailing Z, timestamps sort as text.
    "last": (lambda row: row["last_activity"][:-1], True), "idle": (lambda row: row["last_activity"][:-1], False),
    "stop": (lambda row: row["stop"][:-1], True), "reason": (lambda row: row["reason"], False),
    "rtt": (lambda row: parse_duration(row.get("rtt", "0s")), True),
}
_HEALTH_FLAGS = ("js-enabled", "js-enabled-only", "js-server-only", "js-meta-only", "details", "live")
"""Flags of /healthz: nats-server's, and ``live``."""

_ENDED_SORTS = frozenset({"stop", "reason"})
_STATES = frozenset({"open", "closed", "any", "all"})


class BadQuery(Exception):
    """A malformed parameter: status 400 with this text."""


class Page:
    """A reply: status, content type, body."""

    __slots__ = ("body", "content_type", "status")

    def __init__(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.status = status
        self.body = body
        self.content_type = content_type


class _Query:
    """The parameters of one request."""

    def __init__(self, text: str) -> None:
        try:
            self._values = parse_qs(text, keep_blank_values=True, max_num_fields=64)
        except ValueError:
            raise BadQuery("too many parameters") from None

    def text(self, name: str) -> str:
        return self._values.get(name, [""])[0]

    def number(self, name: str, default: int = 0) -> int:
        value = self.text(name)
        if not value:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise BadQuery(f"Error decoding int for '{name}': strconv.Atoi: parsing {json.dumps(value)}: "
                           "invalid syntax")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value and value not in _TRUE and value not in _FALSE:
            raise BadQuery(f"Error decoding boolean for '{name}': strconv.ParseBool: parsing {json.dumps(value)}: "
                           "invalid syntax")
        return value in _TRUE

    def window(self) -> tuple[int, int]:
        """Offset and limit of a page of rows."""
        limit = self.number("limit")
        return max(self.number("offset"), 0), limit if limit > 0 else LIMIT


class Pages:
    """All pages under one base path. ``answer`` may be called at any time, also on a standby."""

    def __init__(self, views: Views, clock: Clock, base_path: str = "/") -> None:
        self._views = views
        self._base = "/" + base_path.strip("/") if base_path.strip("/") else ""
        self._asked: dict[str, int] = {}
        self._cpu = _Cpu(clock)
        self._pages: Mapping[str, Callable[[_Query], Page]] = {
            "/": self._root, "/varz": self._json(self._varz), "/connz": self._json(self._connz),
            "/subsz": self._json(self._subsz), "/subscriptionsz": self._json(self._subsz),
            "/jsz": self._json(self._jsz), "/healthz": self._healthz,
        }

    def answer(self, target: str) -> Page:
        """The reply to a request for ``target`` (path and query as received)."""
        try:
            path, _, parameters = target.partition("?")
            path = unquote(path)
            query = _Query(parameters)
        except BadQuery as error:
            return _plain(400, str(error))
        if not path.startswith(self._base):
            return _plain(404, "404 page not found\n")
        path = path[len(self._base):] or "/"
        page = self._pages.get(path)
        if page is None:
            return _plain(404, "404 page not found\n")
        self._asked[path] = self._asked.get(path, 0) + 1
        try:
            return _with_callback(page(query), query)
        except BadQuery as error:
            return _plain(400, str(error))

    def _json(self, make: Callable[[_Query], dict[str, Any]]) -> Callable[[_Query], Page]:
        return lambda query: Page(200, json.dumps(make(query), indent=2, ensure_ascii=False).encode())

    def _server_id(self) -> str:
        return str(self._views.varz()["server_id"])

    def _now(self) -> str:
        return str(self._views.varz()["now"])

    # ---- the pages

    def _root(self, query: _Query) -> Page:
        links = "".join(f'<a href=".{html.escape(path)}">{html.escape(path[1:])}</a><br/>\n'
                        for path in self._pages if path not in ("/", "/subscriptionsz"))
        name = html.escape(str(self._views.varz()["server_name"]))
        text = f"<!doctype html>\n<title>jetblock {name}</title>\n<h1>jetblock</h1>\n<p>{name}</p>\n{links}"
        return Page(200, text.encode(), "text/html; charset=utf-8")

    def _healthz(self, query: _Query) -> Page:
        """Whether clients are served; with ``live``, whether the process is alive, including a standby.

        Any answer proves that it is alive: the page is made on the broker's own event loop.
        """
        asked = {name: query.flag(name) for name in _HEALTH_FLAGS}
        if asked["live"]:
            return Page(200, _compact({"status": "ok"}))
        health = self._views.health()
        if asked["js-server-only"] and health.serving:
            return Page(200, _compact({"status": "ok"}))
        if health.status != "ok":
            return Page(503, _compact({"status": health.status} | ({"error": health.error} if health.error else {})))
        skips = asked["js-enabled-only"] or asked["js-enabled"]
        if not skips and (missing := self._missing(query)):
            return Page(404, _compact({"status": "unavailable", "error": missing}))
        return Page(200, _compact({"status": "ok"}))

    def _missing(self, query: _Query) -> str:
        """Why the requested stream or consumer is missing; "" if it exists or none was requested."""
        stream, consumer, account = query.text("stream"), query.text("consumer"), query.text("account") or "$G"
        if not stream:
            return ""
        jetstream = self._views.jetstream()
        found = next((row for row in (jetstream.list_streams() if jetstream else ()) if row["name"] == stream), None)
        if found is None:
            return f'JetStream stream "{stream}" not found on account "{account}"'
        if consumer and all(row.get("name") != consumer for row in found.get("consumer_detail", ())):
            return f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{account}"'
        return ""

    def _varz(self, query: _Query) -> dict[str, Any]:
        view = self._views.varz()
        jetstream = self._views.jetstream()
        return {
            **view, "git_commit": "", "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "http_base_path": self._base, "https_port": 0,
            "cluster": {}, "gateway": {}, "leaf": {}, "mqtt": {}, "websocket": {},
            "jetstream": {"config": jetstream.config, "stats": _jetstream_stats(jetstream), "limits": {}}
            if jetstream else {},
            "mem": _resident_bytes(), "cores": os.cpu_count() or 1, "gomaxprocs": 1, "cpu": self._cpu.percent(),
            "routes": 0, "remotes": 0, "leafnodes": 0,
            # There are no routes or leaf nodes: all traffic is from and to clients.
            **{f"{way}_client_{what}": view[f"{way}_{what}"] for way in ("in", "out") for what in ("msgs", "bytes")},
            "http_req_stats": dict(sorted(self._asked.items())), "config_load_time": view["start"],
            "config_digest": "",
            "stale_connection_stats": {"clients": view["stale_connections"], "routes": 0, "gateways": 0, "leafs": 0},
        }

    def _connz(self, query: _Query) -> dict[str, Any]:
        sort, state = query.text("sort") or "cid", (query.text("state") or "open").lower()
        if state not in _STATES:
            raise BadQuery(f"Error decoding state for {query.text('state')}")
        if sort not in _SORTS or (sort in _ENDED_SORTS and state != "closed"):
            raise BadQuery(f"invalid sorting option: {sort}")
        auth, detail = query.flag("auth"), query.text("subs").lower() == "detail"
        listed = not detail and query.flag("subs")
        user, account, cid = query.text("user"), query.text("acc"), query.number("cid")
        if user and not auth:
            raise BadQuery("filter by user only valid with auth option")
        connections = self._views.connections
        rows: list[dict[str, Any]] = []
        if state != "open":
            rows += connections(closed=True, subs=detail or listed)
        if state != "closed":
            rows += connections(subs=detail or listed)
        total = len(rows)
        rows = [row for row in rows if (not cid or row["cid"] == cid)
                and (not user or row.get("authorized_user") == user) and (not account or row["account"] == account)]
        if user or account:
            total = len(rows)
        key, highest_first = _SORTS[sort]
        rows.sort(key=key, reverse=highest_first)
        offset, limit = (0, 1) if cid else query.window()
        rows = rows[offset:offset + limit]
        return {"server_id": self._server_id(), "now": self._now(), "num_connections": len(rows), "total": total,
                "offset": offset, "limit": limit,
                "connections": [_connection(row, auth=auth, listed=listed, detail=detail) for row in rows]}

    def _subsz(self, query: _Query) -> dict[str, Any]:
        test, account = query.text("test"), query.text("acc")
        offset, limit = query.window()
        if test and not is_literal(test.encode()):
            raise BadQuery(f"invalid test subject, must be valid publish subject: {test}")
        page: dict[str, Any] = {"server_id": self._server_id(), "now": self._now(),
                                "num_subscriptions": self._views.subscription_count(),
                                # Routes are stored by receivers, not by subject, so these figures do not exist here.
                                "num_cache": 0, "num_inserts": 0, "num_removes": 0, "num_matches": 0,
                                "cache_hit_rate": 0, "max_fanout": 0, "avg_fanout": 0}
        if not query.flag("subs"):
            return page | {"total": 0, "offset": offset, "limit": limit}
        rows = [sub for row in self._views.connections() for sub in row["subscriptions_list_detail"]
                if (not account or sub["account"] == account)
                and (not test or matches(sub["subject"].encode(), test.encode()))]
        return page | {"total": len(rows), "offset": offset, "limit": limit,
                       "subscriptions_list": rows[offset:offset + limit]}

    def _jsz(self, query: _Query) -> dict[str, Any]:
        view, server_id, now = self._views.jetstream(), self._server_id(), self._now()
        if view is None:
            return {**_jetstream_stats(JetStreamView({})), "server_id": server_id, "now": now, "disabled": True,
                    "config": {"max_memory": 0, "max_storage": 0}, "limits": {}, "streams": 0, "consumers": 0,
                    "messages": 0, "bytes": 0, "total": 0}
        page = {**_jetstream_stats(view), "server_id": server_id, "now": now, "config": view.config,
                "limits": {}, "streams": view.streams, "consumers": view.consumers, "messages": view.messages,
                "bytes": view.bytes, "total": 1}
        consumers, streams = query.flag("consumers"), query.flag("streams")
        if consumers or streams or query.flag("accounts") or query.text("acc"):
            account: dict[str, Any] = {"name": "$G", "id": "$G", **_jetstream_stats(view), "accounts": 0}
            if streams or consumers:
                account["stream_detail"] = [_stream(row, config=query.flag("config"), consumers=consumers)
                                            for row in view.list_streams()]
            if query.text("acc") in ("", "$G"):
                page["account_details"] = [account]
        return page


def _compact(body: dict[str, str]) -> bytes:
    """Without spaces, as nats-server writes this page: probes compare it as text."""
    return json.dumps(body, separators=(",", ":")).encode()


def _plain(status: int, text: str) -> Page:
    return Page(status, text.encode(errors="replace"), "text/plain; charset=utf-8")


def _with_callback(page: Page, query: _Query) -> Page:
    """JSONP. The callback must be a dotted name; otherwise a link could run any script."""
    callback = query.text("callback")
    if not callback or page.content_type != "application/json":
        return page
    if not _CALLBACK.fullmatch(callback):
        raise BadQuery("callback must be a JavaScript name")
    return Page(page.status, callback.encode() + b"(" + page.body + b")", "application/javascript")


def _connection(row: dict[str, Any], *, auth: bool, listed: bool, detail: bool) -> dict[str, Any]:
    """A connection's requested columns."""
    hidden = {"subscriptions_list_detail"} | (set() if auth else _OF_USERS)
    page = {name: value for name, value in row.items() if name not in hidden}
    subs = row.get("subscriptions_list_detail", [])
    if detail:
        # The account is the connection's, and shown once with `auth`.
        page["subscriptions_list_detail"] = [{name: value for name, value in sub.items() if name != "account"}
                                             for sub in subs]
    elif listed:
        page["subscriptions_list"] = [sub["subject"] for sub in subs]
    return page


def _jetstream_stats(view: JetStreamView) -> dict[str, Any]:
    return {"memory": view.memory, "storage": view.storage, "reserved_memory": view.reserved_memory,
            "reserved_storage": view.reserved_storage, "accounts": 1, "ha_assets": 0,
            "api": {"level": view.api_level, "total": view.api_total, "errors": view.api_errors}}


def _stream(row: dict[str, Any], *, config: bool, consumers: bool) -> dict[str, Any]:
    hidden = {name for name, shown in (("config", config), ("consumer_detail", consumers)) if not shown}
    return {name: value for name, value in row.items() if name not in hidden}


class _Cpu:
    """The share of one core used since the last call, in percent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns()
        self._used = self._usage()

    @staticmethod
    def _usage() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def percent(self) -> float:
        now_ns, used = self._clock.monotonic_ns(), self._usage()
        past_s = (now_ns - self._at_ns) / 1e9
        share = (used - self._used) / past_s * 100 if past_s > 0 else 0.0
        self._at_ns, self._used = now_ns, used
        return round(share, 1)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # no /proc: only the peak is known, in kilobytes (on macOS in bytes)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
