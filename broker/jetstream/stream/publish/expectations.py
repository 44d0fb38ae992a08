"""Checks of a publisher's expectations: the stream's name, its last sequence, a subject's last sequence, the last id.

Source: nats-server, server/stream.go, getExpectedStream, getExpectedLastSeq, getExpectedLastSeqPerSubject,
getExpectedLastMsgId.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.stream.publish.duplicates import IDS
from broker.jetstream.stream.publish.headers import parse_expected
from broker.jetstream.stream.publish.limits import Limits
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["LAST_MSG_ID", "LAST_SEQUENCE", "LAST_SUBJECT_SEQUENCE", "STREAM", "SUBJECT", "last_msg_id",
           "last_sequence", "last_subject_sequence", "stream"]

STREAM = b"Nats-Expected-Stream"
LAST_SEQUENCE = b"Nats-Expected-Last-Sequence"
LAST_SUBJECT_SEQUENCE = b"Nats-Expected-Last-Subject-Sequence"
SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"
LAST_MSG_ID = b"Nats-Expected-Last-Msg-Id"


def stream(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse another stream's name with 10060."""
    name = config.name.encode()

    def check(candidate: Candidate) -> None:
        expected = candidate.headers[STREAM]
        if expected and expected != name and not context.shares(candidate.subject, expected):
            raise ApiError(ApiErrors.STREAM_NOT_MATCH)
    return check


def last_subject_sequence(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10071 a wrong last sequence of the message's subject, or of the subject in a second header; or
    10193."""
    live, subjects, last_seqs = context.live, context.subjects, context.last_seqs
    limits = Limits(config)
    tracked = limits.per_subject and not limits.whole

    def check(candidate: Candidate) -> None:
        get, pending = candidate.headers.get, candidate.pending
        subject = get(SUBJECT)
        if not (text := get(LAST_SUBJECT_SEQUENCE)):
            if subject:
                raise ApiError(ApiErrors.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID)
            return
        index = subjects.index
        if tracked and not subject and index is not None and index.merged_seq == pending.last_seq:
            # The index includes pending messages.
            last = index.last(candidate.subject, live.first_seq) or 0
        else:
            context.commit_pending(pending)
            last = last_seqs.find(subject or candidate.subject)
        if last != parse_expected(text):
            raise ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE, seq=last)
    return check


def last_sequence(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse a wrong last sequence of the stream with 10071."""
    def check(candidate: Candidate) -> None:
        if text := candidate.headers[LAST_SEQUENCE]:
            last = candidate.pending.last_seq
            if last != parse_expected(text):
                raise ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE, seq=last)
    return check


def last_msg_id(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse a wrong id of the stream's last message with 10070."""
    dedupe, load_ids = context.dedupe, context.msg_ids.load

    def check(candidate: Candidate) -> None:
        if not (expected := candidate.headers[LAST_MSG_ID]):
            return
        pending = candidate.pending
        last_id = pending.last_id if pending.msgs else dedupe.last_id
        if last_id is None:
            raise NotLoaded(IDS, work=load_ids)
        if expected != last_id:
            raise ApiError(ApiErrors.STREAM_WRONG_LAST_MSG_ID, id=last_id.decode("utf-8", "replace"))
    return check
