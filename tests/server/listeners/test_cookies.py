"""Credentials in cookies of WebSocket clients, with jetblock and with the real server."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest

from broker.config.settings import WebSocketSettings
from broker.server.listeners.upgrade import cookies, split_cookies
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.shows("core.websocket")

FILE = """
websocket { host: 127.0.0.1, port: -1, no_tls: true, user_cookie: %s, pass_cookie: %s }
authorization { timeout: 60, users: [ { user: a, password: p }, { user: " a", password: p } ] }
"""
BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
LONG = "x=" + "y" * 20_000

COOKIES: dict[str, tuple[list[str], str]] = {
    "as browsers send them": (["x=1; user=a; pass=p"], "a"),
    "in two lines": (["user=a", "pass=p"], "a"),
    "the last one counts": (["user=nobody; pass=p; user=a"], "a"),
    "in the last line": (["user=nobody; pass=p", "user=a"], "a"),
    "the last one is wrong": (["user=a; pass=p; user=nobody"], ""),
    "the last one is empty": (["user=a; pass=p; user="], ""),
    "quoted": (['user="a"; pass="p"'], "a"),
    "half quoted": (['user="a; pass=p'], ""),
    "escapes are not decoded": (['user="\\141"; pass=p'], ""),
    "JSON before": (['j={"a":1}; user=a; pass=p'], "a"),
    "a flag before": (["flag; user=a; pass=p"], "a"),
    "a name with blanks before": (["a b=1; user=a; pass=p"], "a"),
    "a name that is no token before": (["a[0]=1; user=a; pass=p"], "a"),
    "named as an attribute of cookies": (["path=/; user=a; pass=p"], "a"),
    "empty ones between": ([";; user=a;; pass=p;"], "a"),
    "blanks around": (["  user=a ;\tpass=p "], "a"),
    "a blank in the value": (["user= a; pass=p"], " a"),
    "names in other case": (["User=a; Pass=p"], ""),
    "longer than other lines may be": ([f"{LONG}; user=a; pass=p"], "a"),
    "many": (["; ".join(f"c{at}=1" for at in range(2000)) + "; user=a; pass=p"], "a"),
    "too many": (["; ".join(f"c{at}=1" for at in range(4000)) + "; user=a; pass=p"], ""),
    "none": ([], ""),
}


async def user_of(server: ServerProcess, lines: list[str]) -> str:
    """Return the user of a client with these cookies; "" if it is refused."""
    try:
        client = await nats.connect(server.ports["websocket"][0], ws_connection_headers={"Cookie": lines},
                                    allow_reconnect=False)
    except nats.errors.Error as error:
        if "authorization violation" not in str(error).lower():
            raise
        return ""
    try:
        answer = await client.request("$SYS.REQ.USER.INFO", b"", timeout=30)
        return str(json.loads(answer.data)["data"]["user"])
    finally:
        await client.close()


@BOTH
async def test_cookies_as_clients_send_them(process: type[ServerProcess], tmp_path: Path) -> None:
    """An application's other cookies, valid or not, exclude nobody."""
    path = tmp_path / "x.conf"
    path.write_text(FILE % ("user", "pass"))
    async with process("-c", str(path)) as server:
        users = {case: await user_of(server, lines) for case, (lines, _) in COOKIES.items()}
    assert users == {case: user for case, (_, user) in COOKIES.items()}


@BOTH
async def test_names_of_cookie_attributes_are_allowed(process: type[ServerProcess], tmp_path: Path) -> None:
    """The configured cookies may have the names of cookies' attributes."""
    path = tmp_path / "x.conf"
    path.write_text(FILE % ("path", "version"))
    async with process("-c", str(path)) as server:
        assert await user_of(server, ["path=a; version=p"]) == "a"


def test_one_cookie_for_two_settings() -> None:
    """The cookie belongs to the first of the settings, in the order JWT, user, password, token."""
    settings = WebSocketSettings(user_cookie="c", pass_cookie="c", token_cookie="t")
    assert cookies(settings, ["c=x; t=y; =z"]) == {"user": "x", "auth_token": "y"}


def test_cookies_are_split_from_a_request() -> None:
    """The other lines stay in order and unchanged; names of fields match in any case."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\ncookie: a=1\r\nX-Cookie: b\r\nCOOKIE:c=\xe9\r\n\r\n"
    assert split_cookies(head) == (b"GET / HTTP/1.1\r\nHost: x\r\nX-Cookie: b\r\n\r\n", [" a=1", "c=\xe9"])
