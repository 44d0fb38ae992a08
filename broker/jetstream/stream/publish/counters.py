"""Message counters: each message of such a stream adds to its subject's total, which is stored as its payload.

    publish  Nats-Incr: +5, no payload ──> stored  Nats-Incr: +5, {"val":"12"} ──> PubAck  …,"val":"12"

Totals are integers of any size. Streams may sum up the counters of their sources. The increment of a copied message is
then the difference between its total and the previous total from the same stream and subject. So the sum stays right if
messages are missing there, or come twice:

    copied   Nats-Incr: +5, {"val":"12"}  ──> stored  Nats-Incr: 9, {"val":"109"}, Nats-Counter-Sources:
    {"EU":{"hits":"12"}}

Every later message of the subject repeats ``Nats-Counter-Sources``.

Does not own: the totals (totals).

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; ADR-49.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.publish.expectations import (
    LAST_MSG_ID,
    LAST_SEQUENCE,
    LAST_SUBJECT_SEQUENCE,
    STREAM,
    SUBJECT,
)
from broker.jetstream.stream.publish.limits import HEADERS_BYTES_MAX, Limits
from broker.jetstream.stream.publish.rollup import ROLLUP
from broker.jetstream.stream.publish.sources import SOURCE
from broker.jetstream.stream.publish.totals import SOURCES, TOTAL_DIGITS_MAX, Sources, Total, integer
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["INCREMENT", "add", "add_copied", "fits", "valid"]

INCREMENT: Final = b"Nats-Incr"

_ALONE: Final = (ROLLUP, STREAM, LAST_MSG_ID, SUBJECT, LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE)
"""Headers that an increment cannot be combined with."""

_VALUE_END: Final = 10 ** TOTAL_DIGITS_MAX
"""Totals must stay below this number, or they could not be parsed again."""


def valid(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10171 if not an integer or with a header of ``_ALONE``, 10168 without counters, 10170 with a
    payload."""
    def check(candidate: Candidate) -> None:
        if not (text := candidate.headers.get(INCREMENT)):
            return
        if integer(text.decode("latin-1")) is None:
            raise ApiError(ApiErrors.MESSAGE_INCR_INVALID)
        if not config.allow_msg_counter:
            raise ApiError(ApiErrors.MESSAGE_INCR_DISABLED)
        if len(candidate.body) > candidate.hlen:
            raise ApiError(ApiErrors.MESSAGE_INCR_PAYLOAD)
        if any(map(candidate.headers.get, _ALONE)):
            raise ApiError(ApiErrors.MESSAGE_INCR_INVALID)
    return check


def add(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10169 without an increment, or 10172; otherwise set the new total as the message's payload."""
    latest = _Latest(context, config)

    def check(candidate: Candidate) -> None:
        text = candidate.headers.get(INCREMENT) if candidate.hlen else None
        if not text:
            raise ApiError(ApiErrors.MESSAGE_INCR_MISSING)
        total = latest.total_before(candidate)
        block = candidate.body[:candidate.hlen]
        if total.sources:
            block = header_block.set(block, SOURCES, _json(total.sources))
        _become(candidate, block, Total(total.value + int(text), total.sources))
        if not total.sources and SOURCES in candidate.headers and candidate.total is not None:
            # A client made up sources: the next message uses them, but not if it is in the same batch.
            block, payload = candidate.body[:candidate.hlen], candidate.body[candidate.hlen:]
            parsed = Total.of(block, payload)
            candidate.total = (parsed._replace(value=candidate.total.value) if not candidate.pending.batched
                               else candidate.total._replace(as_stored=False))
    return check if config.allow_msg_counter else None


def add_copied(context: CheckContext, config: StreamConfig) -> Check | None:
    """Do the same for a message copied from a source: 10169 if it is no increment, 10172 if it has no total."""
    latest = _Latest(context, config)

    def check(candidate: Candidate) -> None:
        if not candidate.headers.get(INCREMENT):
            raise ApiError(ApiErrors.MESSAGE_INCR_MISSING)
        total, copied = latest.total_before(candidate), Total.of(b"", candidate.body[candidate.hlen:])
        if copied.broken:
            raise ApiError(ApiErrors.MESSAGE_COUNTER_BROKEN)
        tokens = candidate.headers[SOURCE].decode("utf-8", "replace").split(" ")
        origin, subject = tokens[0], tokens[4]
        subjects = total.sources.get(origin) or {}
        increment = copied.value - (integer(subjects.get(subject, ""), TOTAL_DIGITS_MAX) or 0)
        sources = total.sources | {origin: subjects | {subject: str(copied.value)}}
        block = header_block.set(candidate.body[:candidate.hlen], INCREMENT, b"%d" % increment)
        _become(candidate, header_block.set(block, SOURCES, _json(sources)), Total(total.value + increment, sources))
    return check if config.allow_msg_counter else None


def fits(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse with 10054 or 10097 a message that its total and sources made too large."""
    most = config.max_msg_size

    def check(candidate: Candidate) -> None:
        if 0 <= most < len(candidate.body):
            raise ApiError(ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
        if candidate.hlen > HEADERS_BYTES_MAX:
            raise ApiError(ApiErrors.STREAM_HEADER_EXCEEDS_MAXIMUM)
    return check if config.allow_msg_counter else None


class _Latest:
    """The totals before a message."""

    __slots__ = ("_context", "_trims")

    def __init__(self, context: CheckContext, config: StreamConfig) -> None:
        self._context = context
        self._trims = Limits(config).whole

    def total_before(self, candidate: Candidate) -> Total:
        """Return the total of the message's subject. Raises: ApiError 10172; NotLoaded."""
        pending, subject = candidate.pending, candidate.subject
        total = pending.totals.get(subject)
        if total is None:
            if self._trims:
                # The messages accepted before may cause the removal of the subject's last message.
                self._context.commit_pending(pending)
            total = self._context.totals.get(subject)
        if total.broken:
            raise ApiError(ApiErrors.MESSAGE_COUNTER_BROKEN)
        return total


def _become(candidate: Candidate, block: bytes, total: Total) -> None:
    """Set the message's headers, and the total as its payload. Raises: ApiError 10171."""
    if abs(total.value) >= _VALUE_END:
        raise ApiError(ApiErrors.MESSAGE_INCR_INVALID)
    payload = b'{"val":"%d"}' % total.value
    candidate.size += len(block) + len(payload) - len(candidate.body)
    candidate.hlen, candidate.body = len(block), block + payload
    candidate.total = total


def _json(sources: Sources) -> bytes:
    """Return JSON as nats-server writes it: keys sorted, and ``<``, ``>`` and ``&`` escaped."""
    text = json.dumps(sources, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "replace")
