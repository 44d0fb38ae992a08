"""Floods of TLS messages without data: TLS 1.3 KeyUpdate, and renegotiation in TLS 1.2."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.shows("core.tls")

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
ENOUGH = 200_000
"""Number of messages: several megabytes, more than the sockets' buffers hold."""

_SET_MAX_VERSION, _TLS_1_2 = 124, 0x0303


class RawTls:
    """A TLS client with functions that Python's own module lacks, by its OpenSSL. All calls block."""

    def __init__(self, port: int, max_version: int = 0) -> None:
        self._lib = ctypes.CDLL(_ssl.__file__)
        context = self._call("SSL_CTX_new", self._call("TLS_client_method"))
        if max_version:
            self._call("SSL_CTX_ctrl", context, ctypes.c_int(_SET_MAX_VERSION), ctypes.c_long(max_version), None)
        self._tls = self._call("SSL_new", context)
        self._call("SSL_CTX_free", context)
        self._socket = socket.create_connection(("127.0.0.1", port))
        while self._socket.recv(1) != b"\n":
            pass
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
        self._call("SSL_set_fd", self._tls, ctypes.c_int(self._socket.fileno()))
        assert self._call("SSL_connect", self._tls) == 1

    def write(self, data: bytes) -> bool:
        return self._call("SSL_write", self._tls, data, ctypes.c_int(len(data))) == len(data)

    def update_key(self, *, requested: bool) -> bool:
        """Send new keys, and request the server's. Returns: False if the connection has ended."""
        return (self._call("SSL_key_update", self._tls, ctypes.c_int(requested)) == 1
                and self._call("SSL_do_handshake", self._tls) == 1)

    def renegotiate(self) -> bool:
        if self._call("SSL_renegotiate", self._tls) != 1 or self._call("SSL_do_handshake", self._tls) != 1:
            return False
        return self.write(b"PING\r\n")

    def close(self) -> None:
        self._call("SSL_free", self._tls)
        self._socket.close()

    def _call(self, name: str, *values: object) -> int:
        function = self._lib[name]
        function.restype = ctypes.c_void_p if name in ("TLS_client_method", "SSL_CTX_new", "SSL_new") else ctypes.c_int
        result = function(*(ctypes.c_void_p(value) if isinstance(value, int) else value for value in values))
        return int(result or 0)


def only_updates(client: RawTls) -> bool:
    return client.update_key(requested=False)


def answered_updates(client: RawTls) -> bool:
    return client.update_key(requested=True)


@BOTH
@pytest.mark.parametrize("step", [only_updates, answered_updates])
async def test_a_flood_of_new_keys(process: type[ServerProcess], step: Callable[[RawTls], bool],
                                   tmp_path: Path) -> None:
    """The server soon closes the connection."""
    authority = Authority(tmp_path)
    files = authority.server()
    path = tmp_path / "x.conf"
    path.write_text(f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", timeout: 60 }}\n')

    def flood() -> int:
        client = RawTls(server.port)
        assert client.write(b'CONNECT {"verbose":false}\r\n')
        sent = 0
        while sent < ENOUGH and step(client):
            sent += 1
        client.close()
        return sent

    async with process("-c", str(path), monitor=False) as server:
        assert await asyncio.to_thread(flood) < ENOUGH


@BOTH
async def test_renegotiation(process: type[ServerProcess], tmp_path: Path) -> None:
    """Neither server begins another handshake on a TLS 1.2 connection."""
    authority = Authority(tmp_path)
    files = authority.server()
    path = tmp_path / "x.conf"
    path.write_text(f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", timeout: 60 }}\n')

    def attempt() -> int:
        client = RawTls(server.port, _TLS_1_2)
        done = 0
        while done < 3 and client.renegotiate():
            done += 1
        client.close()
        return done

    async with process("-c", str(path), monitor=False) as server:
        assert await asyncio.to_thread(attempt) == 0
