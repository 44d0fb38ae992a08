"""Message counters: each message of such a stream adds to its subject's total, which is stored as the message's payload.

    publish  Nats-Incr: +5, no payload ──> stored  Nats-Incr: +5, {"val":"12"} ──> PubAck  …,"val":"12"

Totals are integers of any size. A message that came from another stream's counter also has ``Nats-Counter-Sources``, which
every later message of its subject carries on.

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
from broker.jetstream.stream.publish.limits import Limits
from broker.jetstream.stream.publish.rollup import ROLLUP
from broker.jetstream.stream.publish.totals import SOURCES, Sources, Total, integer
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["INCREMENT", "add", "valid"]

INCREMENT: Final = b"Nats-Incr"

_ALONE: Final = (ROLLUP, STREAM, LAST_MSG_ID, SUBJECT, LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE)
"""Headers that an increment cannot be combined with."""


def valid(context: CheckContext, config: StreamConfig) -> Check:
    """10171 if not an integer, 10168 without counters, 10170 with a payload, 10171 with a header of ``_ALONE``."""
    def check(candidate: Candidate) -> None:
        if not (text := candidate.headers.get(INCREMENT)):
            return
        if integer(text.decode("latin-1")) is None:
            raise ApiError(10171)
        if not config.allow_msg_counter:
            raise ApiError(10168)
        if len(candidate.body) > candidate.hlen:
            raise ApiError(10170)
        if any(map(candidate.headers.get, _ALONE)):
            raise ApiError(10171)
    return check


def add(context: CheckContext, config: StreamConfig) -> Check | None:
    """10169 without an increment, 10172; otherwise the message gets the new total as its payload."""
    totals, trims = context.totals, Limits(config).whole

    def check(candidate: Candidate) -> None:
        text = candidate.headers.get(INCREMENT) if candidate.hlen else None
        if not text:
            raise ApiError(10169)
        pending, subject = candidate.pending, candidate.subject
        total = pending.totals.get(subject)
        if total is None:
            if trims:
                # The messages accepted before may push the subject's last message out.
                context.commit_pending(pending)
            total = totals.of(subject)
        if total.broken:
            raise ApiError(10172)
        try:
            value = b"%d" % (total.value + int(text))
        except ValueError:  # too many digits
            raise ApiError(10171) from None
        block = candidate.body[:candidate.hlen]
        if total.sources:
            block = header_block.set(block, SOURCES, _json(total.sources))
        payload = b'{"val":"%b"}' % value
        candidate.size += len(block) + len(payload) - len(candidate.body)
        candidate.hlen, candidate.body = len(block), block + payload
        candidate.total = Total(int(value), total.sources)
        if not total.sources and SOURCES in candidate.headers:
            # A client made up sources: the next message finds them, but not in the same batch.
            candidate.total = (Total.of(block, payload)._replace(value=int(value)) if not pending.batched
                               else candidate.total._replace(as_stored=False))
    return check if config.allow_msg_counter else None


def _json(sources: Sources) -> bytes:
    """JSON as nats-server writes it: keys sorted, and ``<``, ``>`` and ``&`` escaped."""
    text = json.dumps(sources, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "replace")
