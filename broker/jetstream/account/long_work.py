"""Long work of one request, which must not hold the loop: it runs in steps, or in a thread if it changes nothing.

A generator yields between two steps. Its caller runs one step in each turn of the loop (``broker.base.turns``), or all
steps at once if nobody is being served, as at a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final, TypeVar

__all__ = ["LONG", "Steps", "at_once", "in_thread_if_long"]

T = TypeVar("T")

Steps = Generator[None, None, None]

LONG: Final = 512
"""The number of elements of a configuration whose check takes some milliseconds."""


async def in_thread_if_long(elements: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, run in a thread if it has ``LONG`` elements or more.

    ``work`` changes nothing, and reads nothing that others change.
    """
    return work() if elements < LONG else await asyncio.to_thread(work)


def at_once(steps: Steps) -> None:
    """Run all steps now."""
    for _ in steps:
        pass
