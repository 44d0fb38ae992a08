"""The PROXY protocol: every kind of header, cut anywhere, with and without TLS; arbitrary bytes; clients without a
header."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.settings import make_settings
from broker.server.listeners.proxy_protocol import ProxyHeader, ProxyHeaderError, read_header
from broker.server.server import Server
from tests.certificates import Authority

pytestmark = pytest.mark.shows("core.proxy_protocol")

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes([0x20 | command, family]) + len(body).to_bytes(2, "big") + body


def addresses(source: str, port: int) -> bytes:
    packed = ip_address(source).packed
    return packed + packed + port.to_bytes(2, "big") + (4222).to_bytes(2, "big")


HEADERS = [
    (b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 4222\r\n", "192.0.2.1", 56324),
    (b"PROXY TCP6 2001:db8::1 2001:db8::2 65535 0\r\n", "2001:db8::1", 65535),
    (b"PROXY UNKNOWN\r\n", "", 0),
    (b"PROXY UNKNOWN whatever it says here\r\n", "", 0),
    (v2(1, 0x11, addresses("192.0.2.1", 56324)), "192.0.2.1", 56324),
    (v2(1, 0x21, addresses("2001:db8::1", 1)), "2001:db8::1", 1),
    (v2(1, 0x11, addresses("192.0.2.1", 5) + b"\x03\x00\x04more"), "192.0.2.1", 5),
    (v2(1, 0x01, b"anything"), "", 0),
    (v2(0, 0x00, b""), "", 0),
    (v2(0, 0x11, addresses("192.0.2.1", 5)), "", 0),
]


@pytest.mark.parametrize("header, address, port", HEADERS)
def test_headers_give_the_address(header: bytes, address: str, port: int) -> None:
    """A header may be whole or cut, and none of the following bytes is lost."""
    for end in range(len(header)):
        assert read_header(header[:end]) is None
    assert read_header(header) == ProxyHeader(b"", address, port)
    assert read_header(header + b"PING\r\n") == ProxyHeader(b"PING\r\n", address, port)


@pytest.mark.parametrize("data", [b"CONNECT {}\r\n", b"\x16\x03\x01", b"PROXIES", b"PING\r\n", b"\r\n\r\nPING"])
def test_other_data_is_unchanged(data: bytes) -> None:
    """A client without a proxy is served."""
    assert read_header(data) == ProxyHeader(data)


@pytest.mark.parametrize("data, why", [
    (b"PROXY " + b"x" * 101, "v1 line too long"),
    (b"PROXY TCP4 192.0.2.1\r\n", "invalid v1 format"),
    (b"PROXY TCP4 192.0.2.1 nonsense 1 2\r\n", "invalid address"),
    (b"PROXY TCP6 fe80::1%any ::1 1 2\r\n", "invalid address"),
    (b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n", "TCP4 with an address of another kind"),
    (b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n", "TCP6 with an address of another kind"),
    (b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", "invalid protocol"),
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n", "invalid port"),
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n", "invalid port"),
    (b"\r\n\r\n\x00\r\nQUIX\n", "invalid signature"),
    (SIGNATURE + b"\x11\x11\x00\x00", "invalid version 1"),
    (v2(5, 0x11, b""), "unknown PROXY protocol command: 5"),
    (v2(1, 0x12, addresses("192.0.2.1", 5)), "only STREAM protocol supported"),
    (v2(1, 0x31, b"x" * 216), "unsupported address family 3"),
    (v2(1, 0x11, b"short"), "address data too short: 5 bytes"),
])
def test_invalid_headers(data: bytes, why: str) -> None:
    """The error names the cause, and no header is returned."""
    with pytest.raises(ProxyHeaderError, match=why):
        read_header(data)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(lambda tail: SIGNATURE + tail),
                 st.binary(max_size=120).map(lambda tail: b"PROXY TCP4 " + tail + b"\r\n")))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Only the listed error is raised, and no byte after a header is invented or lost."""
    try:
        header = read_header(data)
    except ProxyHeaderError:
        return
    assert header is None or data.endswith(header.rest)


@pytest.mark.parametrize("secure", [False, True])
async def test_the_clients_own_address_is_shown(secure: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The address is on /connz and in the second INFO; the first INFO must not show the proxy's.

    The header precedes the TLS handshake.
    """
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    files = authority.server()
    tls = {"tls.cert_file": files.cert, "tls.key_file": files.key} if secure else {}
    server = Server(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "clients.proxy_protocol": True,
                                   "tls.timeout_ns": 60_000_000_000, **tls}))
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        first = json.loads((await asyncio.wait_for(reader.readline(), 30))[5:])
        assert "client_ip" not in first
        header, rest = HEADERS[0][0], b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'
        writer.write(header[:20])
        await asyncio.sleep(0)
        writer.write(header[20:])
        if secure:
            await writer.start_tls(authority.trust(), server_hostname="localhost")
        writer.write(rest)
        assert await asyncio.wait_for(reader.readline(), 30) == b"PONG\r\n"
        second = json.loads((await asyncio.wait_for(reader.readline(), 30))[5:])
        assert second["client_ip"] == "192.0.2.1"
        row = server.connections()[0]
        assert (row["ip"], row["port"]) == ("192.0.2.1", 56324)
        direct, other = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.wait_for(direct.readline(), 30)
        if secure:
            await other.start_tls(authority.trust(), server_hostname="localhost")
        other.write(b"PING\r\n")
        assert await asyncio.wait_for(direct.readline(), 30) == b"PONG\r\n"
        broken, third = await asyncio.open_connection("127.0.0.1", server.port)
        third.write(b"PROXY nonsense\r\n")
        assert b"PONG" not in await asyncio.wait_for(broken.read(), 30)
        assert server.connections(closed=True)[-1]["reason"] == "Protocol Violation"
        for one in (writer, other):
            one.close()
    finally:
        await server.close()
