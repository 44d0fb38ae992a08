"""``asyncio.wait_for`` of Python 3.12, for clients that run on 3.11 and are cancelled by tests.

The one of 3.11 drops a cancellation that comes in the turn of the loop in which the awaited object ends. nats-py waits
with it for each answer and each connection, so a task that was cancelled just then continued to run. The test that
awaited its end, or the loop that waits for all tasks, then waited until pytest's timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["wait_for"]

_T = TypeVar("_T")


async def wait_for(fut: Awaitable[_T], timeout: float | None) -> _T:
    """Wait for ``fut``, at most ``timeout`` seconds: then it is cancelled. Raises: TimeoutError; CancelledError,
    always."""
    if timeout is not None and timeout <= 0:
        fut = asyncio.ensure_future(fut)
        if fut.done():
            return fut.result()
    async with asyncio.timeout(timeout):
        return await fut
