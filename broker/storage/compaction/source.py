"""The source of compaction: it finds blocks of objects in the applied state, and reads their bytes from the store.

A block whose object is missing, or that cannot be decoded, is excluded from all later merges.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from broker.base.clock import Clock
from broker.storage.compaction.inventory import StoredObject
from broker.storage.compaction.merge import Input, Piece
from broker.storage.compaction.recent import RecentSegments
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, Position, position_key
from broker.storage.log.log import Log
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths, block_key
from broker.storage.put import until_answered
from broker.storage.state.dead import DeadSet
from broker.storage.state.seq_ranges import SeqRanges
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Found", "Source", "window_ns"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_READS_AT_ONCE = 8
_TURN_WEIGHT = 512
_GAP_BYTES = 64 << 10
"""Two parts of an object with at most this gap between them are read together."""
_SIZES_AT_ONCE = 256
"""The number of objects whose size is read in one round."""
_DEDUPE_MARGIN_NS = 60_000_000_000
_DUPLICATE_WINDOW_NS = 120_000_000_000
"""The duplicate window of a stream whose configuration has none."""


class Found(NamedTuple):
    """Neighbouring blocks of one stream, as the applied state has them now."""

    stream: StreamState
    entries: list[BlockEntry]


class Source:
    """The blocks that compaction may merge, read from the store or from recent segments in memory.

    Attributes: ``damaged``: blocks that cannot be read, by stream and first sequence; they are never merged.
        ``read_bytes``: the bytes read from the store since the start.
    """

    def __init__(self, log: Log, paths: ShardPaths, clock: Clock, rng: random.Random, recent: RecentSegments) -> None:
        self.damaged: set[tuple[int, int]] = set()
        self.erased: Mapping[int, SeqRanges] = {}
        """The sequences that must leave the store, by stream."""
        self.read_bytes = 0
        self._log = log
        self._store = log.store
        self._paths = paths
        self._clock = clock
        self._rng = rng
        self._recent = recent
        self._weight = 0
        self._sizes: dict[str, int] = {}
        """The sizes that the last ``measure`` used, by key."""

    async def yield_after(self, weight: int) -> None:
        """Count work that took ``weight`` times some microseconds; give the loop a turn every millisecond or two."""
        self._weight += weight
        if self._weight >= _TURN_WEIGHT:
            self._weight = 0
            await asyncio.sleep(0)

    # --- bytes of dead blocks -----------------------------------------------------------------------------------------

    def keep_emptiable(self, objects: Sequence[StoredObject]) -> list[StoredObject]:
        """Return the objects whose live blocks may all be moved, so that the object can be deleted afterwards.

        Moving blocks of the others does not free the object, so their ``spare_bytes`` are reduced to those of large
        blocks.
        """
        whole = []
        for one in objects:
            if one.count == self._live_blocks(one):
                whole.append(one)
            else:
                one.spare_bytes = one.large_dead_bytes
        return whole

    async def measure(self, objects: Sequence[StoredObject]) -> None:
        """Add the bytes of blocks without any live message to the ``spare_bytes`` of ``objects``.

        The applied state has no entry for such blocks. So the object's size is needed: it is known of recent
        segments, and else read from the object's header, once.
        """
        sizes: dict[str, int] = {}
        for one in objects[:_SIZES_AT_ONCE]:
            if (key := self._key_of(one)) is None:
                continue
            size = self._sizes.get(key)
            if size is None:
                size = self._recent.size(key)
            if size is None:
                data = await self._get(key, 0, HEADER_BYTES)
                try:
                    size = ObjectHeader.unpack(data, key).size if data is not None else 0
                except FormatError:
                    size = 0
            sizes[key] = size
            one.add_unlisted(size)
        self._sizes = sizes

    def _live_blocks(self, one: StoredObject) -> int:
        """Return the number of the object's blocks that have live messages."""
        place, epoch, number, object_id, stream_id = one.key
        state = self._log.state
        if place == BlockPlace.LOG:
            return state.counts.segments.get(position_key(Position(epoch, number)), 0)
        return state.counts.runs.get((epoch, number, object_id, stream_id), 0)

    def _key_of(self, one: StoredObject) -> str | None:
        stream = self._log.state.streams.get(one.blocks[0])
        entry = stream.blocks.find(one.blocks[1]) if stream is not None else None
        if stream is None or entry is None:
            return None
        return block_key(self._paths, stream.account, stream.name, entry.ref)

    # --- reading ------------------------------------------------------------------------------------------------------

    def find_blocks(self, group: Sequence[StoredObject]) -> Iterator[Found]:
        """Yield the blocks of ``group`` that the applied state still has, neighbours together."""
        streams: defaultdict[int, list[int]] = defaultdict(list)
        for one in group:
            for stream_id, first_seq in zip(one.blocks[::2], one.blocks[1::2], strict=True):
                streams[stream_id].append(first_seq)
        keys = {one.key[:4] for one in group}
        for stream_id, firsts in streams.items():
            stream = self._log.state.streams.get(stream_id)
            if stream is None or stream.offline is not None or stream.departed is not None:
                continue
            near: list[BlockEntry] = []
            for first_seq in sorted(firsts):
                entry = stream.blocks.find(first_seq)
                if (entry is None or entry.first_seq != first_seq or (stream_id, first_seq) in self.damaged
                        or (int(entry.ref.place), *entry.ref.position, entry.ref.object_id) not in keys):
                    continue
                if near and not stream.blocks.follows(near[-1].first_seq, first_seq):
                    yield Found(stream, near)
                    near = []
                near.append(entry)
            if near:
                yield Found(stream, near)

    async def read(self, found: Sequence[Found]) -> list[Piece]:
        """Read the bytes of blocks, and return them as pieces.

        A piece with a block whose object is missing is left out, and that block is excluded from all later merges.
        """
        now_ns = self._clock.now_ns()
        wanted: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        pieces: list[tuple[Found, bool, list[tuple[BlockRef, DeadSet | None, DeadSet | None, str]]]] = []
        for one in found:
            stream = one.stream
            since_ns = now_ns - window_ns(stream)
            last = one.entries[-1].ref
            inputs = []
            for entry in one.entries:
                ref = entry.ref
                key = block_key(self._paths, stream.account, stream.name, ref)
                inputs.append((ref, *_copies_of(entry, stream, self.erased.get(stream.stream_id)), key))
                wanted[key] += [(ref.core_offset, ref.core_offset + ref.core_bytes),
                                (ref.index_offset, ref.index_offset + ref.index_bytes),
                                (ref.frames_offset, ref.frames_offset + ref.frames_bytes)]
            await self.yield_after(4 * len(inputs))
            pieces.append((one, last.last_time_ns >= since_ns or last.last_seq >= stream.last_seq, inputs))
        together: dict[str, list[tuple[int, int]]] = {}
        stored: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for key, parts in wanted.items():
            kept = self._recent.pop(key)
            if kept is not None:
                stored[key], parts = [(0, kept)], [(0, len(kept))]
            together[key] = _together(parts)
            await self.yield_after(len(parts) // 4)
        ranges = [(key, start, end) for key, parts in together.items() if key not in stored for start, end in parts]
        for at in range(0, len(ranges), _READS_AT_ONCE):
            some = ranges[at:at + _READS_AT_ONCE]
            for (key, start, _), data in zip(some, await asyncio.gather(*[self._get(*one) for one in some]),
                                             strict=True):
                if data is not None:
                    stored[key].append((start, data))
                    self.read_bytes += len(data)
        out: list[Piece] = []
        for one, keep_ids, inputs in pieces:
            await self.yield_after(2 * len(inputs))
            missing = [(ref, key) for ref, _, _, key in inputs if len(stored[key]) != len(together[key])]
            self._exclude_missing(one.stream, missing)
            if not missing:
                live_bytes = sum(entry.ref.bytes - entry.dead_bytes for entry in one.entries)
                out.append(Piece(one.stream.stream_id, keep_ids, live_bytes, [
                    Input(ref, dead, _slice(stored[key], ref.core_offset, ref.core_bytes),
                          _slice(stored[key], ref.index_offset, ref.index_bytes),
                          _slice(stored[key], ref.frames_offset, ref.frames_bytes), key, erased)
                    for ref, dead, erased, key in inputs]))
        return out

    def _exclude_missing(self, stream: StreamState, missing: Sequence[tuple[BlockRef, str]]) -> None:
        """Exclude these blocks from later merges: otherwise the same objects would be merged again and again."""
        for ref, key in missing:
            self.damaged.add((stream.stream_id, ref.first_seq))
            entry = stream.blocks.find(ref.first_seq)
            if entry is not None and entry.ref == ref:  # otherwise it was removed while the others were read
                _log.warning("compaction passes over messages %d to %d of stream %s: %s is missing", ref.first_seq,
                             ref.last_seq, stream.name, key)

    async def _get(self, key: str, start: int, end: int) -> bytes | None:
        try:
            return await self.call_store(lambda: self._store.get(key, start, end), f"read {key}")
        except NotFound:
            return None

    async def call_store(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Retry ``call`` until the store answers, however long that takes.

        Raises: NotFound; StoreError once the log has failed.
        """
        return await until_answered(
            call, self._rng, lambda _: self._log.failure is not None,
            lambda error: _log.warning("compaction waits for the store: cannot %s: %s", what, error))


def window_ns(stream: StreamState) -> int:
    """Return the time for which a message's id may be needed: the duplicate window and a margin."""
    window_ns = stream.config.get("duplicate_window", _DUPLICATE_WINDOW_NS)
    return (window_ns if isinstance(window_ns, int) else _DUPLICATE_WINDOW_NS) + _DEDUPE_MARGIN_NS


def _copies_of(entry: BlockEntry, stream: StreamState, erased: SeqRanges | None
               ) -> tuple[DeadSet | None, DeadSet | None]:
    """Return a copy of the block's dead messages as they are now, and those of ``erased`` among them; None: none.

    Messages below the stream's first sequence are dead although the entry does not count them. A message that is to be
    erased and is still live stays: the stream removes it first.
    """
    ref = entry.ref
    copy = gone = None
    if entry.dead is not None:
        copy = DeadSet(ref.first_seq, ref.last_seq, ref.count)
        copy.load(entry.dead.pack())
    if erased is not None and erased.overlaps(ref.first_seq, ref.last_seq):
        copy = copy or DeadSet(ref.first_seq, ref.last_seq, ref.count)
        gone = DeadSet(ref.first_seq, ref.last_seq, ref.count)
        gone.load(copy.pack())
        if ref.first_seq < stream.first_seq:
            gone.add(ref.first_seq, min(ref.last_seq, stream.first_seq - 1))
        chosen = DeadSet(ref.first_seq, ref.last_seq, ref.count)
        for first, last in erased.within(ref.first_seq, ref.last_seq):
            chosen.add(first, last)
        gone.keep(chosen)
        copy.join(gone)
    return copy, gone


def _together(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, and join those that are near each other."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(part for part in parts if part[1] > part[0]):
        if out and start - out[-1][1] <= _GAP_BYTES:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _slice(stored: Sequence[tuple[int, bytes]], offset: int, size: int) -> bytes:
    for start, data in stored:
        if start <= offset and offset + size <= start + len(data):
            return data[offset - start:offset - start + size]
    return b""
