"""The timer of batches that end when idle for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.base.clock import Clock

__all__ = ["IdleTimer"]


class IdleTimer:
    """Calls ``expire(now_ns)`` once the oldest batch has been idle for too long.

    ``expire`` returns the next deadline, or None.
    """

    __slots__ = ("_clock", "_expire", "_handle")

    def __init__(self, clock: Clock, expire: Callable[[int], int | None]) -> None:
        self._clock = clock
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, delay_ns: int) -> None:
        """Start the timer unless it runs. A batch may expire in ``delay_ns``; none expires earlier."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._due)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        self._handle = None
        now_ns = self._clock.monotonic_ns()
        next_ns = self._expire(now_ns)
        if next_ns is not None:
            self.arm(max(next_ns - now_ns, 1_000_000))
