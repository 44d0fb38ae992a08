"""The server from the point of view of nats-py and of a raw socket: ordinary use, slow clients, and shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats
import pytest
import uvloop
from nats.aio.client import Client
from nats.errors import NoRespondersError

from broker.base.gotime import format_duration, format_time
from broker.config.settings import ClientSettings, Settings
from broker.protocol.run import Msg
from broker.server.auth.login import Credentials, Login
from broker.server.connection.statistics import uptime
from broker.server.overview import subscriptions_of
from broker.server.server import Server
from tests.server.in_process import running
from tests.server.raw_client import Wire

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1,"name":"n"}\r\n'


# The plugin's newer hook for this exists only in its newest releases.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the")


@pytest.fixture(scope="module", params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy],
                ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Run every test on both loops: their transports buffer, pause and close differently."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@asynccontextmanager
async def client(server: Server, **options: Any) -> AsyncIterator[Client]:
    connection = await nats.connect(f"nats://127.0.0.1:{server.port}", **options)
    try:
        yield connection
    finally:
        if not connection.is_closed:
            await connection.close()


# nats-py


async def test_publish_and_subscribe(event_loop_policy: asyncio.AbstractEventLoopPolicy) -> None:
    """Subjects, payloads, headers and wildcards arrive as sent, in order."""
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop) == isinstance(event_loop_policy, uvloop.EventLoopPolicy)
    async with running() as server, client(server) as nc:
        sub = await nc.subscribe("foo.*")
        for i in range(100):
            await nc.publish(f"foo.{i % 3}", b"%d" % i, headers={"N": str(i)} if i % 2 else None)
        got = [await sub.next_msg() for _ in range(100)]
        assert [int(m.data) for m in got] == list(range(100))
        assert [m.subject for m in got] == [f"foo.{i % 3}" for i in range(100)]
        assert [m.headers for m in got] == [{"N": str(i)} if i % 2 else None for i in range(100)]


@pytest.mark.shows("core.no_responders")
async def test_request() -> None:
    """Requests are answered, many at a time; one without a responder fails at once."""
    async with running() as server, client(server) as nc, client(server) as service:
        async def double(m: Any) -> None:
            await m.respond(b"%d" % (2 * int(m.data)))

        await service.subscribe("double", cb=double)
        await service.flush()
        answers = await asyncio.gather(*(nc.request("double", b"%d" % i, timeout=30) for i in range(200)))
        assert [int(answer.data) for answer in answers] == [2 * i for i in range(200)]
        with pytest.raises(NoRespondersError):
            await nc.request("half", b"", timeout=30)


@pytest.mark.shows("core.queue_groups")
async def test_queue_group() -> None:
    """Each message goes to one member; all members get some messages."""
    async with running() as server, client(server) as nc:
        counts, done = [0, 0, 0], asyncio.Event()

        def counter(worker: int) -> Callable[[Any], Awaitable[None]]:
            async def count(_: Any) -> None:
                counts[worker] += 1
                if sum(counts) == 300:
                    done.set()

            return count

        for worker in range(3):
            await nc.subscribe("work", queue="q", cb=counter(worker))
        for i in range(300):
            await nc.publish("work", b"%d" % i)
        await asyncio.wait_for(done.wait(), 30)
        await nc.flush()
        assert sum(counts) == 300
        assert min(counts) > 50


@pytest.mark.shows("core.sub")
async def test_drain_and_auto_unsubscribe() -> None:
    """A drained connection has handled all earlier messages; a limited subscription stops at its limit."""
    async with running() as server, client(server) as nc:
        seen: list[bytes] = []
        own = server.router.subscription_count

        async def slowly(m: Any) -> None:
            await asyncio.sleep(0)
            seen.append(m.data)

        await nc.subscribe("a", cb=slowly)
        limited = await nc.subscribe("a")
        await limited.unsubscribe(limit=3)
        for i in range(10):
            await nc.publish("a", b"%d" % i)
        assert [(await limited.next_msg(timeout=30)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await nc.drain()
        assert limited.pending_msgs == 0
        assert seen == [b"%d" % i for i in range(10)]
        assert server.router.subscription_count == own


@pytest.mark.shows("core.pub")
async def test_large_messages() -> None:
    """Messages up to max_payload pass whole; a larger one ends the connection."""
    async with running() as server, client(server) as nc:
        sub = await nc.subscribe("big")
        body = bytes(range(256)) * 4096
        for _ in range(3):
            await nc.publish("big", body)
        for _ in range(3):
            assert (await sub.next_msg(timeout=30)).data == body


async def test_reconnect() -> None:
    """A client reconnects to a server that restarts on its port, and restores its subscriptions."""
    async with running() as server:
        port = server.port
        async with client(server, reconnect_time_wait=0.02, max_reconnect_attempts=100) as nc:
            back = asyncio.Event()

            async def reconnected() -> None:
                back.set()

            nc._reconnected_cb = reconnected
            sub = await nc.subscribe("a")
            await nc.flush()
            await server.close()
            again = Server(Settings(clients=ClientSettings(host="127.0.0.1", port=port)))
            await again.start()
            try:
                async with asyncio.timeout(30):
                    await back.wait()
                await nc.publish("a", b"x")
                assert (await sub.next_msg(timeout=30)).data == b"x"
            finally:
                await again.close()


# Slow consumers and fast producers


@asynccontextmanager
async def deaf(server: Server, receive_bytes: int = 4096) -> AsyncIterator[socket.socket]:
    """Connect a client that subscribes to ``a`` and then reads nothing; ``receive_bytes`` is its socket's buffer."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", server.port))
        await loop.sock_sendall(sock, QUIET + b"SUB a 1\r\nPING\r\n")
        got = b""
        while b"connect_info" not in got:
            got += await loop.sock_recv(sock, 4096)
        yield sock


