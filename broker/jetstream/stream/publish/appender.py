"""Appends accepted publishes to a stream: the one place where decisions on single messages take effect.

Owns: the order in which block, counts, ids, answers and removals are updated, and the state after an unexpected error.
Does not own: the decisions (sequencer, checks), the accepted messages (pending), the bytes of replies (replies).

An unexpected error refuses the message that caused it, and those that were to be appended together with it. Messages
appended before keep their PubAcks. If the stream's numbers then do not match its messages, the log stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.stream.publish.candidate import Candidate
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.publish.pending import Pending
    from broker.jetstream.stream.publish.replies import Replies
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Appender"]

_log = logging.getLogger(__name__)

_LOG_INTERVAL_NS = 1_000_000_000
"""Unexpected errors are logged at most this often: every message may cause one."""


class Appender:
    """Appends accepted messages to one stream.

    Args: ``lost`` is called if an unexpected error kept accepted messages out of the stream.
    """

    def __init__(self, parts: StreamParts, context: CheckContext, replies: Replies, lost: Callable[[], None]) -> None:
        self._context = context
        self._stream, self._name, self._log, self._clock = parts.stream, parts.name, parts.log, parts.clock
        self._live, self._subjects = parts.live, parts.subjects
        self._dedupe, self._retention, self._ttls = context.dedupe, context.retention, context.ttls
        self._replies, self._lost = replies, lost
        self._tracer, self._account = parts.bus.tracer, parts.account
        self._logged_ns = -_LOG_INTERVAL_NS

    def append(self, pending: Pending) -> bool:
        """Append the pending messages. See ``Pending.append``."""
        appended = True
        if pending.msgs:
            try:
                self._add(pending)
            except Exception as error:
                appended = self._live.last_seq >= pending.first_seq
                self.handle_unexpected(error, index=True)
                if not appended:
                    self._lost()
                    for _, reply, _, _ in pending.msgs:
                        self._replies.refused(pending.source, reply, ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        # Roll-ups and trims may remove messages and skip sequences.
        pending.begin(self._live.last_seq + 1)
        return appended

    def _add(self, pending: Pending) -> None:
        """Add the accepted messages to the block, the counts and the window of ids.

        Their PubAcks are queued before replaced messages are removed, because they are due as soon as the messages are
        added.
        """
        live, first_seq, time_ns = self._live, pending.first_seq, pending.time_ns
        if first_seq != live.last_seq + 1:
            raise RuntimeError(f"accepted as {first_seq}, but the stream is at {live.last_seq}")
        subjects, replies, hlens, bodies = zip(*pending.msgs, strict=True)
        block = self._log.block(self._stream)
        block.append_run(first_seq, subjects, hlens if any(hlens) else None, bodies, time_ns,
                         sum(map(len, subjects)) + sum(map(len, replies)))
        live.appended(block, len(bodies), pending.bytes, first_seq, time_ns)
        at_ns = live.ahead.decision_ns(time_ns)
        self._dedupe.add(pending.ids, pending.last_id, at_ns)
        if pending.ttls:
            self._ttls.added(pending.ttls, at_ns)
        if pending.due:
            self._context.scheduler.set(pending.due)
        if pending.values:
            self._count(pending)
            self._replies.counted(pending.source, replies, first_seq, pending.values)
        else:
            self._replies.accepted(pending.source, replies, first_seq)
        if self._tracer is not None and any(hlens):
            self._tracer.published(self._account, self._stream, self._name, self._log, first_seq, subjects, hlens,
                                   bodies)
        if pending.removed:
            self._retention.remove_listed(pending.removed)

    def _count(self, pending: Pending) -> None:
        """Remember the totals of the counters that were appended."""
        seqs = {msg[0]: seq for seq, msg in enumerate(pending.msgs, pending.first_seq)}
        for subject, total in pending.totals.items():
            if total.as_stored:
                self._context.totals.remember(subject, seqs[subject], total)

    def acknowledge_unstored(self, pending: Pending, candidate: Candidate) -> None:
        """Use a sequence for a message that is not stored, and acknowledge it. No other message may be pending."""
        live, seq, msg_id = self._live, self._live.last_seq + 1, candidate.msg_id
        block = self._log.block(self._stream)
        if block.empty:
            # The sequence has no message; without this record the outcome would not be stored.
            block.remove(seq, seq, 0, 0)
        live.skip_to(seq)
        at_ns = live.ahead.decision_ns(pending.time_ns)
        self._dedupe.add({msg_id: seq} if msg_id else {}, msg_id, at_ns, stored=False)
        self._replies.accepted(pending.source, (candidate.reply,), seq)
        pending.begin(seq + 1)
        if candidate.after is not None:
            self.follow_up(candidate.after)

    def follow_up(self, after: Callable[[], None]) -> None:
        """Run the follow-up of the stream's last message (``Candidate.after``)."""
        try:
            after()
        except Exception as error:
            self.handle_unexpected(error, index=True)

    def handle_unexpected(self, error: Exception, *, index: bool) -> None:
        """Log an unexpected error, and make sure that no wrong state is used afterwards.

        Args: ``index``: the subject index may be wrong; it is rebuilt from the messages.
        """
        if index:
            self._subjects.forget()
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._logged_ns >= _LOG_INTERVAL_NS:
            self._logged_ns = now_ns
            _log.error("stream %s: a publish failed", self._name, exc_info=error)
        if not self._live.counts(self._log.block(self._stream)):
            _log.critical("stream %s: its numbers are not those of its messages, so nothing more is stored", self._name)
            self._log.fail(error)

    def skip_to(self, last_seq: int) -> None:
        """Skip the sequences up to ``last_seq``."""
        live, index = self._live, self._subjects.index
        if index is not None and index.merged_seq == live.last_seq:
            index.merged_seq = last_seq
        live.skip_to(last_seq)
