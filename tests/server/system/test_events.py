"""The events of the system account: their time and content; none is built without subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio

from broker.access.accounts import AccountSettings, User
from broker.config.settings import make_settings
from broker.server.server import Server
from tests.server.auth.access import connect
from tests.server.in_process import running
from tests.server.raw_client import Wire
from tests.server.system.listening import Listener

ACCOUNTS = [AccountSettings("A"), AccountSettings("B")]
USERS = (User("sys", "p", "$SYS"), User("a", "p", "A"), User("b", "p", "B"))
NOWHERE = {"gateways": {"msgs": 0, "bytes": 0}, "routes": {"msgs": 0, "bytes": 0}, "leafs": {"msgs": 0, "bytes": 0}}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with running(ACCOUNTS, users=USERS) as found:
        yield found


def url(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


@pytest.mark.shows("monitoring.connect_events")
async def test_connect_and_disconnect(server: Server) -> None:
    """Both name the client and its account; the second one has the traffic and the reason."""
    async with Listener(url(server), "$SYS.ACCOUNT.A.*") as listener:
        nc = await nats.connect(url(server), user="a", password="p", name="app")
        came = await listener.next("$SYS.ACCOUNT.A.CONNECT")
        assert came["type"] == "io.nats.server.advisory.v1.client_connect"
        assert len(came["id"]) == 22
        assert came["timestamp"].endswith("Z")
        assert came["server"]["id"] == server.server_id
        client = came["client"]
        assert (client["id"], client["acc"], client["user"], client["name"], client["lang"], client["name_tag"],
                client["kind"], client["client_type"], client["host"]) == (
            nc.client_id, "A", "a", "app", "python3", "A", "Client", "nats", "127.0.0.1")
        assert not {"rtt", "stop", "server"} & client.keys()
        await nc.publish("nowhere", b"123")
        await nc.flush()
        await nc.close()
        gone = await listener.next("$SYS.ACCOUNT.A.DISCONNECT")
        assert gone["type"] == "io.nats.server.advisory.v1.client_disconnect"
        assert gone["client"]["stop"] > gone["client"]["start"]
        assert gone["client"]["rtt"] > 0
        assert gone["sent"] == {"msgs": 1, "bytes": 3}
        assert gone["received"] == {"msgs": 0, "bytes": 0}
        assert gone["reason"] == "Client Closed"
        assert gone["server"]["seq"] > came["server"]["seq"]


@pytest.mark.shows("monitoring.auth_events")
async def test_refused_login(server: Server) -> None:
    """The system account and the connection's account get an event; then follows the event of the connection's end."""
    async with Listener(url(server), "$SYS.>") as listener, Wire(server.port) as wire:
        default = asyncio.Queue[bytes]()
        server.router.subscribe(b"$SYS.ACCOUNT.CLIENT.AUTH.ERR", lambda ops, start, end, *_: [
            default.put_nowait(op[3]) for op in ops[start:end]])
        wire.send(b'CONNECT {"user":"a","pass":"wrong"}\r\n')
        assert b"Authorization Violation" in await wire.end()
        refused = await listener.next(f"$SYS.SERVER.{server.server_id}.CLIENT.AUTH.ERR")
        assert refused["type"] == "io.nats.server.advisory.v1.client_disconnect"
        assert (refused["reason"], refused["client"]["user"], refused["client"]["acc"]) == (
            "Authentication Failure", "a", "$G")
        async with asyncio.timeout(30):
            assert b"Authentication Failure" in await default.get()


async def test_connection_that_never_logs_in(server: Server) -> None:
    """Its end is an event of the default account."""
    async with Listener(url(server), "$SYS.ACCOUNT.$G.DISCONNECT") as listener:
        async with Wire(server.port):
            pass
        gone = await listener.next("$SYS.ACCOUNT.$G.DISCONNECT")
        assert gone["client"]["acc"] == "$G"
        assert "user" not in gone["client"]


@pytest.mark.shows("monitoring.account_events")
async def test_connections_of_an_account(server: Server) -> None:
    """Each change is published under both names, except for the default account; a request gets the same."""
    async with Listener(url(server), "$SYS.>") as listener:
        async with Wire(server.port) as wire:
            wire.send(connect("b") + b"PUB x 2\r\nhi\r\n")
            await wire.settled()
            old = await listener.next("$SYS.SERVER.ACCOUNT.B.CONNS")
            new = await listener.next("$SYS.ACCOUNT.B.SERVER.CONNS")
            assert (old["acc"], old["name"], old["conns"], old["total_conns"], old["leafnodes"]) == ("B", "B", 1, 1, 0)
            assert old["type"] == "io.nats.server.advisory.v1.account_connections"
            assert (new["conns"], new["id"]) == (1, old["id"])
            asked = await listener.ask("$SYS.REQ.ACCOUNT.B.CONNS", {"acc": "B"})
            assert asked["received"] == {"msgs": 1, "bytes": 2, **NOWHERE}
            assert asked["sent"] == {"msgs": 0, "bytes": 0, **NOWHERE}
            assert (asked["conns"], asked["slow_consumers"]) == (1, 0)
        assert (await listener.next("$SYS.ACCOUNT.B.SERVER.CONNS"))["conns"] == 0
        assert await listener.is_unanswered("$SYS.REQ.ACCOUNT.B.CONNS", {})
        assert await listener.is_unanswered("$SYS.REQ.ACCOUNT.$SYS.CONNS", {"acc": "B"})
        await listener.client.flush()
        seen = set()
        while not listener.events.empty():
            seen.add(listener.events.get_nowait().subject)
        assert not {one for one in seen if "$G" in one and "CONNS" in one}


async def test_connection_that_moves(server: Server) -> None:
    """A second login counts in the other account, and its event is published there."""
    async with Listener(url(server), "$SYS.>") as listener, Wire(server.port) as wire:
        wire.send(connect("a"))
        await wire.settled()
        assert (await listener.next("$SYS.ACCOUNT.A.SERVER.CONNS"))["conns"] == 1
        wire.send(connect("b"))
        await wire.settled()
        assert (await listener.next("$SYS.ACCOUNT.A.SERVER.CONNS"))["conns"] == 0
        assert (await listener.next("$SYS.ACCOUNT.B.SERVER.CONNS"))["conns"] == 1
        assert (await listener.next("$SYS.ACCOUNT.B.CONNECT"))["client"]["user"] == "b"


async def test_slow_subscriber_of_its_own_end() -> None:
    """A subscriber of disconnect events may itself be disconnected, even in the middle of a delivery."""
    async with (running(ACCOUNTS, users=USERS, max_pending=100_000) as server, Wire(server.port) as slow,
                Listener(url(server), "$SYS.ACCOUNT.$SYS.DISCONNECT") as listener):
        slow.send(connect("sys") + b"SUB > 1\r\n")
        await slow.settled()
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            while listener.events.empty():
                await listener.client.publish("load", bytes(50_000))
                await listener.client.flush()
        gone = await listener.next("$SYS.ACCOUNT.$SYS.DISCONNECT")
        assert gone["reason"].startswith("Slow Consumer")
        assert gone["received"]["bytes"] > 50_000


@pytest.mark.shows("monitoring.server_events")
async def test_lame_duck() -> None:
    """The event consists of the server's identity; it reaches subscribers before their connections end."""
    async with (running(ACCOUNTS, users=USERS, lame_duck_duration_ns=200_000_000,
                        lame_duck_grace_period_ns=50_000_000) as server,
                Listener(url(server), "$SYS.SERVER.>") as listener):
        await server.lame_duck()
        lame = await listener.next(f"$SYS.SERVER.{server.server_id}.LAMEDUCK")
        assert (lame["name"], lame["id"]) == (server.server_name, server.server_id)


