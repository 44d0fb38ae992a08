"""All objects of a connection that has ended are freed at once, without a collection, whatever its client sent.

The garbage collector runs only when there is little to do, or after ten thousand connections. Half a TLS handshake
takes 40 KB, so clients that cannot log in could hold 400 MB.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from broker.access.accounts import User
from broker.base.nkeys import ACCOUNT
from broker.config.callout import CalloutSettings
from broker.config.settings import make_settings
from broker.server.server import Server
from tests.certificates import Authority
from tests.keys import key

COUNT = 5
BCRYPT = "$2a$11$9oW6uFLKLLqDQHhMFFTO9.mZKkhkBvvdk0f4b2Lb3Yyrx7Jd9mW3u"
REQUEST = (b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n")
LOGIN = b'CONNECT {"verbose":false,"protocol":1,"headers":true}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n'
PROXY = {"clients.proxy_protocol": True}
PASSWORD = {"auth.user": "u", "auth.password": "p"}


def hello() -> bytes:
    """Return the beginning of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    files = Authority(tmp_path_factory.mktemp("tls")).server()
    return {"tls.cert_file": files.cert, "tls.key_file": files.key}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch collections off, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ours() -> Counter[str]:
    """Count the objects of connections by class."""
    found = (type(each) for each in gc.get_objects())
    return Counter(f"{kind.__module__}.{kind.__name__}" for kind in found if str(kind.__module__).startswith((
        "broker.server.auth", "broker.server.connection", "broker.server.listeners", "websockets", "ssl", "uvloop")))


async def settled(before: Counter[str]) -> Counter[str]:
    """Wait until the number of objects stops falling. Returns: the objects in excess of ``before``."""
    more: Counter[str] = Counter()
    for _ in range(200):
        more = ours() - before
        if not more:
            break
        await asyncio.sleep(0.02)
    return more


async def visit(port: int, sent: bytes, answer: bytes) -> None:
    """Connect, send ``sent``, wait for a part of the answer, and disconnect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(20):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(answer) if answer else None
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def compare(server: Server, port: int, sent: bytes, answer: bytes) -> None:
    await visit(port, sent, answer)  # the first visit makes objects that stay
    await gone(server)
    before = ours()
    for _ in range(COUNT):
        await visit(port, sent, answer)
    await gone(server)
    assert not await settled(before)


async def gone(server: Server) -> None:
    async with asyncio.timeout(20):
        while (server.clients or server._transports  # noqa: ASYNC110 (the server notifies nobody)
               or (server.websocket is not None and server.websocket.openings)):
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("fields", "sent", "answer"), [
    pytest.param({}, b"", b"INFO", id="says nothing"),
    pytest.param({}, LOGIN, b"PONG\r\n", id="is a client"),
    pytest.param({"logging.trace": True}, LOGIN, b"PONG\r\n", id="is traced"),
    pytest.param({}, b'CONNECT {"verb', b"INFO", id="half a CONNECT"),
    pytest.param({}, LOGIN + b"PUB a 1000000\r\nhalf", b"PONG\r\n", id="half a message"),
    pytest.param({}, b"GARBAGE\r\n", b"-ERR", id="no operation"),
    pytest.param({}, b"PUB a 10000000\r\n", b"-ERR", id="too large"),
    pytest.param({"clients.max_connections": 1}, b"", b"-ERR", id="too many"),
    pytest.param(PASSWORD, LOGIN, b"-ERR", id="no password"),
    pytest.param(PASSWORD, b"SUB a 1\r\n", b"-ERR", id="no CONNECT"),
    pytest.param({"auth.user": "u", "auth.password": BCRYPT}, b'CONNECT {"user":"u","pass":"x"}\r\nPING\r\n', b"INFO",
                 id="during a check of its password"),
    pytest.param({"auth.users": (User("service", "p"),), "auth.timeout_ns": 60_000_000_000,
                  "auth.callout": CalloutSettings(key(ACCOUNT, "issuer").public, "$G", ("service",))},
                 b'CONNECT {"user":"u","pass":"x"}\r\nPING\r\n', b"INFO", id="while a service decides"),
    pytest.param({**PASSWORD, "auth.timeout_ns": 50_000_000}, b"", b"-ERR", id="too late"),
    pytest.param(PROXY, b"PROXY TCP4 192.0", b"INFO", id="half a PROXY header"),
    pytest.param(PROXY, b"PROXY nonsense\r\n", b"end", id="a wrong PROXY header"),
    pytest.param(PROXY, b"PROXY TCP4 192.0.2.1 198.51.100.1 1 2\r\n" + LOGIN, b"PONG\r\n", id="by a proxy"),
])
async def test_connections_to_the_client_port(fields: dict[str, Any], sent: bytes, answer: bytes) -> None:
    """Clients may stop at any step."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, **fields}))
    await server.start()
    first = await asyncio.open_connection("127.0.0.1", server.port) if "clients.max_connections" in fields else None
    if first is None:
        await compare(server, server.port, sent, answer)
    else:
        before = ours()
        for _ in range(COUNT):
            await visit(server.port, sent, answer)
        assert not await settled(before)
        first[1].close()
    await server.close()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("fields", "sent", "answer"), [
    pytest.param({}, b"", b"INFO", id="says nothing"),
    pytest.param({}, b"hello", b"\x16\x03", id="half a handshake"),
    pytest.param({}, b"GET / HTTP/1.1\r\n\r\n", b"end", id="no handshake"),
    pytest.param({}, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 508, b"end", id="a wrong handshake"),
    pytest.param({"tls.timeout_ns": 50_000_000}, b"hello", b"end", id="too late"),
    pytest.param({"clients.allow_non_tls": True}, b"", b"INFO", id="undecided"),
    pytest.param({"clients.allow_non_tls": True}, LOGIN, b"PONG\r\n", id="without TLS"),
    pytest.param({"tls.handshake_first_ns": 0}, b"hello", b"\x16\x03", id="half a first handshake"),
    pytest.param({"tls.handshake_first_ns": 0}, b"", b"", id="no first handshake"),
])
async def test_connections_to_the_client_port_with_tls(fields: dict[str, Any], sent: bytes, answer: bytes,
                                                       tls: dict[str, str]) -> None:
    """Handshakes may stop at any step."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, **tls, **fields}))
    await server.start()
    await compare(server, server.port, hello() if sent == b"hello" else sent, answer)
    await server.close()


@pytest.mark.usefixtures("uncollected")
async def test_a_client_with_tls(tls: dict[str, str]) -> None:
    """A client completes its handshake and logs in."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, **tls}))
    await server.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def login() -> None:
        """Log in from a thread with blocking sockets: asyncio's own TLS leaves reference cycles on the test's side."""
        with socket.create_connection(("127.0.0.1", server.port), 20) as plain:
            assert plain.recv(4096).startswith(b"INFO")
            with context.wrap_socket(plain) as secure:
                secure.sendall(LOGIN)
                while b"PONG\r\n" not in secure.recv(4096):
                    pass

    await asyncio.to_thread(login)
    await gone(server)
    before = ours()
    for _ in range(COUNT):
        await asyncio.to_thread(login)
    await gone(server)
    assert not await settled(before)
    await server.close()


