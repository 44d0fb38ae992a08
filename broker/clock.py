"""Time as a value that is handed in, so that tests and the simulation own it.

Two clocks, never mixed: the wall clock (Unix UTC, may jump) stamps messages and drives expiry;
the monotonic one (since some unknown start, never goes back) measures waits, leases and time-outs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "GuardedClock", "ManualClock", "SystemClock"]


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


class GuardedClock:
    """The machine's clocks, whose wall face is believed only while a second witness agrees with it.

    The witness is the last good pair of wall and boot-time clocks (the latter counts while the machine sleeps), and a
    store's own clock where it has one. While the wall clock stands more than ``APART_NS`` away from where the pair says
    it should be, ``now_ns`` goes on from the pair, and nobody expires or forgets anything (``trusted`` is False).

    Without it a clock that is ten years ahead for one second would empty every stream with a ``max_age``.
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
            # Slow corrections (NTP slewing) are followed; a leap beyond the bound never is.
            self._base_ns += apart_ns
            return wall_ns
        self.trusted = False
        return self._base_ns + elapsed_ns

    def compare(self, witness_ns: int | None) -> None:
        """Hold the wall clock against a store's (UTC, now); None: it has none. Far apart, the store's is believed."""
        if witness_ns is not None and abs(self._wall_ns() - witness_ns) > self.APART_NS:
            self._base_ns = witness_ns - self._elapsed_ns()
            self.trusted = False


def _boot_ns() -> int:
    try:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except AttributeError:  # not Linux
        return time.monotonic_ns()
