"""The monitoring pages as functions of a server's figures: fields, parameters, errors, JSONP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.monitor.pages import Page, Pages
from broker.monitor.views import Health, JetStreamView, Views

VARZ = {"server_id": "NID", "server_name": "me", "version": "2.15.1", "start": "2026-01-01T00:00:00Z",
        "now": "2026-01-01T00:00:09.5Z", "uptime": "9s", "in_msgs": 1, "in_bytes": 2, "out_msgs": 3, "out_bytes": 4,
        "stale_connections": 0, "connections": 3}


def row(cid: int, **fields: Any) -> dict[str, Any]:
    return {"cid": cid, "kind": "Client", "ip": "127.0.0.1", "last_activity": f"2026-01-01T00:00:0{cid}.5Z",
            "rtt": f"{cid}ms", "pending_bytes": 0, "in_msgs": 0, "out_msgs": 0, "in_bytes": 0, "out_bytes": 0,
            "subscriptions": 0, "account": "$G", "subscriptions_list_detail": [], **fields}


SUB = {"account": "$G", "subject": "foo.*", "qgroup": "q", "sid": "1", "msgs": 3, "cid": 2}
OPEN = [row(1, out_msgs=5, last_activity="2026-01-01T00:00:05Z"),
        row(2, out_msgs=9, subscriptions=1, rtt="900µs", authorized_user="joe", subscriptions_list_detail=[SUB]),
        row(3, in_bytes=7, pending_bytes=4)]
CLOSED = [row(8, stop="2026-01-01T00:00:08Z", reason="Stale Connection"),
          row(9, stop="2026-01-01T00:00:07.5Z", reason="Client Closed")]
STREAM = {"name": "S", "created": "2026-01-01T00:00:00Z", "config": {"name": "S"}, "state": {"messages": 1},
          "consumer_detail": [{"name": "C"}]}


class Server:
    """Figures that a test can change; counts what it was asked for."""

    def __init__(self) -> None:
        self.health = Health()
        self.jetstream: JetStreamView | None = JetStreamView(
            {"max_memory": 1, "max_storage": 2, "store_dir": "/x"}, streams=1, list_streams=lambda: [STREAM])
        self.subs_asked: list[bool] = []

    def connections(self, *, closed: bool = False, subs: bool = True) -> list[dict[str, Any]]:
        self.subs_asked.append(subs)
        return [dict(found) for found in (CLOSED if closed else OPEN)]

    def pages(self, base: str = "/") -> Pages:
        views = Views(varz=lambda: dict(VARZ), health=lambda: self.health, connections=self.connections,
                      subscription_count=lambda: 73, jetstream=lambda: self.jetstream)
        return Pages(views, ManualClock(), base)


@pytest.fixture
def server() -> Server:
    return Server()


def body(page: Page, status: int = 200) -> Any:
    assert page.status == status, page.body
    return json.loads(page.body)


@pytest.mark.shows("monitoring.varz")
def test_varz(server: Server) -> None:
    """The server's fields, and what only the process knows beside them."""
    page = body(server.pages().answer("/varz"))
    assert page["server_id"] == "NID"
    assert page["in_client_msgs"] == 1
    assert page["mem"] > 1_000_000
    assert page["jetstream"]["config"]["store_dir"] == "/x"
    assert page["http_req_stats"] == {"/varz": 1}
    server.jetstream = None
    assert body(server.pages().answer("/varz"))["jetstream"] == {}


