"""The inventory: the objects with blocks of a shard that are worth moving, by one walk through all block tables.

It is made for each plan, in slices, and commits do not update it. It may be outdated when it is used, so its users find
each block in the applied state again.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import (
    BYTES,
    CORE_BYTES,
    COUNT,
    FIRST_SEQ,
    FRAMES_BYTES,
    INDEX_BYTES,
    LAST_TIME_NS,
    BlockPlace,
)
from broker.storage.format.errors import Corrupt
from broker.storage.format.frame import GROUPED_BLOCK_MAX
from broker.storage.format.keyring import KEYS
from broker.storage.state.applied import ShardState
from broker.storage.state.table import BlockEntry, Kept

__all__ = ["ObjectKey", "StoredObject", "make_inventory"]

_log = logging.getLogger(__name__)

ObjectKey = tuple[int, int, int, int, int]
"""Place, epoch, number and id of the object, and the only stream in it, or 0 if it may have several."""

_OBJECTS_MAX = 1 << 14
"""The most objects of an inventory: some 5 MB, and 10 ms to sort them."""
_EPOCH = 1
"""The index of the epoch in a packed reference."""
_STREAM_RUN = int(BlockPlace.STREAM_RUN)
_LOG = int(BlockPlace.LOG)


class StoredObject:
    """The blocks of one object that may be moved: small ones, and large ones with many dead bytes.

    Attributes:
        ``live_bytes``, ``dead_bytes``: the bytes of these blocks' messages. ``large_dead_bytes``: those of large
        blocks. ``spare_bytes``: dead bytes that would leave the store if these blocks were moved, as far as is known.
        ``stored_bytes``: the bytes of these blocks in the object.
        ``blocks``: two numbers of each block, stream and first sequence, since there may be very many blocks.
        ``last_time_ns``: the time of the newest message.
    """

    __slots__ = ("blocks", "dead_bytes", "key", "large_dead_bytes", "last_time_ns", "live_bytes", "plain",
                 "spare_bytes", "stored_bytes")

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self.blocks = array("Q")
        self.live_bytes = 0
        self.dead_bytes = 0
        self.large_dead_bytes = 0
        self.spare_bytes = 0
        self.stored_bytes = 0
        self.plain = False
        """True if it has blocks from before the store was encrypted."""
        self.last_time_ns = 0

    @property
    def count(self) -> int:
        """The number of these blocks."""
        return len(self.blocks) // 2

    @property
    def mostly_dead(self) -> bool:
        """True if moving these blocks frees at least as many bytes as it writes."""
        return self.spare_bytes >= self.live_bytes > 0

    def add_unlisted(self, size: int) -> None:
        """Count as spare the bytes of the object's other blocks, which have no live message.

        Args: size is the object's size in bytes. All its blocks with live messages must be in ``blocks``.
        """
        others = size - self.stored_bytes
        if others > 0 and self.stored_bytes:
            self.spare_bytes += others * (self.live_bytes + self.dead_bytes) // self.stored_bytes

    def __repr__(self) -> str:
        return f"<StoredObject {self.key}: {self.count} blocks, {self.live_bytes} bytes live, {self.dead_bytes} dead>"


async def make_inventory(state: ShardState, settings: CompactionSettings, leave: Collection[tuple[int, int]] = (),
                         kept: Collection[tuple[int, int]] = (), stored_bytes: dict[int, int] | None = None, *,
                         mixed: bool = False, only: Collection[ObjectKey] | None = None, shared_of: int = 0,
                         plain_before: Callable[[int], int] = KEYS.plain_before,
                         sealed: Collection[tuple[int, int, int]] = ()) -> list[StoredObject]:
    """Find the objects with blocks that may be moved, the oldest messages first.

    The walk gives the loop a turn after each thousand blocks or so. If there are very many objects, it ends early:
    those found are merged before the next inventory finds the others. Blocks of offline streams are not moved.

    Args: ``leave``: blocks that must not be moved, by stream and first sequence. ``kept``: blocks whose dead messages a
        merge would keep. ``stored_bytes`` is filled with the bytes of each stream's blocks in the store, or is left
        empty if the walk ended early. ``mixed``: find large blocks instead whose messages a merge would group by
        subject (``log.writer.seal_block``); a merge makes runs, which are not found again. ``only``: find all blocks of
            these objects instead, whatever their size. ``shared_of``: find all blocks of this stream in objects that it
        shares with others, or that are plain. ``plain_before`` returns the epoch before which blocks of a stream may be
        plain in an encrypted store, except in the runs ``sealed``: epochs, numbers and ids.
    """
    sizes = {} if stored_bytes is None else stored_bytes
    objects: dict[ObjectKey, StoredObject] = {}
    turn = 0
    for stream_id in [shared_of] if shared_of else list(state.streams):
        stream = state.streams.get(stream_id)
        if stream is not None and stream.departed is not None:
            continue
        sizes[stream_id] = 0
        for page in list(stream.blocks.pages) if stream is not None else ():
            try:
                entries = page.entries
            except Corrupt as error:
                _log.warning("compaction leaves a part of a stream where it is: %s", error)
                continue
            if state.is_offline(stream_id):
                sizes[stream_id] += sum(_stored(packed) for packed, _ in _facts(entries))
            else:
                sizes[stream_id] += _count(objects, stream_id, entries, settings, leave, kept, mixed, only,
                                           shared_of=bool(shared_of), plain_before=plain_before(stream_id),
                                           sealed=sealed)
            if len(objects) > _OBJECTS_MAX:
                objects = {key: one for key, one in objects.items() if one.live_bytes < settings.object_bytes}
                if len(objects) > _OBJECTS_MAX // 2:
                    sizes.clear()
                    return _in_order(objects)
            turn += len(page)
            if turn >= 1024:
                turn = 0
                await asyncio.sleep(0)
    return _in_order(objects)


def _in_order(objects: dict[ObjectKey, StoredObject]) -> list[StoredObject]:
    return sorted(objects.values(), key=lambda one: (one.last_time_ns, one.key))


def _count(objects: dict[ObjectKey, StoredObject], stream_id: int, entries: Sequence[Kept],
           settings: CompactionSettings, leave: Collection[tuple[int, int]], kept: Collection[tuple[int, int]],
           mixed: bool, only: Collection[ObjectKey] | None, *, shared_of: bool, plain_before: int,
           sealed: Collection[tuple[int, int, int]]) -> int:
    """Add the blocks that may be moved to ``objects``; return the stored bytes of all ``entries``."""
    large, share = settings.large_bytes, settings.dead_share
    stored_bytes = 0
    for packed, dead_bytes in _facts(entries):
        size = _stored(packed)
        stored_bytes += size
        live_bytes = packed[BYTES] - dead_bytes
        plain = packed[_EPOCH] < plain_before and (packed[1], packed[2], packed[3]) not in sealed
        rewritten = live_bytes >= large
        key = (packed[0], packed[1], packed[2], packed[3], stream_id if packed[0] >= _STREAM_RUN else 0)
        if shared_of:
            if packed[0] >= _STREAM_RUN and not plain:
                continue
        elif only is not None:
            if key not in only:
                continue
        elif (not rewritten or not _is_mixed(packed)) if mixed else (
                rewritten and dead_bytes < share * packed[BYTES] and not plain):
            continue
        if leave and (stream_id, packed[FIRST_SEQ]) in leave:
            continue
        is_kept = bool(kept) and (stream_id, packed[FIRST_SEQ]) in kept
        if rewritten and is_kept and not plain and only is None and not shared_of:
            continue
        found = objects.get(key)
        if found is None:
            found = objects[key] = StoredObject(key)
        found.blocks.extend((stream_id, packed[FIRST_SEQ]))
        found.live_bytes += live_bytes
        found.dead_bytes += dead_bytes
        found.stored_bytes += size
        if not is_kept:
            found.spare_bytes += dead_bytes
        if rewritten:
            found.large_dead_bytes += dead_bytes
        found.plain = found.plain or plain
        if packed[LAST_TIME_NS] > found.last_time_ns:
            found.last_time_ns = packed[LAST_TIME_NS]
    return stored_bytes


def _is_mixed(packed: Sequence[Any]) -> bool:
    """Return whether the block has messages of several subjects, and no merge has grouped them yet."""
    subjects = packed[-1]
    return (packed[0] == _LOG and packed[COUNT] > 1 and packed[BYTES] <= GROUPED_BLOCK_MAX
            and (subjects is None or isinstance(subjects, bytes) or len(subjects) > 1))


def _stored(packed: Sequence[int]) -> int:
    """Return the bytes of a block in the store."""
    return packed[CORE_BYTES] + packed[INDEX_BYTES] + packed[FRAMES_BYTES]


def _facts(entries: Sequence[Kept]) -> Iterator[tuple[tuple[int, ...], int]]:
    for kept in entries:
        if isinstance(kept, BlockEntry):
            yield kept.ref.pack(), kept.dead_bytes
        else:
            yield kept, 0
