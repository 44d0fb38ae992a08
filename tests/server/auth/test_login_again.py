"""Changes of users during and after logins: the server is in the test's process, and the test controls the checks."""

from __future__ import annotations

import asyncio
import json

from broker.server.auth.login import Credentials, Decision, Login, Refusal, Waiter
from broker.server.server import Server
from tests.server.in_process import running
from tests.server.raw_client import Wire


class Slow:
    """A check that ends when the test calls ``end``."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = False
        self.waiter: Waiter | None = None

    def begin(self, waiter: Waiter) -> None:
        self.waiter = waiter
        waiter.check_begun()
        self.begun.set()

    def cancel(self, waiter: Waiter) -> None:
        assert waiter is self.waiter
        self.cancelled = True

    def end(self, decision: Login | Refusal) -> None:
        assert self.waiter is not None
        assert not self.cancelled
        self.waiter.check_done(decision)


class Decisions:
    """An authenticator that returns given decisions, one after another."""

    wants_nonce = False

    def __init__(self, *decisions: Decision) -> None:
        self.left = list(decisions)

    def decide(self, _credentials: Credentials) -> Decision:
        return self.left.pop(0)


def reload(server: Server) -> None:
    """Load other settings; the difference does not matter to the test."""
    auth = server.settings.auth.replace(timeout_ns=server.settings.auth.timeout_ns + 1)
    server.prepare(server.settings.replace(auth=auth))()


CONNECT = b"CONNECT " + json.dumps({"verbose": False, "user": "u", "pass": "p"}).encode() + b"\r\n"


async def test_a_reload_restarts_a_running_check() -> None:
    """The old result would be about former users; input that arrived meanwhile is served after the new check."""
    first, second = Slow(), Slow()
    async with running(authenticators=[Decisions(first, second)]) as server, Wire(server.port) as client:
        client.send(CONNECT + b"SUB a 1\r\nPUB a 1\r\nx\r\n")
        await first.begun.wait()
        reload(server)
        assert first.cancelled
        second.end(Login(user="u"))
        assert await client.settled() == b"MSG a 1 1\r\nx\r\nPONG\r\n"


async def test_a_reload_may_decide_a_running_check_at_once() -> None:
    """The client's input is served, or the client is closed."""
    slow = [Slow(), Slow()]
    async with (running(authenticators=[Decisions(*slow, Login(user="u"), Refusal())]) as server,
                Wire(server.port) as good, Wire(server.port) as bad):
        for client, check in ((good, slow[0]), (bad, slow[1])):
            client.send(CONNECT + b"SUB a 1\r\nPUB a 1\r\nx\r\n")
            await check.begun.wait()
        reload(server)
        assert await good.settled() == b"MSG a 1 1\r\nx\r\nPONG\r\n"
        assert await bad.end() == b"-ERR 'Authorization Violation'\r\n"


async def test_a_client_is_served_while_it_is_checked_again() -> None:
    """The client is closed if the check fails; a further change cancels that check."""
    first, second = Slow(), Slow()
    async with (running(authenticators=[Decisions(Login(user="u"), first, second)]) as server,
                Wire(server.port) as client):
        client.send(CONNECT)
        assert await client.settled() == b"PONG\r\n"
        reload(server)
        assert first.begun.is_set()
        client.send(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
        assert await client.settled() == b"MSG a 1 1\r\nx\r\nPONG\r\n"
        reload(server)
        assert first.cancelled
        second.end(Refusal())
        assert await client.end() == b"-ERR 'Authorization Violation'\r\n"


async def test_a_check_of_a_client_that_leaves_ends() -> None:
    check = Slow()
    async with running(authenticators=[Decisions(Login(user="u"), check)]) as server, Wire(server.port) as client:
        client.send(CONNECT)
        assert await client.settled() == b"PONG\r\n"
        reload(server)
        (connection,) = server.clients.values()
        connection.close("Client Closed")
        assert check.cancelled
        assert await client.end() == b""


async def test_authentication_begins_and_ends() -> None:
    """All clients are admitted without authentication; when it begins, clients without credentials are closed.

    This includes clients that have not sent CONNECT.
    """
    async with running() as server, Wire(server.port) as client:
        client.send(b'CONNECT {"verbose":false}\r\n')
        assert await client.settled() == b"PONG\r\n"
        open_to_all = server.settings
        auth = open_to_all.auth.replace(user="u", password="p")
        server.prepare(open_to_all.replace(auth=auth))()
        assert await client.end() == b"-ERR 'Authorization Violation'\r\n"
        async with Wire(server.port) as before, Wire(server.port) as after:
            assert b'"auth_required":true' in before.info
            server.prepare(open_to_all)()
            before.send(b'CONNECT {"verbose":false}\r\n')
            assert await before.settled() == b"PONG\r\n"
            server.prepare(open_to_all.replace(auth=auth))()
            assert await before.end() == b"-ERR 'Authorization Violation'\r\n"
            assert await after.end() == b"-ERR 'Authorization Violation'\r\n"
