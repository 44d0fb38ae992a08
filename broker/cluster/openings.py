"""Reads the openings of a shard's log, which have the ends of the epochs before them.

Once an epoch is opened, the ends of the epochs before it never change. A taker uses these ends and does not search
those logs again: an entry that the store has lost would look like an end.
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
    """Return the ends of earlier epochs that the openings of ``epochs`` name, by epoch; 0: it was never opened.

    Raises: Corrupt for an opening that cannot be read; VersionUnknown; StoreError.
    """
    ends: dict[int, int] = {}
    for at in range(0, len(epochs), BATCH):
        for opening in await asyncio.gather(*[_opening(store, paths, epoch, retry) for epoch in epochs[at:at + BATCH]]):
            if opening is not None:
                ends.update(opening.ends)
    return ends


async def _opening(store: ObjectStore, paths: ShardPaths, epoch: int, retry: StoreRetry) -> Opening | None:
    """Return the opening of ``epoch``; None if it has none yet, or never will."""
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
