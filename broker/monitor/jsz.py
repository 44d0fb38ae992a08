"""/jsz: JetStream. Source: nats-server, server/monitor.go (Jsz, accountDetail)."""

from __future__ import annotations

from typing import Any

from broker.monitor.options import LIMIT, JszOptions
from broker.monitor.views import JetStreamAccount, JetStreamView, Views

__all__ = ["account_detail", "jetstream_stats", "jsz"]

_OFF = JetStreamView({"max_memory": 0, "max_storage": 0})


def jsz(views: Views, options: JszOptions) -> dict[str, Any]:
    """The page."""
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
        # A single server leads all of them.
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
        page["account_details"] = [account_detail(account, options) for account in shown]
    return page | {"total": len(accounts)}


def account_detail(account: JetStreamAccount, options: JszOptions) -> dict[str, Any]:
    """One account, with its streams and consumers if they are asked for."""
    detail: dict[str, Any] = {
        "name": account.name, "id": account.name, "memory": account.memory, "storage": account.storage,
        # No limit is the highest number, as on nats-server.
        "reserved_memory": account.max_memory % (1 << 64), "reserved_storage": account.max_storage % (1 << 64),
        "accounts": 0, "ha_assets": 0, "api": {"level": 0, "total": account.api_total, "errors": account.api_errors}}
    if options.streams or options.consumers:
        hidden = frozenset() if options.config else frozenset({"config"})
        streams = [_stream(row, hidden) for row in account.list_streams(options.consumers)]
        if streams:
            detail["stream_detail"] = streams
    return detail


def _stream(row: dict[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in hidden}
    if consumers := row.get("consumer_detail"):
        shown["consumer_detail"] = [{name: value for name, value in consumer.items() if name not in hidden}
                                    for consumer in consumers]
    else:
        shown.pop("consumer_detail", None)
    return shown


def jetstream_stats(view: JetStreamView) -> dict[str, Any]:
    """The totals, as /varz shows them too."""
    accounts = view.accounts
    return {"memory": sum(account.memory for account in accounts),
            "storage": sum(account.storage for account in accounts),
            "reserved_memory": sum(account.reserved_memory for account in accounts),
            "reserved_storage": sum(account.reserved_storage for account in accounts),
            "accounts": len(accounts), "ha_assets": 0,
            "api": {"level": view.api_level, "total": sum(account.api_total for account in accounts),
                    "errors": sum(account.api_errors for account in accounts)}}
