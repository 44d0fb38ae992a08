"""Users, permissions and accounts of a file: their values, and refusals, in the real server's words."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access.accounts import (
    DEFAULT_ACCOUNT,
    AccountLimits,
    AccountSettings,
    NkeyUser,
    OuterTrace,
    Permissions,
    ResponsePermission,
    SubjectPermission,
    User,
)
from broker.access.sharing import Destination, Export, Import, Latency, SubjectMapping
from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.reading.accounts import read_accounts
from broker.config.reading.findings import Findings
from broker.config.reading.sharing import read_mappings
from broker.config.reading.users import read_users
from broker.config.settings import MASK, AccountsSettings, ConfigError, Settings
from broker.config.show import show
from broker.config.syntax import parse
from tests.harness import NatsServerProcess

NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
MINUTES = 60_000_000_000


def loaded(text: str, tmp_path: Path) -> Settings:
    path = tmp_path / "x.conf"
    path.write_text(text)
    return load(read_flags(["-c", str(path)]), {})


USERS: list[tuple[str, list[User | NkeyUser]]] = [
    ("{user: a}", [User("a")]),
    ("{username: a, pass: 0123}", [User("a", "0123")]),
    ("{user: a, permissions: {publish: x}}", [User("a", permissions=Permissions(SubjectPermission(("x",))))]),
    ("{user: a, permission: {pub: [x, 'y.>'], sub: {allow: 'q v1.*', deny: [z]}}}",
     [User("a", permissions=Permissions(SubjectPermission(("x", "y.>")), SubjectPermission(("q v1.*",), ("z",))))]),
    ("{user: a, authorization: {import: {deny: x}, export: {}}}",
     [User("a", permissions=Permissions(SubjectPermission(None, ("x",))))]),
    ("{user: a, permissions: {publish: [], subscribe: {allow: []}}}", [User("a", permissions=Permissions())]),
    ("{user: a, permissions: {}}", [User("a", permissions=Permissions())]),
    ("{user: a, permissions: {allow_responses: true}}",
     [User("a", permissions=Permissions(allow_responses=ResponsePermission(1, 2 * MINUTES)))]),
    ("{user: a, permissions: {allow_responses: false}}", [User("a", permissions=Permissions())]),
    ("{user: a, permissions: {publish_allow_responses: {max: 5, expires: '1m'}}}",
     [User("a", permissions=Permissions(allow_responses=ResponsePermission(5, MINUTES)))]),
    ("{user: a, permissions: {allow_responses: {max_msgs: -1, ttl: '-1s'}}}",
     [User("a", permissions=Permissions(allow_responses=ResponsePermission(-1, -1_000_000_000)))]),
    ("{user: a, permissions: {allow_responses: {max: 0, ttl: '0s'}}}",
     [User("a", permissions=Permissions(allow_responses=ResponsePermission()))]),
    ("{user: a, allowed_connection_types: [standard, WEBSOCKET]}",
     [User("a", connection_types=frozenset({"STANDARD", "WEBSOCKET"}))]),
    (f"{{nkey: {NKEY}, permissions: {{publish: x}}, clients: MQTT}}",
     [NkeyUser(NKEY, permissions=Permissions(SubjectPermission(("x",))), connection_types=frozenset({"MQTT"}))]),
    ("{user: a, proxy_required: false}, {user: b}", [User("a"), User("b")]),
    ("{user: a, proxy_required: true}", [User("a", proxy_required=True)]),
]


@pytest.mark.parametrize(("text", "wanted"), USERS)
def test_users(text: str, wanted: list[User | NkeyUser]) -> None:
    """Each list of users has the table's values."""
    found = Findings()
    assert read_users(parse(f"users: [ {text} ]").value["users"], found) == wanted
    assert found.errors == []


