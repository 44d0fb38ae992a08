"""The guarded clock shows a correct time, and knows when to trust it, while the wall clock or the store's leaps."""

from __future__ import annotations

import random

import pytest

from broker.base.clock import GuardedClock

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
TEN_YEARS = 10 * 365 * 24 * HOUR
LEAPS = [61 * SECOND, HOUR, TEN_YEARS, -61 * SECOND, -HOUR, -TEN_YEARS]


class Machine:
    """A wall clock, the time since boot and a store's clock, moved by the test; ``clock`` began when all were right."""

    def __init__(self, *, off_ns: int = 0, has_witness: bool = False) -> None:
        self.true_ns = 1_700_000_000 * SECOND
        self.off_ns = off_ns
        self.boot_ns = 5 * HOUR
        self.witness_off_ns = 0
        self.clock = GuardedClock(lambda: self.true_ns + self.off_ns, lambda: self.boot_ns)
        if has_witness:
            self.clock.witness = lambda: self.true_ns + self.witness_off_ns

    def advance(self, ns: int) -> None:
        self.true_ns += ns
        self.boot_ns += ns


@pytest.mark.parametrize("leap", LEAPS)
@pytest.mark.parametrize("has_witness", [False, True])
@pytest.mark.parametrize("read", [True, False])
def test_a_leap_is_not_followed(leap: int, has_witness: bool, read: bool) -> None:
    """The time continues as before the leap and is not trusted. It is trusted as soon as the clock is right again,
    whether or not the clock was read meanwhile."""
    machine = Machine(has_witness=has_witness)
    assert machine.clock.trusted
    machine.off_ns = leap
    for _ in range(3):
        machine.advance(HOUR)
        if read:
            assert machine.clock.now_ns() == machine.true_ns
        assert not machine.clock.trusted
        assert machine.clock.apart_ns == leap
    machine.off_ns = 0
    if read:
        assert machine.clock.now_ns() == machine.true_ns
    assert machine.clock.trusted
    assert machine.clock.apart_ns == 0


@pytest.mark.parametrize("step", [SECOND, 50 * SECOND, -SECOND, -50 * SECOND])
def test_small_steps_are_followed(step: int) -> None:
    """The clock follows corrections below a minute, one after another."""
    machine = Machine()
    for number in range(1, 4):
        machine.off_ns = number * step
        machine.advance(SECOND)
        assert machine.clock.now_ns() == machine.true_ns + number * step
        assert machine.clock.trusted


def test_small_steps_away_from_the_stores_clock() -> None:
    """Small steps in sum beyond a minute are not followed, because the store's clock differs then."""
    machine = Machine(has_witness=True)
    for _ in range(10):
        machine.off_ns += 50 * SECOND
        machine.advance(SECOND)
        trusted = machine.clock.trusted
        assert trusted == (machine.off_ns == 50 * SECOND)
        assert machine.clock.now_ns() <= machine.true_ns + 60 * SECOND


@pytest.mark.parametrize("leap", LEAPS)
def test_a_leap_that_the_store_confirms(leap: int) -> None:
    """After a suspend that the time since boot does not count, the clock is trusted as soon as the store agrees."""
    machine = Machine(has_witness=True)
    assert machine.clock.trusted
    machine.true_ns += leap
    machine.witness_off_ns = -leap  # by the last response, until the next one comes
    machine.advance(SECOND)
    assert machine.clock.now_ns() == machine.true_ns - leap
    assert not machine.clock.trusted
    machine.witness_off_ns = 0
    machine.advance(SECOND)
    assert machine.clock.now_ns() in (machine.true_ns, machine.true_ns - leap)
    assert machine.clock.trusted
    assert machine.clock.now_ns() == machine.true_ns


@pytest.mark.parametrize("leap", LEAPS)
def test_a_store_whose_clock_leaps(leap: int) -> None:
    """The machine's time continues, because its clocks were right; nothing expires until the store's is right again."""
    machine = Machine(has_witness=True)
    assert machine.clock.trusted
    machine.witness_off_ns = leap
    for _ in range(3):
        machine.advance(HOUR)
        assert not machine.clock.trusted
        assert machine.clock.now_ns() == machine.true_ns
        assert machine.clock.apart_ns == -leap
    machine.witness_off_ns = 0
    assert machine.clock.trusted
    assert machine.clock.now_ns() == machine.true_ns


