"""Durations and times as Go reads and writes them, as nats-server and its clients do.

Owns parsing and formatting of both: ``time.ParseDuration`` and ``Duration.String``, RFC 3339 with nanoseconds.
Does not own what callers add (a bare number of seconds in a configuration file, ``never`` as a TTL).

Durations are nanoseconds within a signed 64-bit integer, instants Unix UTC nanoseconds.

Source: Go's time package: ParseDuration, Duration.String, Time.Format and time.Parse with RFC3339Nano. The table in
tests/base/test_gotime.py was made by a Go program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

__all__ = ["ZERO_TIME", "ZERO_TIME_NS", "format_duration", "format_time", "format_times", "parse_duration",
           "parse_time"]

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time, which stands for "none"."""

ZERO_TIME_NS = -62_135_596_800_000_000_000

_LAST_TIME_NS = 253_402_300_799_999_999_999
"""The end of the year 9999, the last instant that RFC 3339 can write."""

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000,
          "h": 3_600_000_000_000}
_PART = re.compile(r"([0-9]*)(\.[0-9]*)?([^.0-9]*)")
_INT64_MAX = (1 << 63) - 1
_TEXT_MAX = 128
"""No duration needs more characters. Go has no such bound, but here a long text from a client would block the event
loop."""


def parse_duration(text: str) -> int:
    """Parse ``300ms``, ``-1.5h``, ``2h45m`` or ``0``; return nanoseconds.

    Raises: ValueError in the words of Go's time.ParseDuration.
    """
    if len(text) > _TEXT_MAX:
        raise ValueError(f"time: invalid duration {_quote(text[:_TEXT_MAX])}...")
    quoted = _quote(text)
    sign, body = (-1, text[1:]) if text[:1] == "-" else (1, text[1:]) if text[:1] == "+" else (1, text)
    if body == "0":
        return 0
    if not body:
        raise ValueError(f"time: invalid duration {quoted}")
    total, at = 0, 0
    while at < len(body):
        part = _PART.match(body, at)
        assert part is not None  # the pattern matches the empty string
        whole, fraction, unit = part[1], part[2] or "", part[3]
        if not whole and len(fraction) < 2:
            raise ValueError(f"time: invalid duration {quoted}")
        if not unit:
            raise ValueError(f"time: missing unit in duration {quoted}")
        scale = _UNITS.get(unit)
        if scale is None:
            raise ValueError(f"time: unknown unit {_quote(unit)} in duration {quoted}")
        if len(whole.lstrip("0")) > 19:
            # It would overflow; do not let int() parse so many digits.
            raise ValueError(f"time: invalid duration {quoted}")
        total += int(whole or "0") * scale + _part_of(scale, fraction[1:])
        if total > _INT64_MAX + (sign < 0):
            raise ValueError(f"time: invalid duration {quoted}")
        at = part.end()
    return sign * total


def _part_of(scale: int, digits: str) -> int:
    """Return the fraction ``.digits`` of ``scale``, computed in floating point as Go does, for the same result."""
    value, divisor = 0, 1.0
    for digit in digits:
        if value > _INT64_MAX // 10 or value * 10 + int(digit) > _INT64_MAX + 1:
            break
        value = value * 10 + int(digit)
        divisor *= 10
    return int(float(value) * (scale / divisor))


def _quote(text: str) -> str:
    """Return the text in quotes, with every byte that is not printable ASCII escaped."""
    return '"' + "".join(f"\\x{byte:02x}" if byte < 0x20 or byte >= 0x7F else f"\\{chr(byte)}" if byte in b'"\\'
                         else chr(byte)
                         for byte in text.encode("utf-8", "surrogatepass")) + '"'


