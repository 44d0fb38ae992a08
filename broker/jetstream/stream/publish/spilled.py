"""Commits an atomic batch whose messages are in the store (``spill``).

    the commit ──> write the rest ──> all is in the store ──> checks ──> one record ──> persisted ──> PubAck
                                                                └─> refused: the runs are deleted

The stream's queue is busy during the commit, so publishes after it come after the batch. The checks are those of any
batch. They use the parts of the messages that are in memory: headers, and lengths of payloads.

Owns: these steps. Does not own: the record, and how the messages join the stream (``Joins``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.jetstream.inflight import BATCH_BYTES_MAX
from broker.jetstream.stream.publish.pending import Pending
from broker.jetstream.stream.publish.spill import Spill, may_spill
from broker.jetstream.stream.state.decision import Stuck
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError, StoreFull

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.stream.publish.appender import Appender
    from broker.jetstream.stream.publish.atomic import AtomicBatches, Batch
    from broker.jetstream.stream.publish.candidate import Candidate
    from broker.jetstream.stream.publish.replies import Replies
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.storage.format.block import BlockRef

__all__ = ["Arrival", "Joins", "SpilledCommits"]


class Arrival(NamedTuple):
    """Checked messages that are about to join, all at ``time_ns``.

    Attributes: ``ids``: message ids and their sequences; ``last_id``: the last message's id; ``ttls``: (sequence,
        seconds);
        ``afters``: their follow-ups (``Candidate.after``).
    """

    time_ns: int
    ids: dict[bytes, int]
    last_id: bytes
    ttls: list[tuple[int, int]]
    afters: Sequence[Callable[[], None]]


class Joins(Protocol):
    """The part of the stream that lets messages in the store join it."""

    async def join(self, blocks: Sequence[BlockRef], check: Callable[[], Arrival],
                   recorded: Callable[[], object]) -> None:
        """Let ``blocks`` join the stream.

        Args: ``check`` raises ApiError or NotLoaded. ``recorded`` is called when a record that names the blocks is
            being written.
        """


class SpilledCommits:
    """The commits of one stream.

    Args: ``check`` checks the messages of a batch, and puts the accepted ones into the given ``Pending``.
    """

    def __init__(self, parts: StreamParts, replies: Replies, joins: Joins,
                 check: Callable[[Batch, Pending], list[Candidate]]) -> None:
        self._parts, self._replies, self._joins, self._check = parts, replies, joins, check

    def begin(self, atomic: AtomicBatches, batch: Batch, spill: Spill, reply: bytes, source: Source | None,
              appender: Appender) -> None:
        """Commit ``batch``; publishes and requests to the stream wait until that is done."""
        atomic.detach(batch)
        atomic.write(batch, source)
        self._parts.queue.begin()
        work = self._parts.tasks.start(self._commit(batch, spill, reply, source, appender), "batch")
        work.add_done_callback(lambda task: self._end(atomic, batch))

    def _end(self, atomic: AtomicBatches, batch: Batch) -> None:
        atomic.end(batch)
        self._parts.queue.end()

    async def _commit(self, batch: Batch, spill: Spill, reply: bytes, source: Source | None,
                      appender: Appender) -> None:
        error = ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        try:
            blocks = await spill.written()
            await self._joins.join(blocks, lambda: self._arrival(batch, spill, source, appender), spill.joined)
        except ApiError as refused:
            error = refused
        except Exception as failed:
            if self._parts.log.failure is not None:
                return
            if isinstance(failed, StoreFull):
                error = ApiError(ApiErrors.INSUFFICIENT_RESOURCES)
            unexpected = not isinstance(failed, (StoreError, FormatError, Stuck))
            self._parts.tasks.warn("a batch is refused, since it or what it depends on cannot be stored or read: %s",
                                   failed, unexpected=unexpected)
        else:
            self._replies.committed(reply, batch.batch_id, len(batch.msgs), self._parts.live.last_seq)
            return
        self._replies.refused(source, reply, error)

    def _arrival(self, batch: Batch, spill: Spill, source: Source | None, appender: Appender) -> Arrival:
        """Return the messages as they would join now. Raises: ApiError; NotLoaded."""
        live, config = self._parts.live, self._parts.stream.config
        # The stream may have been changed since the commit arrived.
        if config.sealed:
            raise ApiError(ApiErrors.STREAM_SEALED)
        if not config.allow_atomic:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_DISABLED)
        if not may_spill(config):
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=f"{BATCH_BYTES_MAX >> 20} MiB")
        time_ns = max(self._parts.clock.now_ns(), live.last_time_ns)
        first_seq = live.last_seq + 1
        pending = Pending(first_seq, source, time_ns, lambda pending: True)
        found = self._check(batch, pending)
        for msg, candidate in zip(batch.msgs, found, strict=True):
            if (candidate.subject, candidate.hlen) != (msg[0], msg[2]):
                raise RuntimeError("a message changed after it was written")
        ids = {one.msg_id: first_seq + at for at, one in enumerate(found) if one.msg_id}
        return Arrival(time_ns, ids, found[-1].msg_id,
                       [(first_seq + at, one.ttl) for at, one in enumerate(found) if one.ttl],
                       [partial(appender.follow_up, one.after) for one in found if one.after is not None])