async def until_gone(server: Server, count: int) -> None:
    """Wait until only ``count`` clients are left."""
    async with asyncio.timeout(30):
        while len(server.clients) > count:  # noqa: ASYNC110 - a server notifies nobody when a client leaves
            await asyncio.sleep(0.01)


@pytest.mark.shows("core.slow_consumer")
async def test_slow_consumer_by_bytes() -> None:
    """A client with more than max_pending unread is disconnected and counted; the publisher is unaffected."""
    async with running(max_pending=4 * 1024 * 1024) as server, deaf(server), Wire(server.port) as publisher:
        publisher.send(QUIET)
        body = b"x" * 100_000
        for _ in range(200):
            publisher.send(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        assert (await publisher.settled()).endswith(b"PONG\r\n")
        await until_gone(server, 1)
        assert server.varz()["slow_consumers"] == 1
        assert [ended["reason"] for ended in server.connections(closed=True)] == ["Slow Consumer (Pending Bytes)"]


@pytest.mark.shows("core.slow_consumer")
async def test_slow_consumer_by_time() -> None:
    """A client that reads nothing within the write deadline is disconnected although little is pending."""
    async with running(write_deadline_ns=200_000_000) as server, deaf(server), Wire(server.port) as publisher:
        publisher.send(QUIET)
        body = b"x" * 1_000_000
        for _ in range(12):
            publisher.send(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        await publisher.settled()
        await until_gone(server, 1)
        assert [ended["reason"] for ended in server.connections(closed=True)] == ["Slow Consumer (Write Deadline)"]


@pytest.mark.shows("core.write_timeout")
async def test_write_timeout_retry() -> None:
    """A client past its deadline is counted; with ``retry`` it stays while it receives something."""
    for deadline_s in (0.3, 1, 3):  # a busy machine may keep the client from reading for longer than that
        async with (running(write_deadline_ns=int(deadline_s * 1e9), write_timeout="retry") as server,
                    deaf(server, 1 << 20) as sock):
            loop = asyncio.get_running_loop()
            for _ in range(60):
                server.router.publish(b"a", b"", 0, b"x" * 1_000_000)
            async with asyncio.timeout(30):
                while server.varz()["slow_consumers"] < 2 and not server.connections(closed=True):
                    with suppress(ConnectionError):
                        await loop.sock_recv(sock, 1 << 18)
                    await asyncio.sleep(0.01)
            stayed = not server.connections(closed=True)
            await until_gone(server, 0)
            assert [ended["reason"] for ended in server.connections(closed=True)] == ["Slow Consumer (Write Deadline)"]
        if stayed:
            break
    assert stayed


async def test_a_reader_is_not_slow() -> None:
    """Steady reading keeps a connection whose buffer is not empty for many write deadlines."""
    for deadline_s in (0.4, 1.2, 3.6):  # a busy machine may keep the client from reading for longer than that
        async with running(write_deadline_ns=int(deadline_s * 1e9)) as server, deaf(server, 1 << 20) as sock:
            await read_steadily(server, sock, 4 * deadline_s)
            if not (ended := server.connections(closed=True)):
                assert server.connections()[0]["pending_bytes"] > 0
                break
    assert not ended


async def read_steadily(server: Server, sock: socket.socket, seconds: float) -> None:
    """Publish messages and read them, with a few megabytes always in flight."""
    loop = asyncio.get_running_loop()
    body = b"x" * 1_000_000
    message = b"MSG a 1 %d\r\n%b\r\n" % (len(body), body)
    sent = have = 0
    until = loop.time() + seconds
    with suppress(ConnectionError):
        while loop.time() < until and server.clients:
            while sent - have < 8 * len(message):
                server.router.publish(b"a", b"", 0, body)
                sent += len(message)
            have += len(await loop.sock_recv(sock, 1 << 20))


@pytest.mark.shows("core.stall")
async def test_fast_producer_is_stalled() -> None:
    """A publisher is slowed down, and counted, while its receiver is above three quarters of its bound."""
    async with running(max_pending=40 * 1024 * 1024) as server, deaf(server), Wire(server.port) as publisher:
        publisher.send(QUIET)
        body = b"x" * 1_000_000
        for _ in range(40):
            publisher.send(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        await publisher.settled()
        assert server.varz()["stalled_clients"] > 0


@pytest.mark.shows("core.stall")
async def test_fast_producer_is_not_stalled_when_that_is_turned_off() -> None:
    """The publisher continues at full speed; the receiver is disconnected at its bound."""
    async with running(max_pending=8 * 1024 * 1024, no_fast_producer_stall=True) as server, deaf(server), \
            Wire(server.port) as publisher:
        publisher.send(QUIET)
        body = b"x" * 1_000_000
        for _ in range(40):
            publisher.send(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        await publisher.settled()
        varz = server.varz()
        assert (varz["stalled_clients"], varz["slow_consumers"]) == (0, 1)
        assert [row["reason"] for row in server.connections(closed=True)] == ["Slow Consumer (Pending Bytes)"]


async def test_hold_and_release() -> None:
    """A held source is not read until there are as many releases as holds; pings wait too."""
    async with running() as server, Wire(server.port) as wire:
        handled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def handler(ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
            source.hold()
            source.hold()
            handled.set_result(source)

        server.router.subscribe(b"s", handler)
        wire.send(QUIET + b"PING\r\n")
        await wire.until(b"PONG\r\n")
        await wire.until(b"\r\n")
        wire.send(b"PUB s 1\r\nx\r\n")
        async with asyncio.timeout(30):
            source = await handled
        wire.send(b"PING\r\n")
        source.release()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.until(b"PONG\r\n")
        source.release()
        assert await wire.until(b"PONG\r\n") == b"PONG\r\n"


async def test_release_after_the_end() -> None:
    """JetStream may release a source whose connection ended long ago."""
    async with running() as server:
        async with Wire(server.port) as wire:
            await wire.settled()
            [source] = server.clients.values()
            source.hold()
            wire.send(b"PING\r\n")
        source.close("Client Closed")
        source.release()
        source.no_responders(b"a", b"b")


# Shutdown and keep-alive


@pytest.mark.shows("core.lame_duck")
async def test_lame_duck() -> None:
    """The server refuses new connections, sends INFO with ldm to clients that accept it, waits, and closes each
    client."""
    for grace_s in (0.2, 1, 5):  # on a busy machine it may be over before the client sends something
        async with running(lame_duck_duration_ns=int(2e9 * grace_s),
                           lame_duck_grace_period_ns=int(1e9 * grace_s)) as server, Wire(
                server.port) as new, Wire(server.port) as old:
            new.send(QUIET + b"PING\r\n")
            await new.until(b'"connect_info":true')
            await new.until(b"\r\n")
            old.send(b'CONNECT {"verbose":false}\r\n')
            await old.settled()
            ending = asyncio.create_task(server.lame_duck())
            notice = await new.until(b"\r\n")
            assert json.loads(notice[5:])["ldm"] is True
            with pytest.raises(OSError):
                async with Wire(server.port):
                    pass
            new.send(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
            served = await new.settled()
            assert await new.end() == b""
            assert await old.end() == b""
            await ending
            assert {ended["reason"] for ended in server.connections(closed=True)} == {"Server Shutdown"}
        if served:
            break
    assert served == b"MSG a 1 1\r\nx\r\nPONG\r\n"


async def test_listening_again_is_on_the_same_port() -> None:
    """A broker that lost its store and recovered listens on the port that its clients know, even if that was random."""
    async with running() as server:
        port = server.port
        await server.close()
        await server.start()
        assert server.port == port
        async with client(server):
            pass


async def test_close_writes_what_is_queued() -> None:
    """A clean shutdown delivers a client's pending messages."""
    async with running() as server, Wire(server.port) as wire:
        wire.send(QUIET + b"SUB a 1\r\n")
        await wire.settled()
        await wire.until(b"\r\n")
        server.router.publish(b"a", b"", 0, b"x" * 1_000_000)
        closing = asyncio.create_task(server.close())
        assert await wire.end() == b"MSG a 1 1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
        await closing


async def test_half_closed_client() -> None:
    """A client that shut down its sending side gets its answers before the end."""
    async with running() as server, Wire(server.port) as wire:
        wire.send(QUIET + b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
        wire.writer.write_eof()
        assert await wire.end() == b"MSG a 1 2\r\nhi\r\n"


@pytest.mark.shows("core.ping")
async def test_pings_keep_a_client() -> None:
    """A client that answers is never stale; its round trip is measured."""
    async with running(ping_interval_ns=50_000_000, ping_max=3) as server, Wire(server.port, pings=True) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\n')
        for _ in range(8):
            assert await wire.until(b"\r\n") == b"PING\r\n"
            wire.send(b"PONG\r\n")
        await wire.settled()
        [entry] = server.connections()
        assert entry["rtt"] != "0s"


@pytest.mark.shows("core.info")
async def test_advertise() -> None:
    """New addresses are sent to clients that accept INFO, and to new clients."""
    async with running() as server, Wire(server.port) as wire:
        wire.send(QUIET + b"PING\r\n")
        await wire.until(b'"connect_info":true')
        await wire.until(b"\r\n")
        server.advertise(["10.0.0.1:4222"])
        assert json.loads((await wire.until(b"\r\n"))[5:])["connect_urls"] == ["10.0.0.1:4222"]
        async with Wire(server.port) as late:
            assert json.loads(late.info[5:])["connect_urls"] == ["10.0.0.1:4222"]


class ByName:
    """Admits clients by a field of CONNECT, if their connection has the expected properties."""

    wants_nonce = True

    def __init__(self) -> None:
        self.nonces: list[bytes] = []

    def decide(self, credentials: Credentials) -> Login | None:
        self.nonces.append(credentials.connection.nonce)
        here = (credentials.connection.ip, credentials.connection.connection_type, credentials.connection.certificate)
        return Login() if credentials.text("name") == "friend" and here == ("127.0.0.1", "STANDARD", None) else None


async def test_custom_authenticator() -> None:
    """A custom authenticator decides by the fields of CONNECT and by the connection's properties."""
    by_name = ByName()
    async with running(authenticators=[by_name]) as server, Wire(server.port) as friend, Wire(server.port) as other:
        assert json.loads(friend.info[5:])["auth_required"] is True
        nonces = [json.loads(wire.info[5:])["nonce"].encode() for wire in (friend, other)]
        assert len(set(nonces)) == 2
        assert {len(nonce) for nonce in nonces} == {15}
        friend.send(b'CONNECT {"verbose":false,"name":"friend"}\r\n')
        assert await friend.settled() == b"PONG\r\n"
        other.send(b'CONNECT {"verbose":false,"name":"foe"}\r\n')
        assert await other.end() == b"-ERR 'Authorization Violation'\r\n"
    assert by_name.nonces == nonces


# Figures for monitoring


async def test_counts() -> None:
    """Messages and bytes of each connection and of the server are counted, closed connections included."""
    async with running() as server, Wire(server.port) as wire:
        wire.send(QUIET + b"SUB a 1\r\nSUB b q 2\r\nUNSUB 2 5\r\n")
        async with Wire(server.port) as other:
            other.send(b'CONNECT {"verbose":false,"headers":true}\r\n')
            other.send(b"PUB a 3\r\nabc\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB c 5\r\nabcde\r\n")
            await other.settled()
            by_cid = {entry["cid"]: entry for entry in server.connections()}
            first, second = by_cid[min(by_cid)], by_cid[max(by_cid)]
            assert (second["in_msgs"], second["in_bytes"], second["out_msgs"]) == (3, 22, 0)
            assert (first["out_msgs"], first["out_bytes"], first["in_msgs"]) == (2, 17, 0)
            assert first["name"] == "n"
            assert first["subscriptions"] == 2
            details = list(subscriptions_of(server, first))
            assert [(sub["subject"], sub["sid"], sub["msgs"]) for sub in details] == [("a", "1", 2), ("b", "2", 0)]
            assert details[1]["qgroup"] == "q"
            assert details[1]["max"] == 5
        await until_gone(server, 1)
        varz = server.varz()
        assert (varz["in_msgs"], varz["in_bytes"], varz["out_msgs"], varz["out_bytes"]) == (3, 22, 2, 17)
        assert (varz["connections"], varz["total_connections"]) == (1, 2)
        assert [ended["reason"] for ended in server.connections(closed=True)] == ["Client Closed"]
        json.dumps([varz, server.connections(), server.connections(closed=True)])


def test_times_as_text() -> None:
    """Instants and durations are written as by Go's JSON and nats-server's monitoring."""
    assert format_time(1_700_000_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert format_time(1_700_000_000_120_000_000) == "2023-11-14T22:13:20.12Z"
    assert uptime(59_999_999_999) == "59s"
    assert uptime(3_661_000_000_000) == "1h1m1s"
    assert uptime(90_061_000_000_000) == "1d1h1m1s"
    assert format_duration(1_234) == "1.234µs"
    assert format_duration(0) == "0s"
    assert format_duration(2_500_000_000) == "2.5s"
