"""The firing times of schedules: ``@at``, ``@every``, the predefined names, and cron expressions of six fields, seconds
first.

This module has no clock and no state. A cron expression fires in each second whose local time matches. So an hour that
daylight saving repeats fires twice, and one that it skips does not fire. nats-server does the same, except in the few
zones that skip midnight: there it misses some matches of that day and of the following ones.

Source: nats-server, server/scheduler.go, parseMsgSchedule; server/cron.go.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import UTC, date, datetime, tzinfo
from typing import Final, NamedTuple

from broker.base.gotime import parse_duration, parse_time
from broker.jetstream.wire.numbers import signed_decimal

__all__ = ["Firing", "fires_at", "next_match"]

_SECOND: Final = 1_000_000_000

_PREDEFINED: Final[Mapping[str, str]] = {
    "@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *", "@monthly": "0 0 0 1 * *", "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@hourly": "0 0 * * * *"}

_YEARS_MAX: Final = 5
"""An expression that matches nothing for this many years is refused."""


class Firing(NamedTuple):
    """The next time of a schedule, and whether it fires again after that."""

    at_ns: int
    repeats: bool


def fires_at(pattern: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> Firing:
    """Return the next time after ``after_ns`` at which ``pattern`` fires.

    If that time has passed by ``now_ns``, return the next time after now: missed firings are not made up for.

    Raises: ValueError if it is not a pattern, or cannot have a zone.
    """
    if pattern.startswith("@at "):
        if zone is not None:
            raise ValueError("a time has its zone")
        return Firing(parse_time(pattern[4:], any_zone=True), False)
    if pattern.startswith("@every "):
        every_ns = parse_duration(pattern[7:])
        if zone is not None or every_ns < _SECOND:
            raise ValueError("an interval of at least a second, which has no zone")
        at_ns = _rounded(after_ns) + every_ns
        return Firing(at_ns if at_ns >= now_ns else _rounded(now_ns) + every_ns, True)
    fields = _PREDEFINED.get(pattern, pattern)
    at_ns = next_match(fields, zone or UTC, after_ns)
    return Firing(at_ns if at_ns >= now_ns else next_match(fields, zone or UTC, _rounded(now_ns)), True)


def _rounded(at_ns: int) -> int:
    return (at_ns + _SECOND // 2) // _SECOND * _SECOND


# --- cron -------------------------------------------------------------------------------------------------------------

class _Bounds(NamedTuple):
    least: int
    most: int
    names: Mapping[str, int]


_NONE: Final[Mapping[str, int]] = {}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Bounds(0, 59, _NONE), _Bounds(0, 59, _NONE), _Bounds(0, 23, _NONE), _Bounds(1, 31, _NONE),
    _Bounds(1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Bounds(0, 6, {name: number for number, name in enumerate(_DAYS)}))


class _Expression(NamedTuple):
    """The values that each field of a cron expression allows."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    needs_both: bool
    """True if a date must match both ``days`` and ``weekdays``, since one of the two is ``*``; otherwise one is
    enough."""


def next_match(pattern: str, zone: tzinfo, after_ns: int) -> int:
    """Return the first second after ``after_ns`` that a cron expression matches in a time zone.

    The search goes from the largest field to the smallest, and straight to the next value that a field allows. It takes
    single minutes and seconds only around a change of the zone's offset.

    Raises: ValueError if it is not a cron expression, or matches nothing for years.
    """
    wanted = _parse(pattern)
    at = after_ns // _SECOND + 1
    last_year = _local(at, zone).year + _YEARS_MAX
    while True:
        now = _local(at, zone)
        day = _next_date(wanted, now.date(), last_year)
        into_hour = 60 * now.minute + now.second
        if day != now.date():
            at = _start_of(day, zone, at)
        elif now.hour not in wanted.hours:
            span = _wait(now.hour, wanted.hours, 24) * 3600 - into_hour
            at = _forward(at, zone, span, 3600 - into_hour, 60 - now.second)
        elif now.minute not in wanted.minutes:
            at = _forward(at, zone, _wait(now.minute, wanted.minutes, 60) * 60 - now.second, 60 - now.second)
        elif now.second not in wanted.seconds:
            at = _forward(at, zone, _wait(now.second, wanted.seconds, 60))
        else:
            return at * _SECOND