def frame(data: bytes) -> bytes:
    """Return a whole WebSocket message, as a client sends it."""
    return Frame(Opcode.BINARY, data).serialize(mask=True)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("fields", "sent", "answer"), [
    pytest.param({}, b"", b"", id="says nothing"),
    pytest.param({}, b"GET / HT", b"", id="half a request"),
    pytest.param({}, b"GET / HTTP/1.1\r\n\r\n", b"400", id="no upgrade"),
    pytest.param({}, b"\xff\xfe\x00\r\n\r\n", b"400", id="no request"),
    pytest.param({}, b"G" * 20_000, b"431", id="a long request"),
    pytest.param({"websocket.handshake_timeout_ns": 50_000_000}, b"GET", b"end", id="too late"),
    pytest.param({}, REQUEST + b"\r\n", b"INFO", id="an upgrade"),
    pytest.param({}, REQUEST + b"\r\n" + frame(LOGIN), b"400", id="frames before the answer"),
    pytest.param({"websocket.compression": True}, REQUEST + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
                 b"101",
                 id="compression"),
    pytest.param({"websocket.same_origin": True}, REQUEST + b"Origin: http://other\r\n\r\n", b"403",
                 id="another origin"),
])
async def test_connections_to_the_websocket_port(fields: dict[str, Any], sent: bytes, answer: bytes) -> None:
    """Upgrades may stop at any step."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "websocket.host": "127.0.0.1",
                                   "websocket.port": -1, "websocket.no_tls": True, **fields}))
    await server.start()
    assert server.websocket is not None
    await compare(server, server.websocket.port, sent, answer)
    await server.close()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("sent", [
    pytest.param(frame(LOGIN), id="is a client"), pytest.param(frame(LOGIN)[:-9], id="half a frame"),
    pytest.param(b"\xff\xff\xff\xff", id="no frame")])
async def test_a_websocket_client(sent: bytes) -> None:
    """Clients may stop at any step after the upgrade."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "websocket.host": "127.0.0.1",
                                   "websocket.port": -1, "websocket.no_tls": True}))
    await server.start()
    assert server.websocket is not None
    port = server.websocket.port

    async def once() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST + b"\r\n")
        async with asyncio.timeout(20):
            await reader.readuntil(b"INFO")
            writer.write(sent)
            if sent == frame(LOGIN):
                await reader.readuntil(b"PONG")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    await once()
    await gone(server)
    before = ours()
    for _ in range(COUNT):
        await once()
    await gone(server)
    assert not await settled(before)
    await server.close()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("sent", "answer"), [
    pytest.param(b"", b"", id="says nothing"), pytest.param(b"hello", b"\x16\x03", id="half a handshake"),
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"HTTP", id="no handshake")])
async def test_connections_to_the_websocket_port_with_tls(sent: bytes, answer: bytes, tls: dict[str, str]) -> None:
    """Handshakes may stop at any step."""
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "websocket.host": "127.0.0.1",
                                   "websocket.port": -1,
                                   **{f"websocket.{name}": value for name, value in tls.items()}}))
    await server.start()
    assert server.websocket is not None
    await compare(server, server.websocket.port, hello() if sent == b"hello" else sent, answer)
    await server.close()
