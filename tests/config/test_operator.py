"""Configuration of operators, resolvers and authorization services: values, and refusals in the real server's words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from broker.base.nkeys import ACCOUNT, CURVE, OPERATOR, public_key
from broker.config.callout import CalloutSettings
from broker.config.flags import CommandLine
from broker.config.load import load
from broker.config.operator import ResolverSettings
from broker.config.settings import MASK, ConfigError, Settings
from broker.config.show import show
from tests import tokens
from tests.harness import NatsServerProcess
from tests.keys import key, secret

SYS, A, OPERATOR_KEY = key(ACCOUNT, "SYS").public, key(ACCOUNT, "A").public, key(OPERATOR, "O").public
XKEY = public_key(CURVE, secret(CURVE))
TOKEN = tokens.operator()
WITH_SYSTEM = tokens.operator(system_account=SYS)
MEMORY = f"operator: {TOKEN}\nresolver: MEMORY\n"
ISSUED = f"issuer: {A}, auth_users: [ u ]"


def loaded(text: str, tmp_path: Path) -> Settings:
    path = tmp_path / "x.conf"
    path.write_text(text)
    return load(CommandLine(config=str(path)), {})


def test_values(tmp_path: Path) -> None:
    """Tokens are read inline and from files, with decoration, too; one operator names system account and account
    server."""
    (tmp_path / "o.jwt").write_text(f"-----BEGIN NATS OPERATOR JWT-----\n{WITH_SYSTEM}\n------END NATS OPERATOR "
                                    "JWT------\n")
    found = loaded(f'operator: "{tmp_path}/o.jwt"\nresolver: URL(https://x.example/jwt/v1/accounts/)\n'
                   f"resolver_pinned_accounts: [ {A} ]", tmp_path)
    assert found.operator.tokens == (WITH_SYSTEM,)
    assert found.accounts.system == SYS
    assert found.operator.resolver == ResolverSettings("url", url="https://x.example/jwt/v1/accounts/")
    assert found.operator.pinned_accounts == (A,)
    found = loaded(f"operator: {tokens.operator(account_server_url='https://x.example/jwt/v1')}", tmp_path)
    assert found.operator.resolver == ResolverSettings("url", url="https://x.example/jwt/v1/accounts")
    found = loaded(f"operators: [ {TOKEN}, {tokens.operator('P')} ]\nresolver: MEM\nsystem_account: {SYS}\n"
                   f"resolver_preload {{ {A}: {tokens.account()} }}", tmp_path)
    assert (len(found.operator.tokens), found.accounts.system, found.operator.resolver) == (2, SYS,
                                                                                            ResolverSettings("memory"))
    assert [account for account, _ in found.operator.preload] == [A]
    assert loaded(f"trusted: {OPERATOR_KEY}", tmp_path).operator.trusted_keys == (OPERATOR_KEY,)


@pytest.mark.parametrize(("text", "wanted"), [
    ('{ type: full, dir: "d" }', ResolverSettings("full", "d")),
    ('{ type: full, dir: "d", allow_delete: true, hard_delete: true, limit: 5, interval: "2m", timeout: "1.9s" }',
     ResolverSettings("full", "d", allow_delete=True, hard_delete=True, limit=5, timeout_ns=1_900_000_000)),
    ('{ type: cache, dir: "d", ttl: "1h" }', ResolverSettings("cache", "d", limit=1000, ttl_ns=3_600_000_000_000)),
    ("{ type: mem }", ResolverSettings("memory")),
])
def test_directories(text: str, wanted: ResolverSettings, tmp_path: Path) -> None:
    """Each block has its value, which can be printed and read back."""
    found = loaded(f"operator: {WITH_SYSTEM}\nresolver: {text}", tmp_path)
    assert found.operator.resolver == wanted
    assert loaded(show(found), tmp_path).operator == found.operator


def test_a_password_of_an_account_server_is_not_shown(tmp_path: Path) -> None:
    """The password is neither printed nor in the settings' text."""
    found = loaded(f"operator: {TOKEN}\nresolver: URL(https://u:hush-hush@x.example/accounts/)", tmp_path)
    assert found.operator.resolver is not None
    assert "hush-hush" in found.operator.resolver.url
    assert "hush-hush" not in show(found) + repr(found)


