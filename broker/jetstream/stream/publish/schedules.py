"""Scheduled messages: the checks of schedules and of messages that end one, and the messages that a schedule publishes.

    Nats-Schedule: @every 1h          a schedule: one per subject (it rolls its subject up)
    Nats-Schedule-Target: orders.tick      where it publishes, with headers and payload of the schedule, or of the last
    Nats-Schedule-Source: orders.latest    message of another subject
    Nats-Schedule-Next: purge         with Nats-Scheduler: a message that ends the schedule under that subject

Does not own: the time at which a schedule is due (scheduler), patterns (cron).

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; server/scheduler.go; ADR-51.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from functools import cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from broker.base.gotime import ZERO_TIME_NS
from broker.jetstream.filters import Filters
from broker.jetstream.stream.publish.cron import Firing, fires_at
from broker.jetstream.stream.publish.rollup import ROLLUP
from broker.jetstream.stream.publish.ttl import TTL_INVALID, parse_ttl
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block
from broker.protocol.subject import is_literal, is_valid
from broker.storage.format.records.expiry import NEVER

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["HEADERS", "PATTERN", "PURGE", "SCHEDULER", "SOURCE", "TARGET", "TIME_ZONE", "firing",
           "plan", "produced", "valid", "zone_of"]

PATTERN: Final = b"Nats-Schedule"
SCHEDULER: Final = b"Nats-Scheduler"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
_TTL: Final = b"Nats-Schedule-TTL"
_ROLLUP: Final = b"Nats-Schedule-Rollup"
TIME_ZONE: Final = b"Nats-Schedule-Time-Zone"
_NEXT: Final = b"Nats-Schedule-Next"

PURGE: Final = b"purge"

_AT: Final = b"@at "

_DUE_MIN_NS: Final = 1
"""Lowest due time: the record of schedules gives 0 another meaning."""

_DUE_MAX_NS: Final = NEVER - 1

HEADERS: Final = (PATTERN, TIME_ZONE, _NEXT, SCHEDULER, TARGET, SOURCE, _TTL, _ROLLUP)

_NOT_PASSED_ON: Final = (b"Nats-Msg-Id", b"Nats-TTL", ROLLUP)
_FAMILIES_NOT_PASSED_ON: Final = (b"Nats-Schedule", b"Nats-Expected-")


def valid(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10188 if not allowed; 10189, 10223, 10191, 10192, 10166, 10190, 10203 for a schedule; 10212 for its
    end.

    Messages from the stream's own scheduler have passed these checks already; each schedule publishes once for each
    time that it fires.
    """
    scheduler, ahead = context.scheduler, context.live.ahead

    @cache
    def stored() -> Filters:
        """Return the filters of the stream's subjects. Most streams never need them here."""
        return Filters(config.subjects_bytes)

    def check(candidate: Candidate) -> None:
        get = candidate.headers.get
        if candidate.pending.source is scheduler.source:
            name = get(SCHEDULER, b"")
            context.commit_pending(candidate.pending)
            due, purges = scheduler.next_of(name), get(_NEXT, b"") == PURGE
            if due is None or (purges and scheduler.ended_since(name)):
                # While the message waited, its schedule fired again or was removed, or the purge would remove newer
                # messages.
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            if purges:
                candidate.ends = name
            else:
                candidate.due = due
            return
        following, pattern = get(_NEXT, b""), get(PATTERN, b"")
        if pattern and not config.allow_msg_schedules and not pattern.startswith(_AT):
            # Refuse without parsing the pattern; only an ``@at`` pattern may stand for no schedule.
            raise ApiError(ApiErrors.MESSAGE_SCHEDULES_DISABLED)
        at_ns = ahead.decision_ns(candidate.pending.time_ns)
        try:
            found = firing(pattern, get(TIME_ZONE), at_ns, at_ns)
        except ApiError:
            if not config.allow_msg_schedules:
                raise ApiError(ApiErrors.MESSAGE_SCHEDULES_DISABLED) from None
            raise
        if found is not None:
            if not config.allow_msg_schedules:
                raise ApiError(ApiErrors.MESSAGE_SCHEDULES_DISABLED)
            _check_schedule(candidate, get, config, stored)
            candidate.due = 0, found.at_ns
        name = get(SCHEDULER, b"")
        if following:
            if following != PURGE or not _publishable(name) or name == candidate.subject:
                raise ApiError(ApiErrors.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
            if not config.allow_msg_schedules:
                raise ApiError(ApiErrors.MESSAGE_SCHEDULES_DISABLED)
            pending = candidate.pending
            context.commit_pending(pending)
            if not (pending.schedule(name) is not None if pending.last_of(name) else scheduler.may_end(name)):
                raise ApiError(ApiErrors.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
            candidate.ends = name
        elif name:
            raise ApiError(ApiErrors.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
    return check


def plan(context: CheckContext, config: StreamConfig) -> Check | None:
    """Plan the end of the schedule that the message ends, while the publish may still wait for loading; refuses
    nothing."""
    def check(candidate: Candidate) -> None:
        if candidate.ends:
            pending = candidate.pending
            context.commit_pending(pending)
            ending = context.rollups.plan(candidate.ends, pending.schedule(candidate.ends))
            candidate.after = _both(candidate.after, ending)
    return check if config.allow_msg_schedules else None


def _both(first: Callable[[], None] | None, second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        if first is not None:
            first()
        second()
    return both


def _check_schedule(candidate: Candidate, get: Callable[[bytes, bytes], bytes], config: StreamConfig,
                    stored: Callable[[], Filters]) -> None:
    ttl, rollup, target, source = get(_TTL, b""), get(_ROLLUP, b""), get(TARGET, b""), get(SOURCE, b"")
    if ttl and parse_ttl(ttl) == TTL_INVALID:
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_TTL_INVALID)
    if rollup not in (b"", b"sub"):
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_ROLLUP_INVALID)
    if ttl and not config.allow_msg_ttl:
        raise ApiError(ApiErrors.MESSAGE_TTL_DISABLED)
    if not _publishable(target) or target == candidate.subject:
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_TARGET_INVALID)
    if source and (not _publishable(source) or source in (target, candidate.subject)):
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_SOURCE_INVALID)
    if not config.subjects or not stored().match(target):
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_TARGET_INVALID)
    if source and not stored().match(source):
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_SOURCE_INVALID)
    own = get(ROLLUP, b"").lower()
    if not own:
        block = header_block.set(candidate.body[:candidate.hlen], ROLLUP, b"sub")
        candidate.size += len(block) - candidate.hlen
        candidate.hlen, candidate.body = len(block), block + candidate.body[candidate.hlen:]
        candidate.rollup = b"sub"
    elif own != b"sub":
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_ROLLUP_INVALID)


