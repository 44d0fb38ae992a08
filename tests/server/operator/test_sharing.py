"""Sharing between accounts by their claims, with jetblock and with the real server: who receives which messages."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from broker.base.nkeys import ACCOUNT
from tests import tokens
from tests.harness import BrokerProcess, ServerProcess
from tests.keys import key
from tests.server.operator.clients import BOTH, ask, connected, directory, write
from tests.server.raw_client import Wire

A, B, SIGNER = key(ACCOUNT, "A").public, key(ACCOUNT, "B").public, key(ACCOUNT, "signer")
ADMIN = tokens.user("admin", "SYS")
UPDATE = "$SYS.REQ.CLAIMS.UPDATE"

EXPORTS: list[dict[str, Any]] = [
    {"type": "stream", "subject": "open.>"}, {"type": "stream", "subject": "private.>", "token_req": True},
    {"type": "service", "subject": "ask.*"}, {"type": "service", "subject": "secret.*", "token_req": True},
    {"type": "service", "subject": "mine.*.x", "account_token_position": 2}]


def stream(subject: str, **more: Any) -> dict[str, Any]:
    return {"type": "stream", "account": A, "subject": subject, **more}


def service(subject: str, **more: Any) -> dict[str, Any]:
    return {"type": "service", "account": A, "subject": subject, **more}


def activated(subject: str, kind: str = "stream", **more: Any) -> dict[str, str]:
    return {"token": tokens.activation(subject, kind, of="A", to="B", **more)}


NOW = int(time.time())
IMPORTS: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    # B's import; the subject on which A publishes (or B requests); the subject on which B (or A) receives; whether.
    "a stream": (stream("open.>"), "open.x", "open.x", True),
    "a part of a stream": (stream("open.a"), "open.a", "open.a", True),
    "a stream under a prefix": (stream("open.>", to="here"), "open.x", "here.open.x", True),
    "a stream under another name": (stream("open.*.b", local_subject="b.$1"), "open.x.b", "b.x", True),
    "a private stream": (stream("private.>"), "private.x", "private.x", False),
    "a private stream with a token": (stream("private.>", **activated("private.>")), "private.x", "private.x", True),
    "a token for more": (stream("private.a", **activated("private.>")), "private.a", "private.a", True),
    "an expired token": (stream("private.>", **activated("private.>", exp=NOW - 10)), "private.x", "private.x", False),
    "a token that expired before 1970": (
        stream("private.>", **activated("private.>", exp=-5)), "private.x", "private.x", False),
    "a token in another account's name": (
        stream("private.>", **activated("private.>", issuer_account=B)), "private.x", "private.x", False),
    "an old token": (stream("private.x", **activated("private.x", iat=100)), "private.x", "private.x", True),
    "a token by a signing key": (stream("private.>", **activated("private.>", signer=SIGNER)), "private.x", "private.x",
                                 True),
    "a token by a stranger": (
        stream("private.>", **activated("private.>", signer=key(ACCOUNT, "x"))), "private.x", "private.x", False),
    "a service": (service("ask.a"), "ask.a", "ask.a", True),
    "a service under another name": (service("ask.a", local_subject="local.a"), "local.a", "ask.a", True),
    "a service, the old way": (service("local.a", to="ask.a"), "local.a", "ask.a", True),
    "a private service": (service("secret.a"), "secret.a", "secret.a", False),
    "a private service with a token": (service("secret.a", **activated("secret.a", "service")), "secret.a", "secret.a",
                                       True),
    "a service of its own": (service(f"mine.{B}.x"), f"mine.{B}.x", f"mine.{B}.x", True),
    "a service of another": (service(f"mine.{A}.x"), f"mine.{A}.x", f"mine.{A}.x", False),
    "what is not exported": (stream("other"), "other", "other", False),
}


@asynccontextmanager
async def two(server: ServerProcess) -> AsyncIterator[tuple[Wire, Wire]]:
    """Connect a client of each account."""
    async with Wire(server.port) as a, Wire(server.port) as b:
        for wire, name in ((a, "A"), (b, "B")):
            wire.send(tokens.connect(wire.info, tokens.user(name, name), name))
            assert await wire.settled() == b"PONG\r\n"
        yield a, b


async def arrives(a: Wire, b: Wire, kind: str, sent: str, got: str) -> bool:
    """Return whether B receives a message of A's stream, or A receives B's request and B the response."""
    sender, receiver = (b, a) if kind == "service" else (a, b)
    receiver.send(f"SUB {got if kind == 'service' else '>'} 1\r\n".encode())
    await receiver.settled()
    sender.send(f"SUB back 2\r\nPUB {sent} back 0\r\n\r\n".encode())
    await sender.settled()
    found = re.search(rf"MSG {re.escape(got)} 1 (\S+) 0\r", (await receiver.settled()).decode())
    if found is not None and kind == "service":
        receiver.send(f"PUB {found[1]} 0\r\n\r\n".encode())
        await receiver.settled()
        assert b"MSG back 2 0\r\n" in await sender.settled()
    for wire, sid in ((receiver, 1), (sender, 2)):
        wire.send(f"UNSUB {sid}\r\n".encode())
        await wire.settled()
    return found is not None


@pytest.mark.shows("auth.jwt", "accounts.stream_sharing")
@BOTH
async def test_imports(process: type[ServerProcess], tmp_path: Path) -> None:
    """Every import of the table works or not, according to its claims."""
    a_token = tokens.account("A", exports=EXPORTS, signing_keys=[SIGNER.public])
    config = write(tmp_path, directory(tmp_path, A=a_token, B=tokens.account("B")))
    async with (process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin,
                two(server) as (a, b)):
        for case, (row, sent, got, wanted) in IMPORTS.items():
            answer = await ask(admin, UPDATE, tokens.account("B", imports=[row]))
            assert answer["data"]["message"] == "jwt updated", case
            assert await arrives(a, b, row["type"], sent, got) is wanted, case


@BOTH
async def test_imports_end_with_their_permission(process: type[ServerProcess], tmp_path: Path) -> None:
    """Imports end with their permission.

    The exporting account revokes the token, or drops the key that signed it or the export; or the token expires.
    """
    imported = stream("private.>", **activated("private.>", signer=SIGNER, iat=1000))
    before: dict[str, Any] = {"exports": EXPORTS, "signing_keys": [SIGNER.public]}
    revoked = [{**row, "revocations": {B: 2000}} if row["subject"] == "private.>" else row for row in EXPORTS]
    config = write(tmp_path,
                   directory(tmp_path, A=tokens.account("A", **before), B=tokens.account("B", imports=[imported])))
    async with (process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin,
                two(server) as (a, b)):
        for change in ({**before, "exports": revoked}, {**before, "signing_keys": []}, {**before, "exports": []}):
            assert await arrives(a, b, "stream", "private.x", "private.x")
            await ask(admin, UPDATE, tokens.account("A", **change))
            assert not await arrives(a, b, "stream", "private.x", "private.x")
            await ask(admin, UPDATE, tokens.account("A", **before))
        for seconds in (2, 4, 8, 16):  # a busy machine may need more time until the message
            short = stream("private.>", **activated("private.>", exp=int(time.time()) + seconds))
            await ask(admin, UPDATE, tokens.account("B", imports=[short]))
            if await arrives(a, b, "stream", "private.x", "private.x"):
                break
        else:
            pytest.fail("it never arrived")
        async with asyncio.timeout(30):
            while await arrives(a, b, "stream", "private.x",
                                "private.x"):  # each turn waits for an answer of the server
                pass


async def shown_imports(admin: Client) -> dict[str, bool]:
    """Return B's imports from A as the server shows them to its operators, and whether each is invalid."""
    page = await ask(admin, "$SYS.REQ.SERVER.PING.ACCOUNTZ", json.dumps({"account": B}))
    return {row["subject"]: row["invalid"] for row in page["data"]["account_detail"]["imports"] if row["account"] == A}


