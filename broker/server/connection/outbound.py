"""The unsent bytes of one client, in the queue and in the transport's buffer.

    write() ──> buffers of this loop turn ──flush──> transport's buffer ──> socket
                └───────────── pending_bytes, bounded by max_pending ─────┘

Everything that one turn of the loop queues for a client is sent in one write. A client is a slow consumer, and is
closed, in two cases:

* More than ``max_pending`` bytes are queued.
* It does not receive the bytes given to the transport within ``write_deadline_ns``. With ``write_timeout: retry`` it is
  not closed while it receives anything.

Above three quarters of the bound a client is ``stalled``, and its publishers are slowed down (stalling).

Source: nats-server, server/client.go (queueOutbound, flushOutbound).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["SLOW_BYTES", "SLOW_TIME", "Flusher", "Outbound"]

SLOW_BYTES: Final = "Slow Consumer (Pending Bytes)"
SLOW_TIME: Final = "Slow Consumer (Write Deadline)"

_FLUSH_BYTES: Final = 8 * 1024 * 1024
"""Bytes written in one turn of the loop; other connections are flushed in the next turn."""
_WRITE_BYTES: Final = 8 * 1024
"""Fixed cost of each write, counted as bytes against ``_FLUSH_BYTES``."""

_JOIN_MAX: Final = 4096
"""Average size of buffers, in bytes, up to which joining them is cheaper than writing a list of buffers."""


def _ignore(reason: str) -> None:
    """Do nothing: the callback of a connection that has ended."""


class Flusher:
    """Flushes the connections that were written to, once per turn of the loop."""

    __slots__ = ("_dirty", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dirty: list[Outbound] = []

    def add(self, outbound: Outbound) -> None:
        if not self._dirty:
            self._loop.call_soon(self.flush)
        self._dirty.append(outbound)

    def flush(self) -> None:
        dirty = self._dirty
        self._dirty = []
        left = _FLUSH_BYTES
        for at, outbound in enumerate(dirty):
            if left < 0:
                self._dirty = dirty[at:] + self._dirty
                self._loop.call_soon(self.flush)
                return
            left -= _WRITE_BYTES + outbound.queued_bytes
            outbound.flush()


class Outbound:
    """The output of one connection.

    Args:
        ``on_slow(reason)``: called at most once; must close the connection;
        ``on_late``: called if the write deadline has passed although the client received something; None: such a client
        is too slow.
    """

    __slots__ = ("_buffers", "_closed", "_deadline", "_deadline_s", "_flusher", "_handed", "_loop", "_mark", "_max",
                 "_on_late", "_on_slow", "_queued", "_room", "_sent", "_transport", "stalled", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, flusher: Flusher, transport: asyncio.WriteTransport,
                 max_pending: int, write_deadline_ns: int, on_slow: Callable[[str], None],
                 on_late: Callable[[], None] | None = None) -> None:
        self._loop = loop
        self._flusher = flusher
        self._transport = transport
        self._max = max_pending
        self._deadline_s = write_deadline_ns / 1e9
        self._on_slow = on_slow
        self._on_late = on_late
        self._buffers: list[bytes] = []
        self._queued = 0
        # Bytes that may be queued before the transport's buffer is measured again. Until then that buffer only shrinks.
        self._room = max_pending
        self._closed = False
        self._deadline: asyncio.TimerHandle | None = None
        # Totals in bytes: given to the transport; to be sent by the deadline; sent when the deadline was set.
        self._handed = 0
        self._mark = 0
        self._sent = 0
        self.stalled = False
        self.waiting: list[Callable[[], None]] = []
        """Callbacks that run once when the connection is no longer stalled, or has ended."""

        stall = max_pending // 4 * 3
        transport.set_write_buffer_limits(high=stall, low=stall // 2)

    @property
    def queued_bytes(self) -> int:
        """Bytes of this turn that are not yet given to the transport."""
        return self._queued

    @property
    def pending_bytes(self) -> int:
        return self._queued + (0 if self._closed else self._transport.get_write_buffer_size())

    def write(self, buffers: list[bytes], size: int) -> None:
        """Queue ``buffers``, which have ``size`` bytes together."""
        if self._closed:
            return
        if not self._queued:
            self._flusher.add(self)
        self._buffers += buffers
        self._queued += size
        if self._queued > self._room:
            self._room = self._max - self._transport.get_write_buffer_size()
            if self._queued > self._room:
                self._on_slow(SLOW_BYTES)

    def flush(self) -> None:
        """Give the queued bytes to the transport."""
        buffers = self._buffers
        if not buffers or self._closed:
            return
        size = self._queued
        self._buffers = []
        self._queued = 0
        transport = self._transport
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif size <= _JOIN_MAX * len(buffers):
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)
        self._handed += size
        left = transport.get_write_buffer_size()
        self._room = self._max - left
        if left and self._deadline is None:
            self._set_deadline(left)

    def upgrade(self, transport: asyncio.WriteTransport) -> None:
        """Write to ``transport``, a layer above the current one, from now on; flush the queued bytes below it first."""
        self.flush()
        self._transport = transport

    def close(self) -> None:
        """Send the queued bytes, then close; bytes that the client does not receive by the write deadline are
        dropped."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        self._transport.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(self._deadline_s, self._transport.abort)
        self.resume()

    def abort(self) -> None:
        """Close at once; drop the queued bytes."""
        self._closed = True
        self._buffers = []
        self._queued = 0
        self._transport.abort()
        self.resume()

    def lost(self) -> None:
        """Release buffers, timer and callbacks after the connection has ended."""
        self._closed = True
        self._buffers = []
        self._queued = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.resume()
        # Avoid a reference cycle: the connection refers to this object.
        self._on_slow = _ignore
        self._on_late = None

    def pause(self) -> None:
        """Mark the connection as stalled: the transport buffers more than three quarters of the bound."""
        self.stalled = True

    def resume(self) -> None:
        """Clear the mark: the transport has caught up."""
        self.stalled = False
        waiting = self.waiting
        self.waiting = []
        for notify in waiting:
            notify()

    def _check(self) -> None:
        """Apply the write deadline to the bytes that the transport had when the deadline was set."""
        self._deadline = None
        left = self._transport.get_write_buffer_size()
        sent = self._handed - left
        if sent < self._mark:
            if self._on_late is None or sent == self._sent:
                self._on_slow(SLOW_TIME)
                return
            self._on_late()
        if left:
            self._set_deadline(left)

    def _set_deadline(self, left: int) -> None:
        self._mark = self._handed
        self._sent = self._handed - left
        self._deadline = self._loop.call_later(self._deadline_s, self._check)
