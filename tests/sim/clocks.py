"""The clocks of a world's machines and of its store. Each is right, or leaps by seconds up to ten years, for a short or
a long time.

The world's own clock is the truth. A process reads its machine's through a ``GuardedClock``, whose second source is
the Date of the store's answers, or else the time since boot.

    ahead, behind   one machine's wall clock, by minutes to ten years
    small           one machine's, by so little that it is trusted
    store           the Date of the store's answers; the machines are right
    all             the world is suspended: each wall clock and the store agree that minutes have passed, none ran

Three cases are not tried, since nothing can be done about them: a process that starts while the store's clock is wrong;
one that starts while its machine's is wrong and the store has none; messages between a suspension and the store's next
answer, whose times are those of before the suspension.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from broker.base.clock import GuardedClock
from tests.manual_clock import ManualClock

__all__ = ["Clocks"]

SECOND = 1_000_000_000
_LARGE = (180 * SECOND, 3600 * SECOND, 86_400 * SECOND, 10 * 365 * 86_400 * SECOND)
_STORE_MORE_NS = 1000 * SECOND
"""Additional error of the store's clock, so that it is never as wrong as a machine that does not know yet that the
store is right again: two clocks that agree are trusted."""
_SUSPENDED_NS = 180 * SECOND
"""Less than the windows and lifetimes in the oracles, since a request from before a suspension is decided after it."""
_LEAPS = 0.08
"""Probability of a leap in each step of a world."""
_STORE = "the store"
_SWEEP_NS = 30 * SECOND
"""Time for which a deletion that was decided before a leap may be carried out."""


class Clocks:
    """Args: ``dated``: whether the store's answers have a Date; ``counts``: the number of leaps of each kind."""

    def __init__(self, clock: ManualClock, loop: asyncio.AbstractEventLoop, rng: random.Random, counts: Counter[str], *,
                 dated: bool) -> None:
        self._true = clock
        self._loop = loop
        self._rng = rng
        self._counts = counts
        self._dated = dated
        small_ns = rng.choice((1, 20)) * SECOND
        self._small = (small_ns, -small_ns)
        self.slack_ns = 2 * small_ns + 3 * SECOND
        """Upper bound of the difference between two trusted clocks at one instant."""
        self._off_ns: defaultdict[str, int] = defaultdict(int)
        """Time by which a machine's wall clock is ahead, by machine."""
        self._store_off_ns = 0
        self._dates: dict[str, Callable[[], None]] = {}
        """Callbacks that give a process the store's time, by machine."""
        self._wrong_since_ns: dict[str, int] = {}
        """Times since which a machine's clock has differed from the store's by more than a minute, by machine."""
        self._wrong_until_ns = 0
        self.suspended_ns = 0
        """Sum of all suspensions. A clock that was wrong meanwhile may be behind by this time, and a delivery be due
        later by it."""

    def clock_of(self, machine: str) -> tuple[GuardedClock, Callable[[], None]]:
        """Return a new process's clock, and a function that records the Date of an answer."""
        true = self._true
        dates: list[tuple[int, int]] = []
        if not self._dated:
            self._set(machine, 0)

        def witness_ns() -> int | None:
            return dates[-1][0] + true.monotonic_ns() - dates[-1][1] if dates else None

        def answered() -> None:
            if self._dated:
                date_ns = (true.now_ns() + self._store_off_ns) // SECOND * SECOND + SECOND // 2
                dates[:] = [(date_ns, true.monotonic_ns())]

        self._set_store(0)
        clock = GuardedClock(lambda: true.now_ns() + self._off_ns[machine], true.monotonic_ns)
        clock.witness = witness_ns
        answered()
        self._dates[machine] = answered
        _ = clock.trusted  # StoreHost also reads this first
        return clock, answered

    def may_delete(self, machine: str) -> bool:
        """Return whether the machine's clock may be trusted, or could be until just now."""
        now_ns = self._true.monotonic_ns()
        return all(now_ns - self._wrong_since_ns.get(whose, now_ns) <= _SWEEP_NS for whose in (machine, _STORE))

    def wrong_lately(self, ns: int) -> bool:
        """Return whether any clock was wrong within the last ``ns``, so that events may be late."""
        return bool(self._wrong_since_ns) or self._true.monotonic_ns() - self._wrong_until_ns <= ns

    def perhaps_leap(self, machines: Sequence[str]) -> None:
        """Let some clock leap, at random."""
        if self._rng.random() < _LEAPS:
            self._leap(self._rng.choice(machines))

    def _leap(self, machine: str) -> None:
        rng = self._rng
        what = rng.choice(("ahead", "ahead", "behind", "behind", "small", *(("store", "all") if self._dated else ())))
        lasts_s = rng.choice((1, 1, 20, 0))
        large_ns = rng.choice(_LARGE)
        self._counts[f"clock {what}"] += 1
        if what == "all":
            self._true.leap(_SUSPENDED_NS)
            self.suspended_ns += _SUSPENDED_NS
            for answered in self._dates.values():
                answered()
            self._wrong_until_ns = self._true.monotonic_ns()
        elif what == "store":
            if not self._wrong_since_ns:
                self._set_store(rng.choice((1, -1)) * (large_ns + _STORE_MORE_NS))
                self._loop.call_later(lasts_s or 5, self._set_store, 0)
        elif what == "small":
            self._set(machine, rng.choice((0, *self._small)))
        elif not self._store_off_ns:
            self._set(machine, large_ns if what == "ahead" else -large_ns)
            if lasts_s:
                self._counts["clock right again"] += 1
                self._loop.call_later(lasts_s, self._set, machine, 0)

    def leap(self, machine: str, ns: int, seconds: float) -> None:
        """Move one machine's clock by ``ns`` for some seconds."""
        self._set(machine, ns)
        self._loop.call_later(seconds, self._set, machine, 0)

    def set_all_right(self) -> None:
        """Make all clocks right from now on."""
        self._set_store(0)
        for machine in list(self._off_ns):
            self._set(machine, 0)

    def _set(self, machine: str, off_ns: int) -> None:
        self._off_ns[machine] = off_ns
        self._wrong(machine, abs(off_ns) > GuardedClock.APART_NS)

    def _set_store(self, off_ns: int) -> None:
        self._store_off_ns = off_ns
        self._wrong(_STORE, off_ns != 0)

    def _wrong(self, whose: str, wrong: bool) -> None:
        now_ns = self._true.monotonic_ns()
        if wrong:
            self._wrong_since_ns.setdefault(whose, now_ns)
        elif self._wrong_since_ns.pop(whose, None) is not None:
            self._wrong_until_ns = now_ns
