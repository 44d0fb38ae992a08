"""Reads a stream as an archive while the stream is in use: the messages up to the last one at the beginning.

Messages removed meanwhile may be missing. One frame of messages is held at a time, and is compressed in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from broker.jetstream.archive.contents import ArchiveWriter
from broker.jetstream.archive.values import ArchivedMsg, ArchivedStream
from broker.jetstream.backup.consumers import archived
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.shared.chunks import Loading
    from broker.jetstream.stream.state.live import LiveBlock
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.frame import Chunk
    from broker.storage.state.dead import DeadSet

__all__ = ["StreamReader"]


class StreamReader:
    """A reader of ``stream`` with the state ``numbers``, and of these ``consumers``.

    Args: ``exists`` returns whether the stream still exists.
    """

    def __init__(self, stream: Stream, numbers: ArchivedStream, consumers: Sequence[Consumer],
                 exists: Callable[[], bool]) -> None:
        self._stream = stream
        self._numbers = numbers
        self._consumers = consumers
        self._exists = exists
        self._last_seq = numbers.last_seq

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the archive. Raises: ApiError, StoreError, FormatError: it cannot be read, or not now."""
        writer = ArchiveWriter(self._stream.clock.now_ns())
        yield await asyncio.to_thread(writer.begin, self._numbers)
        for consumer in self._consumers:
            yield await asyncio.to_thread(writer.consumer, archived(consumer, self._last_seq))
        # Messages can be read once they are stored.
        await self._stream.log.persisted()
        await self._stream.load_blocks()
        seq, held = max(self._numbers.first_seq, 1), None
        while seq <= self._last_seq and (found := self._next_chunk(seq)) is not None:
            if not isinstance(found, tuple):
                held = found  # keeps what it loads in memory until it is read
                seq = max(seq, found.seq)
                await found.wait()
                continue
            held = None
            chunk, block, place = found
            seq = chunk.last_seq + 1
            if msgs := self._messages(chunk, block.dead, place):
                yield await asyncio.to_thread(writer.messages, msgs)
        del held
        yield writer.end()

    def _next_chunk(self, seq: int) -> tuple[Chunk, LiveBlock, int] | Loading | None:
        if not self._stream.log.lease_held():
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        if not self._exists():
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        return self._stream.next_chunk(seq, None)

    def _messages(self, chunk: Chunk, dead: DeadSet | None, place: int) -> list[ArchivedMsg]:
        """Return the messages of ``chunk`` from ``place`` on that are live and existed at the beginning."""
        msgs, hlens, last_seq = [], chunk.hlens, self._last_seq
        for at in range(place, len(chunk)):
            seq = chunk.seq(at)
            if seq <= last_seq and (dead is None or seq not in dead):
                msgs.append(ArchivedMsg(seq, chunk.times[at], chunk.subjects[at], hlens[at] if hlens is not None else 0,
                                        chunk.bodies[at]))
        return msgs
