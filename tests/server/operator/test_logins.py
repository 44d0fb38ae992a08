"""Logins with tokens, with jetblock and with the real server."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.base.nkeys import ACCOUNT, OPERATOR, USER
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.jwt")

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])

NOW = int(time.time())
OK = b"PONG\r\n"
REFUSED = b"-ERR 'Authorization Violation'\r\n"
SIGNER, SCOPED, STRANGER = key(ACCOUNT, "signer"), key(ACCOUNT, "scoped"), key(ACCOUNT, "stranger")
OPERATOR_SIGNER = key(OPERATOR, "signer")


def scope(signer: Any = SCOPED, **template: Any) -> dict[str, Any]:
    return {"kind": "user_scope", "key": signer.public, "role": "r",
            "template": {"subs": -1, "data": -1, "payload": -1, **template}}


def around(seconds: int, hours: float = 1) -> list[dict[str, str]]:
    """Return a window of that many hours, in UTC, which began ``seconds`` ago."""
    start = datetime.now(UTC) - timedelta(seconds=seconds)
    return [{"start": f"{start:%H:%M:%S}", "end": f"{start + timedelta(hours=hours):%H:%M:%S}"}]


ACCOUNTS = {
    "A": tokens.account("A", signing_keys=[SIGNER.public, scope()], tags=["team:x"],
                        default_permissions={"pub": {"allow": ["d.>"]}}),
    "signed": tokens.account("signed", signer=OPERATOR_SIGNER),
    "foreign": tokens.account("foreign", signer=key(OPERATOR, "other")),
    "expired": tokens.account("expired", exp=NOW - 10),
    "no bearers": tokens.account("no bearers", limits={"disallow_bearer": True}),
    "revoking": tokens.account("revoking", revocations={key(USER, "gone").public: NOW - 100}),
    "revoking all": tokens.account("revoking all", revocations={"*": NOW - 100}),
    "narrow": tokens.account("narrow", limits={"payload": 10, "subs": 1}),
    "full": tokens.account("full", limits={"conn": 0}),
    "negative": tokens.account("negative", limits={"conn": -5}),
    "expired in capitals": tokens.account("expired in capitals", top={"EXP": NOW - 10}),
    "revoking in capitals": tokens.account("revoking in capitals", Revocations={key(USER, "gone").public: NOW - 100}),
    "full in capitals": tokens.account("full in capitals", Limits={"Conn": 0}),
    "mislabelled": tokens.account("B"),
}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bytes]] = {
    # The token, other fields of CONNECT, and the answer.
    "a user of an account": ({}, {}, OK),
    "signed by a signing key": ({"signer": SIGNER}, {}, OK),
    "by a key that is none": ({"signer": STRANGER}, {}, REFUSED),
    "by a signing key that does not say so": ({"of": "signer"}, {}, REFUSED),
    "of an account nobody knows": ({"of": "nobody"}, {}, REFUSED),
    "of an account with another's token": ({"of": "mislabelled"}, {}, REFUSED),
    "of an account of an operator's signing key": ({"of": "signed"}, {}, OK),
    "of an account of a stranger": ({"of": "foreign"}, {}, REFUSED),
    "of an expired account": ({"of": "expired"}, {}, REFUSED),
    "expired": ({"exp": NOW - 10}, {}, REFUSED),
    "not expired": ({"exp": NOW + 86_400}, {}, OK),
    "expires in a century": ({"exp": NOW + 3_155_000_000}, {}, OK),
    "expires in more nanoseconds than an int64 counts": (
        {"exp": (1 << 63) - 1}, {}, b"-ERR 'User Authentication Expired'\r\n"),
    "not valid yet": ({"nbf": NOW + 86_400}, {}, REFUSED),
    "valid for some time": ({"nbf": NOW - 1000}, {}, OK),
    "signed by somebody else": ({}, {"pair": key(USER, "x")}, REFUSED),
    "no signature": ({}, {"sig": ""}, REFUSED),
    "no base64": ({}, {"sig": "?"}, REFUSED),
    "bearer": ({"bearer_token": True}, {"sig": ""}, OK),
    "bearer where there may be none": ({"bearer_token": True, "of": "no bearers"}, {"sig": ""}, REFUSED),
    "no bearer there": ({"of": "no bearers"}, {}, OK),
    "revoked": ({"of": "revoking", "name": "gone", "iat": NOW - 100}, {}, REFUSED),
    "issued after its revocation": ({"of": "revoking", "name": "gone", "iat": NOW - 99}, {}, OK),
    "another than the revoked": ({"of": "revoking", "iat": NOW - 1000}, {}, OK),
    "revoked with all": ({"of": "revoking all", "iat": NOW - 100}, {}, REFUSED),
    "issued after all were": ({"of": "revoking all"}, {}, OK),
    "from here": ({"src": ["10.0.0.0/8", "127.0.0.0/8"]}, {}, OK),
    "from here, as one text": ({"src": "10.0.0.0/8, 127.0.0.1/32"}, {}, OK),
    "from here, mapped to IPv6": ({"src": ["::ffff:127.0.0.0/104"]}, {}, OK),
    "from elsewhere, mapped to IPv6": ({"src": ["::ffff:10.0.0.0/104"]}, {}, REFUSED),
    "from anywhere by IPv6 alone": ({"src": ["::/0"]}, {}, REFUSED),
    "from a network that contains those mapped to IPv6": ({"src": ["::ffff:127.0.0.0/95"]}, {}, REFUSED),
    "from elsewhere": ({"src": ["10.0.0.0/8"]}, {}, REFUSED),
    "from nowhere": ({"src": ["x"]}, {}, REFUSED),
    "from an address without a mask": ({"src": ["127.0.0.1"]}, {}, REFUSED),
    "at this time": ({"times": around(60), "times_location": "UTC"}, {}, OK),
    "at another": ({"times": around(7200), "times_location": "UTC"}, {}, REFUSED),
    "at one of two": ({"times": around(7200) + around(60), "times_location": "UTC"}, {}, OK),
    "around midnight": ({"times": around(60, 23.9), "times_location": "UTC"}, {}, OK),
    "in a place": ({"times": around(60 - 9 * 3600), "times_location": "Asia/Tokyo"}, {}, OK),
    "in no place": ({"times": around(60), "times_location": "Moon/Here"}, {}, REFUSED),
    "a time that is none": ({"times": [{"start": "1", "end": "2"}]}, {}, REFUSED),
    "by this kind of connection": ({"allowed_connection_types": ["STANDARD"]}, {}, OK),
    "in any case": ({"allowed_connection_types": ["standard", "nonsense"]}, {}, OK),
    "by another kind": ({"allowed_connection_types": ["WEBSOCKET"]}, {}, REFUSED),
    "by no kind that is known": ({"allowed_connection_types": ["nonsense"]}, {}, REFUSED),
    "proxy required": ({"proxy_required": True}, {}, REFUSED),
    "invalid permissions": ({"pub": {"allow": ["a..b"]}}, {}, REFUSED),
    "a queue to publish to": ({"pub": {"allow": ["a q"]}}, {}, REFUSED),
    "scoped": ({"signer": SCOPED, "scoped": True}, {}, OK),
    "scoped, with limits of its own": ({"signer": SCOPED}, {}, REFUSED),
    "scoped, with permissions of its own": ({"signer": SCOPED, "scoped": True, "pub": {"allow": ["a"]}}, {}, REFUSED),
    "not scoped, without limits": ({"scoped": True}, {}, b"-ERR 'maximum subscriptions exceeded'\r\n"),
    "expired, in capitals": ({"top": {"EXP": NOW - 10}}, {}, REFUSED),
    "expired, then not": ({"top": {"exp": NOW - 10, "Exp": NOW + 86_400}}, {}, OK),
    "not valid yet, in capitals": ({"top": {"Nbf": NOW + 86_400}}, {}, REFUSED),
    "from elsewhere, in capitals": ({"SRC": ["10.0.0.0/8"]}, {}, REFUSED),
    "from elsewhere, then from anywhere": ({"src": ["10.0.0.0/8"], "Src": None}, {}, OK),
    "at another time, in capitals": ({"Times": around(7200), "TIMES_LOCATION": "UTC"}, {}, REFUSED),
    "by another kind, in capitals": ({"Allowed_Connection_Types": ["WEBSOCKET"]}, {}, REFUSED),
    "bearer, in capitals": ({"Bearer_Token": True}, {"sig": ""}, OK),
    "a number that is a text": ({"top": {"Exp": "never"}}, {}, REFUSED),
    "revoked, in capitals": ({"of": "revoking in capitals", "name": "gone", "iat": NOW - 100}, {}, REFUSED),
    "of an account that expired, in capitals": ({"of": "expired in capitals"}, {}, REFUSED),
    "in an account that is full, in capitals": (
        {"of": "full in capitals"}, {}, b"-ERR 'maximum account active connections exceeded'\r\n"),
    "in an account of less than no connections": (
        {"of": "negative"}, {}, b"-ERR 'maximum account active connections exceeded'\r\n"),
    "with less than no subscriptions": ({"subs": -5}, {}, b"-ERR 'maximum subscriptions exceeded'\r\n"),
    "in a full account": ({"of": "full"}, {}, b"-ERR 'maximum account active connections exceeded'\r\n"),
}


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "x.conf"
    path.write_text(text)
    return str(path)


def operated(*lines: str) -> str:
    return tokens.configuration(ACCOUNTS, *lines, operator_token=tokens.operator(signing_keys=[OPERATOR_SIGNER.public]))


@BOTH
async def test_accepted_logins(process: type[ServerProcess], tmp_path: Path) -> None:
    """Every case of the table has its answer, and the log contains no token or signature."""
    async with process("-c", config(tmp_path, operated()), monitor=False) as server:
        sent = []
        for case, (claims, fields, wanted) in CASES.items():
            token = tokens.user(**claims)
            async with Wire(server.port) as wire:
                connect = tokens.connect(wire.info, token, claims.get("name", "u"), **fields)
                sent += [token.rpartition(".")[2], json.loads(connect[8:])["sig"]]
                wire.send(connect + b"PING\r\n")
                # The real server closes a client without subscriptions a little later.
                output = await (wire.until(b"\r\n") if wanted == OK else wire.end())
            assert output == wanted or output.replace(OK, b"") == wanted, case
        for connect in (b"CONNECT {}\r\n", b'CONNECT {"user":"u","pass":"p"}\r\n', b'CONNECT {"jwt":"x.y.z"}\r\n',
                        b"PING\r\n",
                        b'CONNECT {"jwt":"%s"}\r\n' % ACCOUNTS["A"].encode()):
            async with Wire(server.port) as wire:
                wire.send(connect)
                assert await wire.end() == REFUSED
        assert not [secret for secret in sent if secret and any(secret in line for line in server.stderr)]


@BOTH
async def test_permissions(process: type[ServerProcess], tmp_path: Path) -> None:
    """A token has its own permissions, the account's default ones, or those of its key's scope with filled-in
    templates."""
    template = {"pub": {"allow": ["{{name()}}.>", "{{tag(team)}}.{{subject()}}",
                                  "{{account-name()}}.{{account-tag(team)}}"],
                        "deny": ["x.{{tag(region)}}"]}, "sub": {"allow": ["{{tag(nothing)}}.>"]}}
    accounts = {**ACCOUNTS, "S": tokens.account("S", signing_keys=[scope(**template)], tags=["team:y"])}
    own = tokens.user(pub={"allow": ["p.>"], "deny": ["p.no"]}, sub={"allow": ["s.>", "q v1"]},
                      resp={"max": 1, "ttl": 1000000000})
    scoped = tokens.user("u", "S", signer=SCOPED, scoped=True, tags=["team:red", "team:blue", "region:eu"])
    public = key(USER, "u").public
    capitals = tokens.user(Pub={"Deny": ["p.>"]}, SUB={"DENY": ["s.>"]})
    # Each of the two members has one value; Go merges them.
    merged = tokens.user(pub={"deny": ["p.no"]}, Pub={"allow": ["p.>"]}, sub={"deny": ["s.>"]}, Sub=None)
    default = tokens.user(of="D")
    accounts["D"] = tokens.account("D", Default_Permissions={"pub": {"Deny": ["p.>"]}})
    scope_in_capitals = tokens.user("u", "C", signer=SCOPED, scoped=True)
    accounts["C"] = tokens.account("C", Signing_Keys=[{"kind": "user_scope", "Key": SCOPED.public, "Template": {
        "Pub": {"Deny": ["{{name()}}.>"]}}}])
    cases = [
        (capitals, b"", [("p.x", False), ("x", True)], [("s.1 1", False), ("x 1", True)]),
        (merged, b"", [("p.x", True), ("p.no", False), ("x", False)], [("s.1 1", False)]),
        (default, b"", [("p.x", False), ("x", True)], []),
        (scope_in_capitals, b"", [("u.x", False), ("x", True)], []),
        (own, b"", [("p.x", True), ("p.no", False), ("d.x", False)],
         [("s.1 1", True), ("q v1 2", True), ("q 3", False)]),
        (tokens.user(), b"", [("d.x", True), ("p.x", False)], [("any 1", True)]),
        (scoped, b"", [("u.x", True), (f"red.{public}", True), (f"blue.{public}", True), ("S.y", True), ("x.eu", False),
                       ("u", False), (f"green.{public}", False)], [("any 1", False)]),
    ]
    async with process("-c", config(tmp_path, tokens.configuration(accounts)), monitor=False) as server:
        for token, _, publishes, subscriptions in cases:
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token))
                for subject, may in publishes:
                    wire.send(f"PUB {subject} 0\r\n\r\n".encode())
                    assert (b"Permissions Violation" in await wire.settled()) is not may, subject
                for subscription, may in subscriptions:
                    wire.send(f"SUB {subscription}\r\n".encode())
                    assert (b"Permissions Violation" in await wire.settled()) is not may, subscription


@BOTH
@pytest.mark.shows("accounts.user_info")
async def test_user_info_has_names_and_keys(process: type[ServerProcess], tmp_path: Path) -> None:
    """A user learns its own and its account's key and name."""
    async with process("-c", config(tmp_path, operated()), monitor=False) as server, Wire(server.port) as wire:
        wire.send(tokens.connect(wire.info, tokens.user(of="signed")))
        wire.send(b"SUB _INBOX.1 1\r\nPUB $SYS.REQ.USER.INFO _INBOX.1 0\r\n\r\n")
        await wire.until(b"MSG _INBOX.1 1 ")
        await wire.until(b"\r\n")
        data = json.loads(await wire.until(b"\r\n"))["data"]
    wanted = {"user": key(USER, "u").public, "user_name": "u", "account": key(ACCOUNT, "signed").public,
              "account_name": "signed"}
    assert {name: data[name] for name in wanted} == wanted


