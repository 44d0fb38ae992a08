"""TLS session resumption: a client whose certificate has expired is not admitted by resuming an earlier session."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.config.settings import make_settings
from broker.server.server import Server
from tests.certificates import Authority, Files
from tests.manual_clock import ManualClock

MINUTE_NS = 60_000_000_000
NEXT_YEAR = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
YEAR_NS = 366 * 86_400_000_000_000
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Login(NamedTuple):
    """The outcome of one connection; ``session`` can be resumed by another one of the same context."""

    admitted: bool
    resumed: bool
    session: ssl.SSLSession | None


def log_in(port: int, context: ssl.SSLContext, kept: ExitStack, session: ssl.SSLSession | None = None, *,
           websocket: bool = False) -> Login:
    """Connect as a client does, up to the first answer within TLS. The connection stays open until ``kept`` ends.

    Otherwise OpenSSL would forget the session when the connection is aborted.
    """
    plain = kept.enter_context(socket.create_connection(("127.0.0.1", port), 30))
    info = b""
    while not websocket and not info.endswith(b"\r\n"):
        info += plain.recv(1)
    try:
        tls = kept.enter_context(context.wrap_socket(plain, server_hostname="localhost", session=session))
        tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                    if websocket else b'CONNECT {"verbose":false}\r\nPING\r\n')
        got = b""
        while b"PONG" not in got and b" 101 " not in got:
            chunk = tls.recv(65536)
            if not chunk:
                break
            got += chunk
        return Login(b"PONG" in got or b" 101 " in got, bool(tls.session_reused), tls.session)
    except OSError:
        return Login(False, False, None)


async def start(authority: Authority, clock: ManualClock, *, verify: bool = True) -> Server:
    """Serve clients and WebSocket clients with TLS. OpenSSL verifies by the machine's clock, the server uses
    ``clock``."""
    files = authority.server()
    tls = {"cert_file": files.cert, "key_file": files.key, "timeout_ns": MINUTE_NS, "verify": verify,
           "ca_file": authority.ca if verify else ""}
    server = Server(make_settings({
        "clients.host": "127.0.0.1", "clients.port": -1, "auth.timeout_ns": MINUTE_NS,
        "websocket.host": "127.0.0.1", "websocket.port": -1, "websocket.handshake_timeout_ns": MINUTE_NS,
        **{f"{prefix}tls.{name}": value for prefix in ("", "websocket.") for name, value in tls.items()}}), clock)
    await server.start()
    return server


def trust(authority: Authority, client: Files, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = authority.trust(client)
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("websocket", [False, True], ids=["client port", "websocket port"])
@pytest.mark.parametrize("version", VERSIONS, ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize("expires", ["client", "intermediate"])
async def test_an_expired_certificate_is_not_admitted_by_resumption(
        tmp_path: Path, websocket: bool, version: ssl.TLSVersion, expires: str,
        caplog: pytest.LogCaptureFixture) -> None:
    """A TLS 1.2 session is resumed while the certificate is valid, and a TLS 1.3 session never; after a year
    neither."""
    authority = Authority(tmp_path)
    if expires == "client":
        client = authority.client("app", end=NEXT_YEAR)
    else:
        client = Authority(tmp_path, "intermediate", authority, NEXT_YEAR).client("app")
    clock = ManualClock(int(datetime.datetime.now(datetime.UTC).timestamp()) * 1_000_000_000)
    server = await start(authority, clock)
    port = server.websocket.port if websocket else server.port
    context = trust(authority, client, version)
    kept = ExitStack()
    try:
        first = await asyncio.to_thread(log_in, port, context, kept, websocket=websocket)
        assert (first.admitted, first.resumed) == (True, False)
        again = await asyncio.to_thread(log_in, port, context, kept, first.session, websocket=websocket)
        assert (again.admitted, again.resumed) == (True, version is ssl.TLSVersion.TLSv1_2)
        clock.leap(YEAR_NS)
        late = await asyncio.to_thread(log_in, port, context, kept, again.session or first.session, websocket=websocket)
        if version is ssl.TLSVersion.TLSv1_2:
            assert not late.admitted
            assert "tls: failed to verify certificate: certificate has expired" in caplog.text
        else:
            assert not late.resumed
    finally:
        kept.close()
        await server.close()


@pytest.mark.parametrize("version", VERSIONS, ids=["TLS 1.2", "TLS 1.3"])
async def test_sessions_are_resumed_if_no_certificate_is_asked_for(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """The client has no certificate that could expire, and resumption saves both sides a signature."""
    authority = Authority(tmp_path)
    server = await start(authority, ManualClock(), verify=False)
    context = trust(authority, authority.client("app"), version)
    kept = ExitStack()
    try:
        first = await asyncio.to_thread(log_in, server.port, context, kept)
        again = await asyncio.to_thread(log_in, server.port, context, kept, first.session)
        assert (again.admitted, again.resumed) == (True, True)
    finally:
        kept.close()
        await server.close()
