"""A wait for a task that goes on when the waiter is cancelled.

From Python 3.14 on, ``asyncio.shield`` reports an error of the task to the loop's exception handler if a waiter was
cancelled, although others handle it.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

__all__ = ["shielded"]

T = TypeVar("T")


async def shielded(task: asyncio.Future[T]) -> T:
    """Return the result of ``task``, which several callers may wait for. Raises: as ``task``."""
    if not task.done():
        await asyncio.wait((task,))
    return task.result()