def _next_date(wanted: _Expression, first: date, last_year: int) -> date:
    """Return the first matching date from ``first`` on.

    Raises: ValueError if there is none before ``last_year`` ends.
    """
    start = first.day
    for month in range(12 * first.year + first.month - 1, 12 * last_year + 12):
        year, number = month // 12, month % 12 + 1
        if number in wanted.months:
            weekday_before, days = monthrange(year, number)  # Monday is 0 here, and 1 in the expression
            for day in range(start, days + 1):
                by_day, by_weekday = day in wanted.days, (weekday_before + day) % 7 in wanted.weekdays
                if (by_day and by_weekday) if wanted.needs_both else (by_day or by_weekday):
                    return date(year, number, day)
        start = 1
    raise ValueError("pattern exceeds maximum range")


def _wait(value: int, wanted: frozenset[int], count: int) -> int:
    """Return the distance from ``value`` to the next wanted value, or to ``count``, where the field begins again."""
    return min((one for one in wanted if one > value), default=count) - value


def _start_of(day: date, zone: tzinfo, after: int) -> int:
    """Return the second at which a later local date begins; that is not midnight if the zone skips midnight."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    # The zone may repeat midnight, and ``after`` may be between the two.
    return next((at for fold in (0, 1) if (at := int(midnight.replace(fold=fold).timestamp())) > after), after + 1)


def _forward(at: int, zone: tzinfo, *spans: int) -> int:
    """Return ``at`` plus the first of ``spans`` within which the zone's offset stays the same, or else the next
    second."""
    offset = _local(at, zone).utcoffset()
    return next((at + span for span in spans if _local(at + span - 1, zone).utcoffset() == offset), at + 1)


def _local(at: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at, zone)


def _parse(pattern: str) -> _Expression:
    """Parse a cron expression. Raises: ValueError if it is none, or matches nothing."""
    fields = pattern.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"pattern requires 6 fields, got {len(fields)}")
    (seconds, _), (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = (
        _field(field, bounds) for field, bounds in zip(fields, _FIELDS, strict=True))
    if not (seconds and minutes and hours):
        raise ValueError("pattern exceeds maximum range")  # a field has commas only; _next_date finds the other cases
    return _Expression(seconds, minutes, hours, days, months, weekdays, any_day or any_weekday)


def _field(field: str, bounds: _Bounds) -> tuple[frozenset[int], bool]:
    """Return the values of a list of ranges, and whether one of the ranges is all values."""
    values: set[int] = set()
    any_value = False
    for expression in filter(None, field.split(",")):
        some, whole = _range(expression, bounds)
        values.update(some)
        any_value = any_value or whole
    return frozenset(values), any_value


def _range(expression: str, bounds: _Bounds) -> tuple[range, bool]:
    """Parse number, number-number or * (also ?), each with /step. Text after ``*-`` is ignored."""
    span, *steps = expression.split("/")
    low, *high = span.split("-")
    whole = low in ("*", "?")
    if len(steps) > 1 or (len(high) > 1 and not whole):
        raise ValueError(f"too many signs: {expression}")
    if whole:
        start, end = bounds.least, bounds.most
    else:
        start = _number(low, bounds.names)
        end = _number(high[0], bounds.names) if high else start
    step = 1
    if steps:
        step = _number(steps[0], _NONE)
        if not high:
            end = bounds.most
        whole = whole and step <= 1
    if not bounds.least <= start <= end <= bounds.most or not step:
        raise ValueError(f"out of range: {expression}")
    return range(start, end + 1, step), whole


def _number(text: str, names: Mapping[str, int]) -> int:
    if (number := names.get(text.lower())) is not None:
        return number
    number = signed_decimal(text.encode())
    if number is None or number < 0:
        raise ValueError(f"failed to parse int from {text}")
    return number
