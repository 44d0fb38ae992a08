"""Clocks that tests advance."""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """Clocks that move only by ``advance`` (both) and ``leap`` (the wall clock alone)."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def outside_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ns: int) -> None:
        """Let ``ns`` nanoseconds pass on both clocks."""
        self._now_ns += ns
        self._monotonic_ns += ns

    def leap(self, ns: int) -> None:
        """Move the wall clock alone, as an operator or NTP would."""
        self._now_ns += ns