@BOTH
async def test_templates_that_cannot_be_filled_in(process: type[ServerProcess], tmp_path: Path) -> None:
    """An unknown template, a denial of nothing, and too many subjects refuse the user."""
    many = [f"{letter}:{number}" for letter in "ab" for number in range(70)]
    templates: list[tuple[dict[str, Any], list[str], bytes]] = [
        ({"pub": {"allow": ["{{what()}}"]}}, [], REFUSED), ({"pub": {"deny": ["{{tag(x)}}"]}}, [], REFUSED),
        ({"pub": {"allow": ["{{tag(x)}}"]}}, [], OK), ({"pub": {"allow": ["{{tag(a)}}.{{tag(b)}}"]}}, many, REFUSED),
        ({"pub": {"allow": ["{{tag(a)}}"]}}, many, OK), ({"sub": {"deny": ["{{name()}} q"]}}, [], REFUSED)]
    accounts = {str(i): tokens.account(str(i), signing_keys=[scope(**template)]) for i,
                (template, _, _) in enumerate(templates)}
    async with process("-c", config(tmp_path, tokens.configuration(accounts)), monitor=False) as server:
        for i, (template, tags, wanted) in enumerate(templates):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info,
                                         tokens.user("u", str(i), signer=SCOPED, scoped=True, tags=tags)) + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted, template


