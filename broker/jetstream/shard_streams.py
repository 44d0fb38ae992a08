"""A shard's part of JetStream: its log and block reader, its inbox, and whether its streams may be served."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.inbox.inbox import Inbox, InboxSettings
from broker.storage.format.block import STREAM_ID
from broker.storage.format.records.remains import Remains
from broker.storage.log.listener import LogListener
from broker.storage.paths import ShardPaths
from broker.storage.state.erasures import remains_of

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.account.account import Account
    from broker.jetstream.stream.dropping import BlockBudget
    from broker.jetstream.stream.stream import Stream
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.format.records.adoption import Adopted
    from broker.storage.log.log import Log
    from broker.storage.log.putter import Segment
    from broker.storage.read.reader import BlockReader
    from broker.storage.state.erasures import Erasure, LeftBehind
    from broker.storage.state.stream import StreamState

__all__ = ["Merger", "ShardStreams"]

_log = logging.getLogger(__name__)


class MovedStreams(Protocol):
    """The streams that move between the shards: see ``Catalogue``."""

    def is_coming(self, shard: int, stream_id: int) -> bool:
        """Return whether a stream that has left a shard of this broker may be about to come back."""

    async def left_behind(self, stream: StreamState, shard: int) -> Sequence[LeftBehind]:
        """Return what the other shards have of a stream that has moved, and is in ``shard`` now."""

    def remains_removed(self, stream_id: int) -> None:
        """Forget a stream that had moved, if it is deleted: a shard of this broker has nothing of it any more."""


class Broker(Protocol):
    """The parts of JetStream that a shard uses."""

    accounts: dict[str, Account]

    @property
    def catalogue(self) -> MovedStreams:
        """The catalogue, which knows where streams move."""

    def stream(self, account: str, name: str) -> Stream:
        """Return the live stream of an account. Raises: ApiError."""


class Merger(Protocol):
    """Moves the blocks of a stream to objects of its own: see ``Compactor``."""

    working: asyncio.Lock

    async def isolate(self, stream_id: int, *, hurried: bool = False) -> int:
        """Move all blocks of a stream out of objects that it shares with others; return the bytes.

        Raises: FormatError: one of them cannot be read; StoreError.
        """

    def without_rounds(self) -> AbstractAsyncContextManager[None]:
        """Let no checkpoint round run in the body, so that ``isolate`` waits for none."""


class ShardStreams(LogListener):
    """A shard that this broker owns, from ``JetStream.open`` to ``JetStream.close``.

    Attributes: ``failed_streams``: the streams that cannot store anything until the next start, by id, with the reason;
        ``streams``: the number of stored streams, roughly, for the choice of a new stream's shard;
        ``inbox``: None until the shard's consumers serve.
    """

    def __init__(self, number: int, log: Log, reader: BlockReader, broker: Broker, budget: BlockBudget) -> None:
        self.number = number
        self.log = log
        self.reader = reader
        self.failed_streams: dict[int, str] = {}
        self.streams = len(log.state.streams)
        self.inbox: Inbox | None = None
        self.eraser: Eraser | None = None
        self.merger: Merger | None = None
        self._broker = broker
        self._budget = budget
        log.listen(self)

    @property
    def available(self) -> bool:
        """True if this broker owns the shard and the proof of it is fresh."""
        return self.log.failure is None and not self.log.lease_expired

    def stream(self, account: str, name: str) -> Stream:
        """See ``JetStream.stream``."""
        return self._broker.stream(account, name)

    def new_stream_id(self, rng: random.Random) -> int:
        """Return an unused incarnation in this log: random, so that two brokers do not choose the same one."""
        used: Mapping[int, object] = self.log.state.streams
        while True:
            stream_id = rng.getrandbits(63) | 1 << 62
            if stream_id not in used:
                return stream_id

    def start_inbox(self, clock: Clock, settings: InboxSettings, release_runs: Callable[[Sequence[str]], object],
                    open_runs: Container[str]) -> None:
        """Carry out the requests in the shard's inbox from now on; for the arguments, see ``Inbox``."""
        self.inbox = Inbox(self, self.log, ShardPaths(self.number), clock, settings, release_runs, open_runs)
        self.inbox.start()

    def start_erasing(self, eraser: Eraser) -> None:
        """Finish the erasures that are left, and begin those of the streams from now on."""
        self.eraser = eraser
        eraser.serve(self)

    def erasure_marked(self) -> None:
        """Let the eraser begin soon: a stream has marked messages."""
        if self.eraser is not None:
            self.eraser.wake()

    async def remove_erased(self, stream_id: int) -> bool:
        """See ``ErasingStreams``."""
        for _, stream in self._live():
            if stream.stream_id == stream_id and stream.offline is None:
                await stream.erasures.remove_marked()
                return True
        return False

    def record_erasures(self, stream_id: int, erasures: Sequence[Erasure], finished: Sequence[Erasure]) -> None:
        """See ``ErasingStreams``."""
        for _, stream in self._live():
            if stream.stream_id == stream_id and stream.offline is None:
                stream.erasures.record(erasures, finished)

    def record_remains(self, stream_id: int, erasure: Erasure) -> None:
        """See ``ErasingStreams``."""
        state = self.log.state.streams.get(stream_id)
        if state is None or state.departed is None or self._broker.catalogue.is_coming(self.number, stream_id):
            return
        if (known := remains_of(state.extra)) is not None and known.key == erasure.key:
            self.log.block(UnusedStream(state)).add(Remains(erasure.pack()))
            if erasure.done_ns:
                self.log.wait(self._broker.catalogue.remains_removed, stream_id)

    async def left_behind(self, stream: StreamState) -> Sequence[LeftBehind]:
        """See ``ErasingStreams``."""
        return await self._broker.catalogue.left_behind(stream, self.number)

    async def stop_inbox(self) -> None:
        """Stop reading the inbox. Requests that were not answered stay in it."""
        if self.inbox is not None:
            await self.inbox.stop()
            self.inbox = None

    def segment_applied(self, segment: Segment) -> None:
        """Cache the segment if it is mostly small blocks, which are not worth cache entries of their own."""
        self._budget.changed()
        if segment.whole is not None:
            self.reader.admit_segment(segment.position, segment.whole)

    def blocks_adopted(self, adopted: Sequence[Adopted]) -> Sequence[Adopted]:
        """See ``LogListener``."""
        from broker.jetstream.stream.adoption import apply_compaction

        streams = {stream.stream_id: stream for _, stream in self._live()}
        again = []
        for one in adopted:
            stream = streams.get(one.ref[STREAM_ID])
            if stream is None or stream.offline is not None:
                continue
            try:
                if not apply_compaction(stream, one):
                    again.append(one)
            except ValueError as error:
                _log.exception("stream %s > %s does not have the blocks that compaction has merged", stream.account,
                               stream.name)
                stream.failed(error)
        return again

    def lease_renewed(self) -> None:
        """Resume the deliveries that consumers held back."""
        for account, stream in self._live():
            for consumer in account.consumers.of(stream).values():
                consumer.wake()

    def _live(self) -> Iterator[tuple[Account, Stream]]:
        """Yield the shard's live streams, each with its account."""
        for account in self._broker.accounts.values():
            for stream in account.streams.values():
                if stream.log is self.log:
                    yield account, stream
