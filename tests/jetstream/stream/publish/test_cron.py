"""The firing times of schedules: tables of expressions and times, including daylight saving."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC as GREENWICH
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.gotime import format_time, parse_time
from broker.jetstream.stream.publish import cron
from broker.jetstream.stream.publish.cron import fires_at, next_match

BERLIN = ZoneInfo("Europe/Berlin")
UTC = ZoneInfo("UTC")


@pytest.mark.shows("publish.schedule_repeated")
@pytest.mark.parametrize("pattern, after, expected", [
    ("* * * * * *", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:01Z"),
    ("0 * * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
    ("0 30 9 * * mon-fri", "2026-01-02T09:30:00Z", "2026-01-05T09:30:00Z"),
    ("0 0 0 31 * *", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"),
    ("0 0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
    ("0 0 0 13 * fri", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),  # a day of the month, or one of the week
    ("0 0 0 13 * ?", "2026-01-01T00:00:00Z", "2026-01-13T00:00:00Z"),
    ("0 0 0 ? * fri", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    ("*/20 59 23 31 12 *", "2026-12-31T23:59:41Z", "2027-12-31T23:59:00Z"),
    ("10-12,50/5 0 0 1 1 *", "2026-01-01T00:00:12Z", "2026-01-01T00:00:50Z"),
    ("0 0 0 1 JAN,jul *", "2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z"),
])
def test_expressions(pattern: str, after: str, expected: str) -> None:
    assert format_time(next_match(pattern, UTC, parse_time(after))) == expected


@pytest.mark.shows("publish.schedule_repeated")
@pytest.mark.parametrize("pattern, after, expected", [
    ("0 0 9 * * *", "2026-03-28T09:00:00Z", "2026-03-29T07:00:00Z"),  # summer time begins that night
    ("0 0 9 * * *", "2026-10-24T09:00:00Z", "2026-10-25T08:00:00Z"),  # and ends
    ("0 30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),  # there is no 02:30 on the 29th
    ("0 0 0 1 * *", "2026-06-15T00:00:00Z", "2026-06-30T22:00:00Z"),
])
def test_time_zones(pattern: str, after: str, expected: str) -> None:
    assert format_time(next_match(pattern, BERLIN, parse_time(after))) == expected


@pytest.mark.parametrize("pattern, expected", [
    ("@hourly", "2026-01-01T11:00:00Z"), ("@daily", "2026-01-02T00:00:00Z"), ("@midnight", "2026-01-02T00:00:00Z"),
    ("@weekly", "2026-01-04T00:00:00Z"), ("@monthly", "2026-02-01T00:00:00Z"), ("@yearly", "2027-01-01T00:00:00Z"),
    ("@annually", "2027-01-01T00:00:00Z"), ("@every 90s", "2026-01-01T10:31:30Z"),
    ("@at 2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")])
def test_names(pattern: str, expected: str) -> None:
    now_ns = parse_time("2026-01-01T10:30:00.2Z")
    firing = fires_at(pattern, None, now_ns, now_ns)
    assert format_time(firing.at_ns) == expected
    assert firing.repeats == (not pattern.startswith("@at"))


@pytest.mark.parametrize("pattern", ["@every 10s", "*/10 * * * * *"])
def test_missed_times_are_not_made_up_for(pattern: str) -> None:
    after_ns, now_ns = parse_time("2026-01-01T00:00:00Z"), parse_time("2026-01-01T01:00:03Z")
    assert 0 < fires_at(pattern, None, after_ns, now_ns).at_ns - now_ns <= 10_000_000_000


@pytest.mark.parametrize("pattern", [
    "", "@", "@at x", "@every x", "* * * * *", "a b c d e f", "0 0 0 30 2 *", "0 0 0 31 2,4,6,9,11 *", "0 0 0 1 13 *",
    ", * * * * *", "* , * * * *", "* * , * * *", "* * * , * *", "* * * * , *", "* * * * * ,"])
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        fires_at(pattern, None, 0, 0)


# --- comparison of the search with a trial of each second -------------------------------------------------------------

SECOND = 1_000_000_000

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Havana", "America/Santiago", "Africa/Cairo",
         "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
"""Three of the zones skip midnight, two of those repeat it half a year later, and one moves its clocks by half an
hour."""

LOWEST = (0, 0, 0, 1, 1, 0)
HIGHEST = (59, 59, 23, 31, 12, 6)


@st.composite
def fields(draw: st.DrawFn, field: int) -> tuple[str, frozenset[int], bool]:
    """Return a field as text, the values that it means, and whether it begins with a star."""
    low, high = LOWEST[field], HIGHEST[field]
    if draw(st.booleans()):
        return draw(st.sampled_from("*?")), frozenset(range(low, high + 1)), True
    start = draw(st.integers(low, high))
    end = draw(st.integers(start, high))
    step = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(("number", "range", "steps")))
    if kind == "number":
        return f"{start}", frozenset((start,)), False
    if kind == "range":
        return f"{start}-{end}", frozenset(range(start, end + 1)), False
    return f"{start}-{end}/{step}", frozenset(range(start, end + 1, step)), False


EXPRESSIONS = st.tuples(*(fields(field) for field in range(6)))


def transitions(zone: tzinfo, year: int) -> list[int]:
    """Return the days of a year, in seconds, on which the offset of the zone changes."""
    begin = datetime(year, 1, 1, tzinfo=GREENWICH)
    offsets = [(begin + timedelta(days=day)).astimezone(zone).utcoffset() for day in range(367)]
    return [int((begin + timedelta(days=day)).timestamp()) for day in range(366) if offsets[day] != offsets[day + 1]]


def matches(at: int, zone: tzinfo, wanted: Sequence[frozenset[int]], both: bool) -> bool:
    """Return whether an expression matches a second by the definition: its local time has a value of each field."""
    now = datetime.fromtimestamp(at, zone)
    seconds, minutes, hours, days, months, weekdays = wanted
    by_day, by_weekday = now.day in days, now.isoweekday() % 7 in weekdays
    return (now.second in seconds and now.minute in minutes and now.hour in hours and now.month in months
            and ((by_day and by_weekday) if both else (by_day or by_weekday)))


@given(expression=EXPRESSIONS, zone_name=st.sampled_from(ZONES), near=st.integers(0, 3),
       offset=st.integers(-90_000, 90_000))
@settings(max_examples=150, deadline=None)
def test_the_search_finds_the_same_as_a_trial_of_each_second(
        expression: Sequence[tuple[str, frozenset[int], bool]], zone_name: str, near: int, offset: int) -> None:
    """Try two hours of seconds around the result and around the start, mostly near a change of the zone's offset."""
    zone = ZoneInfo(zone_name)
    changes = transitions(zone, 2027)
    after = offset + (changes[near % len(changes)] if changes else
                      int(datetime(2027, 3, 1, tzinfo=GREENWICH).timestamp()))
    wanted, both = [values for _, values, _ in expression], expression[3][2] or expression[5][2]
    try:
        found = next_match(" ".join(text for text, _, _ in expression), zone, after * SECOND) // SECOND
    except ValueError:
        found = after + 3_000_000_000
    else:
        assert found > after
        assert matches(found, zone, wanted, both)
    span = 7200
    earlier = {*range(after + 1, min(after + span, found)), *range(max(after + 1, found - span), found)}
    assert not [at for at in sorted(earlier) if at < 3_000_000_000 and matches(at, zone, wanted, both)]


@pytest.mark.parametrize("zone_name", ZONES)
@pytest.mark.parametrize("pattern", [
    "59 59 23 29 2 *", "0 0 0 30 2 *", "0 0 0 31 2,4,6,9,11 *", "59 59 23 31 12 *", "0 0 0 29 2 0", "59 59 22 * * *",
    "0 30 2 * * *", ", * * * * *", "59 59 23 , 12 6"])
def test_a_search_is_short(pattern: str, zone_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the instants that a search converts to local time, from each fifth day of a year on."""
    zone, most = ZoneInfo(zone_name), 0
    local = cron._local
    count = 0

    def counted(at: int, zone: tzinfo) -> datetime:
        nonlocal count
        count += 1
        return local(at, zone)

    monkeypatch.setattr(cron, "_local", counted)
    for day in range(0, 366, 5):
        count = 0
        with suppress(ValueError):
            next_match(pattern, zone, (1_800_000_000 + 86_400 * day) * SECOND)
        most = max(most, count)
    assert most <= 500, most
