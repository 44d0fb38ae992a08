"""Clocks, passed as arguments so that tests and the simulation control time.

Three clocks, never mixed:

    wall        Unix UTC; may leap. Stamps messages and drives expiry.
    monotonic   Time since an arbitrary start, with the time of a suspend of the machine; never goes back.
                Measures waits and time-outs.
    outside     The monotonic clock, plus each leap forward of the wall clock or the store's clock. Only such a leap
                shows that a virtual machine was paused. Measures leases, because other machines were not paused.

Timers of an event loop are a fourth kind. They stop during a suspend, so they may fire late by the rest of their delay.
Code that must be exact compares the time with one of the clocks above.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

__all__ = ["Clock", "GuardedClock", "SystemClock"]

_monotonic_ns: Callable[[], int] = partial(time.clock_gettime_ns,
                                           getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) \
    if hasattr(time, "clock_gettime_ns") else time.monotonic_ns
"""The monotonic clock. On Linux, CLOCK_MONOTONIC stops while the machine is suspended, and CLOCK_BOOTTIME does not."""


class Clock(Protocol):
    """The clocks in nanoseconds."""

    def now_ns(self) -> int:
        """Return the wall time, Unix UTC; it may go back or leap ahead."""

    def monotonic_ns(self) -> int:
        """Return the time since an arbitrary start; it never goes back."""

    def outside_ns(self) -> int:
        """Return the time since an arbitrary start by the fastest of the clocks; it never goes back."""


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(_monotonic_ns)
    outside_ns = staticmethod(_monotonic_ns)


class GuardedClock:
    """The machine's clocks; the wall clock is trusted only while a second source agrees with it.

    The second source is the store's own clock (``witness``). If the store has none, it is the last pair of wall and
    monotonic time at which the two agreed. While wall clock and second source differ by more than ``APART_NS``,
    ``now_ns`` continues from that pair, and nothing expires (``trusted`` is False). If the machine started with a wrong
    wall clock, ``now_ns`` continues from the store's clock. Once the wall clock has agreed with the store's, later
    leaps of the store's clock are not followed.

    Without this, a clock that is ten years ahead for one second would empty every stream with a ``max_age``.
    """

    APART_NS = 60_000_000_000

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns,
                 monotonic_ns: Callable[[], int] = _monotonic_ns) -> None:
        self.monotonic_ns = monotonic_ns
        self.witness: Callable[[], int | None] = lambda: None
        """Returns the time of the store's clock, UTC; None: it has none, or no response had a time yet."""
        self._wall_ns = wall_ns
        self._base_ns = wall_ns() - monotonic_ns()
        self._wall_leaps = _Leaps(_WALL_BACK_NS, 0.0)
        self._store_leaps = _Leaps(_STORE_BACK_NS, _STORE_DRIFT)
        self._confirmed = False
        """True if the store's clock has ever agreed with the wall clock."""
        self._follows_store = False
        """True if ``now_ns`` continues from a time of the store's clock."""
        self._differs = False
        """True if the store's clock differed when it was last compared."""

    def now_ns(self) -> int:
        elapsed_ns = self.monotonic_ns()
        wall_ns = self._wall_ns()
        apart_ns = wall_ns - self._base_ns - elapsed_ns
        if -self.APART_NS <= apart_ns <= self.APART_NS and not self._differs:
            # Follows small corrections, but never a leap beyond the bound.
            self._base_ns += apart_ns
            return wall_ns
        self._trust(wall_ns, elapsed_ns)
        return self._base_ns + elapsed_ns

    def outside_ns(self) -> int:
        monotonic_ns = self.monotonic_ns()
        self._wall_leaps.compare(self._wall_ns(), monotonic_ns)
        store_ns = self.witness()
        if store_ns is not None:
            self._store_leaps.compare(store_ns, monotonic_ns)
        return monotonic_ns + self._wall_leaps.sum_ns + self._store_leaps.sum_ns

    @property
    def trusted(self) -> bool:
        """Return whether the wall clock agrees with the second source at this moment."""
        return self._trust(self._wall_ns(), self.monotonic_ns())

    @property
    def apart_ns(self) -> int:
        """The time by which the wall clock is ahead of the second source."""
        witness_ns = self.witness()
        return self._wall_ns() - (self._base_ns + self.monotonic_ns() if witness_ns is None else witness_ns)

    def _trust(self, wall_ns: int, elapsed_ns: int) -> bool:
        witness_ns = self.witness()
        if witness_ns is None:
            self._differs = False
            return abs(wall_ns - self._base_ns - elapsed_ns) <= self.APART_NS
        self._differs = abs(wall_ns - witness_ns) > self.APART_NS
        if not self._differs:
            # A leap that the store's clock confirms is one of the machine, as when it was suspended.
            self._base_ns, self._confirmed = wall_ns - elapsed_ns, True
        elif not self._confirmed:
            if self._follows_store and abs(wall_ns - self._base_ns - elapsed_ns) <= self.APART_NS:
                self._confirmed = True  # it agrees with the store's earlier time, so the store's clock is wrong now
            else:
                self._base_ns, self._follows_store = witness_ns - elapsed_ns, True
        return not self._differs


class _Leaps:
    """Sums up the leaps of another clock ahead of the monotonic one.

    A response with the store's time may arrive late, and servers of one store may differ, so the store's clock seems to
    go back and forth. Only a lead beyond the longest lead so far is a leap. A clock that is behind that lead by more
    than ``back_ns`` was set back, and leaps count from there. With ``drift``, the lead shrinks by that part of the
    time: the clocks of two machines may run apart.
    """

    __slots__ = ("_at_ns", "_back_ns", "_drift", "_lead_ns", "sum_ns")

    def __init__(self, back_ns: int, drift: float) -> None:
        self.sum_ns = 0
        self._back_ns = back_ns
        self._drift = drift
        self._lead_ns: int | None = None
        self._at_ns = 0

    def compare(self, other_ns: int, monotonic_ns: int) -> None:
        """Compare the two clocks as they are now."""
        lead_ns = other_ns - monotonic_ns
        if self._lead_ns is None:
            known_ns = lead_ns
        else:
            known_ns = self._lead_ns - int((monotonic_ns - self._at_ns) * self._drift)
        if lead_ns > known_ns:
            self.sum_ns += lead_ns - known_ns
        elif lead_ns >= known_ns - self._back_ns:
            lead_ns = known_ns
        self._lead_ns, self._at_ns = lead_ns, monotonic_ns


_WALL_BACK_NS = 1_000_000_000
_STORE_BACK_NS = 1_800_000_000_000
"""S3 and its clones refuse requests that were signed more than 15 minutes ago or ahead: of two servers that accept
ours, one may be half an hour ahead of the other."""
_STORE_DRIFT = 0.001
