"""The reads of a process before it opens its epoch, as a ``ShardOwner`` makes them."""

from __future__ import annotations

import asyncio
import random

from broker.base.clock import Clock
from broker.cluster.ownership import Earlier
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry
from broker.storage.read.recovery import recover_ended
from broker.storage.read.snapshot import Snapshot

__all__ = ["Reading"]


class Reading:
    """The replay of the epochs before a taker's own. ``task`` is None until ``begin`` is called."""

    def __init__(self, store: ObjectStore, paths: ShardPaths, clock: Clock, rng: random.Random) -> None:
        self.task: asyncio.Task[Snapshot | None] | None = None
        self._store = store
        self._paths = paths
        self._retry = StoreRetry(store, clock, rng)

    def begin(self, earlier: Earlier) -> None:
        """Begin to read; ``take_shard`` calls this."""
        self.task = asyncio.get_running_loop().create_task(
            recover_ended(self._store, self._paths, earlier.roots, earlier.ends, self._retry), name="earlier epochs")

    def end(self) -> None:
        """Stop reading."""
        if self.task is not None:
            self.task.cancel()
