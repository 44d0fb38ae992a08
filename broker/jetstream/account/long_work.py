"""Long work of one request, which must not hold the loop: in steps, or in a thread if it changes nothing.

A generator yields between two steps. Its caller runs the steps in as many turns of the loop, or all of them at once where
nobody else is served, as at a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final, TypeVar

__all__ = ["LONG", "Steps", "aside", "at_once", "in_turns"]

T = TypeVar("T")

Steps = Generator[None, None, None]

LONG: Final = 512
"""Elements of a configuration whose check takes some milliseconds."""


async def aside(elements: int, work: Callable[[], T]) -> T:
    """The result of ``work``, which reads and changes nothing that others change; in a thread if it is long."""
    return work() if elements < LONG else await asyncio.to_thread(work)


async def in_turns(steps: Steps) -> None:
    """Run the steps, with a turn of the loop after each. A cancelled call closes the generator."""
    try:
        for _ in steps:
            await asyncio.sleep(0)
    finally:
        steps.close()


def at_once(steps: Steps) -> None:
    """Run all steps now."""
    for _ in steps:
        pass