def _publishable(subject: bytes) -> bool:
    return bool(subject) and is_valid(subject) and is_literal(subject)


def firing(pattern: bytes, zone_name: bytes | None, after_ns: int, now_ns: int) -> Firing | None:
    """Return when a schedule fires; None if there is no pattern, or a pattern that stands for none (Go's zero time).

    The result is within the range of times that can be stored. A schedule for a later time fires at the end of that
    range, in the year 2262. (On nats-server the number wraps around, and such a schedule fires at once.) All times
    before 1970 count as passed.

    Raises: ApiError 10223, 10189.
    """
    zone: tzinfo | None = None
    if zone_name is not None:
        try:
            zone = ZoneInfo(zone_name.decode())
        except (ValueError, OSError, KeyError):
            raise ApiError(ApiErrors.MESSAGE_SCHEDULES_TIME_ZONE_INVALID) from None
    if not pattern:
        return None
    try:
        found = fires_at(pattern.decode(), zone, after_ns, now_ns)
    except ValueError:  # includes UnicodeDecodeError
        raise ApiError(ApiErrors.MESSAGE_SCHEDULES_PATTERN_INVALID) from None
    if found.at_ns == ZERO_TIME_NS:
        return None
    return found._replace(at_ns=min(max(found.at_ns, _DUE_MIN_NS), _DUE_MAX_NS))


def produced(schedule: bytes, subject: bytes, content: bytes, following: bytes) -> bytes:
    """Return the headers of a message that a schedule publishes.

    Args: ``schedule``: the schedule's header block; ``content``: the header block of the message to pass on;
        ``following``: the time of the next firing, or ``PURGE``.
    """
    dropped = {name for name, _ in header_block.items(content)
               if name.startswith(_FAMILIES_NOT_PASSED_ON) or name in _NOT_PASSED_ON}
    block = header_block.remove(content, *dropped) if dropped else content
    for name, value in ((SCHEDULER, subject), (_NEXT, following), (b"Nats-TTL", header_block.get(schedule, _TTL)),
                        (ROLLUP, header_block.get(schedule, _ROLLUP))):
        if value:
            block = header_block.set(block, name, value)
    return block


def zone_of(schedule: bytes) -> bytes | None:
    """Return the name of the time zone in a schedule's headers."""
    return header_block.get(schedule, TIME_ZONE)