ACCOUNTS: list[tuple[str, list[AccountSettings]]] = [
    ("[A, B]", [AccountSettings("A"), AccountSettings("B")]),
    ("{A: {}, $SYS: {users: [{user: s}]}}", [AccountSettings("A"), AccountSettings("$SYS")]),
    ("{A {jetstream: enabled}, B {jetstream: true}, C {jetstream: disabled}, D {jetstream: off}}",
     [AccountSettings("A", AccountLimits()), AccountSettings("B", AccountLimits()), AccountSettings("C"),
      AccountSettings("D")]),
    ("{A {jetstream {max_mem: 1KB, store: 2MB, streams: 3, max_consumers: 4, max_ack_pending: 5, "
     "mem_max_stream_bytes: 6, disk_max_stream_bytes: 7, max_bytes: true}}}",
     [AccountSettings("A", AccountLimits(1 << 10, 2 << 20, 3, 4, 5, 6, 7, max_bytes_required=True))]),
    ("{A {jetstream {}}}", [AccountSettings("A", AccountLimits())]),
    ("{A {limits {max_conn: 5, max_subscriptions: 6, max_pay: 1KB}}}",
     [AccountSettings("A", max_connections=5, max_subscriptions=6, max_payload=1 << 10)]),
    ("{A {msg_trace: t}, B {trace_dest: {dest: t, sampling: '5%'}}}",
     [AccountSettings("A", outer_trace=OuterTrace("t")), AccountSettings("B", outer_trace=OuterTrace("t", 5))]),
    ("{A {exports [{stream: 'a.>'}, {service: b, accounts: [B], response: stream, threshold: '2s', allow_trace: true}, "
     "{service: c, accounts: [], latency: d}, {service: 'e.*', account_token_position: 2, "
     "latency: {subject: f, sampling: headers}}, {service: g, latency: {subject: h, sampling: '50%'}}]}, B {}}",
     [AccountSettings("A", exports=(
         Export("stream", "a.>"),
         Export("service", "b", ("B",), "stream", 2_000_000_000, allow_trace=True),
         Export("service", "c", latency=Latency("d")),
         Export("service", "e.*", latency=Latency("f", 0), account_token_position=2),
         Export("service", "g", latency=Latency("h", 50)))),
      AccountSettings("B")]),
    ("{A {imports [{stream: {account: B, subject: a}, prefix: p, allow_trace: true}, "
     "{stream: {account: B, subject: 'b.*'}, to: 'c.$1'}, {service: {account: B, subject: s}, to: t, share: true}]}, "
     "B {exports [{stream: a}, {stream: 'b.*'}, {service: s, accounts: [A]}]}}",
     [AccountSettings("A", imports=(
         Import("stream", "B", "a", prefix="p", allow_trace=True),
         Import("stream", "B", "b.*", "c.$1"),
         Import("service", "B", "s", "t", share=True))),
      AccountSettings("B", exports=(Export("stream", "a"), Export("stream", "b.*"), Export("service", "s", ("A",))))]),
]


@pytest.mark.parametrize(("text", "wanted"), ACCOUNTS)
def test_accounts(text: str, wanted: list[AccountSettings]) -> None:
    """Each block of accounts has the table's values."""
    found = Findings()
    assert read_accounts(parse(f"accounts: {text}").value["accounts"], found).accounts == wanted
    assert found.errors == []


def test_mappings() -> None:
    """Mappings have a subject, one destination or several with weights; a function counts as one token."""
    text = ("mappings: { a: b, 'c.*': {dest: 'd.$1', weight: '20%'}, e: [ {destination: 'f.{{partition(3, 1)}}', "
            "weight: 50, cluster: x}, {destination: g, weight: 50} ] }")
    found = Findings()
    assert read_mappings(parse(text).value["mappings"], found) == (
        SubjectMapping("a", (Destination("b"),)),
        SubjectMapping("c.*", (Destination("d.$1", 20),)),
        SubjectMapping("e", (Destination("f.{{partition(3, 1)}}", 50, "x"), Destination("g", 50))))
    assert found.errors == []


