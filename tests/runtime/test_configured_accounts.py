"""Users and accounts of a configuration file, from the stock client, to jetblock and to the real server alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType
from nats.js.errors import APIError

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

FULL = b"-ERR 'maximum account active connections exceeded'\r\n"

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])

FILE = """
authorization { timeout: 60 }
accounts {
  A {
    users [ {user: a, password: a},
            {user: r, password: r, permissions { publish: "r.>", subscribe: ["_INBOX.>", "r.*"] }} ]
    jetstream { max_mem: 1MB, max_streams: 2, max_consumers: 1 }
  }
  B { users [ {user: b, password: b} ], limits { max_connections: 1, max_payload: 100, max_subscriptions: 2 } }
  $SYS { users [ {user: s, password: s} ] }
}
"""


@asynccontextmanager
async def connected(broker: ServerProcess, user: str = "",
                    errors: asyncio.Queue[str] | None = None) -> AsyncIterator[Client]:
    """Connect a client that does not reconnect; ``errors`` gets the texts of its ``-ERR`` lines."""
    async def note(error: Exception) -> None:
        if errors is not None:
            errors.put_nowait(str(error))

    credentials = {"user": user, "password": user} if user else {}
    client = await nats.connect(broker.url, allow_reconnect=False, error_cb=note, **credentials)
    try:
        yield client
    finally:
        await client.close()


async def said(errors: asyncio.Queue[str], word: str) -> None:
    """Wait until the client has an error."""
    async with asyncio.timeout(30):
        while word not in await errors.get():
            pass


@asynccontextmanager
async def serving(process: type[ServerProcess], tmp_path: Path, text: str = FILE) -> AsyncIterator[ServerProcess]:
    path = tmp_path / "x.conf"
    path.write_text(text)
    async with process("-c", str(path), "-js", "-sd", str(tmp_path / "store")) as broker:
        yield broker


@pytest.mark.shows("accounts.apart")
@BOTH
async def test_accounts_are_apart(process: type[ServerProcess], tmp_path: Path) -> None:
    """The same subject in two accounts is two subjects."""
    async with (serving(process, tmp_path) as broker, connected(broker, "a") as a, connected(broker, "b") as b):
        at_a, at_b = await a.subscribe("x"), await b.subscribe("x")
        await a.flush()
        await b.publish("x", b"for b")
        await b.flush()
        await a.publish("x", b"for a")
        assert (await at_a.next_msg()).data == b"for a"
        assert (await at_b.next_msg()).data == b"for b"
        assert at_a.pending_msgs == at_b.pending_msgs == 0
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            async with connected(broker):
                pass


@BOTH
async def test_jetstream_of_each_account(process: type[ServerProcess], tmp_path: Path) -> None:
    """Each account has its own limits; requests of an account without JetStream are answered with an error."""
    async with (serving(process, tmp_path) as broker, connected(broker, "a") as a, connected(broker, "b") as b):
        js = a.jetstream()
        info = await js.account_info()
        assert (info.limits.max_memory, info.limits.max_streams, info.limits.max_consumers) == (1 << 20, 2, 1)
        for name in ("ONE", "TWO"):
            await js.add_stream(name=name, subjects=[name], storage=StorageType.MEMORY)
        with pytest.raises(APIError) as caught:
            await js.add_stream(name="THREE", subjects=["three"])
        assert caught.value.err_code == 10027
        await js.publish("ONE", b"x" * 500_000)
        with pytest.raises(APIError) as caught:
            await js.publish("ONE", b"x" * 700_000)
        assert caught.value.err_code == 10002
        await js.publish("TWO", b"more")
        with pytest.raises(APIError) as caught:
            await b.jetstream().account_info()
        assert caught.value.err_code == 10039


@pytest.mark.shows("auth.permissions")
@BOTH
async def test_permissions(process: type[ServerProcess], tmp_path: Path) -> None:
    """A forbidden operation gets an error with the subject, and the connection stays."""
    errors: asyncio.Queue[str] = asyncio.Queue()
    async with (serving(process, tmp_path) as broker, connected(broker, "a") as a,
                connected(broker, "r", errors) as restricted):
        everything = await a.subscribe(">")
        await a.flush()
        await restricted.publish("no", b"")
        await said(errors, 'permissions violation for publish to "no"')
        await restricted.subscribe("no")
        await said(errors, 'permissions violation for subscription to "no"')
        mine = await restricted.subscribe("r.*")
        await restricted.publish("r.x", b"yes")
        assert (await everything.next_msg()).data == b"yes"
        assert (await mine.next_msg()).data == b"yes"


@pytest.mark.shows("accounts.limits")
@BOTH
async def test_limits_of_an_account(process: type[ServerProcess], tmp_path: Path) -> None:
    """An account limits connections, the subscriptions of each, and the size of a message, which is in INFO."""
    async with serving(process, tmp_path) as broker:
        async with connected(broker, "b"):
            with pytest.raises(nats.errors.Error, match="maximum account active connections exceeded"):
                await nats.connect(broker.url, user="b", password="b", allow_reconnect=False)
        assert await limits(broker, "a") == (1 << 20, 3)
        assert await limits(broker, "b") == (100, 2)


async def limits(broker: ServerProcess, user: str) -> tuple[int, int]:
    """Return max_payload in INFO after the login, and the subscriptions of three that the account permits.

    A message that is longer by one byte must be refused.
    """
    host, _, port = broker.url.removeprefix("nats://").rpartition(":")
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, int(port))
        await reader.readline()
        fields = {"verbose": False, "protocol": 1, "user": user, "pass": user}
        writer.write(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
        if (line := await reader.readline()) == FULL:  # the connection before is on its way out yet
            writer.close()
            return await limits(broker, user)
        assert line == b"PONG\r\n"
        size = int(json.loads((await reader.readline()).removeprefix(b"INFO "))["max_payload"])
        for sid in (b"1", b"2", b"3"):
            writer.write(b"SUB y " + sid + b"\r\n")
        writer.write(b"PING\r\n")
        subscriptions = 3
        if (line := await reader.readline()) != b"PONG\r\n":
            assert line == b"-ERR 'maximum subscriptions exceeded'\r\n"
            assert await reader.readline() == b"PONG\r\n"
            subscriptions = 2
        writer.write(b"PUB x %d\r\n%b\r\nPING\r\nPUB x %d\r\n" % (size, b"x" * size, size + 1))
        assert await reader.readline() == b"PONG\r\n"
        assert await reader.readline() == b"-ERR 'Maximum Payload Violation'\r\n"
        writer.close()
    return size, subscriptions


@pytest.mark.shows("accounts.system")
@BOTH
async def test_users_of_the_system_account_alone(process: type[ServerProcess], tmp_path: Path) -> None:
    """If only the system account has users, clients without credentials are in the default account, with its
    streams."""
    text = "accounts { $SYS { users [ {user: s, password: s} ] } }"
    async with serving(process, tmp_path, text) as broker, connected(broker) as client, connected(broker,
                                                                                                  "s") as system:
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.flush()
        sub = await system.subscribe("s")
        await system.flush()
        await client.jetstream().publish("s", b"")
        await system.flush()
        assert sub.pending_msgs == 0
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(broker.url, user="s", password="x", allow_reconnect=False)


async def test_an_account_that_asks_for_more_than_there_is(tmp_path: Path) -> None:
    """The start fails with an error that names the account."""
    path = tmp_path / "x.conf"
    path.write_text("jetstream { max_mem: 1MB, store_dir: store }\n"
                    "accounts { A { users [ {user: a} ], jetstream { max_mem: 2MB } } }")
    broker = BrokerProcess("-c", str(path), cwd=tmp_path)
    await broker.start(ready=False)
    await broker.wait_line(r"\[FTL\] Can't start JetStream: .*account 'A'")
    assert await broker.wait_end() == 1
    await broker.close()