@pytest.mark.shows("monitoring.connz")
@pytest.mark.parametrize(("query", "cids"), [
    ("", [1, 2, 3]), ("?sort=cid", [1, 2, 3]), ("?sort=msgs_to", [2, 1, 3]), ("?sort=bytes_from", [3, 1, 2]),
    ("?sort=subs", [2, 1, 3]), ("?sort=pending", [3, 1, 2]), ("?sort=last", [1, 3, 2]), ("?sort=idle", [2, 3, 1]),
    ("?sort=rtt", [3, 1, 2]), ("?limit=2", [1, 2]), ("?offset=1", [2, 3]), ("?offset=1&limit=1", [2]),
    ("?offset=9", []), ("?offset=-1&limit=-1", [1, 2, 3]), ("?cid=2", [2]), ("?cid=99", []),
    ("?state=closed", [8, 9]), ("?state=any", [1, 2, 3, 8, 9]), ("?state=closed&sort=stop", [8, 9]),
    ("?state=closed&sort=reason", [9, 8]), ("?auth=1&user=joe", [2]), ("?acc=OTHER", []),
])
def test_connz_rows(server: Server, query: str, cids: list[int]) -> None:
    """Which rows, in which order."""
    page = body(server.pages().answer("/connz" + query))
    assert [found["cid"] for found in page["connections"]] == cids
    assert page["num_connections"] == len(cids)


@pytest.mark.shows("monitoring.connz")
def test_connz_shows_what_was_asked_for(server: Server) -> None:
    """Subscriptions as a list or in detail, the user only with ``auth``; subscriptions are gathered only when shown."""
    pages = server.pages()
    plain = body(pages.answer("/connz?cid=2"))["connections"][0]
    assert not {"subscriptions_list", "subscriptions_list_detail", "authorized_user", "account"} & plain.keys()
    assert server.subs_asked == [False]
    assert body(pages.answer("/connz?cid=2&subs=1"))["connections"][0]["subscriptions_list"] == ["foo.*"]
    detail = body(pages.answer("/connz?cid=2&subs=detail"))["connections"][0]["subscriptions_list_detail"]
    assert detail == [{"subject": "foo.*", "qgroup": "q", "sid": "1", "msgs": 3, "cid": 2}]
    with_auth = body(pages.answer("/connz?cid=2&auth=true"))["connections"][0]
    assert (with_auth["authorized_user"], with_auth["account"]) == ("joe", "$G")


@pytest.mark.parametrize(("target", "why"), [
    ("/connz?sort=foo", "invalid sorting option: foo"),
    ("/connz?sort=stop", "invalid sorting option: stop"),
    ("/connz?limit=x", "Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid syntax"),
    ("/connz?offset=1.5", "Error decoding int for 'offset'"),
    ("/connz?auth=maybe", "Error decoding boolean for 'auth'"),
    ("/connz?state=gone", "Error decoding state for gone"),
    ("/connz?user=joe", "filter by user only valid with auth option"),
    ("/subsz?test=foo.*", "invalid test subject"),
    ("/varz?callback=alert(1)//", "callback must be a JavaScript name"),
    ("/varz?" + "a=1&" * 100, "too many parameters"),
])
def test_bad_queries(server: Server, target: str, why: str) -> None:
    """400 and nats-server's text."""
    page = server.pages().answer(target)
    assert (page.status, page.content_type) == (400, "text/plain; charset=utf-8")
    assert why in page.body.decode()


@pytest.mark.shows("monitoring.subsz")
def test_subsz(server: Server) -> None:
    """The count always, the list when asked, and which of it a subject would reach."""
    pages = server.pages()
    assert body(pages.answer("/subsz")) == body(pages.answer("/subscriptionsz"))
    assert body(pages.answer("/subsz"))["num_subscriptions"] == 73
    assert body(pages.answer("/subsz?subs=1"))["subscriptions_list"] == [SUB]
    assert body(pages.answer("/subsz?subs=1&test=foo.bar"))["total"] == 1
    assert body(pages.answer("/subsz?subs=1&test=bar"))["total"] == 0