@pytest.mark.shows("monitoring.accountz")
@BOTH
async def test_an_import_whose_export_ends_is_shown_as_invalid(process: type[ServerProcess], tmp_path: Path) -> None:
    """It is valid again when the export is back."""
    imports = [stream("open.>"), service("ask.a"), stream("other")]
    exports = [*EXPORTS, {"type": "stream", "subject": "other"}]
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A", exports=exports),
                                       B=tokens.account("B", imports=imports)))
    async with (process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin,
                two(server)):
        for left, invalid in ((exports, False), (exports[-1:], True), (exports, False)):
            await ask(admin, UPDATE, tokens.account("A", exports=left))
            assert await shown_imports(admin) == {"open.>": invalid, "ask.a": invalid, "other": False}


@pytest.mark.shows("accounts.mappings")
@BOTH
async def test_mappings(process: type[ServerProcess], tmp_path: Path) -> None:
    """Subjects are mapped according to the claims."""
    token = tokens.account("A", mappings={"from.*": [{"subject": "to.{{wildcard(1)}}"}]})
    async with (process("-c", write(tmp_path, tokens.configuration({"A": token})), monitor=False) as server,
                connected(server, tokens.user()) as nc):
        sub = await nc.subscribe("to.*")
        await nc.publish("from.x", b"1")
        assert (await sub.next_msg()).subject == "to.x"


