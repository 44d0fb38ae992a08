"""Destroys the keys of deleted streams, once no replay can need them.

A replay begins at a kept root, and reads what was sealed under the keys of streams that were deleted after it. So a key
is destroyed when its stream was missing in as many successive checkpoints as roots are kept, and one more: a deletion
may be applied while a round is on its way.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.base.clock import Clock
from broker.storage.keys.shard_keys import ShardKeys
from broker.storage.objectstore.base import ObjectStore, StoreError
from broker.storage.state.applied import ShardState

__all__ = ["KeysOfDeletedStreams"]

_log = logging.getLogger(__name__)

_ROUNDS: Final = 4


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
        missing = self._keys.streams - state.streams.keys()
        self._missing = {stream: self._missing.get(stream, 0) + 1 for stream in missing}
        gone = [stream for stream, rounds in self._missing.items() if rounds >= _ROUNDS]
        try:
            await self._keys.destroy(gone, self._clock.now_ns(), self._store)
        except StoreError as error:
            _log.warning("the keys of %d deleted streams are still in the store: %s", len(gone), error)
