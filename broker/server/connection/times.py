"""Instants as nats-server writes them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["rfc3339"]


def rfc3339(at_ns: int) -> str:
    """Unix UTC ns as RFC 3339 with nanoseconds, trailing zeros left out, as Go writes it."""
    seconds, rest = divmod(at_ns, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text + (f".{rest:09d}".rstrip("0") if rest else "") + "Z"
