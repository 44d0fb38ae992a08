"""When schedules fire: tables of expressions and times, daylight saving included."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from broker.gotime import format_time, parse_time
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
def test_what_was_missed_is_not_made_up_for(pattern: str) -> None:
    after_ns, now_ns = parse_time("2026-01-01T00:00:00Z"), parse_time("2026-01-01T01:00:03Z")
    assert 0 < fires_at(pattern, None, after_ns, now_ns).at_ns - now_ns <= 10_000_000_000


@pytest.mark.parametrize("pattern", ["", "@", "@at x", "@every x", "* * * * *", "a b c d e f", "0 0 0 30 2 *", "0 0 0 1 13 *"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        fires_at(pattern, None, 0, 0)
