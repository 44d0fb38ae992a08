"""The connection of one process to the store, over a malicious network: late puts take effect at the worst time.

A late put takes effect when its time has come, or, at random, right before another process's put of the same key. Such
a conflict of two writers would hardly ever happen by chance.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from broker.storage.objectstore.base import Buffers, ObjectStore, StoreError
from tests.storage.objectstore.faulty import Faults, FaultyStore

__all__ = ["Connection", "Late"]

Late = defaultdict[str, list[asyncio.Event]]
"""Events by key; each makes one late put take effect."""


class Connection(FaultyStore):
    """A FaultyStore whose late puts may be hurried; ``late`` is shared by all connections of a world."""

    def __init__(self, inner: ObjectStore, *, rng: random.Random, faults: Faults, late: Late) -> None:
        super().__init__(inner, rng=rng, faults=faults)
        self.late = late

    async def put(self, key: str, data: Buffers) -> None:
        if key in self.late and self._rng.random() < 0.5:
            for event in self.late.pop(key):
                event.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await super().put(key, data)

    async def _put_late(self, key: str, data: Buffers) -> None:
        event = asyncio.Event()
        self.late[key].append(event)
        applying = asyncio.create_task(super()._put_late(key, data))
        hurried = asyncio.create_task(event.wait())
        try:
            await asyncio.wait((applying, hurried), return_when=asyncio.FIRST_COMPLETED)
            if not applying.done():
                applying.cancel()
                await asyncio.gather(applying, return_exceptions=True)
                await self._apply(key, data)
        finally:
            hurried.cancel()

    async def _apply(self, key: str, data: Buffers) -> None:
        try:
            await self.inner.put(key, data)
        except StoreError:
            pass  # the caller is gone
