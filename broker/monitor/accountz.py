"""The pages /accountz and /accstatz about accounts.

Source: nats-server, server/monitor.go (Accountz, accountInfo, AccountStatz).
"""

from __future__ import annotations

from typing import Any

from broker.monitor.options import AccountzOptions, AccstatzOptions, BadOption
from broker.monitor.subsz import sublist_stats
from broker.monitor.views import AccountView, Views

__all__ = ["account_statistics", "accountz", "accstatz"]


def accountz(views: Views, options: AccountzOptions) -> dict[str, Any]:
    """Return the names of all accounts, or one account in detail. Raises: BadOption."""
    page = views.head()
    if views.system_account:
        page["system_account"] = views.system_account
    accounts = views.accounts()
    if not options.account:
        return page | {"accounts": [account.name for account in accounts]}
    for account in accounts:
        if account.name == options.account:
            return page | {"account_detail": _detail(account)}
    raise BadOption(f"Account {options.account} does not exist")


def _detail(account: AccountView) -> dict[str, Any]:
    detail: dict[str, Any] = {"account_name": account.name, "update_time": account.updated}
    if account.is_system:
        detail["is_system"] = True
    detail |= {"expired": False, "complete": True, "jetstream_enabled": account.jetstream,
               "leafnode_connections": account.leafs,
               "client_connections": account.connections, "subscriptions": account.sublist.subscriptions}
    for name, shared in (("mappings", account.mappings), ("exports", account.exports), ("imports", account.imports)):
        if shared:
            detail[name] = shared
    return detail | {"name_tag": account.name_tag or account.name, **account.claims,
                     "sublist_stats": sublist_stats(account.sublist)}


def accstatz(views: Views, options: AccstatzOptions) -> dict[str, Any]:
    """Return the counts of accounts with connections; with ``include_unused``, of the others, too."""
    found = [account for account in views.accounts() if account.connections or account.leafs or options.include_unused]
    if options.accounts:
        by_name = {account.name: account for account in found}
        found = [by_name[name] for name in options.accounts if name in by_name]
    return views.head() | {"account_statz": [account_statistics(account) for account in found]}


def account_statistics(account: AccountView) -> dict[str, Any]:
    """Return one account's counts, as events show them, too. Source: nats-server, server/events.go AccountStat."""
    traffic, leafs = account.traffic, account.leaf_traffic
    return {"acc": account.name, "name": account.name_tag or account.name, "conns": account.connections,
            "leafnodes": account.leafs, "total_conns": account.connections + account.leafs,
            "num_subscriptions": account.sublist.subscriptions,
            "sent": _data(traffic.out_msgs, traffic.out_bytes, leafs.out_msgs, leafs.out_bytes),
            "received": _data(traffic.in_msgs, traffic.in_bytes, leafs.in_msgs, leafs.in_bytes),
            "slow_consumers": account.slow_consumers}


def _data(msgs: int, size: int, leaf_msgs: int, leaf_bytes: int) -> dict[str, Any]:
    elsewhere = {name: {"msgs": 0, "bytes": 0} for name in ("gateways", "routes")}
    return {"msgs": msgs, "bytes": size, **elsewhere, "leafs": {"msgs": leaf_msgs, "bytes": leaf_bytes}}
