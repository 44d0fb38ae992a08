"""The stop watch and the checks of the growth tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from math import log

import pytest

from tests.growth import meter
from tests.growth.meter import PACE_S, Case, check
from tests.growth.metered import MeteredLoop
from tests.growth.stage import Figures, Template


def spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def turn_of(work: Callable[[asyncio.AbstractEventLoop], None]) -> float:
    """Return the longest turn of a loop that runs ``work`` and ends 100 ms later."""
    loop = MeteredLoop()
    try:
        loop.call_soon(work, loop)
        loop.call_later(0.1, loop.stop)
        loop.run_forever()
        return loop.turn_s
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_a_turn_is_the_processor_time_of_one_turn() -> None:
    """Work of 30 ms within one turn counts; waiting does not, and neither does the same work in five slices."""
    def in_slices(loop: asyncio.AbstractEventLoop, left: int = 5) -> None:
        spin(0.006)
        if left > 1:
            loop.call_soon(in_slices, loop, left - 1)

    assert 0.03 <= turn_of(lambda _: spin(0.03)) < 0.06
    assert turn_of(lambda _: time.sleep(0.03)) < 0.01
    assert 0.006 <= turn_of(in_slices) < 0.025


def test_work_in_a_thread_is_no_turn() -> None:
    assert turn_of(lambda loop: loop.run_in_executor(None, spin, 0.05) and None) < 0.02


def figures_of(cost_s: Callable[[int], float], turn_s: float) -> Callable[[Template, Case, int], Figures]:
    return lambda _template, _case, n: Figures(cost_s(n), turn_s, 1, PACE_S)


@pytest.mark.parametrize("cost_s", [lambda n: 1e-6 * n, lambda n: 1e-6 * n * log(n), lambda n: 0.3 + 1e-6 * n,
                                    lambda n: 0.001 + 1e-9 * n * n])
def test_the_verdict_accepts(cost_s: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted are linear work, n log n, a constant beside it, and quadratic work too small to matter at any possible
    size."""
    monkeypatch.setattr(meter, "measure", figures_of(cost_s, 0.01))
    check(Template(), Case("accepted", None, 1000, most=4000))


@pytest.mark.parametrize("cost_s",
                         [lambda n: 1e-8 * n * n, lambda n: 1e-6 * n + 1e-9 * n * n, lambda n: 1e-6 * n ** 1.8])
def test_the_verdict_refuses_growth(cost_s: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Quadratic work is refused, also if most of it is linear at first: n is doubled until the ratio shows it."""
    monkeypatch.setattr(meter, "measure", figures_of(cost_s, 0.01))
    with pytest.raises(AssertionError, match=r"grows faster than n log n. quadratic:\nn=10000: "):
        check(Template(), Case("quadratic", None, 10_000))


def test_the_verdict_refuses_a_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "measure", figures_of(lambda n: 1e-6 * n, 0.08))
    with pytest.raises(AssertionError, match="a turn of the event loop takes 80 ms"):
        check(Template(), Case("long", None, 10_000))


def test_a_slow_machine_may_need_longer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of 120 ms is accepted if the fixed work takes three times as long, and refused if it does not."""
    for pace_s, accepted in ((3 * PACE_S, True), (PACE_S, False), (PACE_S / 3, False)):
        monkeypatch.setattr(meter, "measure", lambda *_, pace_s=pace_s: Figures(0.1, 0.12, 1, pace_s))
        try:
            check(Template(), Case("slow", None, 10_000))
        except AssertionError:
            assert not accepted
        else:
            assert accepted


def test_one_slow_run_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was busy in the first run: the second time, both rules hold."""
    def runs() -> Iterator[Figures]:
        yield from (Figures(0.1, 0.09, 1, PACE_S), Figures(4.0, 0.09, 1, PACE_S), Figures(1.0, 0.09, 1, PACE_S))
        yield from (Figures(0.1, 0.01, 1, PACE_S), Figures(0.4, 0.01, 1, PACE_S))

    seen = runs()
    monkeypatch.setattr(meter, "measure", lambda *_: next(seen))
    check(Template(), Case("busy", None, 1000))
    assert next(seen, None) is None


def test_slow_runs_of_one_size_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is busy in all but one run of the larger number: the least time of each size counts."""
    times_s = {1000: [0.2, 0.1, 0.1], 2000: [0.2] * 3, 4000: [4.0, 4.0, 0.4]}
    monkeypatch.setattr(meter, "measure", lambda _template, _case, n: Figures(times_s[n].pop(0), 0.01, 1, PACE_S))
    check(Template(), Case("busy", None, 1000, most=4000))
