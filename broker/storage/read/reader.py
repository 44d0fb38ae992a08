"""Stored blocks in decoded form: heads and chunks, from the cache or by ranged GETs.

Owns: loading, once for all concurrent callers, and how much one GET takes.
Does not own: which blocks a stream has, and in which order they are read (jetstream); the bounds on memory (cache, window);
the layout (format).

    head(block)                  one GET of its index
    head(…, neighbours)          one GET for the indexes of hundreds of blocks of one object: they lie side by side
    subjects(page)               one GET of a page with the subjects of very many blocks
    ids(part)                    the same with message ids, if they are in a page
    chunk(block, ordinal)        one GET of a frame; before it one of the index, unless that is cached
    chunk(…, begun)              the same with an *extent*, about ``read_ahead_bytes`` of neighbouring frames
    read_ahead(block, ordinal)   the same, without waiting

A block is always cut into extents at the same frames, so readers who meet share them. Index and frames of a small block that is
alone in its object lie side by side: they are got together. Frames are decoded when they are asked for.

A segment of many small blocks is cached whole, as it was put: a block that is never read costs only its bytes, and one
that is read needs no GET.

A block whose object is gone raises NotFound: it was released and swept, and the caller looks its sequences up again.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, decode_core
from broker.storage.format.errors import FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.header import Position
from broker.storage.format.id_rows import IdRows
from broker.storage.format.index import Head, cut_frame, decode_frame, decode_index, decode_known_index, frame_body
from broker.storage.format.page import PageRef
from broker.storage.format.subject_rows import SubjectRows
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.read.cache import Cache
from broker.storage.read.unpacking import Unpacker
from broker.storage.read.window import Extent, Window
from broker.storage.state.ids import IdPart, decode_ids
from broker.storage.state.subjects import SubjectPage, decode_subjects

__all__ = ["BlockReader", "StoredBlock"]

_T = TypeVar("_T")

READ_AHEAD_BYTES = 1 << 20

_WHOLE_BYTES = 256 << 10
"""A block up to so large is got with its index even for one message: a second request would cost more."""

_WHOLE_AHEAD = 2.25
"""The same for a reader that reads on, in units of what is read ahead at once: what a full segment of text takes. Half of the
processor time of reading a large stream was the requests'."""

_NEIGHBOURS_BYTES = 256 << 10
"""What is got at once of the indexes of an object's blocks, for a caller that will soon be followed by those of other streams."""

_NEIGHBOURS_INDEX_MAX = _NEIGHBOURS_BYTES // 8
"""A larger index is got alone."""

_WINDOW_SHARE = 4
"""What was got and is not decoded yet takes one part in so many of the cache's size, beside it."""

_LEFT_SHARE = 2
"""Where there is no room for an extent, a load takes one part in so many of the room that is left: so readers who are too many
for the window have about equal parts of it."""

_ROWS_AT_ONCE = 4096
"""Messages of heads that are decoded in one turn of the loop, or of one head: about 2 ms. Several loads may end in one turn,
since a directory answers at once from the page cache."""

_ROWS_INLINE_MAX = 8192
"""A head of more is decoded in a thread."""

_UNSEEN_MAX = 8192
"""Messages put into the cache between two young collections. The garbage collector untracks a tuple of bytes once it has
visited it. Left alone it may run once a second, and stop the loop for 20 ms; run this often, for less than 1 ms."""


class StoredBlock(Protocol):
    """A block as the reader sees it; it fills in ``starts`` (first ordinal of each frame) once it has read the index, and relies
    on the index from then on."""

    @property
    def ref(self) -> BlockRef | None: ...

    starts: Sequence[int] | None


