"""A message's time to live. Streams do not support it yet, so the checks refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.gotime import parse_duration
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import INT64_MAX, decimal

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["TTL", "TTL_INVALID", "disabled", "parse_ttl", "valid"]

TTL = b"Nats-TTL"

TTL_INVALID = 0
"""What ``parse_ttl`` gives for text that is no TTL."""


def disabled(context: CheckContext, config: StreamConfig) -> Check:
    """10166."""
    def check(candidate: Candidate) -> None:
        if (text := candidate.headers[TTL]) and parse_ttl(text) != TTL_INVALID:
            raise ApiError(10166)
    return check


def valid(context: CheckContext, config: StreamConfig) -> Check:
    """10165."""
    def check(candidate: Candidate) -> None:
        if (text := candidate.headers[TTL]) and parse_ttl(text) == TTL_INVALID:
            raise ApiError(10165)
    return check


def parse_ttl(text: bytes) -> int:
    """A message's time to live in whole seconds; -1: never expires; ``TTL_INVALID`` (0): not a TTL.

    Seconds in digits, a Go duration of at least one second, or ``never`` in any case.

    Source: nats-server, server/stream.go, parseMessageTTL.
    """
    if text.lower() == b"never":
        return -1
    if text.isdigit() and text.strip(b"0"):
        return max(decimal(text, INT64_MAX), TTL_INVALID)
    try:
        ttl_ns = parse_duration(text.decode())
    except ValueError:  # UnicodeDecodeError is one
        return TTL_INVALID
    return max(ttl_ns // 1_000_000_000, TTL_INVALID)