def test_services(tmp_path: Path) -> None:
    """An authorization service's settings can be printed and read back."""
    text = (f"authorization {{ users: [ {{user: u, password: p}} ], auth_callout {{ {ISSUED}, account: B, xkey: "
            f"{XKEY}, "
            f"allowed_accounts: [ B ] }} }}\naccounts {{ B {{}} }}")
    found = loaded(text, tmp_path)
    assert found.auth.callout == CalloutSettings(A, "B", ("u",), XKEY, ("B",))
    assert loaded(show(found).replace(MASK, "p"), tmp_path).auth.callout == found.auth.callout


REFUSED = [
    "operator: /nowhere.jwt\nresolver: MEMORY",
    f"operator: {tokens.user()}\nresolver: MEMORY",
    f"operators: [ {TOKEN}, {tokens.operator('P')} ]",
    f"operator: {TOKEN}\nresolver: nonsense",
    f"operator: {TOKEN}\nresolver: 5",
    f"operator: {TOKEN}\nresolver: {{ type: nonsense }}",
    f"operator: {WITH_SYSTEM}\nresolver: {{ type: full }}",
    f'operator: {WITH_SYSTEM}\nresolver: {{ type: full, dir: d, ttl: "1h" }}',
    f"operator: {WITH_SYSTEM}\nresolver: {{ type: full, dir: d, hard_delete: true }}",
    f"operator: {WITH_SYSTEM}\nresolver: {{ type: cache, dir: d, allow_delete: true }}",
    f"operator: {WITH_SYSTEM}\nresolver: {{ type: cache, dir: d, hard_delete: true }}",
    f"operator: {TOKEN}\nresolver: {{ type: full, dir: d }}",
    MEMORY + "accounts { A {} }",
    MEMORY + "authorization { users: [ {user: u, password: p} ] }",
    MEMORY + f"trusted: {OPERATOR_KEY}",
    MEMORY + "no_auth_user: u",
    MEMORY + f"resolver_preload {{ {A}: nonsense }}",
    MEMORY + "resolver_preload: 5",
    MEMORY + "resolver_pinned_accounts: [ x ]",
    MEMORY + "default_sentinel: x",
    MEMORY + f"default_sentinel: {tokens.user()}",
    "default_sentinel: x",
    f"trusted: {A}",
    f"operator: {WITH_SYSTEM}\nresolver: MEMORY\nsystem_account: {A}",
    f"operator: {tokens.operator(assert_server_version='99.0.0')}\nresolver: MEMORY",
    f"operator: {tokens.operator(assert_server_version='2.99.0')}\nresolver: MEMORY",
    f"operator: {tokens.operator(assert_server_version='x')}\nresolver: MEMORY",
    MEMORY + f"authorization {{ auth_callout {{ {ISSUED} }} }}",
    "authorization { auth_callout: 5 }",
    "authorization { auth_callout { auth_users: [ u ] } }",
    "authorization { auth_callout { issuer: x, auth_users: [ u ] } }",
    f"authorization {{ auth_callout {{ issuer: {A} }} }}",
    f"authorization {{ auth_callout {{ {ISSUED}, xkey: {A} }} }}",
    f"authorization {{ auth_callout {{ {ISSUED}, what: 1 }} }}",
    f"authorization {{ auth_callout {{ {ISSUED}, allowed_accounts: [ B ] }} }}",
    "websocket { port: -1, no_tls: true, jwt_cookie: j }",
]


@pytest.mark.parametrize("text", REFUSED)
def test_refused_as_by_the_real_server(text: str, tmp_path: Path) -> None:
    """Our errors contain nats-server's reason."""
    with pytest.raises(ConfigError) as caught:
        loaded(text, tmp_path)
    # nats-server checks contradicting settings only without -t.
    done = subprocess.run([*NatsServerProcess.command, "-a", "127.0.0.1", "-p", "-1", "-c", "x.conf"],
                          capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode != 0, done.stderr
    theirs = [re.sub(r"^(nats-server: )?(\S*x\.conf:\d+:\d+: )?", "", line) for line in done.stderr.splitlines()
              if line]
    ours = str(caught.value)
    assert [line for line in theirs if line not in ours and not line.startswith("mkdir ")] == []


def test_an_operator_of_an_older_version(tmp_path: Path) -> None:
    """A server may be newer than the version that an operator asserts."""
    assert loaded(f"operator: {tokens.operator(assert_server_version='2.1.9')}\nresolver: MEMORY",
                  tmp_path).operator.tokens
