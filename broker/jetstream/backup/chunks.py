"""Sends an archive in chunks, with no more of them unanswered than the receiver asked for.

    deliver_subject  chunk, reply $JS.SNAPSHOT.ACK.<stream>.<id>.<bytes>.<number>    the last one has no reply subject
                     an empty message with a status                                  the end

Source: nats-server 2.15, server/jetstream_api.go, streamSnapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source

__all__ = ["ChunkSender", "Stopped"]

_CHUNK_BYTES: Final = 128 << 10
_CHUNK_BYTES_LEAST, _CHUNK_BYTES_MAX = 1 << 10, 1 << 20
_WINDOW_BYTES: Final = 8 << 20
_WINDOW_BYTES_MAX: Final = 32 << 20

ACK_SECONDS: Final = 5.0
INTEREST_SECONDS: Final = 2.0
"""The time that a receiver may take to subscribe."""


class Stopped(Exception):
    """Raised when the transfer ended early. ``status``: the status that the receiver gets."""

    def __init__(self, why: str, status: bytes) -> None:
        super().__init__(why)
        self.status = status


class ChunkSender:
    """A sender of one archive to the subject ``to``."""

    def __init__(self, bus: Bus, to: bytes, ack_prefix: bytes, chunk_size: int, window_size: int) -> None:
        self._bus = bus
        self._to = to
        self._ack_prefix = ack_prefix
        self._chunk_bytes = min(max(chunk_size or _CHUNK_BYTES, _CHUNK_BYTES_LEAST), _CHUNK_BYTES_MAX)
        window = min(max(window_size or _WINDOW_BYTES, _CHUNK_BYTES_LEAST), _WINDOW_BYTES_MAX)
        self._slots = max(window // self._chunk_bytes, 1)
        self._changed = asyncio.Event()
        self._polls_interest = False
        self._number = 0

    async def send(self, archive: AsyncIterator[bytes]) -> None:
        """Send the bytes of ``archive``, and the end, even if it fails. Raises: Stopped; the errors of ``archive``."""
        acks = self._bus.subscribe(self._ack_prefix + b".>", self._on_acks)
        self._watch = self._bus.watch_interest(self._to, b"", lambda _: self._changed.set())
        status = b""
        try:
            await self._receiver()
            rest = bytearray()
            async for data in archive:
                rest += data
                at = 0
                while len(rest) - at >= self._chunk_bytes:
                    await self._slot()
                    self._send(bytes(rest[at:at + self._chunk_bytes]))
                    at += self._chunk_bytes
                del rest[:at]
            if rest:
                await self._slot()
                self._bus.publish(self._to, b"", 0, bytes(rest))
            if self._number:
                status = b"204"
        except Stopped as stopped:
            status = stopped.status
            raise
        except asyncio.CancelledError:
            status = b"500 Server Shutdown"
            raise
        except Exception as error:
            status = b"500 " + " ".join(str(error).split()).encode()
            raise
        finally:
            self._bus.unsubscribe(acks)
            self._watch.cancel()
            head = b"NATS/1.0 %b\r\n\r\n" % status if status else b""
            self._bus.publish(self._to, b"", len(head), head)

    async def _receiver(self) -> None:
        """Wait for the receiver's own subscription.

        A client asks with an inbox that matches the wildcard for all its replies, and subscribes to it once the request
        is answered. Chunks sent before would be lost. Raises: Stopped.
        """
        if not self._watch.interested:
            self._changed.clear()
            try:
                async with asyncio.timeout(INTEREST_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                self._polls_interest = True
                self._check_interest()

    def _check_interest(self) -> None:
        """Check that somebody receives the chunks. Raises: Stopped."""
        if not (self._bus.interest(self._to) if self._polls_interest else self._watch.interested):
            raise Stopped("no interest", b"408 No Interest")

    async def _slot(self) -> None:
        """Wait until a chunk may be sent. Raises: Stopped."""
        deadline = asyncio.get_running_loop().time() + ACK_SECONDS
        while True:
            self._check_interest()
            if self._slots:
                self._slots -= 1
                return
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise Stopped("no flow response", b"408 No Flow Response") from None

    def _send(self, chunk: bytes) -> None:
        self._number += 1
        self._bus.publish(self._to, b"%b.%d.%d" % (self._ack_prefix, len(chunk), self._number), 0, chunk)

    def _on_acks(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        self._slots += end - start
        self._changed.set()