@BOTH
async def test_limits(process: type[ServerProcess], tmp_path: Path) -> None:
    """INFO shows the lower limit of user and account; a scoped user has the scope's limits."""
    accounts = {**ACCOUNTS, "S": tokens.account("S", signing_keys=[scope(payload=7, subs=1)])}
    async with process("-c", config(tmp_path, tokens.configuration(accounts)), monitor=False) as server:
        for token, payload in ((tokens.user(payload=5, subs=1), 5), (tokens.user("u", "narrow"), 10),
                               (tokens.user("u", "narrow", payload=5, subs=9), 5),
                               (tokens.user("u", "narrow", payload=50), 10),
                               (tokens.user("u", "S", signer=SCOPED, scoped=True), 7)):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token, protocol=1, lang="x"))
                answer_to = await wire.settled() + await wire.settled()
                assert b'"max_payload":%d,' % payload in answer_to
                assert b'"nonce"' not in answer_to
                wire.send(b"SUB a 1\r\nSUB b 2\r\n")
                assert await wire.settled() == b"-ERR 'maximum subscriptions exceeded'\r\n" + OK
                wire.send(b"PUB d %d\r\n%b\r\n" % (payload + 1, b"x" * (payload + 1)))
                assert await wire.end() == b"-ERR 'Maximum Payload Violation'\r\n"
        async with Wire(server.port) as wire:
            wire.send(tokens.connect(wire.info, tokens.user(payload=-5)) + b"PUB d 0\r\n\r\n")
            assert await wire.end() == b"-ERR 'Maximum Payload Violation'\r\n"


