"""The reads of a process before it opens its epoch, as a ``ShardOwner`` makes them."""

from __future__ import annotations

import asyncio
import random

from broker.base.clock import Clock
from broker.cluster.ownership import Earlier
from broker.storage.keys.shard_keys import ShardKeys
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry
from broker.storage.read.recovery import recover_ended
from broker.storage.read.snapshot import Snapshot
from tests.storage.rig import SECOND

__all__ = ["Reading"]


class Reading:
    """The keys, and the replay of the epochs before a taker's own. ``task`` is None until ``begin`` is called."""

    def __init__(self, store: ObjectStore, paths: ShardPaths, clock: Clock, rng: random.Random,
                 keys: ShardKeys | None) -> None:
        self.task: asyncio.Task[Snapshot | None] | None = None
        self.retrying = RetryingStore(store, clock=clock, rng=rng, give_up_ns=15 * SECOND)
        self._store = store
        self._paths = paths
        self._retry = StoreRetry(store, clock, rng)
        self._keys = keys

    async def load_keys(self) -> None:
        """Load the shard's keys. Raises: KeyMissing, before the shard is claimed; StoreError."""
        if self._keys is not None:
            await self._keys.load(self.retrying)

    def begin(self, earlier: Earlier) -> None:
        """Begin to read; ``take_shard`` calls this."""
        self.task = asyncio.get_running_loop().create_task(self._read(earlier), name="earlier epochs")
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the attempt may have failed

    async def _read(self, earlier: Earlier) -> Snapshot | None:
        await self.load_keys()
        return await recover_ended(self._store, self._paths, earlier.roots, earlier.ends, self._retry)

    def end(self) -> None:
        """Stop reading."""
        if self.task is not None:
            self.task.cancel()
