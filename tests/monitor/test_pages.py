"""The monitoring pages as functions of plain values. test_differential has what they share with nats-server's."""

from __future__ import annotations

from typing import Any

import pytest

from broker.monitor.connz import connz
from broker.monitor.options import BadOption, ConnzOptions, from_json
from broker.monitor.views import Health, JetStreamView
from tests.monitor.views import SUB, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.shows("monitoring.connz")
@pytest.mark.parametrize(("query", "cids"), [
    ({}, [1, 2, 3]), ({"sort": "cid"}, [1, 2, 3]), ({"sort": "msgs_to"}, [2, 1, 3]),
    ({"sort": "bytes_from"}, [3, 1, 2]),
    ({"sort": "subs"}, [2, 1, 3]), ({"sort": "pending"}, [3, 1, 2]), ({"sort": "last"}, [1, 3, 2]),
    ({"sort": "idle"}, [2, 3, 1]), ({"sort": "rtt"}, [3, 1, 2]), ({"sort": "uptime"}, [3, 2, 1]),
    ({"limit": "2"}, [1, 2]),
    ({"offset": "1"}, [2, 3]), ({"offset": "1", "limit": "1"}, [2]), ({"offset": "9"}, []),
    ({"offset": "-1", "limit": "-1"}, [1, 2, 3]), ({"cid": "2"}, [2]), ({"cid": "99"}, []),
    ({"cid": "9", "state": "any"}, [9]), ({"cid": "9"}, []),
    ({"state": "closed"}, [8, 9]), ({"state": "any"}, [1, 2, 3, 8, 9]), ({"state": "closed", "sort": "stop"}, [8, 9]),
    ({"state": "closed", "sort": "reason"}, [9, 8]), ({"user": "joe"}, [2]), ({"acc": "OTHER"}, [3]),
    ({"mqtt_client": "x"}, []),
], ids=str)
def test_connz_rows(server: Server, query: dict[str, str], cids: list[int]) -> None:
    """The options select and order the rows."""
    page = server.page("CONNZ", **query)
    assert [found["cid"] for found in page["connections"]] == cids
    assert page["num_connections"] == len(cids)


def test_connz_gathers_only_what_it_shows(server: Server) -> None:
    """Subscriptions are read only for the rows of this page: there may be a million."""
    server.page("CONNZ")
    assert server.asked_for == []
    assert server.page("CONNZ", subs="1", offset="1", limit="1")["connections"][0]["subscriptions_list"] == ["foo.*"]
    assert server.asked_for == [2]
    assert server.page("CONNZ", subs="detail", cid="2")["connections"][0]["subscriptions_list_detail"] == [SUB]


@pytest.mark.shows("monitoring.connz")
def test_connz_by_subject(server: Server) -> None:
    """Requests to the system account can select the connections that receive a subject, in one account."""
    def cids(**members: Any) -> list[int]:
        return [found["cid"] for found in connz(server.views, from_json(ConnzOptions, members))["connections"]]

    assert cids(acc="$G", filter_subject="foo.bar") == [2]
    assert cids(acc="$G", filter_subject="bar") == []
    assert cids(acc="$G", filter_subject=">") == [1, 2]
    with pytest.raises(BadOption, match="filter by subject only valid with account filtering"):
        cids(filter_subject="foo")


@pytest.mark.shows("monitoring.subsz")
def test_subsz_makes_one_page(server: Server) -> None:
    """The total counts all subscriptions, the list has the requested ones."""
    page = server.page("SUBSZ", subs="1", offset="7", limit="5")
    assert page["total"] == 9
    assert [found["subject"] for found in page["subscriptions_list"]] == ["s.7", "s.8"]
    assert server.page("SUBSZ")["num_subscriptions"] == 7
    most = str((1 << 63) - 1)
    assert len(server.page("SUBSZ", subs="1", offset="7", limit=most)["subscriptions_list"]) == 2
    assert "subscriptions_list" not in server.page("SUBSZ", subs="1", offset=most)


def test_without_jetstream(server: Server) -> None:
    """/jsz shows that JetStream is off, /varz has an empty block, and /healthz is ok."""
    server.jetstream = None
    assert server.page("JSZ")["disabled"] is True
    assert server.page("VARZ")["jetstream"] == {}
    assert server.page("HEALTHZ") == {"status": "ok", "status_code": 200}


@pytest.mark.shows("monitoring.healthz")
@pytest.mark.parametrize(("health", "plain", "server_only", "enabled_only"), [
    (Health(), 200, 200, 200),
    (Health("standby", "another broker owns the store", serving=False), 503, 503, 503),
    (Health("unavailable", "starting, or stopping", serving=False), 503, 503, 503),
    (Health("unavailable", "the store does not answer"), 503, 200, 503),
], ids=["owner", "standby", "starting", "store away"])
def test_healthz_asks_for_more_or_less(server: Server, health: Health, plain: int, server_only: int,
                                       enabled_only: int) -> None:
    """``live`` is for process supervisors: all these brokers are alive. nats-server's flags exclude JetStream or
    streams."""
    server.health = health
    assert server.page("HEALTHZ", live="1") == {"status": "ok", "status_code": 200}
    for query, status in (({}, plain), ({"live": "0"}, plain), ({"js-server-only": "1"}, server_only),
                          ({"js-server-only": "true"}, server_only), ({"js-enabled-only": "1"}, enabled_only),
                          ({"js-enabled": "1"}, enabled_only)):
        page = server.page("HEALTHZ", **query)
        assert page["status_code"] == status, query
        if status != 200:
            assert (page["status"], page["error"]) == (health.status, health.error)
            details = server.page("HEALTHZ", details="1", **query)
            assert (details["status"], details["errors"][0]["error"]) == ("error", health.error)


@pytest.mark.shows("monitoring.healthz")
def test_stream_that_is_offline(server: Server) -> None:
    """/healthz fails for it, unless the request is about something else."""
    assert server.jetstream is not None
    server.jetstream = JetStreamView({}, accounts=server.jetstream.accounts, failed=[("$G", "BAD"), ("$G", "WORSE")])
    page = server.page("HEALTHZ")
    assert page == {"status": "unavailable", "status_code": 503,
                    "error": "JetStream stream '$G > BAD' could not be recovered"}
    assert [error["stream"] for error in server.page("HEALTHZ", details="1")["errors"]] == ["BAD", "WORSE"]
    assert server.page("HEALTHZ", **{"js-enabled-only": "1"})["status_code"] == 200
    assert server.page("HEALTHZ", account="$G", stream="S")["status_code"] == 200
    assert server.page("HEALTHZ", account="$G", stream="BAD")["status_code"] == 503
