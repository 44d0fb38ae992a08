"""Reports a stream's decision on a message to the message's trace.

Owns: deciding about a traced message in advance, by the checks of any publish; refusing a message that is only traced.
Does not own: storing or refusing other messages afterwards (sequencer), the trace (protocol.traced).

    checks up to where nats-server knows the subject and the interest ──> reported
    the other checks, unless the message is only traced               ──> their error is reported, too

A message that is stored is not traced again when it is delivered: its ``Nats-Trace-Dest`` is disabled.

Source: nats-server, server/stream.go, processInboundJetStreamMsg, processJetStreamMsgWithBatch; server/msgtrace.go,
updateJetStreamEvent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.stream.publish import expectations, unwanted
from broker.jetstream.stream.publish.batches import BatchMember, FastMember
from broker.jetstream.stream.publish.candidate import Candidate, Duplicate
from broker.jetstream.stream.publish.checks import TABLE, Checks
from broker.jetstream.stream.publish.pending import Pending
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers
from broker.protocol.traced import DEST, DISABLED, TracedMsg

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.publish.replies import Replies

__all__ = ["decide"]

_KNOWN = next(at for at, rule in enumerate(TABLE) if rule.make is unwanted.unwanted)

_PLAIN = (ApiErrors.STREAM_NOT_MATCH, ApiErrors.STREAM_STORE_FAILED, ApiErrors.STREAM_ROLLUP_FAILED)
"""Errors that nats-server shows in traces without their number."""

_OTHER_WORDS = {ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM: "maximum payload exceeded",
                ApiErrors.STREAM_HEADER_EXCEEDS_MAXIMUM: "maximum payload exceeded",
                ApiErrors.MESSAGE_TTL_DISABLED: "message TTL disabled"}


def decide(msg: TracedMsg, source: Source | None, time_ns: int, context: CheckContext, config: StreamConfig,
         replies: Replies) -> Msg | None:
    """Decide about a message, and report the decision to its trace.

    Returns: the message for the stream, which will decide about it in the same way; None if it was only traced.
    Raises: NotLoaded; then nothing is reported.
    """
    stored = None if msg.trace.only else _untraced(msg)
    candidate = Candidate(Pending(context.live.last_seq + 1, source, time_ns, lambda pending: True))
    candidate.begin(stored or msg)
    subject, no_interest, error = b"", False, ""
    try:
        _check(candidate, Checks(context, config, TABLE[:_KNOWN]))
        subject = candidate.subject
        no_interest = config.retention == "interest" and not context.interest.wants(subject)
        if stored is not None and not no_interest:
            _check(candidate, Checks(context, config, TABLE[_KNOWN:]))
    except (BatchMember, FastMember):
        # The batch decides later, and only a message that is really published can belong to it.
        pass
    except Duplicate as duplicate:
        error = "msgid is duplicate"
        if stored is None:
            replies.duplicate(source, msg[1], duplicate.seq)
    except ApiError as refusal:
        error = _words(refusal, candidate)
        if stored is None:
            replies.refused(source, msg[1], refusal)
    msg.trace.decided(config.name, subject, no_interest=no_interest, error=error)
    return stored


def _check(candidate: Candidate, checks: Checks) -> None:
    for check in checks.for_headers(candidate) if candidate.hlen else checks.without_headers:
        check(candidate)


def _untraced(msg: Msg) -> Msg:
    subject, reply, hlen, body = msg
    block = headers.set(body[:hlen], DEST, DISABLED)
    return subject, reply, len(block), block + body[hlen:]


def _words(error: ApiError, candidate: Candidate) -> str:
    """Return the error as nats-server's traces show it."""
    code, text = error.err_code, error.description
    if code == ApiErrors.STREAM_WRONG_LAST_SEQUENCE:
        last = text.rpartition(" ")[2]
        by_subject = candidate.headers.get(expectations.LAST_SUBJECT_SEQUENCE)
        expected = by_subject or candidate.headers.get(expectations.LAST_SEQUENCE) or b""
        how = " by subject" if by_subject else ""
        return f"last sequence{how} mismatch: {expected.decode('utf-8', 'replace')} vs {last}"
    if code == ApiErrors.STREAM_WRONG_LAST_MSG_ID:
        expected = candidate.headers.get(expectations.LAST_MSG_ID) or b""
        last_id = text.removeprefix("wrong last msg ID: ")
        return f'last msgid mismatch: "{expected.decode("utf-8", "replace")}" vs "{last_id}"'
    return _OTHER_WORDS.get(code) or (text if code in _PLAIN else f"{text} ({code})")
