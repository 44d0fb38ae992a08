"""Republishes messages of a stream when they are stored, with headers that locate each in the stream.

    Nats-Stream, Nats-Subject, Nats-Sequence, Nats-Time-Stamp     of the stored message
    Nats-Last-Sequence                                            of the previous message with its subject; 0: none
    Nats-Msg-Size                                                 in place of the payload, with ``headers_only``

Does not own: the time at which they are sent (the log); the rule that none enters a stream during a decision (bus).

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.base.gotime import format_time
from broker.protocol.subject import is_literal, is_valid
from broker.protocol.subject_transform import SUBJECT_MAX, make_transform

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["republish"]

_log = logging.getLogger(__name__)

_FIRST_LINE = b"NATS/1.0\r\n"


def republish(context: CheckContext, config: StreamConfig) -> Check | None:
    """Republish the message when it is stored; refuses nothing. The last check, so that it sends what is stored."""
    given = config.republish
    made = make_transform(given.src.encode(), given.dest.encode()) if given is not None else None
    if given is None or made is None:
        return None
    match, headers_only, name = made.match, given.headers_only, config.name.encode()
    last_seqs, publish = context.last_seqs, context.publish_when_stored

    def check(candidate: Candidate) -> None:
        subject = candidate.subject
        to = match(subject)
        if to is None:
            return
        if not to:
            _log.warning("stream %s does not republish to a subject of more than %d bytes", config.name, SUBJECT_MAX)
            return
        if not is_valid(to) or not is_literal(to):
            _log.warning("stream %s does not republish to the invalid subject %r", config.name, to)
            return
        pending = candidate.pending
        context.commit_pending(pending)
        last_seq = pending.last_of(subject) or last_seqs.find(subject)
        seq, time_ns, hlen, body = pending.last_seq + 1, pending.time_ns, candidate.hlen, candidate.body
        before = candidate.after

        def after() -> None:
            if before is not None:
                before()
            block = (body[:hlen - 2] if hlen else _FIRST_LINE) + (
                b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
                b"Nats-Last-Sequence: %d\r\n" % (name, subject, seq, format_time(time_ns).encode(), last_seq))
            if headers_only:
                block += b"Nats-Msg-Size: %d\r\n" % (len(body) - hlen)
            block += b"\r\n"
            publish(to, len(block), block if headers_only else block + body[hlen:])
        candidate.after = after
    return check
