"""Requests to the system account that the server answers itself, and rules for all of them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import cramjam
import pytest
import pytest_asyncio
from nats.errors import NoRespondersError

from broker.access.accounts import AccountSettings, Permissions, SubjectPermission, User
from broker.server.server import Server
from broker.server.system.requests import Request, RequestError, Unanswered
from tests.server.auth.access import connect
from tests.server.in_process import running
from tests.server.raw_client import Wire
from tests.server.system.listening import Listener

LIMITED = Permissions(SubjectPermission(("$SYS.REQ.SERVER.PING.IDZ",)), SubjectPermission(("_INBOX.>",)))
ACCOUNTS = [AccountSettings("A")]
USERS = (User("sys", "p", "$SYS"), User("limited", "p", "$SYS", LIMITED), User("a", "p", "A"))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with running(ACCOUNTS, users=USERS) as found:
        yield found


@pytest_asyncio.fixture
async def system(server: Server) -> AsyncIterator[Listener]:
    async with Listener(f"nats://127.0.0.1:{server.port}") as found:
        yield found


async def test_identity(server: Server, system: Listener) -> None:
    """All servers answer, or the one with the id; their answers have no envelope."""
    expected = {"name": server.server_name, "host": "127.0.0.1", "id": server.server_id}
    assert await system.ask("$SYS.REQ.SERVER.PING.IDZ") == expected
    assert await system.ask(f"$SYS.REQ.SERVER.{server.server_id}.IDZ") == expected
    with pytest.raises(NoRespondersError):
        await system.ask("$SYS.REQ.SERVER.NOBODY.IDZ")


async def test_permissions(server: Server) -> None:
    """A user of the system account may be limited to some requests; other accounts reach none of them."""
    async with Listener(f"nats://127.0.0.1:{server.port}", user="limited") as limited, Wire(server.port) as other:
        assert (await limited.ask("$SYS.REQ.SERVER.PING.IDZ"))["id"] == server.server_id
        async with Wire(server.port) as wire:
            wire.send(connect("limited") + b"PUB $SYS.REQ.SERVER.%b.KICK 1\r\nx\r\n" % server.server_id.encode())
            assert b"Permissions Violation for Publish" in await wire.settled()
        other.send(b'CONNECT {"user":"a","pass":"p","verbose":false,"headers":true,"no_responders":true}\r\n'
                   b"SUB in 1\r\nPUB $SYS.REQ.SERVER.PING.IDZ in 0\r\n\r\n")
        assert b"503" in await other.settled()


@pytest.mark.shows("monitoring.kick")
async def test_kick(server: Server, system: Listener) -> None:
    """A request closes a connection; an unknown connection is an error, and so is an invalid request."""
    subject = f"$SYS.REQ.SERVER.{server.server_id}.KICK"
    async with Wire(server.port) as wire:
        wire.send(connect("a"))
        await wire.settled()
        cid = max(server.clients)
        answer = await system.ask(subject, {"cid": cid})
        assert answer.keys() == {"server"}
        await wire.end()
        assert server.connections(closed=True)[-1]["reason"] == "Kicked"
    for wrong in ({"cid": cid}, {"cid": "1"}, {"cid": [1]}, {"cid": 1.5}, {"cid": True}, {}):
        assert (await system.ask(subject, wrong))["error"] == {
            "code": 500, "description": "no such client or leafnode id"}
    assert json.loads((await system.ask_raw(subject, b"{x")).data)["error"]["code"] == 400


@pytest.mark.shows("monitoring.kick")
async def test_lame_duck_for_one_client(server: Server, system: Listener) -> None:
    """A client is asked to reconnect elsewhere; it is an error if the client does not support such an INFO."""
    subject = f"$SYS.REQ.SERVER.{server.server_id}.LDM"
    async with Wire(server.port) as new, Wire(server.port) as old:
        new.send(b'CONNECT {"user":"a","pass":"p","verbose":false,"protocol":1}\r\n')
        old.send(b'CONNECT {"user":"a","pass":"p","verbose":false}\r\n')
        await new.settled()
        await old.settled()
        new_cid, old_cid = sorted(server.clients)[-2:]
        assert "error" not in await system.ask(subject, {"cid": new_cid})
        assert b'"ldm":true' in await new.until(b'"ldm":true')
        assert "does not support Lame Duck Mode" in (await system.ask(subject,
                                                                      {"cid": old_cid}))["error"]["description"]
        assert (await system.ask(subject, {"cid": 99}))["error"]["description"] == "no such client id"
        assert "ldm" not in server.info(server.clients[new_cid])


async def test_outcomes_of_handlers(server: Server, system: Listener) -> None:
    """A handler may answer, refuse, raise an error, or stay silent; its exception is answered, too."""
    assert server.system is not None
    requests, router = server.system.requests, server.accounts.get("$SYS")
    assert router is not None

    def serve(request: Request) -> None:
        match request.token(1):
            case "data":
                request.answer({"you said": request.members()})
            case "refused":
                raise RequestError("no", 404)
            case "silent":
                raise Unanswered
            case _:
                raise KeyError("a bug")

    requests.serve(router.router, "test.*", serve)
    answer = await system.ask("test.data", {"X": 1})
    assert answer["data"] == {"you said": {"x": 1}}
    assert answer["server"]["id"] == server.server_id
    assert (await system.ask("test.refused"))["error"] == {"code": 404, "description": "no"}
    assert (await system.ask("test.bug"))["error"]["code"] == 500
    assert await system.is_unanswered("test.silent", {})
    assert await system.is_unanswered("test.data", {"server_name": "other"})
    assert (await system.ask("test.data", {"tags": 1}))["error"]["code"] == 400


@pytest.mark.parametrize(("accepted", "encoding"), [
    ("gzip", "gzip"), ("GZIP, deflate", "gzip"), ("Snappy", "snappy"), ("gzip, s2", "snappy"), ("br", "identity")])
async def test_compression(server: Server, system: Listener, accepted: str, encoding: str) -> None:
    """Snappy or gzip is used if accepted; otherwise the answer has a header for no compression."""
    assert server.system is not None
    assert server.accounts.system is not None
    server.system.requests.serve(server.accounts.system.router, "test.large",
                                 lambda request: request.answer(["x" * 10_000]))
    msg = await system.ask_raw("test.large", headers={"Accept-Encoding": accepted})
    assert (msg.headers or {})["Content-Encoding"] == encoding
    decoded = {"gzip": gzip.decompress, "snappy": cramjam.snappy.decompress, "identity": bytes}
    body = bytes(decoded[encoding](msg.data))
    assert (len(msg.data) < 2000) == (encoding != "identity")
    assert json.loads(body)["data"] == ["x" * 10_000]
    plain = await system.ask_raw("test.large")
    assert plain.headers is None


async def test_many_requests_leave_time_for_others(server: Server, system: Listener) -> None:
    """Each turn of the loop serves one request, in order, and their client is not read meanwhile."""
    assert server.system is not None
    assert server.accounts.system is not None
    served: list[bytes] = []
    others = 0

    def serve(request: Request) -> None:
        served.append(request.body)
        request.answer(len(served))

    server.system.requests.serve(server.accounts.system.router, "test.slow", serve)
    async with Wire(server.port) as wire:
        wire.send(connect("sys") + b"SUB in 1\r\n")
        await wire.settled()
        wire.send(b"".join(b"PUB test.slow in 4\r\n%04d\r\n" % i for i in range(2000)) + b"PING\r\n")
        async with asyncio.timeout(30):
            while len(served) < 2000:
                before = len(served)
                await asyncio.sleep(0)
                others += 1
                assert len(served) - before <= 2
        assert served == [b"%04d" % i for i in range(2000)]
        assert others >= 1000
        assert (await wire.until(b'"data":2000}\r\n')).count(b"MSG in 1 ") == 2000


async def test_requests_that_want_no_answer(server: Server, system: Listener) -> None:
    """Requests without a reply subject are not served, unless the handler wants them."""
    assert server.system is not None
    assert server.accounts.system is not None
    served: list[str] = []
    router = server.accounts.system.router
    server.system.requests.serve(router, "test.answer", lambda request: served.append(request.subject))
    server.system.requests.serve(router, "test.act", lambda request: served.append(request.subject), unanswered=True)
    for subject in ("test.answer", "test.act"):
        await system.client.publish(subject, b"")
    await system.ask("$SYS.REQ.SERVER.PING.IDZ")
    assert served == ["test.act"]


async def test_requests_from_no_client_are_bounded(server: Server, system: Listener) -> None:
    """Requests that a consumer delivers faster than they are served are dropped; clients are served."""
    assert server.system is not None
    assert server.accounts.system is not None
    served: list[str] = []
    router = server.accounts.system.router
    server.system.requests.serve(router, "test.slow", lambda request: served.append(request.subject))
    for _ in range(5000):
        router.publish(b"test.slow", b"reply", 0, b"")
    assert (await system.ask("$SYS.REQ.SERVER.PING.IDZ"))["id"] == server.server_id
    assert 1000 <= len(served) < 4000