@BOTH
async def test_a_user_without_room_for_subscriptions_is_served_until_it_is_closed(
        process: type[ServerProcess], tmp_path: Path) -> None:
    """Its login is answered, and each subscription refused, before the server closes the connection."""
    async with process("-c", config(tmp_path, operated()), monitor=False) as server:
        for most in (0, -5):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, tokens.user(subs=most)) + b"SUB a 1\r\nSUB b 2\r\nPING\r\n")
                output = await wire.end()
                assert output.count(b"-ERR 'maximum subscriptions exceeded'\r\n") == 3
                assert output.count(OK) == 1
                assert len(output) == len(OK) + 3 * len(b"-ERR 'maximum subscriptions exceeded'\r\n")


@pytest.mark.shows("auth.expiry")
@BOTH
async def test_a_user_expires(process: type[ServerProcess], tmp_path: Path) -> None:
    """A user expires with its token, at the end of its window of time, and with its account."""
    async def answer_to(token: str) -> bytes:
        async with Wire(server.port) as wire:
            wire.send(tokens.connect(wire.info, token) + b"PING\r\n")
            return await wire.end()

    for seconds in (3, 7, 14, 28):  # a busy machine may need more time to start the server, or to read a token
        accounts = {"A": ACCOUNTS["A"], "short": tokens.account("short", exp=int(time.time()) + seconds + 1)}
        async with process("-c", config(tmp_path, tokens.configuration(accounts)), monitor=False) as server:
            output = await asyncio.gather(answer_to(tokens.user(exp=int(time.time()) + seconds)), answer_to(
                tokens.user(times=around(3600 - seconds), times_location="UTC")), answer_to(tokens.user(of="short")))
            assert await answer_to(tokens.user(of="short")) == REFUSED
        if REFUSED not in output:
            break
    assert output == [OK + b"-ERR '%b Authentication Expired'\r\n" % whose for whose in (b"User", b"User", b"Account")]


