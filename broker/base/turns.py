"""Long work in steps, with a turn of the event loop after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import nullcontext
from typing import TypeVar

__all__ = ["in_turns"]

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T], lock: asyncio.Lock | None = None) -> T:
    """Run ``steps`` to the end, with a turn of the loop after each step, and return their result.

    Args: ``lock`` is held for each step and the turn after it: of all work with one lock, only one makes a step in a
    turn.

    A cancelled call closes the generator.
    """
    try:
        while True:
            async with lock or nullcontext():
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await asyncio.sleep(0)
    finally:
        steps.close()
