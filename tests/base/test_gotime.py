"""Durations and times are Go's: a Go program made the tables, and each formatted text is parsed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.gotime import (
    ZERO_TIME,
    ZERO_TIME_NS,
    format_duration,
    format_time,
    format_times,
    parse_duration,
    parse_time,
)

PARSED: list[tuple[str, int | None, str]] = [
    ("", None, "time: invalid duration \"\""),
    ("0", 0, ""),
    ("+0", 0, ""),
    ("-0", 0, ""),
    ("0s", 0, ""),
    ("1s", 1000000000, ""),
    ("+2s", 2000000000, ""),
    ("-3s", -3000000000, ""),
    ("+-1s", None, "time: invalid duration \"+-1s\""),
    ("--1s", None, "time: invalid duration \"--1s\""),
    ("1", None, "time: missing unit in duration \"1\""),
    ("1.", None, "time: missing unit in duration \"1.\""),
    ("1.s", 1000000000, ""),
    (".5s", 500000000, ""),
    (".s", None, "time: invalid duration \".s\""),
    ("s", None, "time: invalid duration \"s\""),
    ("-", None, "time: invalid duration \"-\""),
    ("+", None, "time: invalid duration \"+\""),
    ("1h30m", 5400000000000, ""),
    ("90s", 90000000000, ""),
    ("1m30s", 90000000000, ""),
    ("1.5h", 5400000000000, ""),
    ("1h1h", 7200000000000, ""),
    ("100ms", 100000000, ""),
    ("1us", 1000, ""),
    ("1µs", 1000, ""),
    ("1μs", 1000, ""),
    ("1ns", 1, ""),
    ("1.0000000001s", 1000000000, ""),
    ("0.000000001s", 1, ""),
    ("0.3333333333333333333h", 1200000000000, ""),
    ("9223372036854775807ns", 9223372036854775807, ""),
    ("9223372036854775808ns", None, "time: invalid duration \"9223372036854775808ns\""),
    ("-9223372036854775808ns", -9223372036854775808, ""),
    ("-9223372036854775809ns", None, "time: invalid duration \"-9223372036854775809ns\""),
    ("2562047h47m16.854775807s", 9223372036854775807, ""),
    ("2562047h47m16.854775808s", None, "time: invalid duration \"2562047h47m16.854775808s\""),
    ("3000000h", None, "time: invalid duration \"3000000h\""),
    ("1d", None, "time: unknown unit \"d\" in duration \"1d\""),
    ("1 s", None, "time: unknown unit \" s\" in duration \"1 s\""),
    (" 1s", None, "time: invalid duration \" 1s\""),
    ("1s ", None, "time: unknown unit \"s \" in duration \"1s \""),
    ("١s", None, "time: invalid duration \"\\xd9\\xa1s\""),
    ("1S", None, "time: unknown unit \"S\" in duration \"1S\""),
    ("1e3s", None, "time: unknown unit \"e\" in duration \"1e3s\""),
    ("1.2.3s", None, "time: missing unit in duration \"1.2.3s\""),
    ("1s1", None, "time: missing unit in duration \"1s1\""),
    ("00001s", 1000000000, ""),
    ("99999999999999999999s", None, "time: invalid duration \"99999999999999999999s\""),
    ("0.00000000000000000000000000001s", 0, ""),
    ("1h-1m", None, "time: unknown unit \"h-\" in duration \"1h-1m\""),
    ("1..5s", None, "time: missing unit in duration \"1..5s\""),
    ("9007199254740993.5ns", 9007199254740993, ""),
    ("1.999999999ns", 1, ""),
]
"""Texts, each with the result of time.ParseDuration: nanoseconds or an error."""

FORMATTED = [
    (0, "0s"),
    (1, "1ns"),
    (999, "999ns"),
    (1000, "1µs"),
    (1500, "1.5µs"),
    (999999, "999.999µs"),
    (1000000, "1ms"),
    (1500000, "1.5ms"),
    (999999999, "999.999999ms"),
    (1000000000, "1s"),
    (1500000000, "1.5s"),
    (59999999999, "59.999999999s"),
    (60000000000, "1m0s"),
    (90000000000, "1m30s"),
    (3600000000000, "1h0m0s"),
    (5400000000000, "1h30m0s"),
    (86400000000000, "24h0m0s"),
    (9223372036854775807, "2562047h47m16.854775807s"),
    (-1, "-1ns"),
    (-1500, "-1.5µs"),
    (-90000000000, "-1m30s"),
    (-9223372036854775808, "-2562047h47m16.854775808s"),
    (100, "100ns"),
    (1000000001, "1.000000001s"),
    (120000000001, "2m0.000000001s"),
]


@pytest.mark.parametrize("text, ns, error", PARSED)
def test_a_duration_is_read_as_go_reads_it(text: str, ns: int | None, error: str) -> None:
    if ns is None:
        with pytest.raises(ValueError) as raised:
            parse_duration(text)
        assert str(raised.value) == error
    else:
        assert parse_duration(text) == ns


@pytest.mark.parametrize("ns, text", FORMATTED)
def test_a_duration_is_written_as_go_writes_it(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@given(ns=st.integers(-(1 << 52), 1 << 52))
def test_a_written_duration_is_read_back(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@given(at_ns=st.integers(ZERO_TIME_NS, 253_402_300_799_999_999_999))
def test_a_written_time_is_read_back(at_ns: int) -> None:
    """Instants from the year 1 to the end of 9999 can be formatted and parsed."""
    assert parse_time(format_time(at_ns)) == at_ns


def test_times_that_are_none() -> None:
    assert format_time(ZERO_TIME_NS) == ZERO_TIME
    assert format_time(1 << 80) == ZERO_TIME


@given(text=st.text(max_size=30))
def test_any_text_is_a_duration_or_an_error(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError:
        pass


@pytest.mark.parametrize("text, error", [
    ("2024-01-01T00:00:00+25:00", "time zone offset hour out of range"),
    ("2024-01-01T00:00:00-00:61", "time zone offset minute out of range"),
    ("0001-01-01T00:00:00+01:00", "year out of range in UTC"),
    ("9999-12-31T23:59:59-01:00", "year out of range in UTC"),
    ("2024-02-30T00:00:00Z", "day out of range"),
])
def test_a_time_out_of_range_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_time(text)
    assert str(raised.value) == f'parsing time "{text}": {error}'


def test_a_long_text_is_no_duration_and_is_not_repeated_in_full() -> None:
    """A client's megabyte must not hold the event loop, nor fill the log."""
    with pytest.raises(ValueError, match=r"^time: invalid duration") as raised:
        parse_duration("1ns" * 1_000_000)
    assert len(str(raised.value)) < 200


@given(st.lists(st.one_of(st.integers(-1 << 63, (1 << 63) - 1),
                          st.integers(1_700_000_000_000_000_000, 1_700_000_003_000_000_000),
                          st.integers(0, 40).map(lambda tenth: 1_700_000_000_000_000_000 + tenth * 100_000_000),
                          st.sampled_from([0, -1, 1, ZERO_TIME_NS, ZERO_TIME_NS - 1, 253_402_300_799_999_999_999,
                                           1 << 70]))))
def test_many_times(instants: list[int]) -> None:
    """Instants formatted together have the same texts as alone: in one second, beyond the calendar, with zeros."""
    assert format_times(instants) == [format_time(at_ns).encode() for at_ns in instants]
