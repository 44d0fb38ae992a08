"""The subject under which a message is stored, in a stream that transforms subjects.

Does not own: the stream's subscriptions, which have the subjects as published.

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject_transform import make_transform

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["transform"]


def transform(context: CheckContext, config: StreamConfig) -> Check | None:
    """Transform the subject; refuse with 10054 if it becomes too long.

    A subject that does not match the transform's source is kept.
    """
    given = config.subject_transform
    made = make_transform(given.src.encode(), given.dest.encode()) if given is not None else None
    if made is None:
        return None
    match = made.match

    def check(candidate: Candidate) -> None:
        subject = match(candidate.subject)
        if subject is not None:
            if not subject:
                raise ApiError(ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
            candidate.size += len(subject) - len(candidate.subject)
            candidate.subject = subject
    return check
