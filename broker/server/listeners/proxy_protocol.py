"""The PROXY protocol, versions 1 and 2: a header in which a proxy gives the address of a client.

    v1    PROXY TCP4 192.0.2.1 198.51.100.1 56324 4222\\r\\n                    at most 107 bytes
    v2    \\r\\n\\r\\n\\0\\r\\nQUIT\\n | version, command | family | length | addresses and more

A connection that begins otherwise comes without a proxy, and is served as usual.

Source: haproxy's proxy-protocol.txt; nats-server, server/client_proxyproto.go.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from broker.base.value import Value

__all__ = ["HEADER_SECONDS", "ProxyHeader", "ProxyHeaderError", "read_header"]

HEADER_SECONDS: Final = 5.0
"""The time limit for the header."""

_V1: Final = b"PROXY "
_V1_BYTES_MAX: Final = 107
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED: Final = 16
_KNOWN: Final = 6
"""Number of bytes that distinguish the versions, and other protocols."""

_LOCAL, _PROXY = 0, 1
_STREAM: Final = 1
_UNSPECIFIED, _IPV4, _IPV6 = 0, 1, 2
_ADDRESS_BYTES: Final = {_IPV4: (4, 12), _IPV6: (16, 36)}
"""Sizes by family: of one address; of both addresses with their ports."""


class ProxyHeaderError(ValueError):
    """Data that begins like a header but is not a valid one."""


class ProxyHeader(Value):
    """The client's ``address`` and ``port``; "" for a proxy's own connection, or a connection without a proxy."""

    rest: bytes
    """The bytes after the header."""

    address: str = ""
    port: int = 0


def read_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of ``data``; None if more bytes are needed. Raises: ProxyHeaderError."""
    known = data[:_KNOWN]
    if _V1.startswith(known):
        return _read_v1(data)
    if _V2.startswith(known):
        return _read_v2(data)
    return ProxyHeader(data)


def _read_v1(data: bytes) -> ProxyHeader | None:
    line, end, rest = data[:_V1_BYTES_MAX].partition(b"\r\n")
    if not end:
        if len(data) >= _V1_BYTES_MAX:
            raise ProxyHeaderError("invalid PROXY protocol header: v1 line too long")
        return None
    rest += data[_V1_BYTES_MAX:]
    words = line[len(_V1):].decode("ascii", "replace").split()
    if words[:1] == ["UNKNOWN"]:
        return ProxyHeader(rest)
    if len(words) != 5:
        raise ProxyHeaderError("invalid PROXY protocol header: invalid v1 format")
    family, *addresses, port, _ = words
    kind = {"TCP4": IPv4Address, "TCP6": IPv6Address}.get(family)
    if kind is None:
        raise ProxyHeaderError(f"invalid PROXY protocol header: invalid protocol {family!r}")
    try:
        source, destination = map(ip_address, addresses)
    except ValueError:
        raise ProxyHeaderError("invalid PROXY protocol header: invalid address") from None
    if any("%" in address for address in addresses):  # a scope, which Go's parser refuses
        raise ProxyHeaderError("invalid PROXY protocol header: invalid address")
    if not isinstance(source, kind) or not isinstance(destination, kind):
        raise ProxyHeaderError(f"invalid PROXY protocol header: {family} with an address of another kind")
    if not all(word.isascii() and word.isdigit() and len(word) <= 5 and int(word) <= 65535 for word in words[3:]):
        raise ProxyHeaderError("invalid PROXY protocol header: invalid port")
    return ProxyHeader(rest, str(source), int(port))


def _read_v2(data: bytes) -> ProxyHeader | None:
    if not data.startswith(_V2[:len(data)]):
        raise ProxyHeaderError("invalid PROXY protocol header: invalid signature")
    if len(data) < _V2_FIXED:
        return None
    version, command = data[12] >> 4, data[12] & 15
    family, transport = data[13] >> 4, data[13] & 15
    if version != 2:
        raise ProxyHeaderError(f"invalid PROXY protocol header: invalid version {version}")
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(f"unknown PROXY protocol command: {command}")
    size = int.from_bytes(data[14:16], "big")
    if command == _PROXY:
        if transport != _STREAM:
            raise ProxyHeaderError("unsupported PROXY protocol feature: only STREAM protocol supported")
        if family not in (_UNSPECIFIED, *_ADDRESS_BYTES):
            raise ProxyHeaderError(f"unsupported PROXY protocol feature: unsupported address family {family}")
        if family in _ADDRESS_BYTES and size < _ADDRESS_BYTES[family][1]:
            raise ProxyHeaderError(f"invalid PROXY protocol header: address data too short: {size} bytes")
    end = _V2_FIXED + size
    if len(data) < end:
        return None
    if command == _LOCAL or family == _UNSPECIFIED:
        return ProxyHeader(data[end:])
    width = _ADDRESS_BYTES[family][0]
    at = _V2_FIXED + 2 * width
    address = ip_address(data[_V2_FIXED:_V2_FIXED + width])
    return ProxyHeader(data[end:], str(address), int.from_bytes(data[at:at + 2], "big"))
