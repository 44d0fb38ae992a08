"""Scheduled messages. Streams do not support them yet, so the check refuses them.

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; server/scheduler.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import is_literal, is_valid

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["HEADERS", "disabled"]

_PATTERN: Final = b"Nats-Schedule"
_TIME_ZONE: Final = b"Nats-Schedule-Time-Zone"
_NEXT: Final = b"Nats-Schedule-Next"
_SCHEDULER: Final = b"Nats-Scheduler"

HEADERS: Final = (_PATTERN, _TIME_ZONE, _NEXT, _SCHEDULER)


def disabled(context: CheckContext, config: StreamConfig) -> Check:
    """10188; 10212 for a scheduler that would be refused even if schedules were allowed."""
    def check(candidate: Candidate) -> None:
        get = candidate.headers.get
        if get(_PATTERN) or _unknown_zone(get(_TIME_ZONE)):
            raise ApiError(10188)
        scheduler = get(_SCHEDULER)
        if following := get(_NEXT):
            literal = scheduler and is_valid(scheduler) and is_literal(scheduler)
            if following != b"purge" or not literal or scheduler == candidate.subject:
                raise ApiError(10212)
            raise ApiError(10188)
        if scheduler:
            raise ApiError(10212)
    return check


def _unknown_zone(name: bytes | None) -> bool:
    """Whether a schedule's time zone header is there and names no known time zone."""
    if name is None:
        return False
    try:
        ZoneInfo(name.decode())
    except (ValueError, OSError, KeyError):
        return True
    return False
