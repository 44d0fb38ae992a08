"""Clocks, passed as arguments so that tests and the simulation control time.

Two clocks, never mixed: the wall clock (Unix UTC, may jump) stamps messages and drives expiry;
the monotonic one (from an arbitrary start, never goes back) measures waits, leases and time-outs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "GuardedClock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Both clocks in nanoseconds."""

    def now_ns(self) -> int:
        """Wall time, Unix UTC; may go back or leap ahead."""

    def monotonic_ns(self) -> int:
        """Time since an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """Clocks that move only by ``advance`` (both) and ``leap`` (the wall clock alone)."""

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


class GuardedClock:
    """The machine's clocks; the wall clock is believed only while a second source agrees with it.

    The second source is the last good pair of wall and boot-time clocks (the latter runs while the machine sleeps), and
    the store's own clock if it has one. While the wall clock differs by more than ``APART_NS`` from what the pair predicts,
    ``now_ns`` continues from the pair, and nothing expires or is forgotten (``trusted`` is False).

    Without this, a clock that is ten years ahead for one second would empty every stream with a ``max_age``.
    """

    APART_NS = 60_000_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, elapsed_ns: Callable[[], int] | None = None) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns or _boot_ns
        self._base_ns = wall_ns() - self._elapsed_ns()
        self.trusted = True
        """Whether the wall clock agreed when it was last read."""

    def now_ns(self) -> int:
        elapsed_ns = self._elapsed_ns()
        wall_ns = self._wall_ns()
        apart_ns = wall_ns - self._base_ns - elapsed_ns
        if -self.APART_NS <= apart_ns <= self.APART_NS:
            self.trusted = True
            # Follows slow corrections (NTP slewing), but never a leap beyond the bound.
            self._base_ns += apart_ns
            return wall_ns
        self.trusted = False
        return self._base_ns + elapsed_ns

    def compare(self, witness_ns: int | None) -> None:
        """Compare the wall clock with a store's (UTC, now; None: it has none). If they differ much, believe the store's."""
        if witness_ns is not None and abs(self._wall_ns() - witness_ns) > self.APART_NS:
            self._base_ns = witness_ns - self._elapsed_ns()
            self.trusted = False


def _boot_ns() -> int:
    try:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except AttributeError:  # not Linux
        return time.monotonic_ns()
