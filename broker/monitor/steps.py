"""Generators that make long pages in steps, between which the event loop turns.

    def page_in_steps(…) -> Steps:                   # a generator: yields after each step, returns the page
        rows = yield from collect(views.rows(), shown)
        return {"rows": rows}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

__all__ = ["Steps", "at_once", "collect"]

Steps = Generator[None, None, dict[str, Any]]

T = TypeVar("T")
R = TypeVar("R")

_ROWS: Final = 256
"""Number of rows in one step: 1 to 5 ms."""


def at_once(steps: Generator[None, None, R]) -> R:
    """Run all steps without turns of the loop. Returns: the result of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def collect(rows: Iterable[T], make: Callable[[T], R], *, start: int = 0,
            stop: int | None = None) -> Generator[None, None, list[R]]:
    """Return ``make(row)`` of rows[start:stop], in steps."""
    made: list[R] = []
    at = 0
    left = iter(rows)
    while part := list(islice(left, _ROWS if stop is None else min(_ROWS, stop - at))):
        made += [make(row) for row in part[max(start - at, 0):]]
        at += len(part)
        if len(part) < _ROWS:
            break
        yield
    return made
