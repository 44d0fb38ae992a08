"""Authorization services, which decide who may connect, with jetblock and with the real server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from broker.base.nkeys import ACCOUNT, CURVE, SERVER, USER, CurveKeyPair, KeyPair, is_public_key
from broker.jwt.token import decode_token, encode_token
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key, secret
from tests.server.operator.clients import ask, connected, directory, write
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.callout")

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
ISSUER, OTHER = key(ACCOUNT, "issuer"), key(ACCOUNT, "other")
OK = b"PONG\r\n"
REFUSED = b"-ERR 'Authorization Violation'\r\n"
TOO_LATE = b"-ERR 'Authentication Timeout'\r\n"

FILE = f"""
authorization {{
  timeout: 30
  auth_callout {{ issuer: {ISSUER.public}, account: AUTH, auth_users: [ auth, keyed ] %s }}
}}
accounts {{
  AUTH {{ users: [ {{user: auth, password: p}} ] }}
  APP {{ users: [ {{user: app, password: p}} ] }}
  DEFAULTS {{ users: [] }}
  SYS {{ users: [ {{user: sys, password: p}} ] }}
}}
system_account: SYS
"""
SHORT = (FILE % "").replace("timeout: 30", "timeout: 1")
"""Configuration for clients that nobody answers for; on a busy machine its timeout is too short for other tests."""

Request = dict[str, Any]
Answer = Callable[[Request], str | bytes | None]


def user(request: Request, account: str = "APP", *, signer: KeyPair = ISSUER, sub: str = "", name: str = "bound",
         exp: int = 0,
         **nats_claims: Any) -> str:
    """Return the token of the user that a request is about."""
    claims = {"sub": sub or request["nats"]["user_nkey"], "aud": account, "name": name,
              "nats": {"type": "user", "subs": -1, "data": -1, "payload": -1, **nats_claims}}
    return encode_token(claims | ({"exp": exp} if exp else {}), signer, int(time.time()))


def response(request: Request, token: str = "", *, signer: KeyPair = ISSUER, sub: str = "", aud: str = "",
             **nats_claims: Any) -> str:
    claims = {"sub": sub or request["nats"]["user_nkey"], "aud": aud or request["nats"]["server_id"]["id"],
              "nats": {"type": "authorization_response", **({"jwt": token} if token else {}), **nats_claims}}
    return encode_token(claims, signer, int(time.time()))


def half_a_day_ago() -> datetime:
    return datetime.now(UTC) - timedelta(hours=12)


ANSWERS: dict[str, tuple[Answer, bytes]] = {
    "right": (lambda request: response(request, user(request)), OK),
    "expires later": (lambda request: response(request, user(request, exp=int(time.time()) + 100)), OK),
    "by anybody else": (lambda request: response(request, user(request), signer=OTHER), REFUSED),
    "by the issuer, who says so": (lambda request: response(request, user(request), issuer_account=ISSUER.public), OK),
    "by the issuer in another's name": (lambda request: response(request, user(request), issuer_account=OTHER.public),
                                        OK),
    "by anybody else in the issuer's name": (
        lambda request: response(request, user(request), signer=OTHER, issuer_account=ISSUER.public), REFUSED),
    "to no account": (lambda request: response(request, user(request, "NOWHERE")), REFUSED),
    "by another key": (lambda request: response(request, user(request, signer=OTHER)), REFUSED),
    "with an issuer account": (lambda request: response(request, user(request, issuer_account=ISSUER.public)), REFUSED),
    "for another user": (lambda request: response(request, user(request), sub=key(USER, "x").public), REFUSED),
    "about another user": (lambda request: response(request, user(request, sub=key(USER, "x").public)), REFUSED),
    "for another server": (lambda request: response(request, user(request), aud=key(SERVER, "x").public), REFUSED),
    "an error": (lambda request: response(request, error="no such person"), REFUSED),
    "an error and a user": (lambda request: response(request, user(request), error="x"), REFUSED),
    "who must come by a proxy": (lambda request: response(request, user(request, proxy_required=True)), REFUSED),
    "neither": (response, REFUSED),
    "nothing": (lambda _request: b"", REFUSED),
    "nonsense": (lambda _request: "nonsense", REFUSED),
    "a user alone": (user, REFUSED),
    "expired": (lambda request: response(request, user(request, exp=int(time.time()) - 10)), REFUSED),
    "by another kind of connection": (
        lambda request: response(request, user(request, allowed_connection_types=["WEBSOCKET"])), REFUSED),
    "by no kind that is known": (lambda request: response(request, user(request, allowed_connection_types=["X"])),
                                 REFUSED),
    "invalid permissions": (lambda request: response(request, user(request, pub={"allow": ["a..b"]})), REFUSED),
    "at another time": (lambda request: response(request, user(
        request, times=[{"start": f"{half_a_day_ago():%H}:00:00", "end": f"{half_a_day_ago():%H}:00:01"}],
        times_location="UTC")), REFUSED),
}


@asynccontextmanager
async def service(client: Client, answer: Answer, requests: list[Request], curve: CurveKeyPair | None = None,
                  *, seal: bool = True) -> AsyncIterator[None]:
    """Answer all requests."""
    async def serve(msg: Msg) -> None:
        data, sender = msg.data, (msg.headers or {}).get("Nats-Server-Xkey", "")
        if curve is not None:
            assert not data.startswith(b"eyJ")
            data = curve.open(data, sender)
        token = decode_token(data.decode())
        requests.append(token.fields.values)
        answered = answer(token.fields.values)
        if answered is not None:
            body = answered.encode() if isinstance(answered, str) else answered
            await msg.respond(curve.seal(body, sender) if curve is not None and seal else body)

    sub = await client.subscribe("$SYS.REQ.USER.AUTH", cb=serve)
    await client.flush()
    yield
    await sub.unsubscribe()


def as_user(name: str) -> bytes:
    return b"CONNECT " + json.dumps({"user": name, "pass": "p", "verbose": False, "lang": "x",
                                     "protocol": 1}).encode() + b"\r\n"


@BOTH
async def test_answers(process: type[ServerProcess], tmp_path: Path) -> None:
    """Each answer of the table admits or refuses; the log has the reason and no credentials."""
    async with process("-c", write(tmp_path, FILE % ""), monitor=False) as server:
        auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
        for case, (answer, wanted) in ANSWERS.items():
            if case == "by another kind of connection" and process is NatsServerProcess:
                continue  # nats-server does not check this
            requests: list[Request] = []
            async with service(auth, answer, requests), Wire(server.port) as wire:
                wire.send(b'CONNECT {"user":"alice","pass":"hush-hush","verbose":false}\r\nPING\r\n')
                assert await wire.until(b"\r\n") == wanted, case
                assert len(requests) == 1, case
        await auth.close()
        assert not any("hush-hush" in line or "eyJ" in line for line in server.stderr)


@BOTH
async def test_contents_of_a_request(process: type[ServerProcess], tmp_path: Path) -> None:
    """A request describes the client, as far as it is known, and contains what the client sent."""
    async with process("-c", write(tmp_path, FILE % ""), monitor=False) as server:
        auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
        requests: list[Request] = []
        async with service(auth, ANSWERS["right"][0], requests), Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"alice","pass":"x","auth_token":"t","jwt":"j","nkey":"UA","sig":"s","name":"n",'
                      b'"lang":"py","version":"1","protocol":1,"verbose":false}\r\nPING\r\n')
            await wire.until(OK)
            info = json.loads(wire.info[5:])
            [request] = requests
            parts = request["nats"]
            assert request["iss"] == info["server_id"] == parts["server_id"]["id"]
            assert is_public_key(info["server_id"], SERVER)
            assert (request["aud"], request["sub"]) == ("nats-authorization-request", ISSUER.public)
            assert abs(request["exp"] - request["iat"] - 30) <= 1
            assert {name: parts["server_id"][name] for name in ("name", "host", "version")} == {
                "name": info["server_name"], "host": "127.0.0.1", "version": "2.15.1"}
            assert is_public_key(parts["user_nkey"], USER)
            assert parts["client_info"].pop("id") == info["client_id"]
            assert parts["client_info"] == {"host": "127.0.0.1", "user": "UA", "name": "n", "kind": "Client",
                                            "type": "nats", **({"nonce": info["nonce"]} if "nonce" in info else {})}
            assert parts["connect_opts"] == {"user": "alice", "pass": "x", "auth_token": "t", "nkey": "UA", "sig": "s",
                                             "name": "n", "lang": "py", "version": "1", "protocol": 1}
        await auth.close()


@BOTH
async def test_the_user_of_an_answer(process: type[ServerProcess], tmp_path: Path) -> None:
    """The client gets the answer's name, account and permissions; users in the service's account may not ask it."""
    seconds = 1

    def answer(request: Request) -> str:
        name = request["nats"]["connect_opts"]["user"]
        return response(request, {
            "bob": lambda: user(request, pub={"allow": ["b.>"]}, name=""),
            "dave": lambda: user(request, "DEFAULTS", pub={"deny": ["y"]}),
            "eve": lambda: user(request, "AUTH"),
            "short": lambda: user(request, exp=int(time.time()) + seconds)}[name]())

    async with process("-c", write(tmp_path, FILE % "")) as server:
        auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
        requests: list[Request] = []
        async with service(auth, answer, requests):
            for name, account, allowed, denied in (("bob", "APP", "b.x", "x"), ("dave", "DEFAULTS", "x", "y"),
                                                   ("eve", "AUTH", "x", "$SYS.REQ.USER.AUTH")):
                async with Wire(server.port) as wire:
                    wire.send(as_user(name))
                    greeting = await wire.settled() + await wire.settled()
                    assert b'"remote_account":"%s"' % account.encode() in greeting
                    wire.send(f"PUB {allowed} 0\r\n\r\nPUB {denied} 0\r\n\r\n".encode())
                    refused = f"-ERR 'Permissions Violation for Publish to \"{denied}\"'\r\n".encode()
                    assert await wire.settled() == refused + OK, name
                    rows = (await server.monitor("/connz?auth=1"))["connections"]
                    shown = {row["cid"]: row["authorized_user"] for row in rows}[json.loads(wire.info[5:])["client_id"]]
                    assert shown == {"bob": "bob" if process is NatsServerProcess
                                     else requests[-1]["nats"]["user_nkey"]}.get(
                        name, "bound")
            ending = REFUSED
            while ending == REFUSED:  # on a busy machine the token has expired before the server reads it
                seconds *= 2
                async with Wire(server.port) as wire:
                    wire.send(as_user("short"))
                    ending = await wire.end()
            assert b"-ERR 'User Authentication Expired'\r\n" in ending
        await auth.close()


@BOTH
async def test_clients_that_the_service_decides_about(process: type[ServerProcess], tmp_path: Path) -> None:
    """The service decides about all but its own users; with ``allowed_accounts``, not about users of other accounts."""
    for allowed, asked in (("", [("auth", 0), ("app", 1), ("sys", 1), ("x", 1)]),
                           (", allowed_accounts: [ APP ]", [("auth", 0), ("app", 1), ("sys", 0), ("x", 1)])):
        async with process("-c", write(tmp_path, FILE % allowed), monitor=False) as server:
            auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
            for name, count in asked:
                requests: list[Request] = []
                async with service(auth, ANSWERS["right"][0], requests), Wire(server.port) as wire:
                    wire.send(as_user(name) + b"PING\r\n")
                    assert OK in await wire.until(OK)
                    assert len(requests) == count, name
            # A wrong password of one of its own users is refused without asking.
            requests = []
            async with service(auth, ANSWERS["right"][0], requests), Wire(server.port) as wire:
                wire.send(b'CONNECT {"user":"auth","pass":"x"}\r\n')
                assert await wire.end() == REFUSED
                assert requests == []
            await auth.close()


@BOTH
async def test_sealed(process: type[ServerProcess], tmp_path: Path) -> None:
    """Requests are sealed for a service with an xkey; its answers may be sealed for the server."""
    curve = CurveKeyPair(secret(CURVE, "service"))
    async with process("-c", write(tmp_path, FILE % f", xkey: {curve.public}"), monitor=False) as server:
        auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
        for seal, answer, wanted in ((True, ANSWERS["right"][0], OK), (False, ANSWERS["right"][0], OK),
                                     (True, ANSWERS["by anybody else"][0], OK),
                                     (False, ANSWERS["by anybody else"][0], REFUSED),
                                     (False, lambda _request: b"xkv1" + b"x" * 100, REFUSED)):
            requests: list[Request] = []
            async with service(auth, answer, requests, curve, seal=seal), Wire(server.port) as wire:
                wire.send(as_user("x") + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted
                assert is_public_key(requests[0]["nats"]["server_id"]["xkey"], CURVE)
        await auth.close()


async def refused_in_the_end(server: ServerProcess) -> None:
    """A client that nobody answers for is refused after its whole time to log in."""
    ending = TOO_LATE
    while ending == TOO_LATE:  # on a busy machine its time may end before the server reads its CONNECT
        began = time.monotonic()
        async with Wire(server.port) as wire:
            wire.send(as_user("x") + b"PING\r\n" * 3)
            async with Wire(server.port) as gone:
                gone.send(as_user("y"))
            ending = await wire.end()
    assert ending == REFUSED
    assert time.monotonic() - began > 0.9


@BOTH
async def test_a_service_that_is_silent(process: type[ServerProcess], tmp_path: Path) -> None:
    """A silent service is asked once about each client, and no client is admitted."""
    async with process("-c", write(tmp_path, SHORT), monitor=False) as server:
        auth = await nats.connect(server.url, user="auth", password="p")
        requests: list[Request] = []
        async with service(auth, lambda _request: None, requests):
            await refused_in_the_end(server)
            assert "x" in {request["nats"]["connect_opts"]["user"] for request in requests}
            assert len(requests) == len({request["nats"]["user_nkey"] for request in requests})
        await auth.close()


@BOTH
async def test_a_missing_service(process: type[ServerProcess], tmp_path: Path) -> None:
    """Clients wait for their whole time to log in; a client that disconnects meanwhile leaves nothing behind."""
    async with process("-c", write(tmp_path, SHORT), monitor=False) as server:
        await refused_in_the_end(server)
        await (await nats.connect(server.url, user="auth", password="p")).close()


@BOTH
async def test_an_account_that_delegates(process: type[ServerProcess], tmp_path: Path) -> None:
    """In operator mode an account's claims name the service's users, and the accounts for which it may admit
    clients."""
    auth_user = key(USER, "auth").public
    account = key(ACCOUNT, "AUTH")

    def claims(**more: Any) -> dict[str, str]:
        return {"AUTH": tokens.account("AUTH", authorization={"auth_users": [auth_user], **more}),
                "APP": tokens.account("APP"),
                "FREE": tokens.account("FREE")}

    def app(request: Request) -> str:
        return response(request, user(request, "", signer=key(ACCOUNT, "APP"), name="alice"), signer=account)

    cases: list[tuple[dict[str, Any], Answer, bytes]] = [
        ({}, lambda request: response(request, user(request, "", signer=account), signer=account), OK),
        ({}, app, REFUSED),
        ({"allowed_accounts": [key(ACCOUNT, "APP").public]}, app, OK),
        ({"allowed_accounts": ["*"]}, app, OK),
        ({"allowed_accounts": ["*"]}, lambda request: response(request, user(
            request, "", signer=key(ACCOUNT, "nobody")), signer=account), REFUSED),
        ({}, lambda request: response(request, user(request, "", signer=account), signer=OTHER), REFUSED),
    ]
    sentinel = tokens.user("sentinel", "AUTH", bearer_token=True)
    for i, (more, answer, wanted) in enumerate(cases):
        text = tokens.configuration(claims(**more), f"default_sentinel: {sentinel}")
        async with (process("-c", write(tmp_path, text), monitor=False) as server,
                    connected(server, tokens.user("auth", "AUTH"), "auth") as auth):
            requests: list[Request] = []
            async with service(auth, answer, requests), Wire(server.port) as wire, Wire(server.port) as free:
                wire.send(as_user("x") + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted, i
                assert requests[0]["sub"] == account.public
                assert requests[0]["nats"]["connect_opts"]["jwt"] == sentinel
                free.send(tokens.connect(free.info, tokens.user("f", "FREE"), "f") + b"PING\r\n")
                assert await free.until(b"\r\n") == OK
                assert len(requests) == 1


@BOTH
async def test_valid_signatures(process: type[ServerProcess], tmp_path: Path) -> None:
    """In operator mode the account or its signing keys must sign the answer, whatever account the answer names."""
    account, signing = key(ACCOUNT, "AUTH"), key(ACCOUNT, "signing")
    own = account.public
    cases: list[tuple[KeyPair, str, bytes]] = [
        (account, "", OK), (account, own, OK), (signing, "", OK), (signing, own, OK), (OTHER, "", REFUSED),
        (OTHER, own, REFUSED),
        (OTHER, OTHER.public, REFUSED), (OTHER, signing.public, REFUSED), (account, OTHER.public, REFUSED)]
    accounts = {"AUTH": tokens.account("AUTH", authorization={"auth_users": [key(USER, "auth").public]},
                                       signing_keys=[signing.public])}
    text = tokens.configuration(accounts, f"default_sentinel: {tokens.user('sentinel', 'AUTH', bearer_token=True)}")
    async with (process("-c", write(tmp_path, text), monitor=False) as server,
                connected(server, tokens.user("auth", "AUTH"), "auth") as auth):
        for signer, named, wanted in cases:
            def answer(request: Request, signer: KeyPair = signer, named: str = named) -> str:
                return response(request, user(request, "", signer=account), signer=signer,
                                **({"issuer_account": named} if named else {}))

            async with service(auth, answer, []), Wire(server.port) as wire:
                wire.send(as_user("x") + b"PING\r\n")
                assert await wire.until(b"\r\n") == wanted, (signer.public, named)


@BOTH
async def test_users_cannot_ask_the_service_after_an_update(process: type[ServerProcess], tmp_path: Path) -> None:
    """Users of the service's account may not publish requests to it, even after a change of its claims."""
    account = key(ACCOUNT, "AUTH")
    rows = {"authorization": {"auth_users": [key(USER, "auth").public]}}
    text = directory(tmp_path, AUTH=tokens.account("AUTH", **rows))

    def answer(request: Request) -> str:
        return response(request, user(request, "", signer=account), signer=account)

    async with (process("-c", write(tmp_path, text), monitor=False) as server,
                connected(server, tokens.user("auth", "AUTH"), "auth") as auth,
                connected(server, tokens.user("admin", "SYS"), "admin") as admin,
                service(auth, answer, []), connected(server, tokens.user("x", "AUTH"), "x") as bound):
        update = tokens.account("AUTH", tags=["changed"], **rows)
        assert (await ask(admin, f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE", update))["data"]["code"] == 200
        for client in (auth, bound):
            permissions = (await ask(client, "$SYS.REQ.USER.INFO"))["data"].get("permissions", {})
            assert permissions.get("publish") == {"deny": ["$SYS.REQ.USER.AUTH"]}


def test_seals() -> None:
    """Seals have the real server's format; anything else is refused."""
    one, other = CurveKeyPair(secret(CURVE, "1")), CurveKeyPair(secret(CURVE, "2"))
    sealed = one.seal(b"message", other.public)
    assert sealed[:4] == b"xkv1"
    assert other.open(sealed, one.public) == b"message"
    for wrong in (b"", b"xkv1", b"xkv2" + sealed[4:], sealed[:-1] + bytes([sealed[-1] ^ 1]), base64.b64encode(sealed)):
        with pytest.raises(ValueError, match="nkeys"):
            other.open(wrong, one.public)
    with pytest.raises(ValueError, match="nkeys"):
        other.open(sealed, other.public)
    with pytest.raises(ValueError, match="nkeys"):
        one.seal(b"x", key(USER).public)
    assert secret(CURVE, "1").hex() not in repr(vars(one))


async def test_many_at_once(tmp_path: Path) -> None:
    """A hundred clients ask at the same time, and each gets its own answer."""
    def answer(request: Request) -> str:
        return response(request, user(request, name=request["nats"]["connect_opts"]["user"]))

    async with BrokerProcess("-c", write(tmp_path, FILE % "")) as server:
        auth = await nats.connect(server.url, user="auth", password="p", allow_reconnect=False)
        async with service(auth, answer, []):
            clients = await asyncio.gather(*(nats.connect(server.url, user=f"u{i}", password="x") for i in range(100)))
            rows = (await server.monitor("/connz?auth=1&limit=200"))["connections"]
            assert {row["authorized_user"] for row in rows} == {"auth", *(f"u{i}" for i in range(100))}
            await asyncio.gather(*(client.close() for client in clients))
        await auth.close()
