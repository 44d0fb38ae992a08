"""Destroys the keys of deleted streams, once no replay can need them.

A replay begins at a kept root, and reads what was sealed under the keys of streams that were deleted after it. So a key
is destroyed when its stream was missing in as many successive checkpoints as roots are kept, and one more: a deletion
may be applied while a round is on its way.

The key of a stream that has moved is then dropped, and not destroyed: the stream's new shard has it. If the new shard
has only other keys of the stream, the key stays until that shard has none: staged messages may be sealed under it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from broker.base.clock import Clock
from broker.storage.format.errors import FormatError
from broker.storage.keys.opening import decode_all
from broker.storage.keys.shard_keys import ShardKeys, read_objects
from broker.storage.objectstore.base import ObjectStore, StoreError
from broker.storage.paths import KEYS
from broker.storage.state.applied import ShardState

__all__ = ["KeysOfDeletedStreams"]

_log = logging.getLogger(__name__)

_ROUNDS: Final = 4
_POLLS: Final = 60
_POLL_SECONDS: Final = 1.0


class KeysOfDeletedStreams:
    """The keys of one shard for which a checkpoint found no stream."""

    def __init__(self, keys: ShardKeys, store: ObjectStore, clock: Clock) -> None:
        self._keys = keys
        self._store = store
        self._clock = clock
        self._missing: dict[int, int] = {}
        """In how many successive rounds a stream was missing."""

    async def after_round(self, state: ShardState) -> None:
        """Count the streams that are missing in ``state``, and destroy the keys of those that were missing long
        enough."""
        # A stream that comes is in no state before its arrival is stored.
        missing = self._keys.streams - state.streams.keys() - self._keys.take_adopted()
        self._missing = {stream: self._missing.get(stream, 0) + 1 for stream in missing}
        gone = {stream for stream, rounds in self._missing.items() if rounds >= _ROUNDS}
        try:
            moved, kept = await self._keys.elsewhere(gone, self._store) if gone else (set[int](), set[int]())
            await self._keys.release(moved, self._store)
            await self._keys.destroy(gone - moved - kept, self._clock.now_ns(), self._store)
        except (StoreError, FormatError) as error:
            _log.warning("the keys of %d deleted streams are still in the store: %s", len(gone), error)

    async def until_gone(self, stream_id: int) -> list[int]:
        """Wait until no shard has a key of a stream, for about a minute; return the shards that still have one.

        Raises: StoreError; FormatError.
        """
        shards: list[int] = []
        for poll in range(_POLLS):
            if poll:
                await asyncio.sleep(_POLL_SECONDS)
            found = decode_all(await read_objects(self._store, KEYS))
            shards = sorted({one.shard for one in found for key in one.keys if key.owner == stream_id})
            if not shards:
                break
        return shards
