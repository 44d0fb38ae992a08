"""TLS as a layer: OpenSSL between two buffers in memory, so that TLS can begin at any byte of a connection.

asyncio's ``start_tls`` cannot do that: it loses the bytes read before it, such as those after a PROXY header, or those
that distinguish TLS from plain text. A handshake here needs no task, so a slow client costs only a timer.

One read from the socket may contain many records: they are decrypted together and reach the client as one batch.
Simultaneous handshakes take turns.

Source: nats-server, server/client.go (doTLSServerHandshake, matchesPinnedCert).
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker.server.listeners.layer import Layer

__all__ = ["HandshakeTurns", "TlsLayer", "handshake_error"]

_RECORD_BYTES: Final = 16 * 1024
"""Maximum size of a record, which is the most that OpenSSL returns at once."""

_EMPTY_BYTES_MAX: Final = 2 * _RECORD_BYTES
"""Bound on received bytes without application data, beyond which the connection is closed. Otherwise a client
could send new keys without end: that costs it little, but the server must answer each."""

_UNREAD_ANSWERS_MAX: Final = 1 << 20
"""Bound on unsent bytes of TLS itself; beyond it the connection is closed when OpenSSL answers again."""

_GO_WORDS: Final = {
    "CALLBACK_FAILED": "tls: the server name is not in ASCII",
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


class HandshakeTurns:
    """Lets one handshake take a step in each turn of the loop.

    A step signs, which takes up to a millisecond. So other clients are served in between if many connect at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[TlsLayer] = deque()

    def add(self, layer: TlsLayer) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(layer)

    def _turn(self) -> None:
        layer = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        layer.continue_handshake()


@contextmanager
def _unreported_names(context: ssl.SSLContext) -> Iterator[list[bytes]]:
    """Report no non-ASCII server name while a context chooses the certificate by name. Yields: the list of such names.

    Python itself ends a handshake with such a name, and writes a traceback to standard error for each.
    """
    names: list[bytes] = []
    if context.sni_callback is None:
        yield names
        return
    report = sys.unraisablehook

    def pass_on(failure: sys.UnraisableHookArgs) -> None:
        # The object is the name up to Python 3.12, and None since.
        if isinstance(failure.exc_value, UnicodeDecodeError) and isinstance(failure.object, bytes | None):
            names.append(failure.exc_value.object)
        else:
            report(failure)

    sys.unraisablehook = pass_on
    try:
        yield names
    finally:
        sys.unraisablehook = report


def _nothing() -> None:
    """Do nothing: the callback of a finished handshake."""


def _ignore(error: Exception) -> None:
    """Do nothing: the error callback of a finished handshake."""


class TlsLayer(Layer):
    """The server side of TLS. After the handshake it calls once ``on_ready()``, or ``on_failed(error)``.

    ``upper`` receives nothing before ``on_ready``, and must not write until then.
    """

    def __init__(self, transport: asyncio.Transport, upper: asyncio.Protocol, context: ssl.SSLContext,
                 turns: HandshakeTurns, on_ready: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        super().__init__(transport, upper)
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._hello: list[bytes] | None = [] if context.sni_callback is not None else None
        """Input before the server's first answer, for ``_begin_without_name``; None if that is not needed."""
        self._turns = turns
        self._queued = False
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._ready = False
        self._closed = False
        self._empty_bytes = 0
        """Bytes received since the client's last data: a part of a record, or messages of TLS itself."""

        self._ended = False
        """Flag: the client sent its last data, broke the protocol, or exceeded a bound."""

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._in.write(data)
        if self._hello is not None:
            self._hello.append(data)
        if self._ready:
            self._empty_bytes += len(data)
            self._read()
        elif not self._queued:
            self._queued = True
            # Stop reading: input would only collect in memory.
            self._transport.pause_reading()
            self._turns.add(self)

    def continue_handshake(self) -> None:
        """Continue the handshake, when it is this layer's turn."""
        self._queued = False
        if not self._closed:
            self._transport.resume_reading()
            if self._step_handshake():
                self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_handshake()
        super().connection_lost(exc)

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
            self._send_close_notify()
            super().close()

    def abort(self) -> None:
        self._closed = True
        super().abort()

    # Steps

    def _step_handshake(self) -> bool:
        try:
            with _unreported_names(self._tls.context) as names:
                try:
                    self._tls.do_handshake()
                except ssl.SSLError:
                    if not names or self._hello is None:
                        raise
                    self._begin_without_name(self._hello)
        except ssl.SSLWantReadError:
            if self._out.pending:
                self._hello = None
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # sends the alert with the reason
            self._fail(error)
            return False
        self._ready = True
        self._hello = None
        self._flush()
        on_ready = self._on_ready
        self._forget_handshake()
        on_ready()
        return not self._closed

    def _begin_without_name(self, hello: list[bytes]) -> None:
        """Begin the handshake again with the first certificate, as nats-server does for an unknown name.

        Raises: ssl.SSLError, like ``do_handshake``.
        """
        context = self._tls.context
        self._in, self._out, self._hello = ssl.MemoryBIO(), ssl.MemoryBIO(), None
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._in.write(b"".join(hello))
        choose, context.sni_callback = context.sni_callback, None
        try:
            self._tls.do_handshake()
        finally:
            context.sni_callback = choose

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            self._closed = True
            on_failed = self._on_failed
            self._forget_handshake()
            on_failed(error)

    def _forget_handshake(self) -> None:
        """Drop the references to the callbacks, which refer to this layer."""
        self._on_ready, self._on_failed = _nothing, _ignore

    def _read(self) -> None:
        """Pass on everything that can be decrypted."""
        chunks = []
        try:
            while chunk := self._tls.read(_RECORD_BYTES):
                chunks.append(chunk)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # This is no valid record of the connection, so no later byte can be trusted.
            self._ended = True
        if chunks:
            self._empty_bytes = 0
        elif self._empty_bytes > _EMPTY_BYTES_MAX:
            self._ended = True
        if self._out.pending:
            # OpenSSL's own answers, such as new keys. The upper side does not count them.
            self._flush()
            if self._transport.get_write_buffer_size() - self.get_write_buffer_size() > _UNREAD_ANSWERS_MAX:
                self._ended = True
        if chunks:
            self._upper.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if self._ended and not self._closed:
            self._upper.eof_received()

    def _flush(self) -> None:
        if self._out.pending:
            self._give(self._out.read(), 0)

    def _send_close_notify(self) -> None:
        if not self._ready:
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # close without waiting for the client's close_notify
        self._flush()


def handshake_error(error: Exception) -> str:
    """Return why a handshake failed, in nats-server's words if OpenSSL's reason has a counterpart there."""
    reason = getattr(error, "reason", None) or ""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"tls: failed to verify certificate: {getattr(error, 'verify_message', '') or 'x509'}"
    return _GO_WORDS.get(reason) or reason.lower().replace("_", " ") or str(error)
