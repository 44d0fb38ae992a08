"""Which objects hold the blocks of a shard that are worth moving, and how much: one walk through all block tables.

Made anew for each planning, in slices: nothing is kept up to date by commits. It may be outdated when it is used, so whoever
uses it looks up each block again.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Collection, Iterator, Sequence

from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BYTES, FIRST_SEQ, LAST_TIME_NS, BlockPlace
from broker.storage.format.errors import Corrupt
from broker.storage.state.applied import ShardState
from broker.storage.state.table import BlockEntry, Kept

__all__ = ["ObjectKey", "StoredObject", "take_inventory"]

_log = logging.getLogger(__name__)

ObjectKey = tuple[int, int, int, int, int]
"""Place, epoch, number, id of the object, and the stream that it belongs to alone, or 0."""

_OBJECTS_MAX = 1 << 14
"""Some 5 MB, and 10 ms to put them in order."""
_STREAM_RUN = int(BlockPlace.STREAM_RUN)


class StoredObject:
    """The blocks of one object that may be moved: small ones, and large ones of which much is dead.

    ``live_bytes`` and ``dead_bytes`` are theirs, as messages count; ``large_dead_bytes`` those of the large ones alone.
    There may be very many blocks, so ``blocks`` has two numbers of each: stream and first sequence.
    ``last_time_ns`` is the newest message's.
    """

    __slots__ = ("blocks", "dead_bytes", "key", "large_dead_bytes", "last_time_ns", "live_bytes")

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self.blocks = array("Q")
        self.live_bytes = 0
        self.dead_bytes = 0
        self.large_dead_bytes = 0
        self.last_time_ns = 0

    @property
    def count(self) -> int:
        """How many blocks those are."""
        return len(self.blocks) // 2

    def __repr__(self) -> str:
        return f"<StoredObject {self.key}: {self.count} blocks, {self.live_bytes} bytes live, {self.dead_bytes} dead>"


async def take_inventory(state: ShardState, settings: CompactionSettings, leave: Collection[tuple[int, int]] = ()
                         ) -> list[StoredObject]:
    """The objects with blocks that may be moved, the oldest messages first; a page of a table in each turn of the loop. Of very
    many it takes the first that it finds: those are to be merged before the others are looked at.

    Args: ``leave``: blocks not to be moved, by stream and first sequence.
    """
    objects: dict[ObjectKey, StoredObject] = {}
    turn = 0
    for stream_id in list(state.streams):
        stream = state.streams.get(stream_id)
        for page in list(stream.blocks.pages) if stream is not None else ():
            try:
                entries = page.entries
            except Corrupt as error:
                _log.warning("compaction leaves a part of a stream where it is: %s", error)
                continue
            _count(objects, stream_id, entries, settings, leave)
            if len(objects) > _OBJECTS_MAX:
                objects = {key: one for key, one in objects.items() if one.live_bytes < settings.object_bytes}
                if len(objects) > _OBJECTS_MAX // 2:
                    return _in_order(objects)
            turn += len(page)
            if turn >= 1024:
                turn = 0
                await asyncio.sleep(0)
    return _in_order(objects)


def _in_order(objects: dict[ObjectKey, StoredObject]) -> list[StoredObject]:
    return sorted(objects.values(), key=lambda one: (one.last_time_ns, one.key))


def _count(objects: dict[ObjectKey, StoredObject], stream_id: int, entries: Sequence[Kept], settings: CompactionSettings,
           leave: Collection[tuple[int, int]]) -> None:
    large, share = settings.large_bytes, settings.dead_share
    for packed, dead_bytes in _facts(entries):
        live_bytes = packed[BYTES] - dead_bytes
        rewritten = live_bytes >= large
        if rewritten and dead_bytes < share * packed[BYTES]:
            continue
        if leave and (stream_id, packed[FIRST_SEQ]) in leave:
            continue
        key = (packed[0], packed[1], packed[2], packed[3], stream_id if packed[0] >= _STREAM_RUN else 0)
        found = objects.get(key)
        if found is None:
            found = objects[key] = StoredObject(key)
        found.blocks.extend((stream_id, packed[FIRST_SEQ]))
        found.live_bytes += live_bytes
        found.dead_bytes += dead_bytes
        if rewritten:
            found.large_dead_bytes += dead_bytes
        if packed[LAST_TIME_NS] > found.last_time_ns:
            found.last_time_ns = packed[LAST_TIME_NS]


def _facts(entries: Sequence[Kept]) -> Iterator[tuple[tuple[int, ...], int]]:
    for kept in entries:
        if isinstance(kept, BlockEntry):
            yield kept.ref.pack(), kept.dead_bytes
        else:
            yield kept, 0
