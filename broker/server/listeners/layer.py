"""A layer between a connection's socket and its client: a protocol to the layer below, a transport to the layer above.

    socket ── transport ──> TlsLayer ──> WebSocketLayer ──> Client
             <── write ──

Layers stack, and the client does not notice them. Nothing is awaited: the result of each input is passed on in the
same call, so one read from the socket is one batch for the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, cast

__all__ = ["Layer"]


_ENDED: Final = asyncio.Protocol()
"""The protocol above a layer whose connection has ended; it does nothing."""


class Layer(asyncio.Protocol, asyncio.Transport):
    """Passes all calls on; a subclass transforms the bytes in ``data_received`` and ``write``."""

    def __init__(self, transport: asyncio.Transport, upper: asyncio.Protocol) -> None:
        super().__init__()
        self._transport = transport
        self._upper = upper
        # Total bytes written from above, total bytes written below for them, and both totals after each unsent write.
        self._taken = 0
        self._given = 0
        self._unsent: deque[tuple[int, int]] = deque()
        self._sent = 0

    def _give(self, data: bytes, size: int) -> None:
        """Write ``data`` below; ``size`` is the number of bytes from above that it stands for."""
        self._taken += size
        self._given += len(data)
        self._unsent.append((self._given, self._taken))
        self._transport.write(data)

    # Transport, for the layer above

    def get_write_buffer_size(self) -> int:
        """Return the unsent bytes as the upper side counts them; a partly sent write counts as unsent."""
        left = self._transport.get_write_buffer_size()
        unsent = self._unsent
        if not left:
            unsent.clear()
            self._sent = self._taken
            return 0
        gone = self._given - left
        while unsent and unsent[0][0] <= gone:
            self._sent = unsent.popleft()[1]
        return self._taken - self._sent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._upper = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._upper

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # Protocol, for the layer below

    def eof_received(self) -> bool | None:
        return self._upper.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        # Avoid a reference cycle: the layer above refers to this one.
        upper, self._upper = self._upper, _ENDED
        upper.connection_lost(exc)

    def pause_writing(self) -> None:
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        self._upper.resume_writing()
