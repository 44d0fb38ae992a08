"""Waits for a limited time, in tasks that others cancel.

``asyncio.wait_for`` of Python 3.11 loses a cancellation that comes in the turn of the loop in which the awaited call
ends. The task then goes on, and a caller that has cancelled it waits for its end for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

__all__ = ["within"]


async def within(waiting: Coroutine[Any, Any, object], seconds: float) -> None:
    """Return once ``waiting`` has ended, or after so many seconds; then it is cancelled."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting
