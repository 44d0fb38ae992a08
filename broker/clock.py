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

    The second source is the store's own clock (``witness``), or, where it has none, the last good pair of wall and boot-time
    clocks (the latter runs while the machine sleeps). While they differ by more than ``APART_NS``, ``now_ns`` continues from
    the last good pair, and nothing expires or is forgotten (``trusted`` is False). Where no wall clock was good yet, since the
    machine started with a wrong one, it continues from the store's; once the wall clock agrees with that, a leap of the store's
    own is not followed.

    Without this, a clock that is ten years ahead for one second would empty every stream with a ``max_age``.
    """

    APART_NS = 60_000_000_000

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, elapsed_ns: Callable[[], int] | None = None,
                 monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.monotonic_ns = monotonic_ns
        self.witness: Callable[[], int | None] = lambda: None
        """The store's clock, UTC now; None: it has none, or has not told yet."""
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns or _boot_ns
        self._base_ns = wall_ns() - self._elapsed_ns()
        self._confirmed = False
        """Whether the store's clock has ever agreed."""
        self._follows_store = False
        """Whether the time goes on from what the store's clock was."""
        self._doubted = False
        """Whether the store's clock disagreed when it was last asked."""

    def now_ns(self) -> int:
        elapsed_ns = self._elapsed_ns()
        wall_ns = self._wall_ns()
        apart_ns = wall_ns - self._base_ns - elapsed_ns
        if -self.APART_NS <= apart_ns <= self.APART_NS and not self._doubted:
            # Follows small corrections, but never a leap beyond the bound.
            self._base_ns += apart_ns
            return wall_ns
        self._trust(wall_ns, elapsed_ns)
        return self._base_ns + elapsed_ns

    @property
    def trusted(self) -> bool:
        """Whether the wall clock agrees with the second source at this moment."""
        return self._trust(self._wall_ns(), self._elapsed_ns())

    @property
    def apart_ns(self) -> int:
        """How far the wall clock is ahead of the second source."""
        witness_ns = self.witness()
        return self._wall_ns() - (self._base_ns + self._elapsed_ns() if witness_ns is None else witness_ns)

    def _trust(self, wall_ns: int, elapsed_ns: int) -> bool:
        witness_ns = self.witness()
        if witness_ns is None:
            self._doubted = False
            return abs(wall_ns - self._base_ns - elapsed_ns) <= self.APART_NS
        self._doubted = abs(wall_ns - witness_ns) > self.APART_NS
        if not self._doubted:
            # A leap that the store's clock confirms is one of the machine, as when it was suspended.
            self._base_ns, self._confirmed = wall_ns - elapsed_ns, True
        elif not self._confirmed:
            if self._follows_store and abs(wall_ns - self._base_ns - elapsed_ns) <= self.APART_NS:
                self._confirmed = True  # it agrees with what the store's was: now that one is wrong
            else:
                self._base_ns, self._follows_store = witness_ns - elapsed_ns, True
        return not self._doubted


def _boot_ns() -> int:
    try:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except AttributeError:  # not Linux
        return time.monotonic_ns()
