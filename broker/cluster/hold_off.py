"""How long a standby leaves a shard that nobody owns to another broker, which may be about to take it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker.base.within import within
from broker.storage.format.header import Position

__all__ = ["NEVER_NS", "HoldOff"]

T = TypeVar("T")

NEVER_NS = 1 << 62
"""A delay that never ends: the shard is not taken at all, even if its owner is silent."""


class HoldOff:
    """The time for which one standby leaves one shard to other brokers.

    Args: ``delay_ns`` returns the time for which the shard must have been free; 0: it is taken at once;
        ``NEVER_NS``: it is not taken.
    """

    def __init__(self, delay_ns: Callable[[], int] = lambda: 0) -> None:
        self._delay_ns = delay_ns
        self._ended_until = -math.inf
        self._left_ns, self._left_until = 0, -math.inf
        self._wake = asyncio.Event()
        self.seal: Position | None = None
        """The position of the seal that the shard's owner says it has put; None: it has said nothing. This is only a
        hint: the standby reads what the store has there."""
        self._told = asyncio.Event()
        """Set when ``seal`` becomes known."""

    @property
    def delay_ns(self) -> int:
        """The time for which the shard must have been free."""
        now = asyncio.get_running_loop().time()
        if now < self._ended_until:
            return 0
        return max(self._delay_ns(), self._left_ns if now < self._left_until else 0)

    def end(self, seconds: float = math.inf, seal: Position | None = None) -> None:
        """Take the shard as soon as it is free within so many seconds, and poll at once, first at ``seal``."""
        if seal is not None:
            self.seal = seal
            self._told.set()
        self._ended_until = asyncio.get_running_loop().time() + seconds
        self._wake.set()

    def leave(self, seconds: float) -> None:
        """Leave the shard free for so long: it is on its way to another broker."""
        self._left_ns, self._left_until = int(seconds * 1e9), asyncio.get_running_loop().time() + seconds

    def wake(self) -> None:
        """Let the standby poll at once: something may have changed."""
        self._wake.set()

    def begin(self) -> None:
        """Hold off again."""
        self._ended_until = self._left_until = -math.inf
        self.seal = None
        self._wake.clear()

    async def poll(self, poll: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``poll``. If ``end`` names a seal meanwhile, cancel that call and make another."""
        self._told.clear()
        polling, told = asyncio.ensure_future(poll()), asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait((polling, told), return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                return polling.result()
        finally:
            polling.cancel()
            told.cancel()
            await asyncio.gather(polling, told, return_exceptions=True)
        return await poll()

    async def sleep(self, seconds: float) -> None:
        """Sleep, until ``end`` at most."""
        await within(self._wake.wait(), seconds)
        self._wake.clear()
