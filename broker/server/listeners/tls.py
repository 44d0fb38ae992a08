"""TLS as a layer: OpenSSL between two buffers in memory, so that it can begin at any byte of a connection.

asyncio's ``start_tls`` can not: what was read before it (a PROXY header's end, or the byte that tells TLS from plain text)
is lost to it. A handshake here is no task either: a client that is slow at it costs a timer.

One read from the socket may hold many records: they are decrypted together and reach the client as one batch.

Source: nats-server, server/client.go (doTLSServerHandshake, matchesPinnedCert).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.server.listeners.layer import Layer

__all__ = ["TlsLayer", "handshake_error"]

_RECORD_BYTES: Final = 16 * 1024
"""The most that one record holds, which is the most that OpenSSL gives at once."""

_GO_WORDS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "tls: client didn't provide a certificate",
    "HTTP_REQUEST": "tls: first record does not look like a TLS handshake",
    "HTTPS_PROXY_REQUEST": "tls: first record does not look like a TLS handshake",
    "WRONG_VERSION_NUMBER": "tls: first record does not look like a TLS handshake",
    "UNSUPPORTED_PROTOCOL": "tls: client offered only unsupported versions",
    "NO_SHARED_CIPHER": "tls: no cipher suite supported by both client and server",
    "TLSV1_ALERT_UNKNOWN_CA": "remote error: tls: unknown certificate authority",
    "SSLV3_ALERT_BAD_CERTIFICATE": "remote error: tls: bad certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "remote error: tls: unknown certificate",
}


class TlsLayer(Layer):
    """The server's side; ``on_ready()`` is called once, when the handshake is done, or ``on_failed(error)``.

    ``upper`` receives nothing before ``on_ready``, and must not write until then.
    """

    def __init__(self, transport: asyncio.Transport, upper: asyncio.Protocol, context: ssl.SSLContext,
                 on_ready: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        super().__init__(transport, upper)
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._ready = False
        self._closed = False
        self._ended = False
        """Whether the client said that it sends nothing more."""

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._in.write(data)
        if self._ready or self._shake_hands():
            self._read()

    def eof_received(self) -> bool | None:
        if self._ready:
            return self._upper.eof_received()
        self._fail(EOFError("EOF"))
        return False

    # Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else super().get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._closed:
            return
        size = 0
        for data in list_of_data:
            size += len(data)
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest):]
        self._give(self._out.read(), size)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._say_goodbye()
            super().close()

    def abort(self) -> None:
        self._closed = True
        super().abort()

    # Steps

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert that tells the client why
            self._fail(error)
            return False
        self._ready = True
        self._flush()
        self._on_ready()
        return not self._closed

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            self._closed = True
            self._on_failed(error)

    def _read(self) -> None:
        """Hand on everything that can be decrypted."""
        chunks = []
        try:
            while chunk := self._tls.read(_RECORD_BYTES):
                chunks.append(chunk)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # Bytes that are no record of this connection: nothing after them can be trusted.
            self._ended = True
        self._flush()  # what OpenSSL has to answer on its own: new keys
        if chunks:
            self._upper.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if self._ended and not self._closed:
            self._upper.eof_received()

    def _flush(self) -> None:
        if self._out.pending:
            self._give(self._out.read(), 0)

    def _say_goodbye(self) -> None:
        if not self._ready:
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the client's own goodbye is not waited for
        self._flush()


def handshake_error(error: Exception) -> str:
    """Why a handshake failed, in nats-server's words where OpenSSL's reason has a counterpart."""
    reason = getattr(error, "reason", None) or ""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"tls: failed to verify certificate: {getattr(error, 'verify_message', '') or 'x509'}"
    return _GO_WORDS.get(reason) or reason.lower().replace("_", " ") or str(error)
