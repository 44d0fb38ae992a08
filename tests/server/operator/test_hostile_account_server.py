"""Hostile account servers: slow ones, silent ones and wrong answers; and clients that name accounts that do not
exist."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker.base.nkeys import ACCOUNT
from broker.server.operator.resolver import ResolverError, UrlResolver
from tests import tokens
from tests.harness import BrokerProcess, ServerProcess
from tests.keys import key
from tests.server.operator.clients import BOTH, connected, write
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.resolvers")

SECOND = 1_000_000_000
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


class Scripted:
    """An account server; ``answers`` has the bytes for each account. Answers for other accounts never end."""

    def __init__(self) -> None:
        known = {name: tokens.account(name).encode() for name in ("A", "SYS")}
        self.answers = {key(ACCOUNT, name).public: OK + b"\r\n" + token for name,
                        token in known.items()} | {"": OK + b"\r\n"}
        self.endless = b""
        """Bytes sent again and again for an account without an answer, as long as the broker stays connected."""

        self.asked: Counter[str] = Counter()
        self.open = 0
        self.most_open = 0
        self.url = ""
        self.changed = asyncio.Condition()

    async def until_open(self, least: int, most: int = 0) -> None:
        """Wait until the number of running requests is between ``least`` and ``most``."""
        async with self.changed, asyncio.timeout(60):
            await self.changed.wait_for(lambda: least <= self.open <= max(least, most))

    async def count(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.most_open = max(self.most_open, self.open)
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.count(1)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            name = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().rpartition("/")[2]
            self.asked[name] += 1
            if name in self.answers:
                writer.write(self.answers[name])
                await writer.drain()
            elif self.endless:
                writer.write(OK)
                while not writer.is_closing():
                    writer.write(self.endless)
                    await writer.drain()
                    await asyncio.sleep(0.02)
            else:
                await reader.read()
        await self.count(-1)
        writer.close()

    def text(self, *lines: str) -> str:
        """Return a configuration that names this server."""
        return "\n".join([f"operator: {tokens.operator()}", f"system_account: {key(ACCOUNT, 'SYS').public}",
                          f"resolver: URL({self.url})", *(lines or (tokens.LOGIN,))])


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    accounts = Scripted()
    server = await asyncio.start_server(accounts.serve, "127.0.0.1", 0)
    try:
        accounts.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwt/v1/accounts/"
        yield accounts
    finally:
        server.close()


@pytest.mark.parametrize("endless", [b"x", b"X-More: x\r\n", b"\r\n", b""],
                         ids=["header", "headers", "body", "nothing"])
async def test_an_answer_that_never_ends(endless: bytes) -> None:
    """The bound on a request's time includes the whole answer, not just each part of it."""
    async with scripted() as accounts, asyncio.timeout(30):
        accounts.endless = endless
        with pytest.raises(ResolverError, match="could not fetch"):
            await UrlResolver(accounts.url, 3 * SECOND // 10).fetch(key(ACCOUNT, "drip").public)
        await accounts.until_open(0)  # the broker closed the connection


async def test_an_answer_of_any_length() -> None:
    """The broker keeps no more bytes of an answer than a token may have."""
    async with scripted() as accounts:
        accounts.endless = b"\r\n" + b"x" * (1 << 18)
        with pytest.raises(ResolverError, match="exceeds 1048576 bytes"):
            await UrlResolver(accounts.url, 30 * SECOND).fetch(key(ACCOUNT, "huge").public)


def wrong_answers(accounts: Scripted) -> dict[str, bytes]:
    """Return answers that are no token of the account B."""
    right, other = tokens.account("B").encode(), tokens.account("A").encode()
    here = f"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {accounts.url}".encode()
    return {
        "garbage": OK + b"\r\n\x00\xff{]",
        "no HTTP": b"-ERR 'what'\r\n",
        "no bytes": b"",
        "another account's": OK + b"\r\n" + other,
        "expired": OK + b"\r\n" + tokens.account("B", exp=int(time.time()) - 60).encode(),
        "another operator's": OK + b"\r\n" + tokens.account("B", signer=key(ACCOUNT, "B")).encode(),
        "cut": OK + b"Content-Length: %d\r\n\r\n" % len(right) + right[:-20],
        "a user's": OK + b"\r\n" + tokens.user().encode(),
        "to itself": here + key(ACCOUNT, "B").public.encode() + b"\r\n\r\n",
        "to a file": here[:here.rindex(b"http:")] + b"file:///etc/hostname\r\n\r\n",
        "to FTP": here[:here.rindex(b"http:")] + b"ftp://127.0.0.1:1/x\r\n\r\n",
        "to nowhere": here[:here.rindex(b"http:")] + b"http://[::\r\n\r\n",
        "bad length": OK + b"Content-Length: -5\r\n\r\n" + right,
        "bad chunks": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + right,
        "bad compression": OK + b"Content-Encoding: gzip\r\n\r\n" + right,
    }


@BOTH
async def test_wrong_answers(process: type[ServerProcess], tmp_path: Path) -> None:
    """A client is refused if its account's token cannot be fetched, and others are served meanwhile.

    The next right answer admits it.
    """
    async with (scripted() as accounts, process("-c", write(tmp_path, accounts.text()), monitor=False) as server):
        name = key(ACCOUNT, "B").public
        for why, answer in wrong_answers(accounts).items():
            accounts.answers[name] = answer
            async with Wire(server.port) as client:
                client.send(tokens.connect(client.info, tokens.user(of="B")))
                assert await client.end() == b"-ERR 'Authorization Violation'\r\n", why
        accounts.answers[name] = OK + b"\r\n" + tokens.account("B").encode()
        for account in "AB":
            async with connected(server, tokens.user(of=account)) as nc:
                await nc.flush()
        assert accounts.asked[name] < 60
        assert "Traceback" not in server.tail(5000)


async def until_alone(server: ServerProcess) -> None:
    """Wait until the server has no clients."""
    async with asyncio.timeout(60):
        while (await server.monitor("/varz"))["connections"]:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)


async def test_many_made_up_accounts(tmp_path: Path) -> None:
    """Lookups of disconnected clients are dropped: an existing account is found at once, and requests are bounded."""
    made_up = 300
    async with AsyncExitStack() as stack:
        accounts = await stack.enter_async_context(scripted())
        server = await stack.enter_async_context(BrokerProcess("-c", write(tmp_path, accounts.text())))
        clients = [await stack.enter_async_context(Wire(server.port)) for _ in range(made_up)]
        for at, client in enumerate(clients):
            client.send(tokens.connect(client.info, tokens.user(of=f"made up {at}")))
        await accounts.until_open(8, 65)
        for client in clients:
            client.writer.transport.abort()

        await until_alone(server)
        async with asyncio.timeout(20), connected(server, tokens.user(of="A")) as nc:
            await nc.flush()
        assert accounts.most_open <= 65
        assert accounts.asked.total() < made_up / 2
