"""WebSocket clients: the handshake, frames of every kind, credentials, closing; and arbitrary bytes.

The test's side is websockets' client protocol without I/O, so that a test can send invalid frames.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from broker.access.accounts import User
from broker.base.nkeys import ACCOUNT, USER
from broker.config.operator import ResolverSettings
from broker.config.settings import make_settings
from broker.server.listeners.certificates import TlsParameters
from broker.server.server import Server
from tests import tokens
from tests.certificates import Authority
from tests.keys import key

pytestmark = pytest.mark.shows("core.websocket")

CONNECT = b'CONNECT {"verbose":false,"protocol":1,"headers":true}\r\nPING\r\n'
MINUTE_NS = 60_000_000_000


@asynccontextmanager
async def serving(fields: dict[str, Any] | None = None, **websocket: Any) -> AsyncIterator[Server]:
    """Run a server. Clients have a minute for each handshake, and to log in: the default of 2 s is short on a busy
    machine."""
    wanted = {"port": -1, "host": "127.0.0.1", "no_tls": True, "handshake_timeout_ns": MINUTE_NS,
              **({"tls.timeout_ns": MINUTE_NS} if "tls.cert_file" in websocket else {}), **websocket}
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "auth.timeout_ns": MINUTE_NS,
                                   **(fields or {}),
                                   **{f"websocket.{name}": value for name, value in wanted.items()}}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class Browser:
    """A connection whose frames are built one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, *,
                 compress: bool) -> None:
        self.reader, self.writer = reader, writer
        extensions = [ClientPerMessageDeflateFactory()] if compress else None
        self.protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/"), extensions=extensions, max_size=None)
        self.data = b""
        self.frames: list[Frame] = []

    @classmethod
    async def to(cls, server: Server, *, compress: bool = False, headers: dict[str, str] | None = None,
                 tls: Any = None) -> Browser:
        assert server.websocket is not None
        port = server.websocket.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls,
                                                       server_hostname="localhost" if tls else None)
        self = cls(reader, writer, port, compress=compress)
        request = self.protocol.connect()
        for name, value in (headers or {}).items():
            request.headers[name] = value
        self.protocol.send_request(request)
        self.flush()
        while not self.frames and not self.protocol.handshake_exc:
            await self.receive()
        return self

    @property
    def answer(self) -> Any:
        """Return the HTTP response."""
        return self.frames[0]

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.writer.write(data)

    async def receive(self) -> bool:
        """Receive the next data. Returns: False at the end."""
        data = await asyncio.wait_for(self.reader.read(65536), 30)
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        self.frames += self.protocol.events
        self.data += b"".join(bytes(frame.data) for frame in self.protocol.events
                              if isinstance(frame, Frame) and frame.opcode in (Opcode.BINARY, Opcode.CONT))
        self.protocol.events = []
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        """Return everything received, up to the read that completes ``mark``."""
        while mark not in self.data:
            assert await self.receive(), self.data
        return self.data

    async def closed(self) -> tuple[int | None, str | None]:
        """Return the server's close code and reason."""
        while await self.receive():
            pass
        return self.protocol.close_code, self.protocol.close_reason

    def send(self, data: bytes) -> None:
        self.protocol.send_binary(data)
        self.flush()

    async def info(self) -> dict[str, Any]:
        line = (await self.until(b"\r\n")).split(b"\r\n")[0]
        fields: dict[str, Any] = json.loads(line[5:])
        return fields


