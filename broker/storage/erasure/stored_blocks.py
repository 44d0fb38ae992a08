"""Finds every stored block of some streams by reading the heads of all objects, whether or not anything names them.

    list the log, the runs of the shard, the runs of the streams ──> heads ──> blocks of the streams, live or dead
                                                                        └────> records that quote such blocks

Block tables know live messages only. A removed message stays in its object, beside messages that live, and a run that
was never adopted is in no table. So an erasure trusts objects, not tables. The only thing it needs the applied state
for is the place of staged blocks, whose sequences are not in the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.errors import FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.records.adoption import Adoption
from broker.storage.format.records.append import Append
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.format.staged import STAGED_EPOCH, placed
from broker.storage.objectstore.base import NotFound, ObjectInfo, ObjectStore
from broker.storage.paths import Key, ShardPaths, StreamPaths, parse
from broker.storage.state.applied import ShardState
from broker.storage.state.entry import as_entry
from broker.storage.state.stream import StreamState

__all__ = ["BlockObject", "Quoted", "StoredBlock", "StoredBlocks", "Unreadable"]

T = TypeVar("T")
Ask = Callable[[Callable[[], Awaitable[T]], str], Awaitable[T]]
"""ask(call, what) returns the store's answer, however long that takes. Raises: NotFound; StoreError at the end."""

_HEAD_BYTES = 64 << 10
_AT_ONCE = 16
_SEQ_MAX = (1 << 64) - 1
_SHARED = 0
"""The stream of blocks that belong to the shard itself."""


class Unreadable(NamedTuple):
    """An object that cannot be read, and why."""

    key: str
    why: str


class StoredBlock(NamedTuple):
    """A block with messages of a wanted stream. ``ref`` has the sequences that its messages have in the stream."""

    key: str
    ref: BlockRef


class Quoted(NamedTuple):
    """A record in an object that quotes sequences first..last of a stream, perhaps with their subjects."""

    key: str
    stream_id: int
    first_seq: int
    last_seq: int


class BlockObject(NamedTuple):
    """An object of the shard, with what it has of the wanted streams."""

    key: str
    size: int
    blocks: Sequence[StoredBlock]
    quoted: Sequence[Quoted]
    unreadable: Unreadable | None = None


