"""Handles publishes that belong to a batch: staged and stored all at once, or stored singly and acked periodically.

Owns: the order of these steps. Does not own: the batches (atomic, fast), adding a message to the stream (sequencer),
the commits of batches that are in the store already (spilled).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.inflight import Inflight
from broker.jetstream.settings import level_refused
from broker.jetstream.stream.publish.atomic import AtomicBatches, Batch
from broker.jetstream.stream.publish.atomic_checks import StagedPending
from broker.jetstream.stream.publish.batches import REQUIRED_LEVEL
from broker.jetstream.stream.publish.candidate import Candidate, Duplicate
from broker.jetstream.stream.publish.checks import ATOMIC, FAST, Checks
from broker.jetstream.stream.publish.fast import FastBatches, FastMessage, FastRun
from broker.jetstream.stream.publish.limits import RECORD_BYTES_MAX
from broker.jetstream.stream.publish.spill import Spill, may_spill
from broker.jetstream.stream.publish.spilled import SpilledCommits
from broker.jetstream.wire.advisories import StreamEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block
from broker.storage.format.message_size import HEADERS_BYTES, ROW_BYTES

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.appender import Appender
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.publish.pending import Pending
    from broker.jetstream.stream.publish.replies import Replies
    from broker.jetstream.stream.publish.spilled import Joins
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Batching", "Committing"]

_log = logging.getLogger(__name__)


class Committing(Exception):
    """Raised for a message that commits a batch in the store: later messages wait until the batch has joined the
    stream."""


class Sequencer(Protocol):
    """The sequencer of the stream: decides on messages one by one, or on a whole batch."""

    @property
    def appender(self) -> Appender: ...
    def add(self, pending: Pending, candidate: Candidate) -> Callable[[], None] | None: ...
    def append_batch(self, msgs: Sequence[Msg], source: Source | None, time_ns: int) -> bool: ...


class Batching:
    """The batches of one stream. Call ``configure`` after each change of its configuration.

    Args: ``joins`` adds batches that are in the store to the stream; ``inflight`` counts the batches of all streams.
    """

    def __init__(self, parts: StreamParts, context: CheckContext, replies: Replies, joins: Joins,
                 inflight: Inflight | None) -> None:
        self._parts, self._context, self._replies, self._inflight = parts, context, replies, inflight
        self._live = parts.live
        self._atomic: AtomicBatches | None = None
        self._fast: FastBatches | None = None
        self._spilled = SpilledCommits(parts, replies, joins, self._check)

    def configure(self, config: StreamConfig) -> None:
        """Apply the batch settings of ``config``; batches that it does not allow are dropped."""
        self._config = config
        self.reset_checks()
        if not config.allow_atomic and self._atomic is not None:
            self._atomic.clear()
        if not config.allow_batched and self._fast is not None:
            self._fast.clear()
        if config.allow_atomic or config.allow_batched:
            inflight = self._inflight = self._inflight or Inflight()
            parts = self._parts
            self._atomic = self._atomic or AtomicBatches(inflight, parts.clock, StreamEvents(
                parts.bus, parts.clock, parts.rng, parts.domain, parts.name).batch_abandoned)
            self._fast = self._fast or FastBatches(inflight, parts.clock, self._replies.batch_ack)
            self._atomic.spill = partial(self._spill, inflight) if may_spill(config) else None

    def _spill(self, inflight: Inflight) -> Spill:
        return Spill(self._parts, inflight)

    def reset_checks(self) -> None:
        """Make the checks again. See ``Sequencer.reset_checks``."""
        self._checks: Checks | None = None
        self._fast_checks: Checks | None = None

    def close(self) -> None:
        for batches in (self._atomic, self._fast):
            if batches is not None:
                batches.clear()

    def lost(self) -> None:
        """Drop the fast-ingest batches after an unexpected error kept accepted messages out of the stream.

        Later messages of these batches must not be acknowledged.
        """
        if self._fast is not None:
            self._fast.clear()

    # --- atomic -------------------------------------------------------------------------------------------------------

    def stage_or_commit(self, sequencer: Sequencer, pending: Pending, candidate: Candidate, msg: Msg,
                        batch_id: bytes) -> None:
        """Stage one message, or store its batch with it.

        Raises: ApiError, NotLoaded; then nothing is stored. Committing; then ``msg`` is answered after the batch has
            joined the stream.
        """
        atomic = self._atomic
        if atomic is None:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_DISABLED)
        batch = atomic.stage(msg, batch_id, candidate.headers, pending.source)
        if batch is None:
            self._replies.staged(msg[1])
            return
        if batch.spill is not None:
            self._spilled.begin(atomic, batch, batch.spill, msg[1], pending.source, sequencer.appender)
            raise Committing
        first_seq = pending.first_seq
        staged: list[Candidate] | None = None
        try:
            if not (batch.plain and sequencer.append_batch(batch.msgs, pending.source, pending.time_ns)):
                staged = self._check(batch, pending)
        except ApiError:
            atomic.close(batch)
            raise
        atomic.close(batch)
        if staged is None:
            pending.begin(self._live.last_seq + 1)
        else:
            self._store(sequencer, pending, staged)
        # In an interest stream, messages that no consumer waits for are removed in the block that adds them.
        self._context.interest.drop_unwanted(first_seq)
        self._replies.committed(msg[1], batch_id, len(batch.msgs), self._live.last_seq)

    def stage_run(self, ops: Sequence[Msg], start: int, end: int) -> int:
        """Stage the messages from ``ops[start]`` on that continue an atomic batch and pass the checks before staging.

        Returns: the number of staged messages.
        """
        if self._atomic is None or self._config.sealed:
            return 0
        usage, size_max = self._live.usage, self._config.max_msg_size
        if size_max < 0:
            size_max = RECORD_BYTES_MAX // 2
        room = usage.bytes_max - usage.size_bytes - ROW_BYTES - HEADERS_BYTES
        return self._atomic.stage_run(ops, start, end, min(size_max, RECORD_BYTES_MAX // 2, room))

    def _check(self, batch: Batch, pending: Pending) -> list[Candidate]:
        """Return the batch's messages as they will be stored. Raises: ApiError, NotLoaded."""
        if (checks := self._checks) is None:
            checks = self._checks = Checks(self._context, self._config, ATOMIC)
        staged = StagedPending(batch, pending.first_seq, pending.source, pending.time_ns)
        found = []
        payloads = repeat(0) if batch.spill is None else batch.spill.payloads
        for msg, payload in zip(batch.msgs, payloads, strict=False):
            candidate = Candidate(staged)
            candidate.begin(msg)
            candidate.size += payload
            for check in checks.for_headers(candidate) if candidate.hlen else checks.without_headers:
                check(candidate)
            staged.accept(candidate)
            found.append(candidate)
        if staged.rollups:
            self._context.rollups.plan_all(staged.rollups, batch.plans)
        return found

    def _store(self, sequencer: Sequencer, pending: Pending, staged: Sequence[Candidate]) -> None:
        """Append all checked messages. Raises: ApiError; then none is in the stream."""
        first_seq, stored = pending.first_seq, False
        try:
            stored = _store(sequencer, pending, staged)
        finally:
            if not stored:
                pending.begin(self._live.last_seq + 1)
                if self._live.last_seq >= first_seq:
                    # A partial batch must not reach the store; after a restart the stream is as before the batch.
                    error = RuntimeError(f"stream {self._config.name}: a batch was sequenced in part")
                    _log.critical("%s, so nothing more is stored", error)
                    self._parts.log.fail(error)
        if not stored:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    # --- fast ingest --------------------------------------------------------------------------------------------------

    def ingest(self, sequencer: Sequencer, pending: Pending, candidate: Candidate, msg: Msg) -> None:
        """Store one message of a fast-ingest batch, and answer it if an answer is due.

        Raises: ApiError, NotLoaded.
        """
        fast, replies = self._fast, self._replies
        if fast is None:
            raise ApiError(ApiErrors.BATCH_PUBLISH_DISABLED)
        subject, reply, hlen, body = msg
        message = FastMessage.parse(reply)
        batch = fast.batch_of(message)
        if hlen and candidate.headers.get(REQUIRED_LEVEL):
            if level_refused(body[:hlen]):
                fast.close(batch)
                raise ApiError(ApiErrors.REQUIRED_API_LEVEL)
            block = header_block.remove(body[:hlen], REQUIRED_LEVEL)
            hlen, body = len(block), block + body[hlen:]
        again = batch.waiting is msg
        answers, wanted = fast.place(batch, message, msg)
        self._answer(pending, reply, answers)
        if not wanted:
            return
        if not again and (begun := fast.begun(batch, message)) is not None:
            replies.begun(reply, begun)
        if (checks := self._fast_checks) is None:
            checks = self._fast_checks = Checks(self._context, self._config, FAST)
        candidate.begin((subject, b"", hlen, body))
        after = None
        try:
            for check in checks.for_headers(candidate) if candidate.hlen else checks.without_headers:
                check(candidate)
            after = sequencer.add(pending, candidate)
            answers = fast.stored(batch, message, pending.last_seq)
        except Duplicate as duplicate:
            answers = fast.duplicate(batch, message, duplicate.seq)
        except ApiError as error:
            answers = fast.refused(batch, message, error)
        if after is not None and pending.append():
            sequencer.appender.follow_up(after)
        if not self._context.interest.wants(candidate.subject) and pending.append():
            self._context.interest.drop_unwanted(self._live.last_seq)
        self._answer(pending, reply, answers)

    def run_of(self, replies: Sequence[bytes]) -> FastRun | None:
        """Return the open batch that a run continues. See ``FastBatches.run_of``; changes nothing."""
        return None if self._fast is None else self._fast.run_of(replies)

    def ingested(self, run: FastRun, replies: Sequence[bytes]) -> None:
        """Send the answers that are due after a whole run was appended at the stream's end."""
        if self._fast is not None:
            for at, answer in self._fast.stored_run(run, len(replies), self._live.last_seq):
                self._replies.batch_answered(replies[at], answer)

    def _answer(self, pending: Pending, reply: bytes, answers: Sequence[bytes]) -> None:
        """Append the pending messages, then answer from the sequenced state."""
        if answers and pending.append():
            for answer in answers:
                self._replies.batch_answered(reply, answer)


def _store(sequencer: Sequencer, pending: Pending, staged: Sequence[Candidate]) -> bool:
    """Append all in one turn of the loop and without ``urgent``, hence to one block: a crash leaves all or none of
    them."""
    for candidate in staged:
        after = sequencer.add(pending, candidate)
        if after is not None:
            if not pending.append():
                return False
            sequencer.appender.follow_up(after)
    return pending.append()