@pytest.mark.shows("monitoring.jsz")
def test_jsz(server: Server) -> None:
    """Totals always; streams, configurations and consumers each only when asked for; off: ``disabled``."""
    pages = server.pages()
    assert "account_details" not in body(pages.answer("/jsz"))
    def streams(query: str) -> Any:
        return body(pages.answer("/jsz?" + query))["account_details"][0]["stream_detail"][0].keys()
    assert streams("streams=1") == {"name", "created", "state"}
    assert streams("streams=1&config=1") == {"name", "created", "state", "config"}
    assert streams("consumers=1") == {"name", "created", "state", "consumer_detail"}
    server.jetstream = None
    assert body(pages.answer("/jsz"))["disabled"] is True


@pytest.mark.shows("monitoring.healthz")
def test_healthz(server: Server) -> None:
    """200 while well, 503 with the status otherwise; a stream or consumer that is asked for must exist."""
    pages = server.pages()
    assert body(pages.answer("/healthz")) == {"status": "ok"}
    assert body(pages.answer("/healthz?stream=S&consumer=C")) == {"status": "ok"}
    assert "X" in body(pages.answer("/healthz?stream=X"), 404)["error"]
    assert "X" in body(pages.answer("/healthz?stream=S&consumer=X"), 404)["error"]
    server.health = Health("standby", "waiting for the owner of the store")
    assert body(pages.answer("/healthz"), 503) == {"status": "standby", "error": "waiting for the owner of the store"}


@pytest.mark.shows("monitoring.healthz")
@pytest.mark.parametrize(("health", "plain", "server_only", "enabled_only"), [
    (Health(), 200, 200, 200),
    (Health("standby", "another broker owns the store", serving=False), 503, 503, 503),
    (Health("unavailable", "starting, or stopping", serving=False), 503, 503, 503),
    (Health("unavailable", "the store does not answer"), 503, 200, 503),
], ids=["owner", "standby", "starting", "store away"])
def test_healthz_asks_for_more_or_less(server: Server, health: Health, plain: int, server_only: int,
                                       enabled_only: int) -> None:
    """``live`` is for process supervisors: all of these are alive. nats-server's flags leave out JetStream or its streams."""
    server.health = health
    pages = server.pages()
    assert body(pages.answer("/healthz?live=1")) == body(pages.answer("/healthz?live=true")) == {"status": "ok"}
    for query, status in (("", plain), ("?live=0", plain), ("?js-server-only=1", server_only),
                          ("?js-server-only=true", server_only), ("?js-enabled-only=1", enabled_only),
                          ("?js-enabled=1", enabled_only), ("?js-enabled-only=1&stream=X", enabled_only)):
        assert pages.answer("/healthz" + query).status == status, query


@pytest.mark.parametrize("name", ["live", "js-enabled", "js-enabled-only", "js-server-only", "js-meta-only", "details"])
def test_healthz_parameter_that_cannot_be_read(server: Server, name: str) -> None:
    """400 with nats-server's words."""
    page = server.pages().answer(f"/healthz?{name}=maybe")
    assert (page.status, page.body) == (400, f"Error decoding boolean for '{name}': strconv.ParseBool: parsing "
                                        '"maybe": invalid syntax'.encode())


@pytest.mark.shows("monitoring.callback")
def test_callback(server: Server) -> None:
    """JSONP, as a script."""
    page = server.pages().answer("/varz?callback=my.call")
    assert page.content_type == "application/javascript"
    assert page.body.startswith(b"my.call({")
    assert page.body.endswith(b"})")


def test_paths(server: Server) -> None:
    """A root page with links, 404 elsewhere, everything under the base path when there is one."""
    assert b"./connz" in server.pages().answer("/").body
    for path in ("/nope", "/varz/", "/../varz", "//varz"):
        assert server.pages().answer(path).status == 404
    below = server.pages("/nats")
    assert below.answer("/nats/varz").status == 200
    assert below.answer("/varz").status == 404


@given(st.text(max_size=40))
def test_any_target(target: str) -> None:
    """Whatever is asked for, there is a status."""
    assert Server().pages().answer("/" + target).status in (200, 400, 404)
    assert Server().pages().answer("/connz?" + target).status in (200, 400)