BAD = "x\r\ny"


@pytest.mark.parametrize(("of_a", "of_b", "sent"), [
    ({}, {"mappings": {"plain": [{"subject": BAD}]}}, "plain"),
    ({"exports": [{"type": "stream", "subject": "lit"}]}, {"imports": [stream("lit", to=BAD)]}, "lit"),
    ({"exports": [{"type": "stream", "subject": "lit"}]}, {"imports": [stream("lit", local_subject=BAD)]}, "lit"),
    ({"exports": [{"type": "service", "subject": "lit", "service_latency": {"sampling": 100, "results": BAD}}]},
     {"imports": [service("lit")]}, "lit"),
], ids=["mapping", "prefix", "local subject", "latency"])
async def test_subjects_with_line_ends(of_a: dict[str, Any], of_b: dict[str, Any], sent: str, tmp_path: Path) -> None:
    """Nobody receives a subject with a line end: the rest of it would be read as an operation of the server."""
    accounts = {"A": tokens.account("A", **of_a), "B": tokens.account("B", **of_b)}
    async with (BrokerProcess("-c", write(tmp_path, tokens.configuration(accounts)), monitor=False) as server,
                Wire(server.port) as a, Wire(server.port) as b):
        a.send(tokens.connect(a.info, tokens.user("a", "A"), "a") + b"SUB > 1\r\n")
        b.send(tokens.connect(b.info, tokens.user("b", "B"), "b") + b"SUB > 1\r\n")
        assert await a.settled() == await b.settled() == b"PONG\r\n"
        for wire in (a, b):
            wire.send(b"PUB %b 1\r\nx\r\nPUB end 1\r\nx\r\n" % sent.encode())
            assert b"x\r\ny" not in await wire.until(b"MSG end")
        assert b"x\r\ny" not in await a.settled() + await b.settled()


async def test_an_exporter_that_comes_later(tmp_path: Path) -> None:
    """An import from an account that has no token yet works as soon as that has one."""
    config = write(tmp_path, directory(tmp_path, B=tokens.account("B", imports=[stream("open.>")])))
    async with BrokerProcess("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        async with connected(server, tokens.user("b", "B"), "b") as early:
            await early.flush()
        await ask(admin, UPDATE, tokens.account("A", exports=EXPORTS))
        async with two(server) as (a, b):
            assert await arrives(a, b, "stream", "open.x", "open.x")


async def test_accounts_that_import_from_each_other(tmp_path: Path) -> None:
    """Neither account waits for the other."""
    exports = [{"type": "stream", "subject": "a"}]
    accounts = {"A": tokens.account("A", exports=exports, imports=[{"type": "stream", "account": B, "subject": "b"}]),
                "B": tokens.account("B", exports=[{"type": "stream", "subject": "b"}], imports=[stream("a")])}
    async with (BrokerProcess("-c", write(tmp_path, tokens.configuration(accounts)), monitor=False) as server,
                two(server) as (a, b)):
        assert await arrives(a, b, "stream", "a", "a")
        assert await arrives(b, a, "stream", "b", "b")


@pytest.mark.parametrize("row", [
    {"type": "stream", "account": A, "subject": "a.>.b"}, {"type": "service", "account": A, "subject": "a.>.b"},
    {"type": "stream", "account": A, "subject": "open.*", "to": "x.*"},
    {"type": "service", "account": "nonsense", "subject": "a"}])
async def test_invalid_imports(row: dict[str, Any], tmp_path: Path) -> None:
    """Invalid imports are left out; the account works."""
    accounts = {"A": tokens.account("A", exports=[*EXPORTS, {"type": "stream", "subject": "a.>.b"}]),
                "B": tokens.account("B", imports=[row, stream("open.>")])}
    async with (BrokerProcess("-c", write(tmp_path, tokens.configuration(accounts)), monitor=False) as server,
                two(server) as (a, b)):
        assert await arrives(a, b, "stream", "open.x", "open.x")