@pytest.mark.parametrize("off", LEAPS)
def test_a_machine_that_starts_with_a_wrong_clock(off: int) -> None:
    """The time is the store's, and is not trusted until the machine's clock is right."""
    machine = Machine(off_ns=off, has_witness=True)
    assert not machine.clock.trusted
    machine.advance(HOUR)
    assert machine.clock.now_ns() == machine.true_ns
    machine.off_ns = 0
    machine.advance(HOUR)
    assert machine.clock.now_ns() == machine.true_ns
    assert machine.clock.trusted


@pytest.mark.parametrize("leap", LEAPS)
def test_a_store_whose_clock_leaps_once_a_machines_was_set_right(leap: int) -> None:
    """The machine started with a wrong clock; nobody read the time between its correction and the store's leap."""
    machine = Machine(off_ns=HOUR, has_witness=True)
    assert machine.clock.now_ns() == machine.true_ns + HOUR
    assert not machine.clock.trusted
    machine.advance(SECOND)
    assert machine.clock.now_ns() == machine.true_ns
    machine.off_ns, machine.witness_off_ns = 0, leap
    for _ in range(3):
        machine.advance(HOUR)
        assert not machine.clock.trusted
        assert machine.clock.now_ns() == machine.true_ns
    machine.witness_off_ns = 0
    assert machine.clock.trusted


class Outside:
    """The clocks of a machine that may be paused, with all that runs on it, and the store's; ``clock`` reads them."""

    def __init__(self) -> None:
        self.true_ns = 1_700_000_000 * SECOND
        self.lost_ns = 0
        """The time by which the monotonic clock is behind."""
        self.wall_off_ns = 0
        self.store_ns: int | None = None
        self.clock = GuardedClock(lambda: self.true_ns + self.wall_off_ns, self.monotonic_ns)
        self.clock.witness = lambda: self.store_ns

    def monotonic_ns(self) -> int:
        return self.true_ns - self.lost_ns

    def answer(self, late_ns: int = 0) -> None:
        """Deliver a response of the store, with a Date in whole seconds from ``late_ns`` ago."""
        self.store_ns = (self.true_ns - late_ns) // SECOND * SECOND + SECOND // 2


def test_outside_time_is_monotonic_time_while_the_clocks_agree() -> None:
    machine = Outside()
    began_ns = machine.clock.outside_ns()
    for _ in range(10):
        machine.true_ns += HOUR
        assert machine.clock.outside_ns() - began_ns == machine.true_ns - 1_700_000_000 * SECOND


@pytest.mark.parametrize("by", ["wall", "store"])
def test_outside_time_contains_a_pause_that_another_clock_reveals(by: str) -> None:
    """The outside time contains a minute in which the machine and its monotonic clock were stopped."""
    machine = Outside()
    machine.answer()
    began_ns = machine.clock.outside_ns()
    machine.true_ns += 60 * SECOND
    machine.lost_ns += 60 * SECOND
    if by == "wall":
        machine.store_ns = None
    else:
        machine.wall_off_ns -= 60 * SECOND
        assert machine.clock.outside_ns() == began_ns, "nothing has shown the pause yet"
        machine.answer()
    assert machine.clock.outside_ns() - began_ns >= 60 * SECOND
    machine.true_ns += SECOND
    assert 61 * SECOND <= machine.clock.outside_ns() - began_ns < 63 * SECOND, "it counts once"


def test_outside_time_never_goes_back_and_counts_each_leap() -> None:
    machine = Outside()
    last_ns = machine.clock.outside_ns()
    for leap in (*LEAPS, *reversed(LEAPS)):
        machine.wall_off_ns += leap
        now_ns = machine.clock.outside_ns()
        assert now_ns - last_ns == max(0, leap)
        last_ns = now_ns


@pytest.mark.parametrize("apart_s", [60, 1700])
def test_outside_time_ignores_late_answers_and_servers_that_differ(apart_s: int) -> None:
    """Dates are truncated, arrive late, and come from servers whose clocks differ by up to the half hour that S3
    allows. After one date of each kind, none is a leap."""
    rng = random.Random(1)
    machine = Outside()
    for _ in range(1000):
        machine.true_ns += rng.randrange(10 * SECOND)
        machine.answer(rng.choice((0, apart_s * SECOND)) + rng.randrange(5 * SECOND))
        machine.clock.outside_ns()
    began_ns, true_ns = machine.clock.outside_ns(), machine.true_ns
    for _ in range(1000):
        machine.true_ns += rng.randrange(10 * SECOND)
        machine.answer(rng.choice((0, apart_s * SECOND)) + rng.randrange(5 * SECOND))
        # The lead of the fastest answer shrinks by a thousandth of the time, and is then found again.
        assert machine.clock.outside_ns() - began_ns <= (machine.true_ns - true_ns) * 1.002 + SECOND
