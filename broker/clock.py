"""Time as a value that is handed in, so that tests and the simulation own it.

Two clocks, never mixed: the wall clock (Unix UTC, may jump) stamps messages and drives expiry;
the monotonic one (since some unknown start, never goes back) measures waits, leases and time-outs.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Both clocks in nanoseconds."""

    def now_ns(self) -> int:
        """Wall time, Unix UTC; may go back or leap."""

    def monotonic_ns(self) -> int:
        """Time since an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when told to; both faces move together unless ``leap`` is used."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ns: int) -> None:
        """Let ``ns`` nanoseconds pass on both clocks."""
        self._now_ns += ns
        self._monotonic_ns += ns

    def leap(self, ns: int) -> None:
        """Move the wall clock alone, as an operator or NTP would."""
        self._now_ns += ns
