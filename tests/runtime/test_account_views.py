"""/accountz shows the exports, imports and mappings of accounts with the members of nats-server's page."""

from __future__ import annotations

import random

import pytest

from broker.access.accounts import AccountSettings
from broker.access.sharing import Destination, Export, Import, Latency, SubjectMapping
from broker.runtime.account_views import account_view
from broker.server.accounts.account import Account
from broker.server.routing.router import Router
from tests.manual_clock import ManualClock


@pytest.mark.shows("monitoring.accountz")
def test_exports_imports_and_mappings() -> None:
    """Each kind is shown without its unset members."""
    settings = AccountSettings(
        "A", exports=(Export("service", "help", accounts=("B",), response_type="stream", latency=Latency("lat", 10)),
                      Export("service", "open"), Export("stream", "news.>", accounts=())),
        imports=(Import("service", "B", "remote", to="local"), Import("stream", "B", "data.>", prefix="from_b")),
        mappings=(SubjectMapping("from", (Destination("to"), Destination("other", 40, "C"))),))
    router = Router(ManualClock(), random.Random(1), lambda callback: None, "A")
    view = account_view(Account(settings, router), "2026-01-01T00:00:00Z", {"A"}, settings.imports[:1])
    assert view.jetstream
    assert view.exports == [
        {"subject": "help", "type": "service", "response_type": "Streamed",
         "service_latency": {"sampling": 10, "results": "lat"}, "approved_accounts": ["B"]},
        {"subject": "open", "type": "service", "response_type": "Singleton"},
        {"subject": "news.>", "type": "stream", "token_req": True}]
    assert view.imports == [
        {"subject": "remote", "account": "B", "to": "local", "local_subject": "local", "type": "service",
         "invalid": False,
         "share": False, "tracking": False},
        {"subject": "data.>", "account": "B", "local_subject": "from_b.data.>", "type": "stream", "invalid": True,
         "share": False, "tracking": False}]
    assert view.mappings == {"from": [{"subject": "to", "weight": 100},
                                      {"subject": "other", "weight": 40, "cluster": "C"}]}
