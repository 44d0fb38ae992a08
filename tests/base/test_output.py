"""Values as text for people: sizes, counts and times at their edges."""

from __future__ import annotations

import pytest

from broker.base.output import counted, size, when


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (10_230, "9.99 KiB"), (10_240, "10.0 KiB"),
    (1023 * 1024, "1.00 MiB"), (8 << 20, "8.00 MiB"), (1 << 60, "1024 PiB")])
def test_sizes_have_three_digits(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 keys"), (1, "1 key"), (10_002, "10,002 keys")])
def test_counted_things(value: int, text: str) -> None:
    assert counted(value, "key") == text


@pytest.mark.parametrize(("at_ns", "text"), [
    (0, "-"), (1_999_999, "1970-01-01 00:00:00.001Z"), (1 << 70, f"{1 << 70} ns")])
def test_times_are_utc(at_ns: int, text: str) -> None:
    assert when(at_ns) == text