def test_users_of_all_blocks_come_together(tmp_path: Path) -> None:
    """Each user has the account, and the default permissions, of the block unless the user has own permissions."""
    own, given = Permissions(SubjectPermission(("own",))), Permissions(SubjectPermission(("given",)))
    found = loaded(
        "authorization { default_permissions { publish: given }\n"
        "  users [ {user: a, password: p}, {user: b, password: p, permissions { publish: own }} ] }\n"
        "accounts { A { users [ {user: c}, {user: d, permissions { publish: own }} ], "
        "               default_permissions { publish: given } }, B { users [ {user: e} ] } }\n"
        "no_auth_user: e\nsystem_account: B", tmp_path)
    assert found.auth.users == (
        User("a", "p", permissions=given), User("b", "p", permissions=own), User("c", account="A", permissions=given),
        User("d", account="A", permissions=own), User("e", account="B"))
    assert found.accounts.configured == (AccountSettings("A"), AccountSettings("B"))
    assert (found.accounts.system, found.auth.no_auth_user) == ("B", "e")
    assert found.auth.users[0].account == DEFAULT_ACCOUNT


def test_what_is_shown_can_be_read_back(tmp_path: Path) -> None:
    """The text of --print-config has the same users and accounts after the passwords are written into it."""
    text = ("authorization { users [ {user: a, password: hunter2, permissions { publish: [x, y], subscribe { allow: "
            "'q v1', deny: z }, allow_responses { max: 3, expires: '1m30s' } }, allowed_connection_types: [WEBSOCKET]} "
            "] }\n"
            "accounts { A { users [ {user: 'c d', password: hunter2} ], limits { max_conn: 5, max_payload: 1KB }\n"
            "  jetstream { max_file: 1MB, max_streams: 3, max_bytes: true } }, 'B C': {}, $SYS: { users [ {user: s} ] "
            "} }")
    shown = show(loaded(text, tmp_path))
    assert "hunter2" not in shown
    again = loaded(shown.replace(MASK, "hunter2"), tmp_path)
    assert show(again) == shown
    assert again.accounts == loaded(text, tmp_path).accounts
    assert [user.user for user in again.auth.users] == ["a", "c d", "s"]
    assert again.auth.users[0].permissions == loaded(text, tmp_path).auth.users[0].permissions


def test_what_accounts_share_can_be_read_back() -> None:
    """The text of each export, import and mapping gives the same value."""
    for text, wanted in ACCOUNTS:
        accounts = tuple(wanted)
        block = parse(show(Settings(accounts=AccountsSettings(accounts)))).value["accounts"]
        found = Findings()
        assert tuple(read_accounts(block, found).accounts) == accounts, text
        assert found.errors == []


