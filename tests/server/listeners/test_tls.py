"""TLS on the clients' port: the ways to begin it, the clients that are admitted, failures, a reload of certificates."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from cryptography import x509

from broker.access.accounts import User
from broker.config.settings import CertificateFiles, TlsSettings, make_settings
from broker.server.listeners.certificates import TlsError, TlsParameters
from broker.server.listeners.tls import TlsLayer
from broker.server.server import Server
from tests.certificates import Authority

MINUTE_NS = 60_000_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def serving(authority: Authority, fields: dict[str, Any] | None = None, **tls: Any) -> AsyncIterator[Server]:
    """Run a server. Clients have a minute for the handshake, and to log in: the default of 2 s is short on a busy
    machine."""
    files = authority.server()
    wanted = {"cert_file": files.cert, "key_file": files.key, "timeout_ns": MINUTE_NS, **tls}
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "auth.timeout_ns": MINUTE_NS,
                                   **(fields or {}),
                                   **{f"tls.{name}": value for name, value in wanted.items()}}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class Line:
    """A raw connection: plain at first, TLS on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: Server) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def info(self) -> dict[str, Any]:
        line = await asyncio.wait_for(self.reader.readline(), 30)
        assert line.startswith(b"INFO ")
        fields: dict[str, Any] = json.loads(line[5:])
        return fields

    async def secure(self, context: ssl.SSLContext) -> None:
        await self.writer.start_tls(context, server_hostname="localhost")

    async def ping(self) -> bytes:
        """Return the answer to CONNECT and PING, up to the PONG or the end."""
        self.writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        got = b""
        while not got.endswith(b"PONG\r\n"):
            line = await asyncio.wait_for(self.reader.readline(), 30)
            if not line:
                break
            got += line
        return got

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 30)


async def closed_reason(server: Server, count: int = 1) -> str:
    """Return why the last of ``count`` connections ended."""
    async with asyncio.timeout(30):
        while len(rows := server.connections(closed=True)) < count:  # noqa: ASYNC110 (the server notifies nobody)
            await asyncio.sleep(0.005)
    reason: str = rows[-1]["reason"]
    return reason


@pytest.mark.shows("core.tls")
async def test_after_info_everything_is_encrypted_and_whole(authority: Authority) -> None:
    """nats-py works over TLS, with messages of many records."""
    async with serving(authority) as server:
        client = await nats.connect(f"tls://localhost:{server.port}", tls=authority.trust())
        got = await client.subscribe("in")
        bodies = [bytes([n]) * (n * 7919) for n in range(60)]
        for body in bodies:
            await client.publish("in", body)
        assert [(await got.next_msg()).data for _ in bodies] == bodies
        row = server.connections()[0]
        assert (row["tls_version"], row.get("tls_first")) == ("1.3", None)
        assert row["tls_cipher_suite"].startswith("TLS_")
        await client.close()


@pytest.mark.shows("core.tls")
async def test_info_says_what_is_required(authority: Authority) -> None:
    """INFO has the fields by which clients choose, for each way to begin."""
    for fields, tls, want in (({}, {}, {"tls_required": True}),
                              ({}, {"verify": True}, {"tls_required": True, "tls_verify": True}),
                              ({"clients.allow_non_tls": True}, {}, {"tls_available": True})):
        async with serving(authority, fields, **tls) as server:
            info = await (await Line.to(server)).info()
            assert {name: value for name, value in info.items() if name.startswith("tls")} == want


@pytest.mark.shows("core.tls")
async def test_a_client_may_come_in_plain_text_where_that_is_allowed(authority: Authority) -> None:
    """``allow_non_tls``: the first byte decides; a client that is silent for the handshake's timeout is a plain one."""
    for seconds in (0.1, 1, 10):  # a busy machine may be silent for longer than that before it begins with TLS
        async with serving(authority, {"clients.allow_non_tls": True}, timeout_ns=int(seconds * 1e9)) as server:
            plain = await Line.to(server)
            await plain.info()
            assert (await plain.ping()).endswith(b"PONG\r\n")
            late = await Line.to(server)
            await late.info()
            await asyncio.sleep(2 * seconds)
            assert (await late.ping()).endswith(b"PONG\r\n")
            secure = await Line.to(server)
            await secure.info()
            try:
                await secure.secure(authority.trust())
            except OSError:
                continue
            assert (await secure.ping()).endswith(b"PONG\r\n")
            assert ["tls_version" in row for row in server.connections()] == [False, False, True]
            return
    pytest.fail("no handshake was let in")


