"""The limits of a stream, and the checks of the stream's state and of sizes.

Does not own: removing messages after a publish (retention).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.state.live import Live

__all__ = ["HEADERS_BYTES_MAX", "RECORD_BYTES_MAX", "Limits", "discard_new", "header_size", "last_sequence",
           "payload_size", "record_size", "sealed", "storage", "subject_full", "subject_index", "trim_before"]

RECORD_BYTES_MAX: Final = 32 << 20
"""nats-server's bound on one message's record."""

HEADERS_BYTES_MAX: Final = 65_535

_FAR: Final = SEQ_MAX >> 1
"""Streams whose last sequence is lower have sequences for a century at a billion messages a second."""


class Limits:
    """A stream's limits as publishing uses them; 0: none.

    Attributes: ``whole``: True if a limit applies to the whole stream, not only to each subject. ``trim_each``: True if
        removals by one kind of limit make room for the other kind, so that clients see the order of replacing and
        trimming. ``each``: True if messages that exceed a limit of the whole stream must be decided one by one.
    """

    __slots__ = ("each", "max_bytes", "max_msgs", "per_subject", "trim_each", "whole")

    def __init__(self, config: StreamConfig) -> None:
        self.per_subject = max(config.max_msgs_per_subject, 0)
        self.max_msgs = max(config.max_msgs, 0)
        self.max_bytes = max(config.max_bytes, 0)
        self.whole = bool(self.max_msgs or self.max_bytes)
        self.trim_each = self.whole and bool(self.per_subject)
        self.each = self.trim_each or (self.whole and config.discard == "new")

    def exceeded(self, live: Live, msgs: int, size: int) -> bool:
        """Return whether ``msgs`` more messages of ``size`` in total take the stream past max_msgs or max_bytes."""
        return bool((self.max_msgs and live.msgs + msgs > self.max_msgs)
                    or (self.max_bytes and live.size_bytes + size > self.max_bytes))


def trim_before(context: CheckContext, config: StreamConfig) -> Check | None:
    """Trim the stream to its limits before each message; refuses nothing. See ``Limits.trim_each``."""
    limits, live = Limits(config), context.live

    def check(candidate: Candidate) -> None:
        pending = candidate.pending
        if limits.exceeded(live, len(pending.msgs) - len(pending.removed), pending.bytes - pending.removed_bytes):
            context.commit_pending(pending)
    return check if limits.trim_each else None


def record_size(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10077 a message larger than a record in nats-server's files can be."""
    def check(candidate: Candidate) -> None:
        if candidate.size > RECORD_BYTES_MAX:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="message too large")
    return check


def sealed(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse each message of a sealed stream with 10109."""
    def check(candidate: Candidate) -> None:
        raise ApiError(ApiErrors.STREAM_SEALED)
    return check if config.sealed else None


def payload_size(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10054 a message larger than max_msg_size, headers included."""
    most = config.max_msg_size

    def check(candidate: Candidate) -> None:
        if len(candidate.body) > most:
            raise ApiError(ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    return check if most >= 0 else None


def header_size(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse too large headers with 10097."""
    def check(candidate: Candidate) -> None:
        if candidate.hlen > HEADERS_BYTES_MAX:
            raise ApiError(ApiErrors.STREAM_HEADER_EXCEEDS_MAXIMUM)
    return check


def storage(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10023 or 10002, by the limits of the server and the account on all streams of this storage."""
    live = context.live

    def check(candidate: Candidate) -> None:
        pending = candidate.pending
        usage = live.usage  # replaced when the account's limits change
        if usage.size_bytes + pending.bytes - pending.removed_bytes + candidate.size > usage.bytes_max:
            # The stream's own limits may remove messages for the pending ones, which makes room.
            context.commit_pending(pending)
            err_code = usage.refusal(candidate.size, pending.time_ns)
            if err_code:
                raise ApiError(err_code)
    return check


def subject_index(context: CheckContext, config: StreamConfig) -> Check | None:
    """Make the index ready in a stream that limits subjects; refuses nothing."""
    subjects = context.subjects

    def check(candidate: Candidate) -> None:
        index, pending = subjects.index, candidate.pending
        if index is None or index.merged_seq < pending.last_seq:
            pending.append()
            index = subjects.ready()
        candidate.index = index
    return check if Limits(config).per_subject else None


def last_sequence(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10077 if there is no sequence left. Only streams that begin beyond ``_FAR`` ever get there."""
    def check(candidate: Candidate) -> None:
        if candidate.pending.last_seq >= SEQ_MAX:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="the stream has used its last sequence")
    return check if context.live.last_seq >= _FAR else None


def subject_full(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10077 a message whose subject is full, in a stream with ``discard_new_per_subject``."""
    per_subject, live = Limits(config).per_subject, context.live

    def check(candidate: Candidate) -> None:
        index = candidate.index
        if index is not None and not candidate.rollup and index.count(candidate.subject, live.first_seq) >= per_subject:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages per subject exceeded")
    return check if config.discard == "new" and config.discard_new_per_subject and per_subject else None


def discard_new(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10077 by max_msgs and max_bytes of a stream that discards new messages."""
    limits, live = Limits(config), context.live
    per_subject, max_msgs, max_bytes = limits.per_subject, limits.max_msgs, limits.max_bytes

    def check(candidate: Candidate) -> None:
        pending, index = candidate.pending, candidate.index
        replaces, replaced_size = False, 0
        if index is not None and index.count(candidate.subject, live.first_seq) >= per_subject:
            replaces, replaced_size = True, index.first(candidate.subject, live.first_seq)[1]
        if max_msgs and not replaces and live.msgs + len(pending.msgs) - len(pending.removed) >= max_msgs:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages exceeded")
        if (max_bytes and live.size_bytes + pending.bytes - pending.removed_bytes + candidate.size > max_bytes
                and (not replaces or replaced_size < candidate.size)):
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum bytes exceeded")
    return check if config.discard == "new" and limits.whole else None
