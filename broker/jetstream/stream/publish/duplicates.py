"""The check for messages whose id was seen within the stream's duplicate window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.stream.publish.candidate import Duplicate
from broker.jetstream.stream.publish.headers import MSG_ID
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["IDS", "duplicate"]

IDS = "the ids of the duplicate window"
"""Name of the data that is not loaded right after a restart."""


def duplicate(context: CheckContext, config: StreamConfig) -> Check | None:
    """Answer a duplicate with the first message's sequence; refuse with 10167 if no more ids can be remembered.

    A mirror has no such check, because it stores all that its origin stores.
    """
    dedupe, load_ids, ahead = context.dedupe, context.msg_ids.load, context.live.ahead

    def check(candidate: Candidate) -> None:
        msg_id = candidate.msg_id = candidate.headers[MSG_ID]
        if not msg_id:
            return
        if not dedupe.known:
            raise NotLoaded(IDS, work=load_ids)
        pending = candidate.pending
        dedupe.expire(ahead.decision_ns(pending.time_ns))
        if seq := dedupe.seen(msg_id) or (dedupe.window_ns > 0 and pending.ids.get(msg_id, 0)):
            raise Duplicate(seq)
        if dedupe.full:
            raise ApiError(ApiErrors.STREAM_TOO_MANY_REQUESTS)
    return check if config.mirror is None else None