@pytest.mark.shows("core.tls_first")
async def test_the_handshake_may_come_first(authority: Authority) -> None:
    """``handshake_first``: the server sends nothing before the handshake, and INFO after it, however input is cut."""
    async with serving(authority, handshake_first_ns=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.trust(),
                                                       server_hostname="localhost")
        line = Line(reader, writer)
        assert (await line.info())["tls_required"] is True
        assert (await line.ping()).endswith(b"PONG\r\n")
        assert server.connections()[0]["tls_first"] is True
        silent = await Line.to(server)
        silent.writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert b"INFO" not in await silent.rest()


@pytest.mark.shows("core.tls_first")
async def test_the_handshake_may_come_first_for_those_who_begin_it(authority: Authority) -> None:
    """``handshake_first: 300ms``: INFO follows after the delay for a client that waits for it."""
    async with serving(authority, {"clients.allow_non_tls": True}, handshake_first_ns=30_000_000) as server:
        waiting = await Line.to(server)
        info = await waiting.info()
        assert "tls_required" not in info
        assert info["tls_available"] is True
        await waiting.secure(authority.trust())
        assert (await waiting.ping()).endswith(b"PONG\r\n")
    async with serving(authority, handshake_first_ns=MINUTE_NS) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.trust(),
                                                       server_hostname="localhost")
        assert (await Line(reader, writer).info())["tls_required"] is True


async def test_info_is_before_any_answer_to_an_early_handshake(authority: Authority) -> None:
    """A client that wrongly begins with TLS can notice its mistake: the server's first bytes are no TLS."""
    async with serving(authority) as server:
        outgoing = ssl.MemoryBIO()
        tls = authority.trust().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        with socket.create_connection(("127.0.0.1", server.port)) as early:
            # The server runs in this loop, so both arrive before it accepts the connection.
            early.sendall(outgoing.read())
            early.setblocking(False)
            assert (await asyncio.get_running_loop().sock_recv(early, 5)) == b"INFO "


async def test_bytes_that_come_cut_or_together_with_others_are_not_lost(authority: Authority) -> None:
    """The ClientHello arrives byte by byte; then the end of the handshake, CONNECT and PING arrive together."""
    async with serving(authority, {"clients.allow_non_tls": True}) as server:
        line = await Line.to(server)
        await line.info()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = authority.trust().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        for byte in outgoing.read():
            line.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        while True:
            incoming.write(await asyncio.wait_for(line.reader.read(65536), 30))
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
        tls.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        line.writer.write(outgoing.read())
        got = b""
        while not got.endswith(b"PONG\r\n"):
            incoming.write(await asyncio.wait_for(line.reader.read(65536), 30))
            try:
                got += tls.read(65536)
            except ssl.SSLWantReadError:
                pass