async def test_a_client_is_a_client_like_any_other() -> None:
    """It exchanges messages with a client of the other port; /connz and INFO show how each connected."""
    async with serving() as server:
        browser = await Browser.to(server, headers={"X-Forwarded-For": "192.0.2.7"})
        info = await browser.info()
        assert server.websocket is not None
        assert (info["port"], info.get("tls_required")) == (server.websocket.port, None)
        browser.send(CONNECT + b"SUB a 1\r\n")
        await browser.until(b"PONG\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"SUB b 1\r\nPUB a 5\r\nhello\r\nPING\r\n")
        await asyncio.wait_for(reader.readuntil(b"PONG\r\n"), 30)
        await browser.until(b"MSG a 1 5\r\nhello\r\n")
        browser.send(b"PUB b 3\r\nyou\r\n")
        await asyncio.wait_for(reader.readuntil(b"MSG b 1 3\r\nyou\r\n"), 30)
        rows = server.connections()
        assert [row["type"] for row in rows] == ["websocket", "nats"]
        assert rows[0]["ip"] == "127.0.0.1"
        label = next(client.label for client in server.clients.values() if client.entrance.client_type == "websocket")
        assert label.startswith("192.0.2.7/127.0.0.1:")
        assert "- wid:1" in label
        writer.close()


@pytest.mark.parametrize("cut", [1, 3, 100])
async def test_operations_may_be_cut_anywhere(cut: int) -> None:
    """Operations may be cut into messages, into fragments with pings between them, and into reads."""
    stream = CONNECT + b"SUB a 1\r\nPUB a 11\r\nhello world\r\nPING\r\n"
    parts = [stream[at:at + cut] for at in range(0, len(stream), cut)]
    async with serving() as server:
        browser = await Browser.to(server)
        for part in parts:
            browser.send(part)
            await asyncio.sleep(0)
        assert (await browser.until(b"hello world\r\n")).count(b"MSG a 1 11\r\nhello world\r\n") == 1
        fragmented = await Browser.to(server)
        fragmented.protocol.send_binary(parts[0], fin=len(parts) == 1)
        for number, part in enumerate(parts[1:], 2):
            fragmented.protocol.send_ping(b"%d" % number)
            fragmented.protocol.send_continuation(part, fin=number == len(parts))
        fragmented.flush()
        await fragmented.until(b"hello world\r\n")
        pongs = [bytes(frame.data) for frame in fragmented.frames[1:] if frame.opcode is Opcode.PONG]
        assert pongs == [b"%d" % number for number in range(2, len(parts) + 1)]


async def test_messages_of_any_size_come_back_whole_compressed_or_not() -> None:
    """``compression`` is used if the client offers it; small frames are never compressed."""
    for compression, offered in ((True, True), (True, False), (False, True)):
        async with serving(compression=compression) as server:
            browser = await Browser.to(server, compress=offered)
            negotiated = "permessage-deflate" in browser.answer.headers.get("Sec-WebSocket-Extensions", "")
            assert negotiated is (compression and offered)
            browser.send(CONNECT + b"SUB a 1\r\n")
            await browser.until(b"PONG\r\n")
            for size in (0, 10, 1000, 300_000):
                body = b"ab" * (size // 2)
                browser.data = b""
                browser.send(b"PUB a %d\r\n%b\r\n" % (size, body))
                assert await browser.until(body + b"\r\n") == b"MSG a 1 %d\r\n%b\r\n" % (size, body)


async def test_browsers_get_small_frames() -> None:
    """Browsers get frames of 4096 bytes."""
    async with serving() as server:
        browser = await Browser.to(server, headers={"User-Agent": "Mozilla/5.0"})
        browser.send(CONNECT + b"SUB a 1\r\nPUB a 10000\r\n" + bytes(10_000) + b"\r\nPING\r\n")
        await browser.until(bytes(10_000))
        assert max(len(frame.data) for frame in browser.frames[1:]) == 4096


async def test_a_client_may_be_spared_masking() -> None:
    """``Nats-No-Masking``: with it the client's frames must have no mask; without it they must have one."""
    async with serving() as server:
        browser = await Browser.to(server, headers={"Nats-No-Masking": "true"})
        assert browser.answer.headers["Nats-No-Masking"] == "true"
        browser.writer.write(Frame(Opcode.BINARY, CONNECT).serialize(mask=False))
        await browser.until(b"PONG\r\n")
        browser.writer.write(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False))
        assert await browser.closed() == (1000, "")
        strict = await Browser.to(server)
        assert "Nats-No-Masking" not in strict.answer.headers
        strict.writer.write(Frame(Opcode.BINARY, CONNECT).serialize(mask=False))
        assert (await strict.closed())[0] == 1002


@pytest.mark.parametrize("sent, code, reason", [
    (b"FOO bar\r\n", 1002, "Protocol Violation"),
    (b"PUB a 2000000\r\n", 1009, "Maximum Message Payload Exceeded"),
    (b"PUB " + b"a" * 5000, 1008, "Maximum Control Line Exceeded"),
])
async def test_close_codes(sent: bytes, code: int, reason: str) -> None:
    """The close code corresponds to the reason why the connection ended."""
    async with serving() as server:
        browser = await Browser.to(server)
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        browser.send(sent)
        assert await browser.closed() == (code, reason)


async def test_ends_of_either_side_are_answered() -> None:
    """The client's close is echoed; a server that stops sends "going away"; silence is not a close."""
    async with serving() as server:
        browser = await Browser.to(server)
        browser.protocol.send_close(1000, "bye")
        browser.flush()
        assert await browser.closed() == (1000, "bye")
        assert server.connections(closed=True)[-1]["reason"] == "Client Closed"
        staying = await Browser.to(server)
        await staying.info()
        await server.close()
        assert await staying.closed() == (1001, "Server Shutdown")


async def test_lame_duck_notifies_websocket_clients() -> None:
    """Clients get INFO with ``ldm``, and the port accepts no more connections."""
    async with serving({"clients.lame_duck_duration_ns": 100_000_000, "clients.lame_duck_grace_period_ns": 50_000_000},
                       ) as server:
        browser = await Browser.to(server)
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        ending = asyncio.create_task(server.lame_duck())
        await browser.until(b'"ldm":true')
        with pytest.raises(OSError):
            await Browser.to(server)
        assert (await browser.closed())[0] == 1001
        await ending


@pytest.mark.parametrize("wanted, headers, status", [
    ({"same_origin": True}, {"Origin": "http://127.0.0.1:PORT"}, 101),
    ({"same_origin": True}, {"Origin": "https://127.0.0.1:PORT"}, 403),
    ({"same_origin": True}, {"Origin": "http://elsewhere:PORT"}, 403),
    ({"same_origin": True}, {}, 101),
    ({"allowed_origins": ("http://a.example", "https://b.example:8443")}, {"Origin": "http://A.example:80"}, 101),
    ({"allowed_origins": ("http://a.example", "https://b.example:8443")}, {"Origin": "https://b.example:8443"}, 101),
    ({"allowed_origins": ("http://a.example",)}, {"Origin": "https://a.example"}, 403),
    ({"allowed_origins": ("http://a.example",)}, {"Origin": "http://a.example:0"}, 403),
    ({"allowed_origins": ("http://a.example",)}, {"Origin": "nonsense"}, 403),
    ({}, {"Origin": "nonsense"}, 101),
])
async def test_origins_can_be_refused(wanted: dict[str, Any], headers: dict[str, str], status: int) -> None:
    """``same_origin`` and ``allowed_origins`` refuse pages of other origins."""
    async with serving(**wanted) as server:
        assert server.websocket is not None
        browser = await Browser.to(server, headers={name: value.replace("PORT", str(server.websocket.port))
                                                    for name, value in headers.items()})
        assert browser.answer.status_code == status


@pytest.mark.parametrize("request_, status", [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
    (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
    (b"nonsense\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x00\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
     b"400"),
    (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
     b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", b"400"),
    (b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
     b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", b"404"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
     b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\nearly", b"400"),
    *((b"GET / HTTP/1.1\r\n" + hosts + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
       b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", b"400")
      for hosts in (b"Host:\r\n", b"Host: x\r\nHost: y\r\n")),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000, b"431"),
])
async def test_invalid_handshakes_get_an_http_answer(request_: bytes, status: bytes) -> None:
    """Afterwards the connection ends."""
    async with serving() as server:
        assert server.websocket is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket.port)
        writer.write(request_)
        answer = await asyncio.wait_for(reader.read(), 30)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert not server.websocket.openings


async def test_silent_connections_are_closed() -> None:
    """``handshake_timeout`` closes a silent connection; a stopping server does not wait for one."""
    async with serving(handshake_timeout_ns=50_000_000) as server:
        assert server.websocket is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket.port)
        writer.write(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        assert not server.websocket.openings
    async with serving() as server:
        assert server.websocket is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket.port)
        while not server.websocket.openings:  # noqa: ASYNC110 (the server notifies nobody)
            await asyncio.sleep(0)
        await asyncio.wait_for(server.close(), 30)


async def test_the_first_message_has_a_lower_bound() -> None:
    """The first message may have 64 KB; later ones may have eight maximal payloads."""
    async with serving() as server:
        browser = await Browser.to(server)
        browser.writer.write(b"\x82\xff" + (65 * 1024).to_bytes(8, "big"))
        assert (await browser.closed())[0] == 1009
        # The beginning of a line does not identify the client either.
        browser = await Browser.to(server)
        browser.send(CONNECT[:20])
        browser.writer.write(b"\x82\xff" + (65 * 1024).to_bytes(8, "big"))
        assert (await browser.closed())[0] == 1009
        browser = await Browser.to(server)
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        browser.writer.write(b"\x82\xff" + (9 << 20).to_bytes(8, "big"))
        assert (await browser.closed())[0] == 1009


@pytest.mark.shows("auth.connection_rate")
async def test_handshakes_can_be_limited_to_so_many_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``connection_rate_limit`` of the port's own TLS counts all handshakes at one instant, as the machine may be
    slow."""
    admits = TlsParameters.admits
    monkeypatch.setattr(TlsParameters, "admits", lambda self, _: admits(self, 0))
    authority = Authority(tmp_path)
    files = authority.server()
    async with serving(no_tls=False, **{"tls.cert_file": files.cert, "tls.key_file": files.key,
                                        "tls.connection_rate_limit": 1}) as server:
        first = await Browser.to(server, tls=authority.trust())
        assert first.answer.status_code == 101
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await Browser.to(server, tls=authority.trust())


async def test_credentials_may_come_in_cookies() -> None:
    """Cookies supply credentials that CONNECT lacks."""
    users = {"auth.users": (User("a", "pa"), User("b", "pb"))}
    async with serving(users, user_cookie="u", pass_cookie="p") as server:
        browser = await Browser.to(server, headers={"Cookie": "x=1; u=a; p=pa"})
        assert (await browser.info())["auth_required"] is True
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        assert server.connections()[0]["authorized_user"] == "a"
        other = await Browser.to(server, headers={"Cookie": "u=a; p=pa"})
        other.send(b'CONNECT {"user":"b","pass":"pb"}\r\nPING\r\n')
        await other.until(b"PONG\r\n")
        assert server.connections()[1]["authorized_user"] == "b"
        wrong = await Browser.to(server, headers={"Cookie": "u=a; p=wrong"})
        wrong.send(CONNECT)
        assert await wrong.closed() == (1008, "Authentication Failure")


async def test_a_token_may_come_in_a_cookie() -> None:
    """In operator mode a cookie may have a bearer token."""
    operated = {"operator.tokens": (tokens.operator(),), "operator.resolver": ResolverSettings("memory"),
                "operator.preload": ((key(ACCOUNT, "A").public, tokens.account()),)}
    token = tokens.user(bearer_token=True, allowed_connection_types=["WEBSOCKET"])
    async with serving(operated, jwt_cookie="j") as server:
        browser = await Browser.to(server, headers={"Cookie": f"j={token}"})
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        assert server.connections()[0]["authorized_user"] == key(USER, "u").public
        without = await Browser.to(server)
        without.send(CONNECT)
        assert await without.closed() == (1008, "Authentication Failure")


@pytest.mark.parametrize("rule, field", [
    ({"username": "w", "password": "p"}, b'"user":"w","pass":"p"'), ({"token": "t"}, b'"auth_token":"t"')])
async def test_this_port_may_ask_for_credentials_of_its_own(rule: dict[str, str], field: bytes) -> None:
    """A user or a token may be required for WebSocket alone; the clients' port needs none."""
    async with serving(**rule) as server:
        browser = await Browser.to(server)
        assert (await browser.info())["auth_required"] is True
        browser.send(b"CONNECT {%b}\r\nPING\r\n" % field)
        await browser.until(b"PONG\r\n")
        stranger = await Browser.to(server)
        stranger.send(CONNECT)
        assert await stranger.closed() == (1008, "Authentication Failure")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PING\r\n")
        await asyncio.wait_for(reader.readuntil(b"PONG\r\n"), 30)
        writer.close()


@pytest.mark.shows("auth.connection_types")
async def test_users_may_be_bound_to_connection_types() -> None:
    """``allowed_connection_types`` applies, and so does ``no_auth_user`` of this port alone."""
    users = (User("tcp", "p", connection_types=frozenset({"STANDARD"})), User("web", "p"))
    async with serving({"auth.users": users}, no_auth_user="web") as server:
        browser = await Browser.to(server)
        browser.send(b'CONNECT {"user":"tcp","pass":"p"}\r\nPING\r\n')
        assert (await browser.closed())[0] == 1008
        browser = await Browser.to(server)
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        assert server.connections()[0]["authorized_user"] == "web"


async def test_with_tls_and_headers_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """``tls`` and ``headers`` apply to this port; a plain HTTP client learns its mistake."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    files = authority.server()
    tls = {"tls.cert_file": files.cert, "tls.key_file": files.key}
    async with serving(no_tls=False, headers=(("X-Place", "here"),), **tls) as server:
        browser = await Browser.to(server, tls=authority.trust())
        assert browser.answer.headers["X-Place"] == "here"
        assert (await browser.info())["tls_required"] is True
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
        assert server.connections()[0]["tls_version"] == "1.3"
        assert server.websocket is not None
        for sent, answer in ((b"GET / HTTP/1.1\r\n\r\n",
                              b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"),
                             (b"CONNECT {}\r\nPING\r\n", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket.port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 30) == answer


HANDSHAKE = (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
             b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")


def raw_frame(head: int, masked: bool, data: bytes) -> bytes:
    """Return a frame with any first byte, valid or not; its mask is zero."""
    return bytes([head, len(data) | (0x80 if masked else 0)]) + (bytes(4) if masked else b"") + data


FRAMES = st.one_of(
    st.binary(max_size=200),
    st.builds(raw_frame, st.integers(0, 255), st.booleans(), st.binary(max_size=100) | st.just(CONNECT)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FRAMES, max_size=6), st.booleans())
async def test_any_bytes_end_a_connection_at_most(chunks: list[bytes], handshake: bool) -> None:
    """Arbitrary bytes end at most the connection: no error reaches the loop, and the server serves others."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with serving(compression=True) as server:
        assert server.websocket is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket.port)
        if handshake:
            writer.write(HANDSHAKE)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0)
        with suppress(OSError):  # the server may have closed it, also with unread bytes of ours
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 30)
        browser = await Browser.to(server)
        browser.send(CONNECT)
        await browser.until(b"PONG\r\n")
    assert failures == []
