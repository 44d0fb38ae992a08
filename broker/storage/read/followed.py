"""Another broker's shard, whose state a reader follows in the store as the owner's log grows.

Owns: the state as it was read last. A state never goes back: each read continues where the one before it ended, or
begins with a newer checkpoint.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from broker.base.clock import Clock
from broker.storage.format.errors import CutOff, FormatError, KeyMissing
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry
from broker.storage.read.ids import load_ids
from broker.storage.read.snapshot import catch_up, replay
from broker.storage.read.steps import run
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState

__all__ = ["FollowedShard", "FollowedStream"]


class FollowedShard:
    """Shard ``number`` of a store.

    Args: ``wanted`` selects the streams, as for ``replay``, and ``whole`` is its argument; ``read_keys`` adds the keys
        that the shard has now to the ring of this process.
    """

    def __init__(self, store: ObjectStore, number: int, clock: Clock, rng: random.Random,
                 wanted: Callable[[str, str], bool] | None = None, *, whole: bool = False,
                 read_keys: Callable[[ShardPaths], Awaitable[None]] | None = None) -> None:
        self._store = store
        self._paths = ShardPaths(number)
        self._retry = StoreRetry(store, clock, rng)
        self._wanted = wanted
        self._whole = whole
        self._read_keys = read_keys
        self._state: ShardState | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> ShardState:
        """Return the state that includes everything persisted when this call began. Raises: StoreError, FormatError."""
        async with self._reading:
            try:
                return await self._read()
            except (FormatError, KeyMissing):
                if self._read_keys is None:
                    raise
                # In an encrypted store, the owner has drawn keys since the last read. Otherwise it fails again.
                await self._read_keys(self._paths)
                return await self._read()

    async def _read(self) -> ShardState:
        state, self._state = self._state, None  # a state that cannot be advanced must not be used again
        try:
            if state is not None:
                await run(catch_up(self._paths, state), self._store, self._retry)
        except CutOff:
            state = None
        if state is None:
            state = (await run(replay(self._paths, self._wanted, whole=self._whole), self._store, self._retry)).state
        self._state = state
        return state


class FollowedStream:
    """The incarnation ``stream_id`` of a stream of shard ``number``, with all that an owner needs.

    Args: ``account``, ``name``: of the stream; ``read_keys``: as for ``FollowedShard``.
    """

    def __init__(self, store: ObjectStore, number: int, account: str, name: str, stream_id: int, clock: Clock,
                 rng: random.Random, *, read_keys: Callable[[ShardPaths], Awaitable[None]] | None = None) -> None:
        self._stream_id = stream_id
        self._store = store
        self._paths = ShardPaths(number)
        self._read_keys = read_keys
        self._knows_keys = False
        self._shard = FollowedShard(store, number, clock, rng, lambda *names: names == (account, name), whole=True,
                                    read_keys=read_keys)

    async def read(self) -> StreamState | None:
        """Return the stream as it was persisted when this call began, with its message ids if it has left the shard;
        None: there is none. Raises: as ``FollowedShard``."""
        # The shard may have states of earlier incarnations, too, which have left it.
        stream = (await self._shard.read()).streams.get(self._stream_id)
        if stream is not None and stream.departed is not None:
            if self._read_keys is not None and not self._knows_keys:
                await self._read_keys(self._paths)  # its new shard takes its keys, too
                self._knows_keys = True
            for part in [part for part in stream.ids.parts() if part.place is not None]:
                await load_ids(stream, part, self._store, self._paths)
        return stream
