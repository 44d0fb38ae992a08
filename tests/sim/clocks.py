"""The clocks of a world's machines and of its store: each is right, or leaps, by seconds or ten years, for a second or
for long.

The world's own clock is the truth. A process reads its machine's through a ``GuardedClock``, whose second source is the
Date of the store's answers, or else the time since boot.

    ahead, behind   one machine's wall clock, by minutes to ten years
    small           one machine's, by so little that it is believed
    store           the Date of the store's answers; the machines are right
    all             the world is suspended: each wall clock and the store agree that minutes have passed, none ran

Not tried, since nothing can be done about it: a process that starts while the store's clock is wrong, or while its
machine's is and the store has none; messages between a suspension and the store's next answer, whose times are those of
before it.
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
"""So that the store is never wrong by as much as a machine is before it has heard that the store is right again: two
clocks that agree are believed."""
_SUSPENDED_NS = 180 * SECOND
"""Less than the windows and lifetimes that the oracles know: what a client asks for before it is decided after it."""
_LEAPS = 0.08
"""How many times as often as a step of a world a clock leaps."""
_STORE = "the store"
_SWEEP_NS = 30 * SECOND
"""What was decided to be deleted before a clock leapt may be deleted for so long."""


class Clocks:
    """Args: ``dated``: whether the store's answers have a Date; ``counts``: how often which leap happened."""

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
        """How far two times may be apart that believed clocks showed at one instant."""
        self._off_ns: defaultdict[str, int] = defaultdict(int)
        """By machine: how far its wall clock is ahead."""
        self._store_off_ns = 0
        self._dates: dict[str, Callable[[], None]] = {}
        """By machine: what tells its process the store's time."""
        self._wrong_since_ns: dict[str, int] = {}
        """By machine: since when its clock has not been what the store's is, by more than a minute."""
        self._wrong_until_ns = 0
        self.suspended_ns = 0
        """In sum. A clock that was wrong meanwhile may be behind by as much, and what was delivered be due later by
        as much."""

    def of(self, machine: str) -> tuple[GuardedClock, Callable[[], None]]:
        """A new process's clock; and what notes the Date of an answer that comes in."""
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
        _ = clock.trusted  # is asked first of all, as by StoreHost
        return clock, answered

    def may_delete(self, machine: str) -> bool:
        """Return whether its clock may be believed, or was until just now."""
        now_ns = self._true.monotonic_ns()
        return all(now_ns - self._wrong_since_ns.get(whose, now_ns) <= _SWEEP_NS for whose in (machine, _STORE))

    def wrong_lately(self, ns: int) -> bool:
        """Return whether any clock was wrong within the last ``ns``: what should have happened may be late."""
        return bool(self._wrong_since_ns) or self._true.monotonic_ns() - self._wrong_until_ns <= ns

    def perhaps_leap(self, machines: Sequence[str]) -> None:
        """Now and then some clock leaps."""
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

    def right(self) -> None:
        """All are right from now on."""
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
