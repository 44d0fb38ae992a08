"""The bytes on their way to one client, from "queued" to "taken by the kernel".

    write() ──> buffers of this loop turn ──flush──> transport's buffer ──> socket
                └───────────── pending_bytes, bounded by max_pending ─────┘

Everything that one turn of the loop queues for a client is sent in one write. A client with more than ``max_pending``
queued, or that does not take what was handed to the transport within ``write_deadline_ns``, is a slow consumer and is
closed; with ``write_timeout: retry`` not while it takes anything. Above three quarters of the bound it is ``stalled``, and
its publishers are slowed down (stalling).

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
"""Bytes written in one turn of the loop; the other connections are flushed in the next. Each write counts as so many more:"""
_WRITE_BYTES: Final = 8 * 1024

_JOIN_MAX: Final = 4096
"""Average buffer size up to which joining is cheaper than handing over a list."""


def _ignore(reason: str) -> None:
    """Do what a connection that is gone does about a slow peer."""


class Flusher:
    """Once per turn of the loop, flushes the connections written to in that turn."""

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
    """``on_slow(reason)`` is called at most once; it must close the connection. ``on_late``: called where the write deadline
    has passed and the client has taken something; None: that is too slow."""

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
        # How much may be queued before the transport's buffer must be measured again; it only shrinks meanwhile.
        self._room = max_pending
        self._closed = False
        self._deadline: asyncio.TimerHandle | None = None
        # Total bytes handed to the transport; how many of them must be sent by the deadline, and were when it was set.
        self._handed = 0
        self._mark = 0
        self._sent = 0
        self.stalled = False
        self.waiting: list[Callable[[], None]] = []
        """Called when ``stalled`` ends, or the connection does."""

        stall = max_pending // 4 * 3
        transport.set_write_buffer_limits(high=stall, low=stall // 2)

    @property
    def queued_bytes(self) -> int:
        """Bytes of this turn, not handed over yet."""
        return self._queued

    @property
    def pending_bytes(self) -> int:
        return self._queued + (0 if self._closed else self._transport.get_write_buffer_size())

    def write(self, buffers: list[bytes], size: int) -> None:
        """Queue ``buffers``, ``size`` bytes in all."""
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
        """Hand over what is queued."""
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
        """Write from now on to ``transport``, a layer above the current one; what is queued is sent as before."""
        self.flush()
        self._transport = transport

    def close(self) -> None:
        """Send what is queued, then close; what the client does not take within the write deadline is dropped."""
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
        """Close at once, dropping what is queued."""
        self._closed = True
        self._buffers = []
        self._queued = 0
        self._transport.abort()
        self.resume()

    def lost(self) -> None:
        """The connection is gone."""
        self._closed = True
        self._buffers = []
        self._queued = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.resume()
        # The connection refers to this, and must not be kept by it.
        self._on_slow = _ignore
        self._on_late = None

    def pause(self) -> None:
        """The transport buffers more than three quarters of the bound."""
        self.stalled = True

    def resume(self) -> None:
        """The transport has caught up."""
        self.stalled = False
        waiting = self.waiting
        self.waiting = []
        for go_on in waiting:
            go_on()

    def _check(self) -> None:
        """The write deadline: what had been handed over when it was set must be sent by now."""
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
