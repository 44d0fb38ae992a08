"""The data of accounts on /accountz and /accstatz.

Source: nats-server, server/monitor.go (ExtExport, ExtImport, MapDest).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from broker.access.accounts import AccountSettings
from broker.access.sharing import Export, Import, SubjectMapping
from broker.monitor.views import AccountView, SublistFigures, Traffic
from broker.server.accounts.account import Account
from broker.server.routing.statistics import routing_statistics

__all__ = ["account_view"]

_RESPONSE_TYPES: Final = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def account_view(account: Account, updated: str, with_jetstream: Collection[str], imports: Collection[Import],
                 claims: dict[str, Any] | None = None) -> AccountView:
    """Return the data of one account.

    Args: ``updated`` is the time of the last reload; ``with_jetstream`` has the names of the accounts with JetStream,
        ``imports`` the imports in use, ``claims`` the claims of the account's token.
    """
    settings: AccountSettings = account.settings
    traffic, figures = account.traffic(), routing_statistics(account.router)
    return AccountView(
        account.name, is_system=account.is_system, jetstream=account.name in with_jetstream,
        connections=account.connections, leafs=len(account.leafs),
        leaf_traffic=Traffic(*account.leaf_traffic()), slow_consumers=account.slow_consumers, traffic=Traffic(*traffic),
        sublist=SublistFigures(figures.subscriptions, figures.cached, figures.inserts, figures.removes, figures.lookups,
                               figures.family_hits, figures.fanout_max, figures.fanout_total),
        updated=updated, exports=[_export(export) for export in settings.exports],
        imports=[_import(one, invalid=one not in imports) for one in settings.imports],
        mappings=_mappings(settings.mappings),
        name_tag=settings.name_tag, claims=claims or {})


def _export(export: Export) -> dict[str, Any]:
    shown: dict[str, Any] = {"subject": export.subject, "type": export.kind}
    if export.accounts == ():
        shown["token_req"] = True
    if export.kind == "service":
        shown["response_type"] = _RESPONSE_TYPES[export.response_type]
        if export.latency is not None:
            shown["service_latency"] = {"sampling": export.latency.sampling, "results": export.latency.subject}
    if export.accounts:
        shown["approved_accounts"] = list(export.accounts)
    return shown


def _import(one: Import, *, invalid: bool) -> dict[str, Any]:
    local = one.to or (f"{one.prefix}.{one.subject}" if one.prefix else one.subject)
    shown: dict[str, Any] = {"subject": one.subject, "account": one.account}
    if one.kind == "service":
        shown["to"] = local
    return shown | {"local_subject": local, "type": one.kind, "invalid": invalid, "share": one.share, "tracking": False}


def _mappings(mappings: Iterable[SubjectMapping]) -> dict[str, list[dict[str, Any]]]:
    return {mapping.source: [{"subject": to.subject, "weight": to.weight,
                              **({"cluster": to.cluster} if to.cluster else {})}
                             for to in mapping.destinations] for mapping in mappings}
