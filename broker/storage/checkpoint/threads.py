"""Runs the slow parts of a round outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], *args: object, threads: bool) -> T:
    """Return ``fn(*args)``, called in a thread that no commit uses; without ``threads``, after a turn of the loop."""
    if threads:
        return await asyncio.to_thread(fn, *args)
    await asyncio.sleep(0)
    return fn(*args)