async def test_failed_handshakes_end_the_connection(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Slow and silent clients, and others than TLS clients, are closed. As they may be port probes, none is an
    error."""
    caplog.set_level(logging.DEBUG, "broker.server.listeners")
    for first in (b"", b"\x16\x03\x01", b"CONNECT {}\r\nPING\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        async with serving(authority, timeout_ns=100_000_000) as server:
            line = await Line.to(server)
            await line.info()
            line.writer.write(first)
            await line.rest()
            assert await closed_reason(server) == "TLS Handshake Failure"
    assert "TLS handshake timeout" in caplog.text
    assert "first record does not look like a TLS handshake" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.shows("auth.client_certificates")
async def test_clients_without_a_trusted_certificate_are_refused(
        authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``verify``: none, one of another authority, one that is trusted."""
    stranger = Authority(tmp_path, "stranger").client("stranger")
    good = authority.client("good")
    async with serving(authority, verify=True, ca_file=authority.ca) as server:
        for count, client in enumerate((None, stranger), 1):
            line = await Line.to(server)
            await line.info()
            # With TLS 1.3 the client is done before its certificate is checked.
            with suppress(OSError):
                await line.secure(authority.trust(client))
                assert b"PONG" not in await line.ping()
            assert await closed_reason(server, count) == "TLS Handshake Failure"
        assert "tls: client didn't provide a certificate" in caplog.text
        assert "tls: failed to verify certificate" in caplog.text
        line = await Line.to(server)
        await line.info()
        await line.secure(authority.trust(good))
        assert (await line.ping()).endswith(b"PONG\r\n")


@pytest.mark.shows("auth.client_certificates")
async def test_only_pinned_certificates_are_let_in(authority: Authority) -> None:
    """``pinned_certs`` has the SHA-256 of permitted public keys."""
    import hashlib

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    known, other = authority.client("known"), authority.client("other")
    key = x509.load_der_x509_certificate(known.der).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    async with serving(authority, verify=True, ca_file=authority.ca, pinned_certs=(digest,)) as server:
        line = await Line.to(server)
        await line.info()
        await line.secure(authority.trust(known))
        assert (await line.ping()).endswith(b"PONG\r\n")
        line = await Line.to(server)
        await line.info()
        await line.secure(authority.trust(other))
        assert b"PONG" not in await line.rest()
        assert await closed_reason(server) == "TLS Handshake Failure"


@pytest.mark.shows("auth.client_certificates")
@pytest.mark.parametrize("user, subject, names", [
    ("derek@nats.io", "CN=a", [x509.RFC822Name("derek@nats.io")]),
    ("app.example.com", "CN=a", [x509.RFC822Name("else@nats.io"), x509.DNSName("app.example.com")]),
    ("spiffe://x/y", "CN=a", [x509.UniformResourceIdentifier("spiffe://x/y")]),
    ("CN=app,OU=NATS,O=Example", "CN=app,OU=NATS,O=Example", []),
    ("O=Example, cn=app, OU=NATS", "CN=app,OU=NATS,O=Example", []),
    ("CN=a\\, b,DC=com,DC=x", "CN=a\\, b,DC=x,DC=com", []),
])
async def test_a_certificate_names_its_user(authority: Authority, user: str, subject: str,
                                            names: list[x509.GeneralName]) -> None:
    """``verify_and_map``, by each kind of name; the fields of CONNECT do not matter."""
    client = authority.client("mapped", subject, names)
    users = (User("first"), User(user), User("secret", "password"))
    async with serving(authority, {"auth.users": users}, verify_and_map=True, ca_file=authority.ca) as server:
        line = await Line.to(server)
        await line.info()
        await line.secure(authority.trust(client))
        assert (await line.ping()).endswith(b"PONG\r\n")
        assert server.connections()[0]["authorized_user"] == user


async def test_a_certificate_that_names_nobody_is_refused(authority: Authority) -> None:
    """Such a client is refused even with the name of a user in CONNECT."""
    client = authority.client("nobody", "CN=nobody")
    async with serving(authority, {"auth.users": (User("u", "p"),)}, verify_and_map=True,
                       ca_file=authority.ca) as server:
        line = await Line.to(server)
        await line.info()
        await line.secure(authority.trust(client))
        line.writer.write(b'CONNECT {"user":"u","pass":"p"}\r\nPING\r\n')
        assert b"Authorization Violation" in await line.rest()


@pytest.mark.parametrize("user, no_auth_user, welcome", [
    (User("app"), "", False), (User("app"), "app", True), (User("app", "p"), "", True),
    (User("app", connection_types=frozenset({"STANDARD"})), "", True),
])
async def test_a_name_alone_does_not_log_in_on_another_port(authority: Authority, user: User, no_auth_user: str,
                                                                         welcome: bool) -> None:
    """A name alone does not log in on the port for clients if the WebSocket port maps certificates to users."""
    files = authority.server()
    server = Server(make_settings({
        "clients.host": "127.0.0.1", "clients.port": -1, "websocket.host": "127.0.0.1", "websocket.port": -1,
        "websocket.tls.cert_file": files.cert, "websocket.tls.key_file": files.key,
        "websocket.tls.ca_file": authority.ca,
        "websocket.tls.verify_and_map": True, "auth.users": (user,), "auth.no_auth_user": no_auth_user}))
    await server.start()
    line = await Line.to(server)
    await line.info()
    line.writer.write(b'CONNECT {"user":"app","pass":"%b","verbose":false}\r\nPING\r\n' % user.password.encode())
    answer = await asyncio.wait_for(line.reader.readline(), 30)
    assert answer == (b"PONG\r\n" if welcome else b"-ERR 'Authorization Violation'\r\n")
    await server.close()


async def test_certificates_can_be_read_again(authority: Authority) -> None:
    """New connections get the new certificate; an invalid file changes nothing."""
    async with serving(authority) as server:
        old, new = authority.server(), authority.server("renewed")
        before = await Line.to(server)
        await before.info()
        await before.secure(authority.trust())
        with pytest.raises(TlsError, match="no such file"):
            server.prepare(server.settings.replace(tls=TlsSettings(new.cert, new.key + "x")))
        assert await served_certificate(authority, server) != new.der
        server.prepare(server.settings.replace(tls=TlsSettings(new.cert, new.key)))()
        assert await served_certificate(authority, server) == new.der
        assert (await before.ping()).endswith(b"PONG\r\n")
        assert old.der != new.der
        server.prepare(server.settings.replace(tls=TlsSettings()))()
        plain = await Line.to(server)
        assert "tls_required" not in await plain.info()
        assert (await plain.ping()).endswith(b"PONG\r\n")


@pytest.mark.shows("auth.tls_certificates")
async def test_the_certificate_is_the_one_for_the_name_that_is_asked_for(authority: Authority) -> None:
    """``certs``: the first certificate serves, unless another one has the requested name."""
    one, two = authority.server("one", ["localhost"]), authority.server("two", ["*.example.com"])
    pairs = tuple(CertificateFiles(files.cert, files.key) for files in (one, two))
    async with serving(authority, cert_file="", key_file="", certificates=pairs) as server:
        assert await served_certificate(authority, server) == one.der
        assert await served_certificate(authority, server, "a.example.com") == two.der


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("name", [b"\xff\xfe\xfd\xfcaaaaa", "\u00fc\u00fcaaaaa".encode(), b"local\xffost"])
async def test_the_first_certificate_serves_a_name_that_is_not_ascii(
        authority: Authority, name: bytes, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the first certificate, as with nats-server, and nothing is written to standard error.

    Errors of other kinds that nobody could handle are reported as before.
    """
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    one, two = authority.server("one"), authority.server("two", ["two.example"])
    pairs = tuple(CertificateFiles(files.cert, files.key) for files in (one, two))
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # the certificate is sent in clear
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="two.example").do_handshake()
    hello = sent.read().replace(b"two.example", name.ljust(len("two.example"), b"a"))
    async with serving(authority, cert_file="", key_file="", certificates=pairs) as server:
        line = await Line.to(server)
        await line.info()
        for at in range(pieces):
            line.writer.write(hello[len(hello) * at // pieces:len(hello) * (at + 1) // pieces])
            await asyncio.sleep(0.01)
        answer = b""
        async with asyncio.timeout(60):
            while one.der not in answer:
                more = await line.reader.read(65536)
                assert more, answer
                answer += more
        line.writer.close()
        # Names are handled as before.
        assert await served_certificate(authority, server) == one.der
        assert await served_certificate(authority, server, "two.example") == two.der
    assert not reported
    assert sys.unraisablehook == reported.append


async def served_certificate(authority: Authority, server: Server, name: str = "localhost") -> bytes:
    line = await Line.to(server)
    await line.info()
    await line.writer.start_tls(authority.trust(), server_hostname=name)
    tls: ssl.SSLObject = line.writer.get_extra_info("ssl_object")
    found = tls.getpeercert(binary_form=True)
    assert found is not None
    line.writer.close()
    return found


@pytest.mark.parametrize("fields, why", [
    ({"cert_file": "/missing.pem"}, "open /missing.pem: no such file or directory"),
    ({"cert_file": "KEY"}, "error parsing X509 certificate/key pair"),
    ({"verify": True, "ca_file": "/missing.pem"}, "open /missing.pem: no such file or directory"),
    ({"verify": True, "ca_file": "KEY"}, "failed to parse root ca certificate"),
    ({"cipher_suites": ("TLS_NONE",)}, "unrecognized cipher TLS_NONE"),
    ({"cipher_suites": ("TLS_RSA_WITH_AES_128_CBC_SHA",)}, "without 'allow_insecure_cipher_suites' option set"),
    ({"curve_preferences": ("CurveP1",)}, "unrecognized curve preference CurveP1"),
])
def test_invalid_settings_are_refused(authority: Authority, fields: dict[str, Any], why: str) -> None:
    """Invalid settings raise an error that names the cause, before any port is bound."""
    files = authority.server()
    wanted = {name: files.key if value == "KEY" else value for name, value in fields.items()}
    server = Server(make_settings({f"tls.{name}": value for name, value in
                                   {"cert_file": files.cert, "key_file": files.key, **wanted}.items()}))
    with pytest.raises(TlsError, match=why):
        server.load()


@pytest.mark.shows("auth.tls_certificates")
async def test_versions_and_ciphers_are_those_that_are_set(authority: Authority) -> None:
    """``min_version`` and ``cipher_suites`` apply; the latter concerns TLS 1.2 only."""
    old = authority.trust()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(authority, min_version="1.3") as server:
        line = await Line.to(server)
        await line.info()
        with pytest.raises((ssl.SSLError, OSError)):
            await line.secure(old)
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    async with serving(authority, cipher_suites=(suite,), curve_preferences=("CurveP384",)) as server:
        line = await Line.to(server)
        await line.info()
        await line.secure(old)
        assert (await line.ping()).endswith(b"PONG\r\n")
        assert (server.connections()[0]["tls_version"], server.connections()[0]["tls_cipher_suite"]) == ("1.2", suite)


@pytest.mark.shows("auth.connection_rate")
async def test_handshakes_can_be_limited_to_so_many_a_second(authority: Authority,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """``connection_rate_limit`` counts by a clock of the test's: a busy machine may take a second for each
    handshake."""
    now_ns, admits = 0, TlsParameters.admits
    monkeypatch.setattr(TlsParameters, "admits", lambda self, _: admits(self, now_ns))
    async with serving(authority, connection_rate_limit=1) as server:
        for now_ns in (0, 1_000_000_000):  # noqa: B007
            first = await Line.to(server)
            await first.info()
            await first.secure(authority.trust())
            second = await Line.to(server)
            assert b"Connection throttling is active" in await second.rest()


async def test_handshakes_that_come_at_once_take_turns(authority: Authority) -> None:
    """Each turn of the loop runs a step of one handshake, so others are served. Waiting clients are not read."""
    class Pipe(asyncio.Transport):
        paused = False

        def __init__(self) -> None:
            super().__init__()
            self.sent = b""

        def write(self, data: Any) -> None:
            self.sent += data

        def get_write_buffer_size(self) -> int:
            return 0

        def pause_reading(self) -> None:
            self.paused = True

        def resume_reading(self) -> None:
            self.paused = False

    files = authority.server()
    parameters = TlsParameters(TlsSettings(cert_file=files.cert, key_file=files.key))
    pipes = [Pipe() for _ in range(5)]
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        authority.trust().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    record = hello.read()
    for pipe in pipes:
        layer = TlsLayer(pipe, asyncio.Protocol(), parameters.context, parameters.turns, lambda: None,
                         lambda error: None)
        layer.data_received(record[:50])
        layer.data_received(record[50:])
    for done in range(len(pipes)):
        assert [bool(pipe.sent) for pipe in pipes] == [at < done for at in range(len(pipes))]
        assert [pipe.paused for pipe in pipes] == [at >= done for at in range(len(pipes))]
        await asyncio.sleep(0)


async def test_a_client_that_does_not_read_is_cut_off_as_without_tls(authority: Authority) -> None:
    """``max_pending`` counts plaintext bytes, not encrypted ones; other clients are not delayed."""
    async with serving(authority, {"clients.max_pending": 1 << 20}) as server:
        slow = await Line.to(server)
        await slow.info()
        await slow.secure(authority.trust())
        slow.writer.write(b'CONNECT {"verbose":false}\r\nSUB x 1\r\nPING\r\n')
        while await asyncio.wait_for(slow.reader.readline(), 30) != b"PONG\r\n":
            pass
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client = await nats.connect(f"tls://localhost:{server.port}", tls=authority.trust())
        async with asyncio.timeout(30):
            while not server.slow_consumers:
                await client.publish("x", bytes(65536))
                await client.flush()
        await client.close()
        assert server.connections(closed=True)[0]["reason"] == "Slow Consumer (Pending Bytes)"