REFUSED: list[str] = [
    "authorization { users: 5 }",
    "authorization { users: [ 5 ] }",
    "authorization { users: [ {password: x} ] }",
    "authorization {\n  users: [ {user: a, password: x}, {user: a, password: y} ] }",
    "authorization { users: [ {nkey: abc} ] }",
    "authorization { users: [ {nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4, user: a} ] }",
    "authorization { users: [ {user: a, permissions: 5} ] }",
    "authorization { users: [ {user: a, permissions: { foo: x }} ] }",
    'authorization { users: [ {user: a, permissions: { publish: "a..b" }} ] }',
    'authorization { users: [ {user: a, permissions: { publish: "a b" }} ] }',
    'authorization { users: [ {user: a, permissions: { subscribe: "a b c" }} ] }',
    'authorization { users: [ {user: a, permissions: { subscribe: "a.. b" }} ] }',
    'authorization { users: [ {user: a, permissions: { subscribe: "a b..c" }} ] }',
    "authorization { users: [ {user: a, permissions: { publish: { allowed: x } }} ] }",
    "authorization { users: [ {user: a, permissions: { publish: 5 }} ] }",
    "authorization { users: [ {user: a, permissions: { allow_responses: 5 }} ] }",
    "authorization { users: [ {user: a, permissions: { allow_responses: { max: 1, expires: 5 } }} ] }",
    'authorization { users: [ {user: a, permissions: { allow_responses: { expires: "x" } }} ] }',
    'authorization { users: [ {user: a, permissions: { allow_responses: { foo: "x" } }} ] }',
    "authorization { users: [ {user: a, allowed_connection_types: [ STANDARD, FOO ]} ] }",
    "authorization { user: a, password: b, users: [ {user: c, password: d} ] }",
    "authorization { token: a, users: [ {user: c, password: d} ] }",
    "authorization { user: a, password: b, token: c }",
    "accounts { A { users: [ {user: c, password: d} ] }, B { users: [ {user: c, password: d} ] } }",
    "accounts { $G { users: [] } }",
    "accounts [ A, A ]",
    "accounts { A: 5 }",
    "accounts { A { foo: 1 } }",
    "accounts { A { limits: 5 } }",
    "accounts { A { limits { foo: 5 } } }",
    "accounts { A { jetstream: maybe } }",
    "accounts { A { jetstream: 5 } }",
    "accounts { A { jetstream: { foo: 1} } }",
    "accounts { A { nkey: abc } }",
    "authorization { default_permissions: 5 }",
    'accounts { A { default_permissions: { publish: "a..b" } } }',
    "accounts { A { users: 5 } }",
    'accounts { A { mappings: { "a..b": c } } }',
    "accounts { A { mappings: { a: [ {destination: b, weight: 60}, {destination: c, weight: 60} ] } } }",
    "accounts { A { mappings: { a: [ {destination: b, weight: 60}, {destination: b, weight: 10} ] } } }",
    "accounts { A { mappings: { a: [ {destination: b} ] } } }",
    "accounts { A { mappings: { a: {destination: b, weight: 101} } } }",
    'accounts { A { mappings: { a: {destination: b, weight: "x%"} } } }',
    "accounts { A { mappings: { a: {dst: b, weight: 10} } } }",
    "accounts { A { exports: 5 } }",
    "accounts { A { exports: [ 5 ] } }",
    "accounts { A { exports: [ {stream: 5} ] } }",
    "accounts { A { exports: [ {stream: a, response_type: stream} ] } }",
    'accounts { A { exports: [ {stream: a, latency: "b"} ] } }',
    "accounts { A { exports: [ {service: a, response_type: foo} ] } }",
    "accounts { A { exports: [ {service: a, threshold: foo} ] } }",
    "accounts { A { exports: [ {service: a, threshold: 5} ] } }",
    "accounts { A { exports: [ {service: a, latency: 5} ] } }",
    "accounts { A { exports: [ {service: a, latency: {sampling: 5}} ] } }",
    "accounts { A { exports: [ {service: a, latency: {sampling: 101, subject: b}} ] } }",
    "accounts { A { exports: [ {service: a, foo: 1} ] } }",
    "accounts { A { exports: [ {service: a, accounts: [B]} ] } }",
    "accounts { A { exports: [ {stream: a, account_token_position: 1} ] } }",
    'accounts { A { exports: [ {service: a, latency: "b.*"} ] } }',
    'accounts { A { exports: [ {service: a, latency: "b", response_type: stream} ] } }',
    "accounts { A { imports: 5 } }",
    "accounts { A { imports: [ 5 ] } }",
    "accounts { A { imports: [ {stream: a} ] } }",
    "accounts { A { imports: [ {stream: {account: B}} ] } }",
    "accounts { A { imports: [ {stream: {account: B, subject: a}} ] } }",
    "accounts { A { imports: [ {service: {account: B, subject: a}} ] }, B {} }",
    "accounts { A { imports: [ {stream: {account: B, subject: a}} ] }, B { exports: [ {stream: a, "
    "accounts: [C]} ] }, C {} }",
    'accounts { A { imports: [ {stream: {account: B, subject: a}, prefix: "x.*"} ] }, '
    "B { exports: [ {stream: a} ] } }",
    "accounts { A { imports: [ {stream: {account: B, subject: a}}, {stream: {account: B, subject: a}, "
    "prefix: x} ] }, B { exports: [ {stream: a} ] } }",
    "accounts { A { imports: [ {service: {account: B, subject: a}}, {service: {account: B, "
    "subject: a}} ] }, B { exports: [ {service: a} ] } }",
    "accounts { A { exports: [ {service: a} ], imports: [ {service: {account: B, subject: a}} ] }, "
    "B { exports: [ {service: a} ], imports: [ {service: {account: A, subject: a}} ] } }",
    "accounts { A { exports: [ {stream: a} ], imports: [ {stream: {account: B, subject: a}} ] }, "
    "B { exports: [ {stream: a} ], imports: [ {stream: {account: A, subject: a}} ] } }",
    "accounts { A { imports: [ {stream: {account: B, subject: a, foo: 1}} ] }, B { exports: [ {stream: a} ] } }",
    'mappings { "a..": b }',
    'mappings { "a.*": "b.{{nope(1)}}" }',
    'mappings { "a.*": "b.{{wildcard(2)}}" }',
    'mappings { "a.*": "b.{{split(1)}}" }',
    'mappings { "a.>": "b.*" }',
    'mappings { "a": [ {destination: b, weight: 60}, {destination: c, weight: 60} ] }',
    'mappings { "a": [ {destination: b, weight: 10}, {destination: b, weight: 10} ] }',
    'accounts { A { mappings { "a.*": "b.{{partition()}}" } } }',
    "accounts { A { msg_trace: 5 } }",
    'accounts { A { msg_trace: "a.*" } }',
    "accounts { A { trace_dest: { dest: 5 } } }",
    'accounts { A { trace_dest: { dest: "a b" } } }',
    "accounts { A { msg_trace: { dest: a, sampling: 0 } } }",
    'accounts { A { msg_trace: { dest: a, sampling: "101%" } } }',
    "accounts { A { msg_trace: { dest: a, sampling: x } } }",
    "accounts { A { msg_trace: { dest: a, sampling: true } } }",
    "accounts { A { msg_trace: { dest: a, foo: 1 } } }",
    'accounts { A { imports: [ {stream: {account: B, subject: "a.*.*"}, to: "b.$1"} ] }, '
    'B { exports: [ {stream: "a.*.*"} ] } }',
    'accounts { A { imports: [ {stream: {account: B, subject: "a.*"}, to: "b.{{left(1,2)}}"} ] }, '
    'B { exports: [ {stream: "a.*"} ] } }',
    'accounts { A { imports: [ {service: {account: B, subject: "a.*.*"}, to: "b.$1"} ] }, '
    'B { exports: [ {service: "a.*.*"} ] } }',
    'accounts { A { imports: [ {service: {account: B, subject: "a.>"}, to: "b.*"} ] }, '
    'B { exports: [ {service: "a.>"} ] } }',
    'accounts { A { imports: [ {service: {account: B, subject: "a.B"}} ] }, '
    'B { exports: [ {service: "a.*", account_token_position: 2} ] } }',
]
"""Texts that both servers refuse, in the same words."""

