"""The checks of roll-ups: recognise a roll-up, and plan its removals.

Does not own: finding and removing the messages (retention.rollup).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["ROLLUP", "check_rollup", "is_allowed", "plan", "requested"]

ROLLUP = b"Nats-Rollup"


def requested(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10111 a roll-up that is not allowed, or has another value than ``sub`` and ``all``."""
    allowed = is_allowed(config)

    def check(candidate: Candidate) -> None:
        value = candidate.rollup or candidate.headers.get(ROLLUP, b"").lower()
        if not value:
            return
        if not allowed and candidate.copied:
            return  # it was a roll-up in the origin
        check_rollup(value, allowed=allowed)
        candidate.rollup = value
    return check


def is_allowed(config: StreamConfig) -> bool:
    """Return whether messages of the stream may be roll-ups."""
    return config.allow_rollup_hdrs and not config.deny_purge


def check_rollup(value: bytes, *, allowed: bool) -> None:
    """Check the value of the header, in lower case. Raises: ApiError 10111."""
    if not allowed:
        raise ApiError(ApiErrors.STREAM_ROLLUP_FAILED, err="rollup not permitted")
    if value not in (b"sub", b"all"):
        raise ApiError(ApiErrors.STREAM_ROLLUP_FAILED,
                       err=f"rollup value invalid: {json.dumps(value.decode('utf-8', 'replace'))}")


def plan(context: CheckContext, config: StreamConfig) -> Check:
    """Plan the removals of a roll-up while the publish may still wait for loading; refuses nothing."""
    rollups = context.rollups

    def check(candidate: Candidate) -> None:
        if candidate.rollup:
            # A roll-up and its removals are stored in one block, so nothing else may be pending.
            context.commit_pending(candidate.pending)
            candidate.after = rollups.plan(candidate.subject if candidate.rollup == b"sub" else None)
    return check
