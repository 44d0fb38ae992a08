"""``default_js_domain``: clients of accounts without JetStream use another account's without naming its domain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError
from broker.config.show import show
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

CONFIG = """
server_name: s
jetstream { domain: hub, store_dir: "%s" }
accounts {
    OWNER { jetstream: enabled, users: [ { user: owner, password: p } ],
            exports: [ { service: "$JS.hub.API.>", response_type: stream } ] }
    GUEST { users: [ { user: guest, password: p } ],
            imports: [ { service: { account: OWNER, subject: "$JS.hub.API.>" } } ] }
    NONE { users: [ { user: none, password: p } ] }
}
default_js_domain { GUEST: hub, NONE: "" }
"""


async def _ask(client: Any, subject: str, payload: bytes = b"") -> Any:
    try:
        answer = json.loads((await client.request(subject, payload, timeout=30)).data)
    except NoRespondersError:
        return "no responders"
    return answer.get("error", {}).get("err_code") or answer.get("streams") or (answer.get("stream"), answer.get("seq"))


@pytest.mark.shows("accounts.default_domains")
@pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
async def test_the_guest_uses_the_owner_s_streams(process: type[ServerProcess], tmp_path: Path) -> None:
    """The guest's requests and puts into buckets reach the account that it imports; without a domain they do not."""
    config = tmp_path / "domains.conf"
    config.write_text(CONFIG % (tmp_path / "store"))
    async with process("-c", str(config)) as server:
        clients = {name: await nats.connect(server.url, user=name, password="p") for name in ("owner", "guest", "none")}
        try:
            await clients["guest"].jetstream().add_stream(name="S", subjects=["s"])
            await clients["owner"].jetstream().create_key_value(bucket="B")
            for name, answers in {
                "owner": [["KV_B", "S"], ["KV_B", "S"], ("KV_B", 1)],
                # The server's own domain maps the long form to the short one, which this server answers.
                "guest": [["KV_B", "S"], 10039, ("KV_B", 2)],
                "none": [10039, 10039, "no responders"],
            }.items():
                client = clients[name]
                assert [await _ask(client, "$JS.API.STREAM.NAMES"), await _ask(client, "$JS.hub.API.STREAM.NAMES"),
                        await _ask(client, "$KV.B.key", b"value")] == answers, name
        finally:
            for client in clients.values():
                await client.close()


def _load(text: str) -> Any:
    return load(read_flags(["-c", "x.conf"]), {}, lambda _: text)


@pytest.mark.parametrize("text, why", [
    ("default_js_domain { X: hub }", "in non operator mode, `default_js_domain` references non existing account \"X\""),
    ("accounts { A { jetstream: enabled } }, default_js_domain { A: hub }",
     "default_js_domain contains account name \"A\" with enabled JetStream"),
    ("default_js_domain { $SYS: hub }", "system account \"$SYS\" can not be in default_js_domain"),
    ("accounts { A {} }, default_js_domain { A: \"h ub\" }",
     "default_js_domain contains account \"A\" with invalid domain name \"h ub\""),
    ("accounts { A {} }, default_js_domain: A", "default_js_domain must be a block of names and texts"),
    ("accounts { A {} }, default_js_domain { A: { x: y } }", "default_js_domain must be a block of names and texts"),
])
def test_invalid_domains_are_refused(text: str, why: str) -> None:
    """The error is in nats-server's words, with the place in the file."""
    with pytest.raises(ConfigError) as raised:
        _load(text)
    assert str(raised.value).startswith("x.conf:1:")
    assert why in str(raised.value)


def test_print_config_and_the_warning() -> None:
    """``--print-config`` writes the setting so that it can be read again; the log warns that it may be removed."""
    settings = _load("accounts { A {}, B { jetstream: enabled } }, default_js_domain { $G: a, A: hub, B: \"\" }")
    assert settings.accounts.default_domains == (("$G", "a"), ("A", "hub"), ("B", ""))
    assert _load(show(settings)).accounts.default_domains == settings.accounts.default_domains
    assert any("default_js_domain" in notice for notice in settings.notices)