OTHER_WORDS: list[tuple[str, str]] = [
    ("accounts { A { limits { max_conn: x } } }", "x.conf:1:24: max_conn must be a size such as 64MB"),
    ("accounts { A { jetstream: { max_mem: x} } }", "x.conf:1:28: max_mem must be a size such as 64MB"),
    ("accounts { A { jetstream: { max_bytes: 5} } }", "x.conf:1:28: max_bytes must be true or false, not '5'"),
    ("authorization { users: [ {user: [a], password: b} ] }", "x.conf:1:26: user must be text, not a list"),
    ("authorization { user: a, password: b }\naccounts { A { users: [ {user: c, password: d} ] } }",
     "x.conf:2:1: Can not have a single user/pass and accounts"),
    ("authorization { token: b }\naccounts { A { users: [ {user: c, password: d} ] } }",
     "x.conf:2:1: Can not have a token and accounts"),
    ("accounts 5", "x.conf:1:0: Expected map entries for accounts"),
]
"""Texts that both servers refuse, or nats-server ignores; the words are our own."""


@pytest.mark.parametrize("text", REFUSED)
def test_refused_as_by_the_real_server(text: str, tmp_path: Path) -> None:
    """Our error contains nats-server's, except for the column and suggestions."""
    with pytest.raises(ConfigError) as caught:
        loaded(text, tmp_path)
    done = subprocess.run([*NatsServerProcess.command, "-t", "-c", "x.conf"], capture_output=True, text=True,
                          timeout=100, check=False, cwd=tmp_path)
    assert done.returncode != 0
    ours = {_without_column(line) for line in str(caught.value).splitlines()}
    theirs = [_without_column(line) for line in done.stderr.splitlines() if line]
    assert theirs
    assert set(theirs) <= ours


