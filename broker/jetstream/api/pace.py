"""How many requests are begun in one turn of the loop: a client may send a thousand at once, each of which takes a millisecond."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Pace"]

_AT_ONCE = 16


class Pace:
    """Lets up to 16 callers of ``begin`` pass in a turn of the loop, and the others in the next ones, in their order."""

    def __init__(self) -> None:
        self._left = _AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin(self) -> None:
        """Returns at once, unless too many have passed in this turn."""
        if self._left:
            if self._left == _AT_ONCE:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._left -= 1
            return
        passes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(passes)
        await passes

    def _next_turn(self) -> None:
        self._left = _AT_ONCE
        while self._waiting and self._left:
            passes = self._waiting.popleft()
            if not passes.done():  # as when its caller was cancelled
                passes.set_result(None)
                self._left -= 1
        if self._left < _AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
