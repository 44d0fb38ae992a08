"""Shrinking of a failing scenario: fewer steps, smaller configurations, simpler arguments."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from tests.fuzz.scenario import Scenario

__all__ = ["shrink"]


async def shrink(scenario: Scenario, fails: Callable[[Scenario], Awaitable[bool]], tries: int = 200) -> Scenario:
    """Return a smaller scenario that fails like ``scenario``. ``fails`` is called at most ``tries`` times."""
    at, progress = 0, False
    for _ in range(tries):
        # After a success the search continues at its place: a reduction that failed before rarely succeeds now.
        candidate = next(islice(_smaller(scenario), at, None), None)
        if candidate is None:
            if not progress:
                break
            at, progress = 0, False
        elif await fails(candidate):
            scenario, progress = candidate, True
        else:
            at += 1
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield smaller scenarios: first those with fewer steps, then those with smaller configurations or steps."""
    for steps in _shorter(scenario.steps):
        yield scenario.but(steps=steps)
    for number, config in enumerate(scenario.configs):
        for smaller in _reduced(config):
            yield scenario.but(configs=[*scenario.configs[:number], smaller, *scenario.configs[number + 1:]])
    for number, step in enumerate(scenario.steps):
        if step[1] == "reload":
            continue
        for at in range(1 if step[0] == "" else 2, len(step)):
            for argument in _reduced(step[at]):
                changed = [*step[:at], argument, *step[at + 1:]]
                yield scenario.but(steps=[*scenario.steps[:number], changed, *scenario.steps[number + 1:]])


def _shorter(values: list[Any]) -> Iterator[list[Any]]:
    """Yield ``values`` without a part: halves, quarters, …, single ones."""
    size = len(values) // 2
    while size:
        for start in range(0, len(values), size):
            yield values[:start] + values[start + size:]
        size //= 2
    if len(values) == 1:
        yield []


def _reduced(value: Any) -> Iterator[Any]:
    """Yield simpler values in place of ``value``."""
    if isinstance(value, dict):
        for name in value:
            yield {other: inner for other, inner in value.items() if other != name}
        for name, inner in value.items():
            for smaller in _reduced(inner):
                yield {**value, name: smaller}
    elif isinstance(value, list):
        yield from _shorter(value)
        for at, inner in enumerate(value):
            for smaller in _reduced(inner):
                yield [*value[:at], smaller, *value[at + 1:]]
    elif isinstance(value, str):
        yield from _reduced_text(value)


def _reduced_text(text: str) -> Iterator[str]:
    head, brace, tail = text.partition("{")
    if brace and tail:
        try:
            body = json.loads(brace + tail)
        except ValueError:
            body = None
        if body is not None:
            for smaller in _reduced(body):
                yield head + json.dumps(smaller)
            return
    tokens = text.split(".")
    if len(tokens) > 1:
        for at in range(len(tokens)):
            yield ".".join(tokens[:at] + tokens[at + 1:])
    elif len(text) > 1 and " " not in text:
        yield text[:1]
