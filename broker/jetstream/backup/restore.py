"""Receives an archive in chunks, and fills a stream from it.

    $JS.SNAPSHOT.RESTORE.<stream>.<id>  chunk  ──> answered with nothing when it is in the stream, or with an error
                                        empty  ──> the end: the stream exists, and its info is the answer

A client sends the next chunk when the last one is answered. A client that does not wait is held back: its socket is not
read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.jetstream.account.incoming import Provenance
from broker.jetstream.account.sweeps import finished
from broker.jetstream.archive.contents import ArchiveReader
from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedMsg, ArchivedStream
from broker.jetstream.backup.consumers import BadState, new_consumer
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.stream.refill import Refill, Unusable
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import is_literal, is_valid

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.account.incoming import NewConsumer
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream

__all__ = ["Restore", "RestoreFailed", "Stalled"]

_log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 5.0
"""The time that a client may take to send the next chunk."""

_HELD_BYTES: Final = 4 << 20
"""The bytes of waiting chunks above which their client is held back."""
_WAITING_BYTES_MAX: Final = 128 << 20
"""The largest total of waiting chunks: more than one full read of a client that is held back."""

_CHUNK_BYTES: Final = 200
"""The memory that a chunk takes beside its data and its reply subject."""

_CONSUMERS_BYTES_MAX: Final = 256 << 20
_NUMBER_BYTES: Final = 200
"""The approximate memory that a pending message takes."""


class RestoreFailed(Exception):
    """Raised if the stream could not be restored. Nothing of it is left."""


class Stalled(RestoreFailed):
    """Raised if the client sends nothing any more."""


class _Chunk(NamedTuple):
    reply: bytes
    data: bytes

    @property
    def cost(self) -> int:
        """The approximate memory that the chunk takes: many small ones, or empty ones, are not free."""
        return _CHUNK_BYTES + len(self.reply) + len(self.data)


class Restore:
    """The restore of a stream with ``config``, whose name is reserved.

    ``on_chunks`` receives the client's chunks; ``run`` does the work.
    Attributes: ``total``: the bytes received so far.
    """

    def __init__(self, account: Account, config: StreamConfig, provenance: Provenance | None = None) -> None:
        self._account = account
        self._config = config
        self._provenance = provenance or Provenance()
        self._name = f"restore for stream '{account.name} > {config.name}'"
        self._chunks: deque[_Chunk] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._held: dict[int, Source] = {}
        self._refused: str | None = None
        self._over = False
        self._reader = ArchiveReader()
        self._numbers: ArchivedStream | None = None
        self._stream: Stream | None = None
        self._refill: Refill | None = None
        self._consumers: list[NewConsumer] = []
        self._consumers_bytes = 0
        self.total = 0
        self.reply = b""
        """The subject where the client waits for an answer."""

    # --- chunks -------------------------------------------------------------------------------------------------------

    def on_chunks(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Receive a run of chunks, as a handler of the bus."""
        if self._over:
            return  # without holding a client back
        for _, reply, hlen, body in ops[start:end]:
            if not reply:
                self._refused = self._refused or f"{self._name} requires reply subject for each chunk"
            self._chunks.append(chunk := _Chunk(reply, body[hlen:]))
            self._bytes += chunk.cost
        if self._bytes > _WAITING_BYTES_MAX:
            self._refused = self._refused or f"{self._name} got too much at once: wait for the answer to each chunk"
        if self._bytes > _HELD_BYTES and source is not None and id(source) not in self._held:
            self._held[id(source)] = source
            source.hold()
        self._changed.set()

    async def _next(self) -> _Chunk:
        while not self._chunks:
            self._changed.clear()
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                raise Stalled(f"{self._name} is stalled") from None
        if self._refused is not None:
            raise RestoreFailed(self._refused)
        chunk = self._chunks.popleft()
        self._bytes -= chunk.cost
        self.reply = chunk.reply
        if self._bytes <= _HELD_BYTES // 2:
            self._release()
        return chunk

    def _release(self) -> None:
        held, self._held = self._held, {}
        for source in held.values():
            source.release()

    # --- the work -----------------------------------------------------------------------------------------------------

    async def run(self) -> Stream:
        """Restore the stream. ``reply`` is then the subject where its info is expected.

        Raises: RestoreFailed, ApiError, StoreError, FormatError: nothing of it is left; CancelledError: the next start
            deletes what is left.
        """
        try:
            while (chunk := await self._next()).data:
                await self._add(chunk.data)
                self.total += len(chunk.data)
                self._account.bus.publish(chunk.reply, b"", 0, b"")
            self._reader.finish()
            return await self._complete()
        except (ArchiveError, Unusable) as error:
            raise RestoreFailed(str(error)) from None
        finally:
            self._over = True
            self._release()
            self._chunks.clear()

    async def _add(self, data: bytes) -> None:
        items: Iterator[Any] = self._reader.feed(data)
        while True:
            item = await asyncio.to_thread(next, items, None)  # decoding may take some ten milliseconds
            if item is None:
                return
            if isinstance(item, list):
                await self._add_messages(item)
            elif isinstance(item, ArchivedStream):
                self._begin(item)
            elif isinstance(item, ArchivedConsumer):
                self._add_consumer(item)

    def _begin(self, numbers: ArchivedStream) -> None:
        self._numbers = numbers
        try:
            self._stream = self._account.incoming.begin(self._config, self._provenance.created_ns)
        except ApiError as error:
            raise RestoreFailed(f"error adding stream: {_shown(error)}") from None
        self._refill = Refill(self._stream, numbers.first_seq, any_origin=self._provenance.origins_restored)

    def _add_consumer(self, given: ArchivedConsumer) -> None:
        account, stream, numbers = self._account, self._stream, self._numbers
        if stream is None or numbers is None:
            raise RestoreFailed("expected state.json first")
        self._consumers_bytes += _NUMBER_BYTES * (1 + len(given.pending) + len(given.redelivered))
        if self._consumers_bytes > _CONSUMERS_BYTES_MAX:
            raise RestoreFailed("its consumers have too many messages pending: restore it without consumers")
        others = [consumer.config for consumer in self._consumers]
        try:
            config = account.incoming.check_consumer(ConsumerConfig.from_json(given.config), stream, others)
        except ApiError as error:
            raise RestoreFailed(f'failed to add consumer "{given.name}": {_shown(error)}') from None
        token = given.name.encode()
        if (given.name != (config.durable_name or config.name) or b"." in token or not is_valid(token)
                or not is_literal(token) or any(given.name == one.record.name for one in self._consumers)):
            raise RestoreFailed(f'failed to add consumer "{given.name}": its name is not valid, or not the only one')
        try:
            self._consumers.append(new_consumer(given, config, account.clock.now_ns(), numbers.last_seq))
        except BadState as error:
            raise RestoreFailed(f'failed to set consumer "{given.name}" state: {error}') from None

    async def _add_messages(self, given: Sequence[ArchivedMsg]) -> None:
        stream, refill = self._stream, self._refill
        if stream is None or refill is None:
            raise RestoreFailed("expected state.json first")
        await refill.room()
        if stream.offline is not None:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=stream.offline)
        refill.append(given)

    async def _complete(self) -> Stream:
        """Make the stream one of the account's, and remove messages beyond its limits,
        or acked and not needed any more."""
        stream, refill, numbers = self._stream, self._refill, self._numbers
        if stream is None or refill is None or numbers is None:
            raise RestoreFailed("expected state.json first")
        if not self._account.available:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        refill.finish(numbers.last_seq)
        openings = self._account.incoming.complete(stream, self._consumers)
        await finished(stream.enforcement.begin())
        if stream.interest.active and openings and (sweep := stream.interest.sweep(1, acked=True)) is not None:
            await finished(sweep)
        if openings:
            await finished(asyncio.gather(*openings))
        return stream


def _shown(error: ApiError) -> str:
    return f"{error.description} ({error.err_code})"
