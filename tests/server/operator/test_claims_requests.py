"""Requests about claims, with jetblock and with the real server: their answers, and their effect on live clients."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from broker.base.nkeys import ACCOUNT, OPERATOR, USER, KeyPair
from broker.jwt.token import encode_token
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key
from tests.server.operator.clients import BOTH, ask, connected, directory, write
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.claims_requests")

A, B = key(ACCOUNT, "A").public, key(ACCOUNT, "B").public
SIGNER = key(ACCOUNT, "signer")
UPDATE, LIST, DELETE = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.LIST", "$SYS.REQ.CLAIMS.DELETE"
ADMIN = tokens.user("admin", "SYS")
JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


def deletion(*accounts: Any, signer: KeyPair | None = None, sub: str = "") -> str:
    pair = signer or key(OPERATOR, "O")
    claims = {"sub": sub or pair.public, "nats": {"type": "generic", "accounts": list(accounts)}}
    return encode_token(claims, pair, int(time.time()))


def requests() -> list[tuple[str, str]]:
    bad = tokens.account("A", exports=[{"type": "service", "subject": "a..b"}])
    return [
        (LIST, ""),
        (UPDATE, tokens.account("B")),
        (UPDATE, "nonsense"),
        (UPDATE, ""),
        (UPDATE, tokens.user()),
        (UPDATE, "a.b.c"),
        (UPDATE, bad),
        (UPDATE, tokens.account("A", exp=int(time.time()) - 10)),
        (f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE", tokens.account("A")),
        (f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE", tokens.account("B")),
        (f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE", "nonsense"),
        (f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE", bad),
        (f"$SYS.ACCOUNT.{A}.CLAIMS.UPDATE", tokens.account("A", tags=["x"])),
        (LIST, ""),
        (DELETE, deletion(B, key(ACCOUNT, "nobody").public)),
        (DELETE, deletion(key(ACCOUNT, "SYS").public)),
        (DELETE, deletion("nonsense")),
        (DELETE, deletion(5)),
        (DELETE, deletion(B, signer=key(OPERATOR, "other"))),
        (DELETE, deletion(B, sub=key(OPERATOR, "other").public)),
        (DELETE, "nonsense"),
        (LIST, ""),
    ]


async def answers(process: type[ServerProcess], config: str, table: list[tuple[str, str]]) -> list[dict[str, Any]]:
    found = []
    async with process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        for subject, body in table:
            answer = await ask(admin, subject, body)
            if isinstance(answer.get("data"), list):
                answer["data"].sort()
            found.append(answer)
    return found


@pytest.mark.parametrize("resolver",
                         ["type: full, allow_delete: true", "type: full", "type: cache", "type: full, limit: 2"])
async def test_answers(resolver: str, tmp_path: Path) -> None:
    """Each request has the same answer as on the real server."""
    table = requests()
    if "cache" in resolver:
        # The real server's answer to such a list includes accounts that it has already deleted.
        table = [row for row in table if row[0] != LIST]
    both = []
    for process in (BrokerProcess, NatsServerProcess):
        folder = tmp_path / process.__name__
        folder.mkdir()
        config = write(folder, directory(folder, resolver=resolver, A=tokens.account("A", iat=1)))
        both.append(await answers(process, config, table))
    for (subject, body), ours, theirs in zip(table, *both, strict=True):
        assert ours == theirs, (subject, body)


async def test_answers_of_a_strict_operator(tmp_path: Path) -> None:
    """The operator requires that a signing key signs accounts."""
    signer = key(OPERATOR, "signer")
    strict = tokens.operator(signing_keys=[signer.public], strict_signing_key_usage=True)
    table = [(UPDATE, tokens.account("B")), (UPDATE, tokens.account("B", signer=signer)), (DELETE, deletion(B)),
             (DELETE, deletion(B, signer=signer)), (f"$SYS.REQ.ACCOUNT.{B}.CLAIMS.UPDATE", tokens.account("B"))]
    admin_key = key(ACCOUNT, "SYS signer")
    system = tokens.account("SYS", signer=signer, signing_keys=[admin_key.public])
    admin_token = tokens.user("admin", "SYS", signer=admin_key)
    both = []
    for process in (BrokerProcess, NatsServerProcess):
        folder = tmp_path / process.__name__
        folder.mkdir()
        config = write(folder, directory(folder, operator=strict, SYS=system))
        async with process("-c", config, monitor=False) as server, connected(server, admin_token, "admin") as admin:
            both.append([await ask(admin, subject, body) for subject, body in table])
    assert both[0] == both[1]


async def test_answers_without_a_directory(tmp_path: Path) -> None:
    """A resolver in memory accepts updates of accounts that are in use, until the next start."""
    bodies = ("", "x", tokens.account("B"), tokens.account("A", tags=["x"]),
              tokens.account("A", signer=key(OPERATOR, "other")))
    table = [(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE", body) for body in bodies]
    table.append((f"$SYS.REQ.ACCOUNT.{B}.CLAIMS.UPDATE", tokens.account("B")))
    config = write(tmp_path, tokens.configuration({"A": tokens.account("A")}))
    both = []
    for process in (BrokerProcess, NatsServerProcess):
        async with (process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin,
                    connected(server, tokens.user())):
            both.append([await ask(admin, subject, body) for subject, body in table])
    assert both[0] == both[1]


@BOTH
async def test_lookups_and_packs(process: type[ServerProcess], tmp_path: Path) -> None:
    """A lookup is answered with the token or nothing; a pack with all tokens, unless the digest is the same."""
    token = tokens.account("A")
    config = write(tmp_path, directory(tmp_path, A=token))
    async with process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        assert (await admin.request(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP", timeout=30)).data == token.encode()
        assert (await admin.request(f"$SYS.REQ.ACCOUNT.{B}.CLAIMS.LOOKUP", timeout=30)).data == b""
        inbox = admin.new_inbox()
        sub = await admin.subscribe(inbox)
        await admin.publish("$SYS.REQ.CLAIMS.PACK", b"", reply=inbox)
        packed = []
        while row := (await sub.next_msg()).data:
            packed.append(row.partition(b"|"))
        assert (A.encode(), b"|", token.encode()) in packed
        assert len(packed) == 2


@BOTH
async def test_an_update_reaches_live_clients(process: type[ServerProcess], tmp_path: Path) -> None:
    """Default permissions and limits change at once; an unchanged client stays."""
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A")))
    async with (process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin,
                Wire(server.port) as one, Wire(server.port) as own):
        one.send(tokens.connect(one.info, tokens.user()))
        own.send(tokens.connect(own.info, tokens.user(pub={"allow": ["x"]})))
        await one.settled()
        await own.settled()
        await ask(admin, UPDATE,
                  tokens.account("A", default_permissions={"pub": {"deny": ["x"]}}, limits={"payload": 5}))
        for wire, denied in ((one, True), (own, False)):
            wire.send(b"PUB x 0\r\n\r\n")
            assert (b"Permissions Violation" in await wire.settled()) is denied
            wire.send(b"PUB x 6\r\n123456\r\n")
            assert b"Maximum Payload Violation" in await wire.end()


REVOKED = b"-ERR 'User Authentication Revoked'\r\n"
ENDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bytes]] = {
    # The token, changes of the account before and after, and the answer to its client.
    "revoked": (tokens.user(iat=1000), {}, {"revocations": {key(USER, "u").public: 1000}}, REVOKED),
    "all revoked": (tokens.user(iat=1000), {}, {"revocations": {"*": 2000}}, REVOKED),
    "bearers disallowed": (tokens.user(bearer_token=True), {}, {"limits": {"disallow_bearer": True}},
                           b"-ERR 'Authorization Violation'\r\n"),
    "signing key gone": (tokens.user(signer=SIGNER), {"signing_keys": [SIGNER.public]}, {}, b""),
    "scope changed": (tokens.user(signer=SIGNER, scoped=True), {"signing_keys": [
        {"kind": "user_scope", "key": SIGNER.public,
         "template": {"subs": -1, "data": -1, "payload": -1}}]}, {"signing_keys": [
            {"kind": "user_scope", "key": SIGNER.public, "template": {"subs": 5, "data": -1, "payload": -1}}]}, b""),
    "no connections": (tokens.user(), {}, {"limits": {"conn": 0}},
                       b"-ERR 'maximum account active connections exceeded'\r\n"),
    "expired": (tokens.user(), {}, {"exp": int(time.time()) - 10}, b""),
}


@BOTH
async def test_an_update_ends_clients(process: type[ServerProcess], tmp_path: Path) -> None:
    """Each cause has its error, and the client cannot reconnect."""
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A")))
    async with process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        for cause, (token, before, after, wanted) in ENDS.items():
            await ask(admin, UPDATE, tokens.account("A", **before))
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token) + b"PING\r\n")
                assert await wire.until(b"\r\n") == b"PONG\r\n", cause
                await ask(admin, UPDATE, tokens.account("A", **after))
                if cause == "expired":
                    # A token that has already expired is not accepted.
                    assert await wire.settled() == b"PONG\r\n"
                    continue
                assert await wire.end() == wanted, cause
            async with Wire(server.port) as wire:
                wire.send(tokens.connect(wire.info, token) + b"PING\r\n")
                back = await wire.until(b"\r\n")
                assert back.startswith(b"-ERR") or cause == "scope changed", cause


@BOTH
async def test_an_account_is_deleted(process: type[ServerProcess], tmp_path: Path) -> None:
    """Its clients get the error that it has expired; nobody can log in until it has a token again."""
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A")))
    async with process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        async with Wire(server.port) as wire:
            wire.send(tokens.connect(wire.info, tokens.user()) + b"PING\r\n")
            await wire.until(b"PONG\r\n")
            assert (await ask(admin, DELETE, deletion(A)))["data"]["message"] == "deleted 1 accounts"
            assert b"-ERR 'Account Authentication Expired'\r\n" in await wire.end()
        async with Wire(server.port) as wire:
            wire.send(tokens.connect(wire.info, tokens.user()))
            assert b"-ERR" in await wire.end()
        assert [path.name for path in (tmp_path / "jwts").glob(f"{A}*")] == [f"{A}.jwt.deleted"]
        await ask(admin, UPDATE, tokens.account("A", tags=["again"]))
        async with connected(server, tokens.user()) as nc:
            await nc.flush()


async def stream(client: Client) -> int:
    info = await client.jetstream().stream_info("S")
    return info.state.messages


@pytest.mark.shows("accounts.tiers")
@BOTH
async def test_jetstream_follows_the_claims(process: type[ServerProcess], tmp_path: Path) -> None:
    """An account gets JetStream with its claims, loses it, and gets its streams back, also after a restart.

    Its tier is R1.
    """
    config = write(tmp_path,
                   directory(tmp_path, f'jetstream {{ store_dir: "{tmp_path}/store" }}', A=tokens.account("A")))
    async with process("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        async with connected(server, tokens.user()) as nc:
            with pytest.raises(APIError, match="not enabled"):
                await nc.jetstream().add_stream(name="S", subjects=["s"])
            await ask(admin, UPDATE, tokens.account("A", limits={"tiered_limits": {"R1": {**JETSTREAM, "streams": 1}}}))
            await nc.jetstream().add_stream(name="S", subjects=["s"])
            await nc.jetstream().publish("s", b"x")
            with pytest.raises(APIError, match="maximum number of streams"):
                await nc.jetstream().add_stream(name="T", subjects=["t"])
            await ask(admin, UPDATE, tokens.account("A", tags=["without"]))
            with pytest.raises(APIError, match="not enabled"):
                await stream(nc)
            await ask(admin, UPDATE, tokens.account("A", limits=JETSTREAM))
            assert await stream(nc) == 1
        await server.stop()
        await server.start()
        async with connected(server, tokens.user()) as nc:
            assert await stream(nc) == 1
            await nc.jetstream().add_stream(name="T", subjects=["t"])


@BOTH
async def test_limits_and_usage_of_tiers(process: type[ServerProcess], tmp_path: Path) -> None:
    """Account info has totals without limits, and all tiers of the claims, of which one is in use."""
    tiers = {"R1": {"mem_storage": 1 << 20, "disk_storage": 1 << 21, "streams": 5, "consumer": -1,
                    "max_ack_pending": 7},
             "R3": {"disk_storage": 1 << 22, "streams": -1, "disk_max_stream_bytes": 1 << 16,
                    "max_bytes_required": True}}
    config = write(tmp_path, directory(tmp_path, f'jetstream {{ store_dir: "{tmp_path}/store" }}',
                                       A=tokens.account("A", limits={"tiered_limits": tiers})))
    unset = {"max_memory": 0, "max_storage": 0, "max_streams": 0, "max_consumers": 0, "max_ack_pending": 0,
             "memory_max_stream_bytes": 0, "storage_max_stream_bytes": 0, "max_bytes_required": False}
    none = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0, "streams": 0, "consumers": 0}
    used = none | {"reserved_storage": 4096, "streams": 1, "consumers": 1}
    async with process("-c", config, monitor=False) as server, connected(server, tokens.user()) as nc:
        await nc.jetstream().add_stream(name="S", subjects=["s"], max_bytes=4096)
        await nc.jetstream().add_consumer("S", durable_name="D")
        info = await ask(nc, "$JS.API.INFO")
        del info["api"]
        assert info == {"type": "io.nats.jetstream.api.v1.account_info_response", **used, "limits": unset, "tiers": {
            "R1": {**used, "limits": unset | {"max_memory": 1 << 20, "max_storage": 1 << 21, "max_streams": 5,
                                              "max_consumers": -1, "max_ack_pending": 7, "memory_max_stream_bytes": -1,
                                              "storage_max_stream_bytes": -1}},
            "R3": {**none, "limits": unset | {"max_storage": 1 << 22, "max_streams": -1, "max_ack_pending": -1,
                                              "memory_max_stream_bytes": -1, "storage_max_stream_bytes": 1 << 16,
                                              "max_bytes_required": True}}}}



async def test_a_restart_has_the_last_token(tmp_path: Path) -> None:
    """An answered update is on the disk, however the process ends; no file is left half-written."""
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A")))
    async with BrokerProcess("-c", config, monitor=False) as server:
        async with connected(server, ADMIN, "admin") as admin:
            last = ""
            for i in range(20):
                last = tokens.account("A", tags=[str(i)])
                answer = await ask(admin, UPDATE, last)
                assert answer["data"]["message"] == "jwt updated"
        await server.restart()
        async with connected(server, ADMIN, "admin") as admin:
            assert (await admin.request(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP", timeout=30)).data == last.encode()
        assert sorted(path.suffix for path in (tmp_path / "jwts").iterdir()) == [".jwt", ".jwt"]


@BOTH
async def test_a_reload(process: type[ServerProcess], tmp_path: Path) -> None:
    """Other preloaded tokens take effect; accounts without a token lose their clients."""
    def accounts(**of_a: Any) -> dict[str, str]:
        return {"A": tokens.account("A", **of_a), "B": tokens.account("B")}

    config = write(tmp_path, tokens.configuration(accounts()))
    async with (process("-c", config, monitor=False) as server, Wire(server.port) as a, Wire(server.port) as b,
                Wire(server.port) as c):
        for wire, name, of in ((a, "u", "A"), (b, "v", "B"), (c, "w", "A")):
            wire.send(tokens.connect(wire.info, tokens.user(name, of, iat=1000), name))
            await wire.settled()
        token = {"A": tokens.account("A", revocations={key(USER, "w").public: 1000})}
        write(tmp_path, tokens.configuration(token))
        server.send_signal(signal.SIGHUP)
        assert REVOKED in await c.end()
        assert b"-ERR 'Authorization Violation'" in await b.end()
        await server.wait_line("Reloaded server configuration")
        assert await a.settled() == b"PONG\r\n"


async def test_many_updates_at_once(tmp_path: Path) -> None:
    """A hundred updates at once are answered, in any order, and the last is stored."""
    config = write(tmp_path, directory(tmp_path, A=tokens.account("A")))
    async with BrokerProcess("-c", config, monitor=False) as server, connected(server, ADMIN, "admin") as admin:
        many = [tokens.account("A", tags=[str(i)]) for i in range(100)]
        replies = await asyncio.gather(*(ask(admin, UPDATE, token) for token in many))
        assert {one["data"]["message"] for one in replies} == {"jwt updated"}
        assert (await admin.request(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP", timeout=30)).data == many[-1].encode()
        with pytest.raises(nats.errors.Error):
            async with connected(server, tokens.user("u", "B")):
                pass
