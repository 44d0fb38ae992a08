"""The checks of an atomic batch's messages at its commit, where they differ from the checks of single messages.

All messages are checked before the first one is stored. So a check sees the stream as it is before the batch; the
preceding messages of the batch are in ``candidate.pending``, a ``StagedPending`` whose ``append`` does nothing.

Source: nats-server, server/jetstream_batching.go, checkMsgHeadersPreClusteredProposal.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.jetstream.stream.publish import duplicates, expectations
from broker.jetstream.stream.publish.candidate import Duplicate
from broker.jetstream.stream.publish.headers import parse_expected
from broker.jetstream.stream.publish.limits import Limits
from broker.jetstream.stream.publish.pending import Pending
from broker.jetstream.stream.publish.ttl import TTL
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.atomic import Batch
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["StagedPending", "discard_new", "duplicate", "first_of_subject", "last_msg_id", "last_sequence",
           "last_subject_sequence", "plan", "storage", "ttl_disabled"]


class StagedPending(Pending):
    """The messages of a batch whose checks have passed, numbered as if they were in the stream.

    Attributes: ``subjects``: number of messages by subject; ``lasts``: subjects' last sequences before the batch, as
        far as they were looked up; ``rollups``: the subjects that the batch rolls up.
    """

    __slots__ = ("_last_of", "_schedules", "batch", "lasts", "rollups", "subjects")
    batched = True

    def __init__(self, batch: Batch, first_seq: int, source: Source | None, time_ns: int) -> None:
        super().__init__(first_seq, source, time_ns, lambda pending: True)
        self.batch = batch
        self.subjects: Counter[bytes] = Counter()
        self.lasts: dict[bytes, int] = {}
        self.rollups: list[bytes] = []
        self._last_of: dict[bytes, int] = {}
        self._schedules: dict[bytes, tuple[int, int]] = {}

    def last_of(self, subject: bytes) -> int:
        """Return the sequence of the last staged message with this subject. See ``Pending``."""
        return self._last_of.get(subject, 0)

    def schedule(self, subject: bytes) -> tuple[int, int] | None:
        """Return the staged schedule with this subject. See ``Pending``."""
        return self._schedules.get(subject)

    def accept(self, candidate: Candidate) -> None:
        """Add a message whose checks have passed."""
        msg = candidate.subject, candidate.reply, candidate.hlen, candidate.body
        self.add(msg, candidate.size, candidate.msg_id, ())
        if candidate.total is not None:
            self.count(candidate.subject, candidate.total)
        self.subjects[candidate.subject] += 1
        self._last_of[candidate.subject] = self.last_seq
        if candidate.due is not None:
            self._schedules[candidate.subject] = self.last_seq, candidate.size
        else:
            self._schedules.pop(candidate.subject, None)


def _staged(candidate: Candidate) -> StagedPending:
    if not isinstance(candidate.pending, StagedPending):
        raise TypeError("a check for batches got a message outside of a batch")
    return candidate.pending


def last_msg_id(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse the header with error 10177: batches cannot have it."""
    def check(candidate: Candidate) -> None:
        if candidate.headers.get(expectations.LAST_MSG_ID):
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH, header=expectations.LAST_MSG_ID.decode())
    return check


def duplicate(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10201 a message that a stream would answer as a duplicate if it were single; also with 10167."""
    single = duplicates.duplicate(context, config)
    if single is None:
        return None  # a mirror, which accepts no batches
    dedupe = context.dedupe

    def check(candidate: Candidate) -> None:
        try:
            single(candidate)
        except Duplicate:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE) from None
        # Within a batch, ids count even if the stream has no window.
        if candidate.msg_id and not dedupe.window_ns and candidate.msg_id in candidate.pending.ids:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE)
    return check


def ttl_disabled(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse any TTL header with 10166, even if its value is no TTL."""
    def check(candidate: Candidate) -> None:
        if candidate.headers[TTL]:
            raise ApiError(ApiErrors.MESSAGE_TTL_DISABLED)
    return check if not config.allow_msg_ttl else None


def last_sequence(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10071 an expectation that is not the message's preceding sequence, and with 10164 one about a
    sequence of the batch."""
    single = expectations.last_sequence(context, config)

    def check(candidate: Candidate) -> None:
        single(candidate)
        if candidate.headers[expectations.LAST_SEQUENCE] and candidate.pending.msgs:
            raise ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
    return check


def last_subject_sequence(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse a wrong expectation with 10071, a subject that the batch has written to with 10164, and a missing value
    with 10193."""
    last_seqs = context.last_seqs

    def check(candidate: Candidate) -> None:
        get, staged = candidate.headers.get, _staged(candidate)
        subject = get(expectations.SUBJECT)
        if not (text := get(expectations.LAST_SUBJECT_SEQUENCE)):
            if subject:
                raise ApiError(ApiErrors.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID)
            return
        subject = subject or candidate.subject
        if subject in staged.subjects:
            raise ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
        last = staged.lasts.get(subject)
        if last is None:
            last = staged.lasts[subject] = last_seqs.find(subject)
        if last != parse_expected(text):
            raise ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE, seq=last)
    return check


def first_of_subject(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10111 a roll-up of a subject that is not its first message in the batch.

    A roll-up of the whole stream must be the first message of the batch.
    """
    def check(candidate: Candidate) -> None:
        staged = _staged(candidate)
        if candidate.rollup == b"sub" and candidate.subject in staged.subjects:
            raise ApiError(ApiErrors.STREAM_ROLLUP_FAILED, err="batch rollup sub invalid")
        if candidate.rollup == b"all" and staged.msgs:
            raise ApiError(ApiErrors.STREAM_ROLLUP_FAILED, err="batch rollup all invalid")
    return check


def storage(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10023 or 10002, counting all messages of the batch so far."""
    live = context.live

    def check(candidate: Candidate) -> None:
        usage, pending = live.usage, candidate.pending
        size = pending.bytes + candidate.size
        if usage.size_bytes + size > usage.bytes_max and (err_code := usage.refusal(size, pending.time_ns)):
            raise ApiError(err_code)
    return check


def discard_new(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10077. Unlike a single message, a batched one makes no room by replacing messages."""
    limits, live = Limits(config), context.live
    per_subject, max_msgs, max_bytes = limits.per_subject, limits.max_msgs, limits.max_bytes
    subject_is_full = config.discard_new_per_subject

    def check(candidate: Candidate) -> None:
        staged, index = _staged(candidate), candidate.index
        if max_msgs and live.msgs + len(staged.msgs) >= max_msgs:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages exceeded")
        if max_bytes and live.size_bytes + staged.bytes + candidate.size > max_bytes:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum bytes exceeded")
        subject = candidate.subject
        if (subject_is_full and index is not None and not candidate.rollup
                and index.count(subject, live.first_seq) + staged.subjects[subject] >= per_subject):
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages per subject exceeded")
    return check if config.discard == "new" and (limits.whole or subject_is_full) else None


def plan(context: CheckContext, config: StreamConfig) -> Check:
    """Record the roll-ups of the batch; refuses nothing.

    They remove only messages stored before the batch. ``Batching`` plans all of them together, after the last check.
    """
    rollups = context.rollups

    def check(candidate: Candidate) -> None:
        if candidate.rollup == b"all":
            candidate.after = rollups.plan(None)
        elif candidate.rollup:
            staged, subject = _staged(candidate), candidate.subject
            staged.rollups.append(subject)
            plans = staged.batch.plans
            candidate.after = lambda: plans[subject]()
    return check