@BOTH
async def test_tokens_in_connz(process: type[ServerProcess], tmp_path: Path) -> None:
    """/connz shows the user's key and tags, the signer, and the account's name; it hides bearer tokens."""
    async with process("-c", config(tmp_path, operated())) as server:
        for token, shown in ((tokens.user(signer=SIGNER, tags=["x:y"]), None),
                             (tokens.user(bearer_token=True), "[REDACTED]")):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token))
                await wire.settled()
                cid = json.loads(wire.info[5:])["client_id"]  # the previous connection may not have ended yet
                [row] = (await server.monitor(f"/connz?auth=1&cid={cid}"))["connections"]
                signer = SIGNER if shown is None else key(ACCOUNT, "A")
                assert row["authorized_user"] == key(USER, "u").public
                assert (row["account"], row["issuer_key"]) == (key(ACCOUNT, "A").public, signer.public)
                assert (row["name_tag"], row.get("tags")) == ("A", ["x:y"] if shown is None else None)
                if process is BrokerProcess or shown is not None:
                    assert row.get("jwt", shown) == (shown or token)
                [row] = (await server.monitor(f"/connz?cid={cid}"))["connections"]
                assert not {"jwt", "issuer_key", "tags", "name_tag"} & row.keys()


@BOTH
async def test_a_sentinel(process: type[ServerProcess], tmp_path: Path) -> None:
    """Clients without a token, or with an invalid one, have the configured one."""
    text = operated(f"default_sentinel: {tokens.user(bearer_token=True, pub={'allow': ['s']})}")
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        for connect in (b"CONNECT {}\r\n", b'CONNECT {"user":"u","pass":"p"}\r\n', b'CONNECT {"jwt":"x.y.z"}\r\n'):
            async with Wire(server.port) as wire:
                wire.send(connect + b"PUB s 0\r\n\r\nPUB t 0\r\n\r\n")
                assert (await wire.settled()).count(b"Permissions Violation") == 1
        async with Wire(server.port) as wire:
            wire.send(tokens.connect(wire.info, tokens.user(exp=NOW - 10)))
            assert await wire.end() == REFUSED