@pytest.mark.shows("monitoring.server_events")
async def test_shutdown() -> None:
    """The last event is sent before the subscribers' connections are closed."""
    async with running(ACCOUNTS, users=USERS) as server, Listener(url(server), "$SYS.SERVER.>") as listener:
        await server.close()
        ended = await listener.next(f"$SYS.SERVER.{server.server_id}.SHUTDOWN")
        assert (ended["name"], ended["id"], ended["host"]) == (server.server_name, server.server_id, "127.0.0.1")


async def test_a_server_that_serves_again(server: Server) -> None:
    """Like an owner that lost the store and regained it: each end is published, and so are the clients in between."""
    for _ in range(2):
        async with Listener(url(server), "$SYS.>") as listener:
            async with Wire(server.port) as wire:
                wire.send(connect("a"))
                await wire.settled()
                assert (await listener.next("$SYS.ACCOUNT.A.SERVER.CONNS"))["conns"] == 1
            await server.close()
            assert (await listener.next(f"$SYS.SERVER.{server.server_id}.SHUTDOWN"))["id"] == server.server_id
        await server.start()


async def test_no_event_is_built_without_subscribers(server: Server) -> None:
    """No event is made without subscribers; otherwise its number would be missing in the next one."""
    async with Listener(url(server)) as listener:
        before = (await listener.ask("$SYS.REQ.ACCOUNT.$SYS.CONNS"))["server"]["seq"]
        for _ in range(3):
            async with Wire(server.port) as wire:
                wire.send(connect("a"))
                await wire.settled()
        assert (await listener.ask("$SYS.REQ.ACCOUNT.$SYS.CONNS"))["server"]["seq"] == before + 1


@pytest.mark.shows("accounts.system")
async def test_no_system_account() -> None:
    """Clients log in, disconnect and are refused as usual."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "accounts.no_system": True,
                                   "auth.user": "u", "auth.password": "p"}))
    await server.start()
    try:
        async with Wire(server.port) as good, Wire(server.port) as bad:
            good.send(b'CONNECT {"user":"u","pass":"p","verbose":false}\r\n')
            await good.settled()
            bad.send(b'CONNECT {"user":"u","pass":"x"}\r\n')
            assert b"Authorization Violation" in await bad.end()
        assert server.system is None
    finally:
        await server.close()
