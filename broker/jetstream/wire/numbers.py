"""The ranges of numbers that clients send, and how they are read from text.

    kind            range                        source
    uint64, int64,  as in Go                     JSON: ``wire`` refuses all other numbers (10025)
    int32, duration
    instant         years 1 to 9999 in UTC       JSON: ``gotime.parse_time``
    sequence        1 to ``SEQ_MAX``             first_seq, a purge; sequences that a stream assigns
    decimal text    0 to 2^64 - 1                headers, ack subjects, pull requests: ``decimal``

Sequences end at 2^63 - 1, not at 2^64 - 1 as in nats-server, which wraps to sequence 0 after its last one. The users of
sequences have signed integers: Spark's columns, the deltas of a consumer's pending acks, most clients.
"""

from __future__ import annotations

__all__ = ["INT64_MAX", "INT64_MIN", "SEQ_MAX", "UINT64_MAX", "decimal", "modulo_2_to_64", "signed_decimal"]

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
UINT64_MAX = (1 << 64) - 1

SEQ_MAX = INT64_MAX
"""The last sequence that a stream can assign."""

_DIGITS_MAX = 20
"""The digits of 2^64 - 1. Longer text is never converted: that is slow, and Python refuses more than 4300 digits."""

_WRAPPED_DIGITS = 64
"""The number of last digits that count modulo 2^64: 10^64 is a multiple of 2^64."""


def decimal(text: bytes, high: int = UINT64_MAX) -> int:
    """Return a number of ASCII digits only, at most ``high``; -1 for any other text."""
    if not text.isdigit():
        return -1
    if len(text) > _DIGITS_MAX:
        text = text.lstrip(b"0") or b"0"
        if len(text) > _DIGITS_MAX:
            return -1
    number = int(text)
    return number if number <= high else -1


def modulo_2_to_64(digits: bytes) -> int:
    """Return the number modulo 2^64, as Go's arithmetic gives it. ``digits`` are ASCII digits, any number of them."""
    return int(digits[-_WRAPPED_DIGITS:]) & UINT64_MAX


def signed_decimal(text: bytes) -> int | None:
    """Return an int64 as Go's strconv.Atoi reads one, with or without a sign; None for any other text."""
    negative = text[:1] == b"-"
    number = decimal(text[1:] if text[:1] in (b"-", b"+") else text, INT64_MAX + negative)
    if number < 0:
        return None
    return -number if negative else number