def format_duration(ns: int) -> str:
    """Format nanoseconds as ``2m0s``, ``1.5s``, ``100ms`` or ``0s``."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit, name in ((1, "ns"), (1_000, "µs"), (1_000_000, "ms")):
        if ns < 1_000 * unit:
            return f"{sign}{_decimal(ns, unit)}{name}"
    minutes, rest = divmod(ns, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, 1_000_000_000)}s"


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    return f"{whole}.{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else str(whole)


def format_time(at_ns: int) -> str:
    """Format an instant as RFC 3339 in UTC, without trailing zeros; ``ZERO_TIME`` for one outside the calendar."""
    seconds, ns = divmod(at_ns, 1_000_000_000)
    try:
        whole = _whole(seconds)
    except (ValueError, OverflowError, OSError):
        return ZERO_TIME
    fraction = f".{ns:09d}".rstrip("0") if ns else ""
    return f"{whole}{fraction}Z"


def format_times(instants: Sequence[int]) -> list[bytes]:
    """Format instants of messages that were stored together: many share the instant, and nearly all the second."""
    texts: list[bytes] = []
    before, text, second, whole = None, b"", None, b""
    for at_ns in instants:
        if at_ns != before:
            before = at_ns
            seconds, ns = divmod(at_ns, 1_000_000_000)
            if seconds != second:
                second, whole = seconds, format_time(seconds * 1_000_000_000).removesuffix("Z").encode()
            text = b"%b.%09dZ" % (whole, ns) if ns % 10 and seconds in _SECONDS else format_time(at_ns).encode()
        texts.append(text)
    return texts


_SECONDS = range(0, _LAST_TIME_NS // 1_000_000_000)


@lru_cache(maxsize=1024)
def _whole(seconds: int) -> str:
    """Format whole seconds. The cache helps because messages of one second are stored and read together."""
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d}T{at.hour:02d}:{at.minute:02d}:{at.second:02d}"


_LAYOUT = "2006-01-02T15:04:05Z07:00"
_ELEMENTS: Sequence[tuple[str, re.Pattern[str]]] = [(name, re.compile(pattern, re.ASCII)) for name, pattern in (
    ("2006", r"\d{4}"), ("-", "-"), ("01", r"\d\d"), ("-", "-"), ("02", r"\d\d"), ("T", "T"), ("15", r"\d\d?"),
    (":", ":"), ("04", r"\d\d"), (":", ":"), ("05", r"\d\d(?:[.,]\d+)?"), ("Z07:00", r"Z|[+-]\d\d:\d\d"))]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str, *, any_zone: bool = False) -> int:
    """Return an RFC 3339 instant within the years 1 to 9999 in UTC; digits after the ninth of the fraction are dropped.

    ``any_zone``: the years are those of its own time zone. Such an instant cannot always be written in UTC.

    Raises: ValueError in the words of Go's time.Parse.
    """
    parts, at = [], 0
    for name, pattern in _ELEMENTS:
        found = pattern.match(text, at)
        if found is None:
            raise ValueError(f'parsing time {_quote(text)} as "{_LAYOUT}": '
                             f'cannot parse {_quote(text[at:])} as "{name}"')
        parts.append(found.group())
        at = found.end()
    if at != len(text):
        raise ValueError(f"parsing time {_quote(text)}: extra text: {_quote(text[at:])}")
    second, _, fraction = parts[10].replace(",", ".").partition(".")
    try:
        whole = datetime(int(parts[0]), int(parts[2]), int(parts[4]), int(parts[6]), int(parts[8]), int(second),
                         tzinfo=UTC)
    except ValueError as error:
        unit = str(error).split()[0]
        raise ValueError(f"parsing time {_quote(text)}: {unit} out of range") from None
    delta = whole - _EPOCH
    seconds = delta.days * 86_400 + delta.seconds
    zone = parts[11]
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 24 or minutes > 60:
            unit = "minute" if minutes > 60 else "hour"
            raise ValueError(f"parsing time {_quote(text)}: time zone offset {unit} out of range")
        offset = hours * 3600 + minutes * 60
        seconds += -offset if zone[0] == "+" else offset
        if not any_zone and not ZERO_TIME_NS <= seconds * 1_000_000_000 <= _LAST_TIME_NS:
            # RFC 3339 could not write it back in UTC.
            raise ValueError(f"parsing time {_quote(text)}: year out of range in UTC")
    return seconds * 1_000_000_000 + int((fraction + "000000000")[:9])
