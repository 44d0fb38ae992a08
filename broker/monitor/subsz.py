"""The page /subsz about subscriptions and the cache of their matches. Source: nats-server, server/monitor.go
(Subsz)."""

from __future__ import annotations

import sys
from typing import Any

from broker.monitor.options import LIMIT, BadOption, SubszOptions
from broker.monitor.steps import Steps, at_once, collect
from broker.monitor.views import SublistFigures, Views
from broker.protocol.subject import is_literal, is_valid

__all__ = ["sublist_stats", "subsz", "subsz_in_steps"]


def subsz(views: Views, options: SubszOptions) -> dict[str, Any]:
    """Return the page at once. Raises: BadOption."""
    return at_once(subsz_in_steps(views, options))


def subsz_in_steps(views: Views, options: SubszOptions) -> Steps:
    """Make the page, with a few subscriptions in each step. Raises: BadOption.

    Subscriptions that begin or end meanwhile may be shown or not.
    """
    test = options.test.encode(errors="replace")
    if test and not (is_valid(test) and is_literal(test)):
        raise BadOption(f"invalid test subject, must be valid publish subject: {options.test}")
    figures = SublistFigures()
    for account in views.accounts():
        if options.account in ("", account.name):
            figures.add(account.sublist)
    offset, limit = max(options.offset, 0), options.limit if options.limit > 0 else LIMIT
    page = {**views.head(), **sublist_stats(figures), "total": 0, "offset": offset, "limit": limit}
    if options.subscriptions:
        page["total"], subscriptions = views.subscriptions(options.account, options.test)
        stop = min(offset + limit, sys.maxsize)
        if listed := (yield from collect(subscriptions, lambda sub: sub, start=offset, stop=stop)):
            page["subscriptions_list"] = listed
    return page


def sublist_stats(figures: SublistFigures) -> dict[str, Any]:
    """Return the figures under nats-server's names."""
    return {"num_subscriptions": figures.subscriptions, "num_cache": figures.cached, "num_inserts": figures.inserts,
            "num_removes": figures.removes, "num_matches": figures.matches,
            "cache_hit_rate": figures.cache_hits / figures.matches if figures.matches else 0,
            "max_fanout": figures.fanout_max,
            "avg_fanout": figures.fanout_total / figures.cached if figures.cached else 0}
