"""Work of a round that is not the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], *args: object, threads: bool) -> T:
    """``fn(*args)``, in a thread that is not one of the commits'; after a turn of the loop where there are no ``threads``."""
    if threads:
        return await asyncio.to_thread(fn, *args)
    await asyncio.sleep(0)
    return fn(*args)
