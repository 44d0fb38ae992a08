"""The monitoring pages as answers to requests to the system account, about the server or about one account.

The options of a page are the request's JSON.

Source: nats-server, server/events.go (monSrvc and monAccSrvc in initEventTracking), server/monitor.go (JszAccount).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.server.system.requests import BAD_REQUEST, RequestError, Unanswered
from broker.server.system.system import AccountPage, Page, Steps

if TYPE_CHECKING:
    from broker.monitor.views import Views

__all__ = ["SystemPages"]

_PAGES: Final = ("VARZ", "CONNZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "IPQUEUESZ")
_GO_ONLY: Final[Mapping[str, dict[str, object]]] = {
    "RAFTZ": {}, "EXPVARZ": {"memstats": {}, "cmdline": []},
    "PROFILEZ": {"profile": None, "error": "this server is not written in Go; see /stacksz"}}
"""Answers about parts that only nats-server has."""


class SystemPages:
    """Answers requests with the monitoring pages; ``views`` returns their data."""

    def __init__(self, views: Callable[[], Views]) -> None:
        self._views = views

    def of_server(self) -> dict[str, Page]:
        """Return the pages about this server, by name."""
        pages: dict[str, Page] = {name: partial(self._page, name) for name in _PAGES}
        return pages | {name: partial(_constant, answer) for name, answer in _GO_ONLY.items()}

    def of_account(self) -> dict[str, AccountPage]:
        """Return the pages about one account, by name."""
        return {
            "CONNZ": lambda account, members: self._page("CONNZ", {**members, "acc": account}),
            "SUBSZ": lambda account, members: self._page("SUBSZ",
                                                         {**members, "account": account, "subscriptions": True}),
            "LEAFZ": lambda account, members: self._page("LEAFZ", {**members, "account": account}),
            "INFO": self._account,
            "JSZ": self._jetstream, "STATZ": self._statistics}

    def _page(self, name: str, members: Mapping[str, Any]) -> Steps:
        # Imported for the first request: most brokers never get one.
        from broker.monitor.endpoints import ENDPOINTS
        from broker.monitor.options import BadOption, from_json

        endpoint = ENDPOINTS[name]
        try:
            options: Any = from_json(endpoint.options, members)
        except BadOption as error:
            raise RequestError(str(error), BAD_REQUEST) from None
        try:
            if endpoint.in_steps is not None:
                return (yield from endpoint.in_steps(self._views(), options))
            return endpoint.build(self._views(), options)
        except BadOption as error:
            raise RequestError(str(error)) from None

    def _account(self, account: str, members: Mapping[str, Any]) -> Steps:
        page = yield from self._page("ACCOUNTZ", {"account": account})
        detail: dict[str, Any] = page["account_detail"]
        return detail

    def _statistics(self, account: str, members: Mapping[str, Any]) -> Steps:
        """Return the statistics of one account; the name PING stands for all accounts."""
        wanted = members if account == "PING" else {**members, "accounts": [account]}
        page = yield from self._page("ACCSTATZ", wanted)
        if not page["account_statz"] and not members.get("include_unused"):
            raise Unanswered
        return page

    def _jetstream(self, account: str, members: Mapping[str, Any]) -> Steps:
        views = self._views()
        view = views.jetstream()
        if view is None:
            raise RequestError("jetstream not enabled")
        if all(one.name != account for one in views.accounts()):
            raise RequestError(f'account "{account}" not found')
        if all(one.name != account for one in view.accounts):
            raise RequestError(f'account "{account}" not jetstream enabled')
        page = yield from self._page("JSZ", {**members, "account": account})
        detail: dict[str, Any] = page["account_details"][0]
        return detail


def _constant(answer: dict[str, object], members: dict[str, Any]) -> Steps:
    yield
    return answer
