"""What the openings of a shard's log say: where the epochs before them ended.

Once an epoch is opened, the ends of those before it stand for good. Whoever takes the shard believes them, and looks for no end
in those logs again: an entry that the store has lost would look like one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.cluster.entries import BATCH
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.opening import decode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import HEAD_BYTES, decode_head
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry

__all__ = ["known_ends"]


async def known_ends(store: ObjectStore, paths: ShardPaths, epochs: Sequence[int], retry: StoreRetry) -> dict[int, int]:
    """The first number past each epoch that one of ``epochs`` was opened after; of those that were never opened, 0.

    Raises: Corrupt for an opening that cannot be read; VersionUnknown; StoreError.
    """
    ends: dict[int, int] = {}
    for at in range(0, len(epochs), BATCH):
        for opening in await asyncio.gather(*[_opening(store, paths, epoch, retry) for epoch in epochs[at:at + BATCH]]):
            if opening is not None:
                ends.update(opening.ends)
    return ends


async def _opening(store: ObjectStore, paths: ShardPaths, epoch: int, retry: StoreRetry) -> Opening | None:
    """The opening of ``epoch``; None if it has none, so far or ever."""
    position, asked = Position(epoch, 0), HEAD_BYTES
    key = paths.log(position)
    while True:
        try:
            data = await retry.call(lambda asked=asked: store.get(key, 0, asked), f"get {key}")  # type: ignore[misc]
        except NotFound:
            return None
        if data[8:9] == bytes((ObjectKind.SEAL,)):
            return None
        head = decode_head(data, position, complete=len(data) < asked)
        if not isinstance(head, int):
            break
        asked = head
    return decode_opening(head, key)
