"""How long a standby leaves a shard that nobody owns to another broker, which may be about to take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

__all__ = ["NEVER_NS", "HoldOff"]

NEVER_NS = 1 << 62
"""A delay that never ends: the shard is not taken at all, even if its owner is silent."""


class HoldOff:
    """The time for which one standby leaves one shard to other brokers.

    Args: ``delay_ns`` returns the time for which the shard must have been free; 0: it is taken at once;
        ``NEVER_NS``: it is not taken.
    """

    def __init__(self, delay_ns: Callable[[], int] = lambda: 0) -> None:
        self._delay_ns = delay_ns
        self._ended = False
        self._wake = asyncio.Event()

    @property
    def delay_ns(self) -> int:
        """The time for which the shard must have been free."""
        return 0 if self._ended else self._delay_ns()

    def end(self) -> None:
        """Take the shard as soon as it is free, and look at once."""
        self._ended = True
        self._wake.set()

    def wake(self) -> None:
        """Let the standby poll at once: something may have changed."""
        self._wake.set()

    def begin(self) -> None:
        """Hold off again."""
        self._ended = False
        self._wake.clear()

    async def sleep(self, seconds: float) -> None:
        """Sleep, until ``end`` at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()
