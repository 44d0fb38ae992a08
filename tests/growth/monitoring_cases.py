"""Growth of the monitoring pages, by HTTP and as requests of the system account."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from tests.growth.meter import Case
from tests.growth.stage import Stage

__all__ = ["CASES"]

SYSTEM = """
accounts { SYS { users [{user: sys, password: p}] }, A { users [{user: a, password: p}] } }
system_account: SYS
no_auth_user: a
"""

Play = Callable[[Stage, int], None]


def _subscribed(stage: Stage, n: int) -> None:
    client = stage.client()
    client.send(b"".join(b"SUB s.%d.* %d\r\n" % (i, i) for i in range(n)))
    client.sync()


def _subscriptions(path: str) -> Play:
    """Get a page with n subscriptions of one client."""
    def play(stage: Stage, n: int) -> None:
        _subscribed(stage, n)
        stage.page("/varz")  # loads what pages need
        with stage.measured():
            stage.page(path)
    return play


def _connections(path: str) -> Play:
    """Get a page with n connections."""
    def play(stage: Stage, n: int) -> None:
        clients = [stage.client(name=f"client {i}") for i in range(n)]
        stage.page("/varz")
        with stage.measured():
            stage.page(path)
        for client in clients:
            client.close()
    return play


def _page(path: str, stage: Stage, n: int) -> None:
    """Get a page of a configuration with n elements."""
    stage.page("/varz")
    with stage.measured():
        stage.page(path)


def _request(subject: str, options: dict[str, object]) -> Play:
    """Send a request of the system account, with n subscriptions."""
    def play(stage: Stage, n: int) -> None:
        _subscribed(stage, n)
        system = stage.client(user="sys", password="p")
        with stage.measured():
            answer = system.request(subject, options)
        assert "error" not in answer, json.dumps(answer)[:1000]
    return play


def _accounts(n: int) -> str:
    return "accounts {\n" + "\n".join(f"A{i} {{ users [{{user: u{i}, password: p}}] }}" for i in range(n)) + "\n}\n"


def _exports(n: int) -> str:
    exports = ", ".join(f'{{service: "s.{i}"}}' for i in range(n))
    imports = ", ".join(f'{{service: {{account: A, subject: "s.{i}"}}}}' for i in range(n))
    return f"accounts {{ A {{ exports [{exports}] }}\n B {{ imports [{imports}] }} }}\n"


CASES = (
    Case("/subsz with subscriptions", _subscriptions("/subsz?subs=1&limit=1000000"), 5_000),
    Case("/subsz with a test", _subscriptions("/subsz?subs=1&limit=1000000&test=s.1.x"), 10_000),
    Case("/connz with one client's subscriptions", _subscriptions("/connz?subs=detail"), 5_000),
    Case("/connz with a filter", _subscriptions("/connz?acc=$G&filter_subject=x.1.y"), 5_000),
    Case("/connz", _connections("/connz?subs=1&auth=1"), 50),
    Case("/connz sorted by idle time", _connections("/connz?sort=idle"), 50),
    Case("/varz", _subscriptions("/varz"), 5_000),
    Case("/metrics", _subscriptions("/metrics"), 5_000),
    Case("/accountz with accounts", partial(_page, "/accountz"), 250, config=_accounts),
    Case("/accountz of one with exports", partial(_page, "/accountz?acc=A"), 250, config=_exports),
    Case("/accountz of one with imports", partial(_page, "/accountz?acc=B"), 250, config=_exports),
    Case("/accstatz with accounts", partial(_page, "/accstatz?unused=1"), 250, config=_accounts),
    Case("SUBSZ request", _request("$SYS.REQ.ACCOUNT.A.SUBSZ", {"limit": 1_000_000}), 5_000, config=SYSTEM),
    Case("CONNZ request", _request("$SYS.REQ.ACCOUNT.A.CONNZ", {"subscriptions_detail": True}), 5_000, config=SYSTEM),
)
