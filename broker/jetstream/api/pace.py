"""The number of requests begun in one turn of the loop.

A client may send a thousand requests at once, each of which takes a millisecond.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

__all__ = ["HEAVY", "Pace"]

_AT_ONCE: Final = 16

HEAVY: Final = 8
"""The weight of a request that takes as long as eight others."""


class Pace:
    """A limit on the work begun in one turn of the loop.

    Callers of ``begin`` with a total weight of 16 pass in one turn, the others in the next turns, in their order.
    """

    def __init__(self) -> None:
        self._left = _AT_ONCE
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def begin(self, weight: int = 1) -> None:
        """Return at once, or in a later turn if too many callers have passed in this one."""
        if self._left > 0:
            if self._left == _AT_ONCE:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._left -= weight
            return
        passes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((passes, weight))
        await passes

    def _next_turn(self) -> None:
        self._left = _AT_ONCE
        while self._waiting and self._left > 0:
            passes, weight = self._waiting.popleft()
            if not passes.done():  # it is done if its caller was cancelled
                passes.set_result(None)
                self._left -= weight
        if self._left < _AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
