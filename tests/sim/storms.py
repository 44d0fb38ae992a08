"""A store's bad days: storms, in which it refuses every request of everybody for some seconds, and listings that take
as long as a large bucket's do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable

from tests.storage.objectstore.faulty import FaultyStore

__all__ = ["Storms"]

_STORMS = 0.03
"""How many times as often as a step of a world a storm begins."""


class Storms:
    """Args: ``stores``: everybody's connections, as of now; ``counts``: how many storms there were, and slow
    listings."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, counts: Counter[str],
                 stores: Callable[[], Iterable[FaultyStore]]) -> None:
        self.raging = False
        self._loop = loop
        self._rng = rng
        self._counts = counts
        self._stores = stores
        self._listing_s = rng.choice((0.0, 0.0, 1.0, 3.0))

    def perhaps_begin(self) -> None:
        """Now and then a storm begins."""
        if not self.raging and self._rng.random() < _STORMS:
            self._counts["storm"] += 1
            self._set(True)
            self._loop.call_later(self._rng.choice((1, 4, 10)), self._set, False)

    def end(self) -> None:
        """All is well from now on."""
        self._set(False)
        self._listing_s = 0.0

    async def delay(self, operation: str) -> None:
        """Wait for as long as the store takes before it begins to answer."""
        if operation == "list" and self._listing_s:
            self._counts["slow listing"] += 1
            await asyncio.sleep(self._rng.random() * self._listing_s)

    def _set(self, raging: bool) -> None:
        self.raging = raging
        for store in self._stores():
            store.down = raging
