"""When a schedule fires: ``@at``, ``@every``, the predefined names, and cron expressions of six fields, seconds first.

No clock and no state. Times are computed as nats-server computes them, daylight saving included: hours and below move by
elapsed time, days and months by the calendar of the zone.

Source: nats-server, server/scheduler.go, parseMsgSchedule; server/cron.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from broker.gotime import parse_duration, parse_time

__all__ = ["Firing", "fires_at", "next_match"]

_SECOND: Final = 1_000_000_000

_PREDEFINED: Final[Mapping[str, str]] = {
    "@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *", "@monthly": "0 0 0 1 * *", "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@hourly": "0 0 * * * *"}

_YEARS_MAX: Final = 5
"""An expression that matches nothing for this long is refused."""


class Firing(NamedTuple):
    """When a schedule fires next, and whether it does so again."""

    at_ns: int
    repeats: bool


def fires_at(pattern: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> Firing:
    """When ``pattern`` fires next after ``after_ns``; if that time has passed by ``now_ns``, after now: missed firings
    are not made up for.

    Raises: ValueError when it is not a pattern, or cannot have a zone.
    """
    if pattern.startswith("@at "):
        if zone is not None:
            raise ValueError("a time has its zone")
        return Firing(parse_time(pattern[4:]), False)
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


def next_match(pattern: str, zone: tzinfo, after_ns: int) -> int:
    """The first second after ``after_ns`` that a cron expression matches in a time zone.

    Raises: ValueError when it is not one, or matches nothing for years.
    """
    fields = pattern.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"pattern requires 6 fields, got {len(fields)}")
    (seconds, _), (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = (
        _field(field, bounds) for field, bounds in zip(fields, _FIELDS, strict=True))
    at = after_ns // _SECOND + 1
    limit, reset = _local(at, zone).year + _YEARS_MAX, False

    def day_matches(now: datetime) -> bool:
        by_day, by_weekday = now.day in days, now.isoweekday() % 7 in weekdays
        return by_day and by_weekday if any_day or any_weekday else by_day or by_weekday

    # From the largest field to the smallest. Advancing one resets the smaller ones, and one that wraps around may have
    # changed a larger one.
    while True:
        now = _local(at, zone)
        if now.year > limit:
            raise ValueError("pattern exceeds maximum range")
        if now.month not in months:
            first = datetime(now.year, now.month, 1, tzinfo=zone) if not reset else now
            year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
            at = _unix(first.replace(year=year, month=month))
        elif not day_matches(now):
            start = datetime(now.year, now.month, now.day, tzinfo=zone) if not reset else now
            at = _unix((start.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone))
        elif now.hour not in hours:
            at = (at if reset else _unix(now.replace(minute=0, second=0))) + 3600
        elif now.minute not in minutes:
            at = (at if reset else at - at % 60) + 60
        elif now.second not in seconds:
            at += 1
        else:
            return at * _SECOND
        reset = True


def _local(at: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at, zone)


def _unix(local: datetime) -> int:
    return int(local.timestamp())


def _field(field: str, bounds: _Bounds) -> tuple[frozenset[int], bool]:
    """The values of a list of ranges, and whether one of them is all values."""
    values: set[int] = set()
    any_value = False
    for expression in filter(None, field.split(",")):
        some, whole = _range(expression, bounds)
        values.update(some)
        any_value = any_value or whole
    return frozenset(values), any_value


def _range(expression: str, bounds: _Bounds) -> tuple[range, bool]:
    """number, number-number or * (also ?), each with /step."""
    span, *steps = expression.split("/")
    low, *high = span.split("-")
    if len(steps) > 1 or len(high) > 1:
        raise ValueError(f"too many signs: {expression}")
    whole = low in ("*", "?")
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
    digits = text[1:] if text[:1] == "+" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise ValueError(f"failed to parse int from {text}")
    return int(digits)
