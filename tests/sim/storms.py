"""Faults of the whole store: storms, in which it refuses every request for some seconds, and listings as slow as a
large bucket's."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable

from tests.storage.objectstore.faulty import FaultyStore

__all__ = ["Storms"]

_STORMS = 0.03
"""Probability of a storm in each step of a world."""


class Storms:
    """Args: ``stores``: the present connections of all brokers; ``counts``: the number of storms and of slow
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
        """Begin a storm, at random."""
        if not self.raging and self._rng.random() < _STORMS:
            self._counts["storm"] += 1
            self._set(True)
            self._loop.call_later(self._rng.choice((1, 4, 10)), self._set, False)

    def end(self) -> None:
        """End all storms and slow listings."""
        self._set(False)
        self._listing_s = 0.0

    async def delay(self, operation: str) -> None:
        """Wait for the time that the store takes before it begins to answer."""
        if operation == "list" and self._listing_s:
            self._counts["slow listing"] += 1
            await asyncio.sleep(self._rng.random() * self._listing_s)

    def _set(self, raging: bool) -> None:
        self.raging = raging
        for store in self._stores():
            store.down = raging