def _without_column(line: str) -> str:
    line = line.removeprefix("nats-server: ").partition("; did you mean")[0].partition("; keep one")[0]
    return re.sub(r"^\S*x\.conf:\d+:\d+: ", "", line)


@pytest.mark.parametrize(("text", "why"), OTHER_WORDS)
def test_refused(text: str, why: str, tmp_path: Path) -> None:
    """Each error has the place, the key and a valid value."""
    with pytest.raises(ConfigError) as caught:
        loaded(text, tmp_path)
    assert why in str(caught.value)


_KEYS = ["user", "password", "nkey", "permissions", "publish", "subscribe", "allow", "deny", "allow_responses", "max",
         "expires",
         "allowed_connection_types", "users", "default_permissions", "jetstream", "max_mem", "max_streams", "max_bytes",
         "limits",
         "max_conn", "max_payload", "exports", "imports", "mappings", "stream", "service", "account", "subject",
         "accounts",
         "prefix", "to", "latency", "sampling", "response_type", "threshold", "account_token_position", "destination",
         "weight",
         "A", "B", "a.>", "nonsense"]
_LEAVES = st.sampled_from(["A", "B", "a.>", "a.*", "a b", "..", "", NKEY, "50%", "2s", "stream", "STANDARD", "enabled",
                           "$1"]) | (
    st.integers(-2, 200)) | st.booleans() | st.floats(0, 2)
_BLOCKS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=20)
_USER = st.fixed_dictionaries({"user": st.sampled_from("abc")}, optional={
    "password": _LEAVES, "permissions": st.dictionaries(st.sampled_from(["publish", "subscribe", "allow_responses"]),
                                                        _BLOCKS)})
_SHARED = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(
    ("stream", "service", "accounts", "latency", "threshold", "prefix", "to", "share"), _BLOCKS)), max_size=3)
_ACCOUNT = st.fixed_dictionaries({}, optional={
    "users": st.lists(_USER, max_size=2) | _BLOCKS, "jetstream": _BLOCKS, "limits": _BLOCKS, "exports": _SHARED,
    "imports": _SHARED, "mappings": _BLOCKS, "default_permissions": _BLOCKS})
_FILES = st.fixed_dictionaries({}, optional={
    "accounts": st.dictionaries(st.sampled_from(["A", "B", "$SYS", "$G"]), _ACCOUNT) | _BLOCKS,
    "authorization": st.fixed_dictionaries({},
                                           optional={"users": st.lists(_USER),
                                                     "default_permissions": _BLOCKS}) | _BLOCKS,
    "system_account": _LEAVES, "no_auth_user": _LEAVES, "mappings": _BLOCKS})


@settings(deadline=None, max_examples=80)
@given(_FILES)
def test_any_block(file: dict[str, Any]) -> None:
    """Any input becomes settings that can be printed and read back, or is refused; no other error is raised."""
    def read(_path: str) -> str:
        return json.dumps(file, ensure_ascii=False) if file else "port: 1"

    try:
        found = load(read_flags(["-c", "x"]), {}, read)
    except ConfigError:
        return
    again = load(read_flags(["-c", "y"]), {}, lambda _path: show(found).replace(MASK, "a secret"))
    assert again.accounts == found.accounts
    assert {(user.user, user.account, user.permissions) for user in again.auth.users} == {
        (user.user, user.account, user.permissions) for user in found.auth.users}


def test_the_lower_max_payload_counts() -> None:
    """The lower of an account's max_payload and the server's applies; 0 is a limit, too."""
    assert [AccountSettings("A", max_payload=own).payload_bytes_max(5) for own in (-1, 0, 3, 9)] == [5, 0, 3, 5]
