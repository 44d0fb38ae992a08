"""The page /jsz about JetStream. Source: nats-server, server/monitor.go (Jsz, accountDetail)."""

from __future__ import annotations

from typing import Any

from broker.monitor.options import LIMIT, JszOptions
from broker.monitor.steps import Steps, at_once
from broker.monitor.views import JetStreamAccount, JetStreamView, Views

__all__ = ["jetstream_stats", "jsz", "jsz_in_steps"]

_OFF = JetStreamView({"max_memory": 0, "max_storage": 0})
_ROWS_A_STEP = 64
"""Number of streams and consumers that one step shows: about 2 ms."""


def jsz(views: Views, options: JszOptions) -> dict[str, Any]:
    """Return the page at once."""
    return at_once(jsz_in_steps(views, options))


def jsz_in_steps(views: Views, options: JszOptions) -> Steps:
    """Make the page, with a few streams and consumers in each step: there may be ten thousand.

    Streams and consumers that are made or deleted between two steps may be missing.
    """
    view = views.jetstream()
    stats = jetstream_stats(view or _OFF)
    if view is None:
        stats["accounts"] = stats["api"]["level"] = 0
        return {**stats, **views.head(), "disabled": True, "config": _OFF.config, "streams": 0, "consumers": 0,
                "messages": 0, "bytes": 0, "total": 0}
    accounts = view.accounts
    page = {**stats, **views.head(), "config": view.config, "limits": view.limits,
            "streams": sum(account.streams for account in accounts)}
    if options.raft:
        # The only server leads all streams and consumers.
        page |= {"streams_leader": page["streams"]} if page["streams"] else {}
    page["consumers"] = sum(account.consumers for account in accounts)
    if options.raft and page["consumers"]:
        page["consumers_leader"] = page["consumers"]
    page |= {"messages": sum(account.messages for account in accounts), "bytes": stats["memory"] + stats["storage"]}
    streams = options.streams or options.consumers
    shown = [account for account in accounts if options.account and account.name == options.account]
    if not shown and (options.accounts or (streams and not options.account)):
        limit = options.limit or LIMIT
        shown = sorted(accounts, key=lambda account: account.name)
        if limit > 0:
            offset = max(options.offset, 0)
            shown = shown[offset:offset + limit]
    if shown:
        page["account_details"] = details = []
        for account in shown:
            details.append((yield from _account_in_steps(account, options)))
            yield
    return page | {"total": len(accounts)}


def _account_in_steps(account: JetStreamAccount, options: JszOptions) -> Steps:
    """Return one account, with its streams and consumers if they are requested."""
    detail: dict[str, Any] = {
        "name": account.name, "id": account.name, "memory": account.memory, "storage": account.storage,
        # Without a limit, show the highest number, as nats-server does.
        "reserved_memory": account.max_memory % (1 << 64), "reserved_storage": account.max_storage % (1 << 64),
        "accounts": 0, "ha_assets": 0, "api": {"level": 0, "total": account.api_total, "errors": account.api_errors}}
    if options.streams or options.consumers:
        hidden = frozenset() if options.config else frozenset({"config"})
        if not options.direct_consumers:
            hidden |= {"direct_consumer_detail"}
        streams: list[dict[str, Any]] = []
        rows = 0
        for row in account.list_streams(options.consumers):
            shown = {name: value for name, value in row.items() if name not in hidden}
            for kind in ("consumer_detail", "direct_consumer_detail"):
                consumers: list[dict[str, Any]] = []
                for consumer in shown.pop(kind, ()):
                    consumers.append({name: value for name, value in consumer.items() if name not in hidden})
                    rows += 1
                    if rows % _ROWS_A_STEP == 0:
                        yield
                if consumers:
                    shown[kind] = consumers
            streams.append(shown)
            rows += 1
            if rows % _ROWS_A_STEP == 0:
                yield
        if streams:
            detail["stream_detail"] = streams
    return detail


def jetstream_stats(view: JetStreamView) -> dict[str, Any]:
    """Return the totals, which /varz shows, too."""
    accounts = view.accounts
    return {"memory": sum(account.memory for account in accounts),
            "storage": sum(account.storage for account in accounts),
            "reserved_memory": sum(account.reserved_memory for account in accounts),
            "reserved_storage": sum(account.reserved_storage for account in accounts),
            "accounts": len(accounts), "ha_assets": 0,
            "api": {"level": view.api_level, "total": sum(account.api_total for account in accounts),
                    "errors": sum(account.api_errors for account in accounts)}}