@BOTH
async def test_pinned_accounts(process: type[ServerProcess], tmp_path: Path) -> None:
    """Only users of pinned accounts and of the system account may log in."""
    text = operated(f"resolver_pinned_accounts: [ {key(ACCOUNT, 'A').public} ]")
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        for of, wanted in (("A", OK), ("SYS", OK), ("signed", REFUSED)):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, tokens.user(of=of)) + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted


@BOTH
async def test_strict_operators(process: type[ServerProcess], tmp_path: Path) -> None:
    """Strict signing keys: neither the operator's own key nor an account's own key may sign."""
    accounts = {"SYS": tokens.account("SYS", signer=OPERATOR_SIGNER), "A": tokens.account(signer=OPERATOR_SIGNER,
                signing_keys=[SIGNER.public]), "own": tokens.account("own")}
    strict = tokens.operator(signing_keys=[OPERATOR_SIGNER.public], strict_signing_key_usage=True)
    text = tokens.configuration(accounts, operator_token=strict)
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        for token, wanted in ((tokens.user(signer=SIGNER), OK), (tokens.user(), REFUSED),
                              (tokens.user(of="own"), REFUSED)):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token) + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted


async def test_a_far_expiry(tmp_path: Path) -> None:
    """An expiry beyond the range of timers, in 250 years, leaves the client connected."""
    expiry = int(time.time()) + 250 * 366 * 86_400
    async with BrokerProcess("-c", config(tmp_path, operated()), monitor=False) as server, Wire(server.port) as wire:
        wire.send(tokens.connect(wire.info, tokens.user(exp=expiry)))
        assert await wire.settled() == OK


@BOTH
async def test_trusted_keys(process: type[ServerProcess], tmp_path: Path) -> None:
    """A configuration may have operators' keys instead of their tokens."""
    preload = f"resolver_preload {{ {key(ACCOUNT, 'A').public}: {ACCOUNTS['A']} }}"
    text = f"trusted_keys: [ {key(OPERATOR, 'O').public} ]\nresolver: MEMORY\n{tokens.LOGIN}\n{preload}"
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        for of, wanted in (("A", OK), ("foreign", REFUSED)):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, tokens.user(of=of)) + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted


async def test_clients_in_advisories(tmp_path: Path) -> None:
    """Advisories name a client by its token, without the token itself."""
    account = tokens.account(limits={"mem_storage": -1, "disk_storage": -1})
    text = tokens.configuration({"A": account}, f'jetstream {{ store_dir: "{tmp_path}/store" }}')
    async with BrokerProcess("-c", config(tmp_path, text), monitor=False) as server:
        for token, shown in ((tokens.user(tags=["x:y"]), None), (tokens.user(bearer_token=True), "[REDACTED]")):
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info,
                                         token) + b"SUB $JS.EVENT.ADVISORY.API 1\r\nPUB $JS.API.INFO r 0\r\n\r\n")
                await wire.until(b'"client":')
                client, _ = json.JSONDecoder().raw_decode((await wire.until(b"\r\n")).decode())
                assert "jwt" not in client
                assert (client["acc"], client["issuer_key"]) == (key(ACCOUNT, "A").public,) * 2
                assert (client["user"], client["name_tag"], client.get("tags")) == (
                    key(USER, "u").public, "u", ["x:y"] if shown is None else None)


@BOTH
async def test_accountz(process: type[ServerProcess], tmp_path: Path) -> None:
    """An account's page has its token, the decoded token, and its name."""
    async with process("-c", config(tmp_path, operated())) as server, Wire(server.port) as wire:
        wire.send(tokens.connect(wire.info, tokens.user(of="revoking")))
        await wire.settled()
        detail = (await server.monitor(f"/accountz?acc={key(ACCOUNT, 'revoking').public}"))["account_detail"]
        assert (detail["jwt"], detail["name_tag"], detail["expired"]) == (ACCOUNTS["revoking"], "revoking", False)
        assert detail["issuer_key"] == key(OPERATOR, "O").public
        assert detail["revoked_user"].keys() == {key(USER, "gone").public}
        assert detail["decoded_jwt"]["nats"]["revocations"] == {key(USER, "gone").public: NOW - 100}