class BlockReader:
    """Reads the blocks of one shard, whose keys are ``paths``. ``key_of`` builds the key of a block's object."""

    def __init__(self, store: ObjectStore, cache: Cache, key_of: Callable[[BlockRef], str], paths: ShardPaths, *,
                 read_ahead_bytes: int = READ_AHEAD_BYTES, distrust: Callable[[str], None] = lambda key: None,
                 executor: Executor | None = None) -> None:
        """``distrust`` is called with the key of an object of which something damaged was read. ``executor`` decompresses what
        is read ahead; None: all on the loop."""
        self._store = store
        self._paths = paths
        self._cache = cache
        self._key_of = key_of
        self._read_ahead_bytes = read_ahead_bytes
        self._whole_ahead_bytes = int(_WHOLE_AHEAD * read_ahead_bytes)
        self._distrust = distrust
        self.window = Window(cache.bytes_max // _WINDOW_SHARE)
        self._unpacker = None if executor is None else Unpacker(self.window, executor)
        self._heads: dict[Hashable, asyncio.Task[Head]] = {}
        """Loads of heads under way."""
        self._frames: dict[Extent, asyncio.Task[None]] = {}
        """Loads of frames under way."""
        self._neighbours: dict[Hashable, asyncio.Task[bytes]] = {}
        """Loads of indexes side by side under way."""
        self._unseen = 0
        self._decoding = asyncio.Lock()
        self._decoded_rows = 0

    # --- what is in memory --------------------------------------------------------------------------------------------

    def cached_head(self, block: StoredBlock) -> Head | None:
        """The block's head if it is in memory."""
        ref = _stored(block)
        head: Head | None = self._cache.get(_id(ref))
        if head is None and (data := self._whole(ref)) is not None:
            head = _head_from(data[ref.index_offset:ref.index_offset + ref.index_bytes], block, self._key_of(ref))
            self._cache.put(_id(ref), head, head.size)
        return head

    def cached_chunk(self, block: StoredBlock, ordinal: int) -> Chunk | None:
        """The chunk with message ``ordinal`` if it is in memory."""
        starts = block.starts
        if starts is None:
            head = self.cached_head(block)
            if head is None:
                return None
            starts = block.starts = head.starts
        ref, number = _stored(block), bisect_right(starts, ordinal) - 1
        chunk: Chunk | None = self._cache.get((*_id(ref), number))
        if chunk is None and (data := self._whole(ref)) is not None:
            head = self.cached_head(block)
            assert head is not None
            frame = head.frames[number]
            at = ref.frames_offset + frame.offset
            chunk = decode_frame(head, number, data[at:at + frame.stored_bytes], self._key_of(ref))
            self._put((*_id(ref), number), chunk)
        elif self.window and (extent := self.window.find(_id(ref), number)) is not None:
            if chunk is not None:
                self._used(extent, number)
            elif extent.data is not None:
                try:
                    chunk = self._decoded(extent, number, ref)
                except FormatError:
                    return None  # what is wrong shows when it is loaded again
        return chunk

    def admit(self, ref: BlockRef, head: Head | None, chunks: Sequence[Chunk]) -> None:
        """Cache the parts of a block that was just persisted: it is likely to be read next."""
        key = _id(ref)
        if head is not None:
            self._cache.put(key, head, head.size)
        for number, chunk in enumerate(chunks):
            self._put((*key, number), chunk)

    def admit_segment(self, position: Position, data: bytes) -> None:
        """Cache a whole segment that was just persisted, since its blocks are too small to be cached one by one."""
        self._cache.put(position, data, len(data))

    def _put(self, key: Hashable, chunk: Chunk) -> None:
        self._cache.put(key, chunk, chunk.size)
        self._unseen += len(chunk)
        if self._unseen >= _UNSEEN_MAX:
            self._unseen = 0
            gc.collect(0)

    def _whole(self, ref: BlockRef) -> bytes | None:
        if ref.place is not BlockPlace.LOG or ref.position not in self._cache:
            return None
        data: bytes = self._cache.get(ref.position)
        return data

    # --- what is loaded -----------------------------------------------------------------------------------------------

    async def head(self, block: StoredBlock, begun: Callable[[int], None] | None = None, *, neighbours: bool = False) -> Head:
        """The block's head. Args: ``begun`` as for ``chunk``, of a caller that will read all frames: those of a small block are
        loaded with it. ``neighbours``: the heads of other streams' blocks in the same object will soon be asked for, too.
        Raises: NotFound; StoreError; Corrupt."""
        return await self._head(block, begun, 0 if begun is None else self._whole_ahead_bytes, neighbours)

    async def _head(self, block: StoredBlock, begun: Callable[[int], None] | None, whole_bytes: int,
                    neighbours: bool = False) -> Head:
        head = self.cached_head(block)
        if head is None:
            head = await asyncio.shield(self._head_load(block, begun, whole_bytes, neighbours))
        if block.starts is None:
            block.starts = head.starts
        return head

    async def core(self, block: StoredBlock) -> BlockCore:
        """The block's core; not cached, as it is read once after a restart. Raises: NotFound; StoreError; Corrupt."""
        ref = _stored(block)
        key = self._key_of(ref)
        data = await self._store.get(key, ref.core_offset, ref.core_offset + ref.core_bytes)
        return decode_core(data, ref.position, ref.stream_id, object_id=ref.object_id, name=key, offset=ref.core_offset)

    async def subjects(self, page: SubjectPage) -> SubjectRows:
        """A page of subjects; not cached, since an index is made of it at once. Raises: NotFound; StoreError; FormatError."""
        return await self._of_page(page.place, page.count, lambda data: decode_subjects(data, page))

    async def ids(self, part: IdPart) -> list[IdRows]:
        """The message ids of a part that is in memory or in a page; not cached. Raises: as ``subjects``."""
        return await self._of_page(part.place, part.count, lambda data: decode_ids(part, data)[1])

    async def _of_page(self, ref: PageRef | None, count: int, decode: Callable[[bytes], _T]) -> _T:
        """A page of a checkpoint as ``decode`` gives it, in a thread where it has many rows; None: it is in memory."""
        key, data = "", b""
        if ref is not None:
            key = self._paths.pages(ref.position)
            data = await self._store.get(key, ref.offset, ref.offset + ref.size)
        try:
            if count > _ROWS_INLINE_MAX:
                return await asyncio.to_thread(decode, data)
            return decode(data)
        except FormatError:
            if key:
                self._distrust(key)
            raise

    async def chunk(self, block: StoredBlock, ordinal: int, begun: Callable[[int], None] | None = None) -> Chunk:
        """The chunk with message ``ordinal``.

        Args: ``begun``, of a caller that reads on, from which its successors in the extent are loaded as well; it is called
            when the first of them is decoded, with the ordinal after the last.
        Raises: NotFound; StoreError; Corrupt.
        """
        chunk = self.cached_chunk(block, ordinal)
        if chunk is not None:
            return chunk
        ref = _stored(block)
        head = await self._head(block, begun, self._whole_ahead_bytes if begun is not None else _WHOLE_BYTES)
        number = head.frame_of(ordinal)
        chunk = self._cache.peek((*_id(ref), number))
        if chunk is None:
            extent = self.window.find(_id(ref), number) or self._extent(ref, head, number, begun)
            load = self._frames.get(extent) or self._heads.get(_id(ref))
            if extent.data is None and load is not None:
                await asyncio.shield(load)
            chunk = self._cache.peek((*_id(ref), number)) or self._decoded(extent, number, ref)
        assert isinstance(chunk, Chunk)
        return chunk

    def read_ahead(self, block: StoredBlock, ordinal: int, begun: Callable[[int], None]) -> int | None:
        """Begin to load the extent with message ``ordinal``, unless it is in memory or on its way. Errors are not reported.

        Returns: the ordinal after it; None where that is not known yet, or where there is no room.
        """
        ref = _stored(block)
        ident = _id(ref)
        head: Head | None = self._cache.peek(ident)
        if head is None:
            if self._whole(ref) is not None:
                return ref.count
            if ident not in self._heads:
                if not self.window.room_ahead(min(ref.frames_bytes, self._whole_ahead_bytes)):
                    return None
                self._head_load(block, begun, self._whole_ahead_bytes).add_done_callback(
                    lambda load: self._read_on(load, block, ordinal, begun))
            return ref.count if self.window.find(ident, 0) is not None else None
        number, count = head.frame_of(ordinal), len(head.frames)
        if (extent := self.window.find(ident, number)) is not None:
            end = extent.end
        elif (*ident, number) in self._cache:
            end = number + 1
        elif self.window.room_ahead(_size(head, number, self._extent_end(ident, head, number))):
            end = self._extent(ref, head, number, begun).end
        else:
            return None
        return head.starts[end] if end < count else ref.count

    def _read_on(self, load: asyncio.Task[Head], block: StoredBlock, ordinal: int, begun: Callable[[int], None]) -> None:
        """The head came, and its load holds it."""
        if not load.cancelled() and load.exception() is None and block.ref is not None:
            self.read_ahead(block, ordinal, begun)

    async def close(self) -> None:
        """Cancel the loads in progress, and with them their callers."""
        loads: list[asyncio.Task[Any]] = [*self._heads.values(), *self._frames.values(), *self._neighbours.values()]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _head_load(self, block: StoredBlock, begun: Callable[[int], None] | None, whole_bytes: int,
                   neighbours: bool = False) -> asyncio.Task[Head]:
        """The load of a head that all concurrent callers share; with the frames, where both are at most ``whole_bytes``
        side by side, and there is room."""
        ref = _stored(block)
        ident, extent = _id(ref), None
        task = self._heads.get(ident)
        if task is None:
            if (ref.index_offset + ref.index_bytes == ref.frames_offset and ref.frames_bytes
                    and ref.index_bytes + ref.frames_bytes <= whole_bytes and self.window.room(ref.frames_bytes)):
                extent = Extent(ident, 0, 0, ref.frames_bytes, begun)
                self.window.add(extent)
            task = self._heads[ident] = asyncio.ensure_future(self._load_head(block, extent, neighbours))
            task.add_done_callback(lambda load: self._head_done(load, ident, extent))
        return task

    def _head_done(self, load: asyncio.Task[Head], ident: Hashable, extent: Extent | None) -> None:
        del self._heads[ident]
        if _failed(load) and extent is not None:
            self.window.drop(extent)

    async def _load_head(self, block: StoredBlock, extent: Extent | None, neighbours: bool = False) -> Head:
        ref = _stored(block)
        key = self._key_of(ref)
        if neighbours and (index := await self._index_among(ref, key)):
            with suppress(FormatError):  # then it is got alone, and what is wrong is reported
                head = _head_from(index, block, key)
                self._cache.put(_id(ref), head, head.size)
                return head
        end = ref.index_offset + ref.index_bytes
        data = await self._store.get(key, ref.index_offset, end if extent is None else end + ref.frames_bytes)
        index = data if extent is None else data[:ref.index_bytes]
        async with self._decoding:
            try:
                if ref.count > _ROWS_INLINE_MAX:
                    head = await asyncio.to_thread(_head_from, index, block, key)
                else:
                    head = _head_from(index, block, key)
                    self._decoded_rows += ref.count
            except FormatError:
                self._distrust(key)
                raise
            self._cache.put(_id(ref), head, head.size)
            if extent is not None:
                self._came(extent, head, key, data, ref.index_bytes)
            if self._decoded_rows >= _ROWS_AT_ONCE:
                self._decoded_rows = 0
                await asyncio.sleep(0)
        return head

    async def _index_among(self, ref: BlockRef, key: str) -> bytes:
        """The block's index, from what was got with those of its neighbours; b"" where it is to be got alone."""
        number, at = divmod(ref.index_offset, _NEIGHBOURS_BYTES)
        if ref.place.of_stream or ref.index_bytes > _NEIGHBOURS_INDEX_MAX or at + ref.index_bytes > _NEIGHBOURS_BYTES:
            return b""
        ident = (ref.place, ref.position, ref.object_id, number)
        data: bytes | None = self._cache.get(ident)
        if data is None:
            load = self._neighbours.get(ident)
            if load is None:
                start = number * _NEIGHBOURS_BYTES
                # No index is behind the frames of any block.
                load = self._neighbours[ident] = asyncio.ensure_future(
                    self._store.get(key, start, min(start + _NEIGHBOURS_BYTES, ref.frames_offset)))
                load.add_done_callback(lambda load: self._neighbours_done(load, ident))
            data = await asyncio.shield(load)
        return data[at:at + ref.index_bytes]

    def _neighbours_done(self, load: asyncio.Task[bytes], ident: Hashable) -> None:
        del self._neighbours[ident]
        if not _failed(load):
            self._cache.put(ident, load.result(), len(load.result()))

    def _extent_end(self, ident: tuple[int, ...], head: Head, first: int) -> int:
        """The end of the extent with frame ``first``, or what follows it that is in memory or on its way."""
        frames, end = head.frames, first + 1
        stored = max(frames[-1].offset + frames[-1].stored_bytes, 1)
        extents = max(1, round(stored / self._read_ahead_bytes))
        number = frames[first].offset * extents // stored
        while (end < len(frames) and frames[end].offset * extents // stored == number
               and (*ident, end) not in self._cache and self.window.find(ident, end) is None):
            end += 1
        return end

    def _extent(self, ref: BlockRef, head: Head, first: int, begun: Callable[[int], None] | None) -> Extent:
        """Begin to load frame ``first``, or its extent if the caller reads on and there is room."""
        ident, end = _id(ref), first + 1
        if begun is not None:
            end = self._extent_end(ident, head, first)
            if not self.window.room(_size(head, first, end)):
                room = self.window.left // _LEFT_SHARE
                while end > first + 1 and _size(head, first, end) > room:
                    end -= 1
        extent = Extent(ident, first, end, _size(head, first, end), begun)
        self.window.add(extent)
        task = self._frames[extent] = asyncio.ensure_future(self._load_frames(extent, ref, head))
        task.add_done_callback(lambda load: self._frames_done(load, extent))
        return extent

    async def _load_frames(self, extent: Extent, ref: BlockRef, head: Head) -> None:
        at, key = ref.frames_offset + head.frames[extent.first].offset, self._key_of(ref)
        self._came(extent, head, key, await self._store.get(key, at, at + extent.size))

    def _came(self, extent: Extent, head: Head, key: str, data: bytes, index_bytes: int = 0) -> None:
        extent.came(head, data, index_bytes)
        self.window.came(extent)
        if self._unpacker is not None:
            self._unpacker.came(extent, key)

    def _frames_done(self, load: asyncio.Task[None], extent: Extent) -> None:
        del self._frames[extent]
        if _failed(load):
            self.window.drop(extent)

    def _decoded(self, extent: Extent, number: int, ref: BlockRef) -> Chunk:
        """A frame of an extent that is here, decoded. Raises: Corrupt."""
        head = extent.head
        if head is None:
            raise RuntimeError("the extent is on its way")
        key = self._key_of(ref)
        body = None if self._unpacker is None else self._unpacker.taken(extent, number, key)
        try:
            if body is None:
                body = frame_body(head, number, extent.frame(number), key)
            chunk = cut_frame(head, number, body, key)
        except FormatError:
            self.window.drop(extent)
            self._distrust(key)
            raise
        # A filtered reader needs both at once; if one evicted the other, it would load them in turns for ever.
        self._cache.renew(head)
        self._put((*_id(ref), number), chunk)
        self._used(extent, number)
        return chunk

    def _used(self, extent: Extent, number: int) -> None:
        """A frame of an extent was used. One that was in the cache, and so not decoded, has to count: the extent would take room
        in the window for nothing, and leave others single frames."""
        head, begun = extent.head, extent.begun
        if begun is not None and head is not None:
            extent.begun = None
            self.window.skip(extent, number)
            begun(head.starts[extent.end] if extent.end < len(head.frames) else head.count)
        self.window.used(extent, number)


def _failed(load: asyncio.Task[Any]) -> bool:
    """Whether a load failed. If all of its callers were cancelled meanwhile, none of them retrieves the error."""
    return load.cancelled() or load.exception() is not None


def _size(head: Head, first: int, end: int) -> int:
    """Stored bytes of frames ``first`` to ``end``."""
    last = head.frames[end - 1]
    return last.offset + last.stored_bytes - head.frames[first].offset


def _stored(block: StoredBlock) -> BlockRef:
    assert block.ref is not None, "a block is read from the store before it is stored"
    return block.ref


def _head_from(index: bytes, block: StoredBlock, key: str) -> Head:
    """The head; checked thoroughly unless it was before, or this process wrote it: then it is known where frames start."""
    return (decode_index if block.starts is None else decode_known_index)(index, _stored(block), key)


def _id(ref: BlockRef) -> tuple[int, int, int, int, int]:
    epoch, number = ref.position
    return ref.stream_id, epoch, number, ref.object_id, ref.core_offset  # a run may hold several blocks of a stream
