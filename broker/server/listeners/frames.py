"""WebSocket as a layer: unpacks a client's frames, and sends one frame per flush.

The websockets library implements the protocol without I/O: fragments, masks, pings, closing and compression. This
module adds behaviour of nats-server: small frames are not compressed, and a client may request unmasked frames.

Source: RFC 6455; nats-server, server/websocket.go (wsRead, wsCollapsePtoNB, wsEnqueueCloseMessage).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import CLIENT, OPEN
from websockets.server import ServerProtocol

from broker.server.connection.client import Client
from broker.server.listeners.layer import Layer

__all__ = ["FIRST_MESSAGE_BYTES", "FramesLayer", "FramesProtocol"]

FIRST_MESSAGE_BYTES: Final = 64 * 1024
"""Bound on the bytes of a client that the server buffers before the client has identified itself."""

_COMPRESS_FROM: Final = 64
_BROWSER_FRAME_BYTES: Final = 4096
"""Frame size that browsers handle best, by nats-server's experiments."""

_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
_REASON_BYTES_MAX: Final = 123

_POLICY: Final = frozenset({
    "Authentication Timeout", "Authentication Failure", "Authentication Expired", "Slow Consumer (Pending Bytes)",
    "Slow Consumer (Write Deadline)", "Maximum Account Connections Exceeded", "Maximum Connections Exceeded",
    "Maximum Control Line Exceeded", "Maximum Subscriptions Exceeded", "Missing Account", "Credentials Revoked"})
_CLOSE_CODES: Final = {
    "Client Closed": CloseCode.NORMAL_CLOSURE, **dict.fromkeys(_POLICY, CloseCode.POLICY_VIOLATION),
    **dict.fromkeys(("Parse Error", "Protocol Violation", "Bad Client Protocol Version"), CloseCode.PROTOCOL_ERROR),
    "Maximum Message Payload Exceeded": CloseCode.MESSAGE_TOO_BIG,
    **dict.fromkeys(("Write Error", "Read Error", "Stale Connection", "Server Shutdown"), CloseCode.GOING_AWAY)}

_log = logging.getLogger(f"{__name__}.websockets")
# The library logs every connection; the client's own lines have what an operator needs.
_log.setLevel(logging.ERROR)


class FramesProtocol(ServerProtocol):
    """The server's side of one connection. ``message_bytes_max`` bounds messages after the one with the first line."""

    def __init__(self, *, compression: bool, message_bytes_max: int) -> None:
        super().__init__(
            extensions=[ServerPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True,
                                                       compress_settings={"level": 1})] if compression else None,
            max_size=FIRST_MESSAGE_BYTES, logger=_log)
        self._message_bytes_max = message_bytes_max

    def expect_no_masks(self) -> None:
        """Accept unmasked frames, as the client requested."""
        # In this library only the client side accepts unmasked frames; it would mask its own, but see send_frame.
        self.side = CLIENT

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        # A complete line is CONNECT, or it ends the connection, unless clients need no login.
        if frame.opcode in _DATA and b"\n" in frame.data:
            self.max_message_size = self._message_bytes_max

    def send_frame(self, frame: Frame) -> None:
        extensions = self.extensions if len(frame.data) > _COMPRESS_FROM else []
        self.writes.append(frame.serialize(mask=False, extensions=extensions))

    def release(self) -> None:
        """Break reference cycles with the parser, a generator, and with tracebacks: the connection is refused or
        ended."""
        self.parser.close()
        self.parser_exc = self.handshake_exc = None


class FramesLayer(Layer):
    """The layer between ``client`` and the transport on which ``protocol`` completed the handshake."""

    def __init__(self, transport: asyncio.Transport, client: Client, protocol: FramesProtocol, *,
                 browser: bool) -> None:
        super().__init__(transport, client)
        self._client = client
        self._protocol = protocol
        self._browser = browser

    def data_received(self, data: bytes) -> None:
        protocol, client = self._protocol, self._client
        if protocol.state is not OPEN:
            return
        protocol.receive_data(data)
        chunks = [frame.data for frame in protocol.events_received()
                  if isinstance(frame, Frame) and frame.opcode in _DATA]
        if chunks:
            client.data_received(b"".join(chunks))
        self._flush()
        if protocol.parser_exc is not None:
            client.close("Read Error")
        elif protocol.state is not OPEN:
            client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._protocol.release()
        del self._client

    # Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        protocol = self._protocol
        if protocol.state is not OPEN:
            return
        data = b"".join(list_of_data)
        if self._browser and not protocol.extensions:
            for at in range(0, len(data), _BROWSER_FRAME_BYTES):
                protocol.send_binary(data[at:at + _BROWSER_FRAME_BYTES])
        else:
            protocol.send_binary(data)
        self._flush(len(data))

    def close(self) -> None:
        if self._protocol.state is OPEN:
            reason = self._client.close_reason
            self._protocol.send_close(_CLOSE_CODES.get(reason, CloseCode.INTERNAL_ERROR), reason[:_REASON_BYTES_MAX])
            self._flush()
        super().close()

    def _flush(self, size: int = 0) -> None:
        """Send the protocol's output; ``size`` is the number of bytes that the client wrote for it."""
        data = b"".join(self._protocol.data_to_send())
        if data:
            self._give(data, size)