class StoredBlocks:
    """The objects with blocks of one shard, or of a copy of its store.

    Attributes: ``listed_bytes`` is the size of the objects that the last ``objects`` has listed so far.
    """

    def __init__(self, store: ObjectStore, paths: ShardPaths, state: ShardState, ask: Ask[bytes],
                 ask_list: Ask[list[ObjectInfo]]) -> None:
        self._store = store
        self._paths = paths
        self.listed_bytes = 0
        self._state = state
        self._ask = ask
        self._ask_list = ask_list
        self._staged: dict[tuple[int, Position, int], BlockRef] = {}
        """One block of each staged run that a table still has, by stream, position and id."""

    async def objects(self, streams: Mapping[int, tuple[str, str]], moved: Collection[int] = ()
                      ) -> AsyncGenerator[BlockObject, None]:
        """Yield the objects with blocks. ``streams`` has account and name of the wanted streams, by incarnation.

        Args: ``moved``: streams that are in other shards now. Each object of this shard with anything of their messages
            quotes all of their sequences.
        """
        self._staged, self.listed_bytes = {}, 0
        for stream_id in streams:
            await self._find_staged(self._state.streams.get(stream_id))
        prefixes = [self._paths.logs, self._paths.runs,
                    *(StreamPaths(*names, stream_id).runs for stream_id, names in streams.items())]
        for prefix in prefixes:
            async def listed(prefix: str = prefix) -> list[ObjectInfo]:
                return await self._store.list(prefix)

            infos = [(info, key) for info in await self._ask_list(listed, prefix)
                     if (key := parse(info.key)) is not None and key.position is not None]
            self.listed_bytes += sum(info.size for info, _ in infos)
            for at in range(0, len(infos), _AT_ONCE):
                some = infos[at:at + _AT_ONCE]
                for one in await asyncio.gather(*[self._read(info, key, streams, moved) for info, key in some]):
                    if one is not None:
                        yield one

    async def _read(self, info: ObjectInfo, key: Key, wanted: Collection[int], moved: Collection[int]
                    ) -> BlockObject | None:
        """Read an object's head; None: it is a seal, or was deleted meanwhile."""
        assert key.position is not None
        try:
            data = await self._get(info.key, 0, _HEAD_BYTES)
            if key.kind is ObjectKind.SEGMENT and len(data) >= HEADER_BYTES and (
                    ObjectHeader.unpack(data, info.key).kind is ObjectKind.SEAL):
                return None
            head: SegmentHead | int = len(data)
            while isinstance(head, int):
                data = data if head <= len(data) else await self._get(info.key, 0, head)
                head = decode_head(data[:info.size], key.position, kind=key.kind, object_id=key.object_id)
            staged = key.position.epoch == STAGED_EPOCH and key.kind is ObjectKind.RUN
            place = (BlockPlace.LOG if key.kind is ObjectKind.SEGMENT else BlockPlace.STAGED if staged
                     else BlockPlace.STREAM_RUN if key.incarnation is not None else BlockPlace.RUN)
            blocks = [StoredBlock(info.key, ref) for ref in self._refs(head, place, wanted)]
            return BlockObject(info.key, info.size, blocks, list(_quoted(info.key, head, wanted, moved)))
        except NotFound:
            return None
        except FormatError as error:
            return BlockObject(info.key, info.size, (), (), Unreadable(info.key, str(error)))

    def _refs(self, head: SegmentHead, place: BlockPlace, wanted: Collection[int]) -> Iterator[BlockRef]:
        """Yield the references of the head's blocks that belong to wanted streams. Raises: FormatError."""
        found = [(i, row.ref(place, head.core(i))) for i, row in enumerate(head.rows)
                 if row.messages and row.stream_id in wanted]
        if place is not BlockPlace.STAGED:
            yield from (ref for _, ref in found)
        elif found:
            ref = found[0][1]
            known = self._staged.get((ref.stream_id, ref.position, ref.object_id))
            if known is not None:
                yield from _place_staged([ref for _, ref in found], known)

    async def _find_staged(self, stream: StreamState | None) -> None:
        for page in list(stream.blocks.pages) if stream is not None else ():
            if page.staged:
                for entry in map(as_entry, page.entries):
                    ref = entry.ref
                    if ref.place is BlockPlace.STAGED:
                        self._staged[ref.stream_id, ref.position, ref.object_id] = ref
            await asyncio.sleep(0)

    async def head(self, block: StoredBlock) -> Head:
        """Return the index of a block. Raises: NotFound; FormatError; StoreError."""
        ref = block.ref
        data = await self._get(block.key, ref.index_offset, ref.index_offset + ref.index_bytes)
        return decode_index(data, ref, block.key)

    async def chunks(self, block: StoredBlock, head: Head) -> AsyncGenerator[Chunk, None]:
        """Yield the messages of a block, frame by frame. Raises: NotFound; FormatError; StoreError."""
        ref = block.ref
        data = await self._get(block.key, ref.frames_offset, ref.frames_offset + ref.frames_bytes)
        for number, frame in enumerate(head.frames):
            yield decode_frame(head, number, data[frame.offset:frame.offset + frame.stored_bytes], block.key)
            await asyncio.sleep(0)

    async def _get(self, key: str, start: int, end: int) -> bytes:
        return await self._ask(lambda: self._store.get(key, start, end), f"read {key}")


def _place_staged(refs: Sequence[BlockRef], known: BlockRef) -> Iterator[BlockRef]:
    """Yield the blocks of a staged run with their places in the stream.

    The blocks of a run join one after the other, so ``known``, one that the table still has, gives the places of all.
    If the table has none of them, the run was not adopted, or all of it was removed and the run is being deleted.
    """
    before = sum(ref.count for ref in refs if ref.core_offset < known.core_offset)
    seq = known.first_seq - before
    for ref in sorted(refs, key=lambda ref: ref.core_offset):
        yield placed(ref, seq, known.first_time_ns, known.last_time_ns)
        seq += ref.count


def _quoted(key: str, head: SegmentHead, wanted: Collection[int], moved: Collection[int]) -> Iterator[Quoted]:
    """Yield what records in an object quote of wanted streams, and everything of streams that have ``moved``.

    Raises: FormatError.
    """
    for i, row in enumerate(head.rows):
        if row.stream_id == _SHARED:
            for record in head.core(i).records:
                if record.kind == Adoption.KIND:
                    for adopted in Adoption.decode(record.body).blocks:
                        ref = BlockRef.unpack(adopted.ref)
                        if ref.stream_id in wanted or ref.stream_id in moved:
                            yield Quoted(key, ref.stream_id, ref.first_seq, ref.last_seq)
        elif row.stream_id in moved:
            if row.messages or _quotes_messages(head, i):
                yield Quoted(key, row.stream_id, 1, _SEQ_MAX)
        elif row.stream_id in wanted:
            for record in head.core(i).records:
                if record.kind == Append.KIND:
                    for packed in Append.decode(record.body).blocks:
                        ref = BlockRef.unpack(packed)
                        yield Quoted(key, ref.stream_id, ref.first_seq, ref.last_seq)
                elif record.kind == Arrival.KIND:  # subjects of blocks, and message ids
                    yield Quoted(key, row.stream_id, 1, _SEQ_MAX)


def _quotes_messages(head: SegmentHead, row: int) -> bool:
    """Return whether records in a row of an object may quote messages."""
    try:
        return any(record.kind in (Append.KIND, Arrival.KIND) for record in head.core(row).records)
    except FormatError:
        return True
