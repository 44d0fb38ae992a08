"""Growth of work: an operation with n, 2n and 4n elements may need processor time like n log n, and never a long turn.

A broker serves all clients on one event loop, so an operation whose work grows faster, or that is not done in slices,
lets one client stop all others. ``check`` plays a case with n and 4n elements, each on a broker of its own, and
asserts:

    growth    cpu(4n) <= 4 * log(4n) / log(n) * cpu(n), with the tolerance below; quadratic work has a ratio of 16.
              If this fails, 2n elements are played, and the same from 2n to 4n is enough
    turn      no turn of the event loop needs more than 50 ms of processor time, with the same tolerance; work in
              threads is no turn

Both are processor time, not wall time, as measured inside the broker (metered.py). On a busy or slow machine the same
work may take several times as much, therefore:

    * A turn is counted in units of a fixed piece of work, which the broker does just after it: 50 ms are those of a
      machine that does the fixed work in ``PACE_S``.
    * A failure counts only if it repeats, and the least figures of all runs are compared. If growth was wrong, n is
      doubled, because an even larger ratio is expected then.

Garbage collection is the broker's own, in a process that has nothing else in its heap.

A case is a row of a table: ``Case(name, play, n)``; ``Stage`` has an example of ``play``. Choose n such that

    * 4n is about as much as a client can send, or as a large configuration has, so that the longest turn is found, and
    * cpu(n) is 5 ms or more, where the operation allows it: below, constant costs hide the growth.

To see the figures of some cases: python -m tests.growth NAME …
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import pytest

from tests.growth.stage import Figures, Stage, Template

__all__ = ["TURN_MAX_S", "Case", "check", "measure", "parameters"]

TURN_MAX_S = 0.05
PACE_S = 0.0015
"""The processor time of the fixed work on the machine that ``TURN_MAX_S`` is meant for."""

_TOLERANCE = 1.5
_CONSTANT_S = 0.01
"""Differences of this size mean nothing: timers of the broker and interrupts of the machine cost as much."""

_TRIES = 5


@dataclass(frozen=True)
class Case:
    """An operation with n elements.

    Args:
        play: prepares and measures; see ``Stage``. None: the start of the broker is measured, which reads the
        configuration. config: the configuration file's text for n elements.
        most: no more elements are possible; n is not doubled beyond it.
        turn_max_s: None for work that no client can cause: a start.
    """

    name: str
    play: Callable[[Stage, int], None] | None
    n: int
    config: Callable[[int], str] | str = ""
    jetstream: bool = False
    most: int | None = None
    turn_max_s: float | None = TURN_MAX_S

    def __str__(self) -> str:
        return self.name


def parameters(cases: Sequence[Case], soak: Collection[str]) -> list[Any]:
    """Return the parameters of a test that plays these cases; those whose names are in ``soak`` in long runs only."""
    assert {case.name for case in cases}.issuperset(soak)
    return [pytest.param(case, id=case.name, marks=pytest.mark.soak if case.name in soak else ()) for case in cases]


def measure(template: Template, case: Case, n: int) -> Figures:
    """Play ``case`` once with ``n`` elements, on a new broker."""
    config = case.config if isinstance(case.config, str) else case.config(n)
    with Stage(template, config, jetstream=case.jetstream) as stage:
        if case.play is None:
            return stage.started
        case.play(stage, n)
        assert stage.figures is not None, f"{case.name} measured nothing"
        return stage.figures


def check(template: Template, case: Case) -> None:
    """Assert both rules for ``case``."""
    n = case.n
    least: dict[int, float] = {}
    reports: list[str] = []
    growth_held = False
    turn_s = float("inf")

    def play(size: int) -> Figures:
        figures = measure(template, case, size)
        least[size] = min(least.get(size, figures.cpu_s), figures.cpu_s)
        return figures

    for _ in range(_TRIES):
        played = {size: play(size) for size in (n, 4 * n)}
        turn_s = min(turn_s, max(_at_pace(figures) for figures in played.values()))
        growth_held = growth_held or _within(n, least, 4 * n, _TOLERANCE)
        if not growth_held:
            # A constant hides the growth between n and 2n only, and one disturbed run affects only one of both
            # comparisons.
            played[2 * n] = play(2 * n)
            growth_held = _within(2 * n, least, 4 * n, _TOLERANCE ** 0.5)
        reports.append(report(played))
        if growth_held and (case.turn_max_s is None or turn_s <= case.turn_max_s * _TOLERANCE):
            return
        if not growth_held and (case.most is None or 8 * n <= case.most):
            n *= 2
    measured = f"{case.name}:\n" + "\n".join(reports)
    assert growth_held, f"processor time grows faster than n log n. {measured}"
    raise AssertionError(f"a turn of the event loop takes {turn_s * 1000:.0f} ms. {measured}")


def _within(n: int, cpu_s: dict[int, float], more: int, tolerance: float) -> bool:
    allowed = more * log(max(more, 3)) / (n * log(max(n, 3)))
    return cpu_s[more] <= allowed * tolerance * cpu_s[n] + _CONSTANT_S


def _at_pace(figures: Figures) -> float:
    return figures.turn_s * min(1.0, PACE_S / figures.pace_s)


def report(played: dict[int, Figures]) -> str:
    """Return one line: for each size the processor time, the longest turn, the number of turns and the pace."""
    return "  ".join(f"n={size}: {one.cpu_s * 1000:.1f} ms, longest of {one.turns} turns {one.turn_s * 1000:.1f} ms at "
                     f"{one.pace_s * 1000:.1f};"
                     for size, one in sorted(played.items()))
