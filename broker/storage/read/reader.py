"""Stored blocks in decoded form: heads and chunks, from the cache or by ranged GETs.

Owns: loading, once for all concurrent callers, and the size of each GET.
Does not own: the list of a stream's blocks, and the order in which they are read (jetstream); the bounds on memory
(cache, window); the layout (format).

    head(block)                  one GET of its index
    head(…, neighbours)          one GET for the indexes of hundreds of blocks of one object: they lie side by side
    subjects(page)               one GET of a page with the subjects of very many blocks
    ids(part)                    one GET of a page with message ids, unless they are in memory
    chunk(block, ordinal)        one GET of a frame; before it one of the index, unless that is cached
    chunk(…, begun)              one GET of an *extent*, about ``read_ahead_bytes`` of neighbouring frames
    read_ahead(block, ordinal)   begins the load of an extent, without waiting

A block is always cut into extents at the same frames, so concurrent readers share them. Index and frames of a small
block that is alone in its object lie side by side: they are loaded together. Frames are decoded when a caller needs
them.

A segment of many small blocks is cached whole, as it was put: a block that is never read costs only its bytes, and a
read needs no GET.

A block whose object is gone raises NotFound: the object was released and deleted, and the caller finds the newer block
that has the same sequences.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from broker.base.shielded import shielded
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, decode_core
from broker.storage.format.errors import FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import cut_frame, decode_frame, frame_body
from broker.storage.format.header import Position
from broker.storage.format.id_rows import IdRows
from broker.storage.format.index import Head, decode_index, decode_known_index
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
"""A block up to this size is loaded with its index even for one message: a second request would cost more."""

_WHOLE_AHEAD = 2.25
"""A block up to this size is loaded with its index for a reader in order; in units of ``read_ahead_bytes``.

This is the size of a full segment of text. With a lower bound, requests took half of the processor time of reading a
large stream.
"""

_NEIGHBOURS_BYTES = 256 << 10
"""The size of one load of an object's neighbouring indexes, for callers that will need other streams' indexes soon."""

_NEIGHBOURS_INDEX_MAX = _NEIGHBOURS_BYTES // 8
"""A larger index is loaded alone."""

_WINDOW_SHARE = 4
"""The window's bound is the cache's bound divided by this. The window's memory is in addition to the cache."""

_LEFT_SHARE = 2
"""A load whose extent does not fit uses the free room divided by this, so that many readers get similar parts."""

_ROWS_AT_ONCE = 4096
"""The messages whose heads are decoded in one turn of the loop (about 2 ms), though never less than one head.

Several loads may end in one turn, since a directory answers at once from the page cache.
"""

_ROWS_INLINE_MAX = 8192
"""A head of more messages is decoded in a thread."""

_UNSEEN_MAX = 8192
"""The messages that are put into the cache between two young collections.

The garbage collector untracks a tuple of bytes once it has visited it. By its own schedule it may run once a second and
stop the loop for 20 ms; run this often, it stops the loop for less than 1 ms.
"""


class StoredBlock(Protocol):
    """A block as the reader sees it.

    The reader sets ``starts`` (the first ordinal of each frame) once it has read the index. Later loads of the index
    are not checked as thoroughly.
    """

    @property
    def ref(self) -> BlockRef | None: ...

    starts: Sequence[int] | None


class BlockReader:
    """The reader of one shard's blocks. ``paths`` builds the shard's keys, ``key_of`` the key of a block's object."""

    def __init__(self, store: ObjectStore, cache: Cache, key_of: Callable[[BlockRef], str], paths: ShardPaths, *,
                 read_ahead_bytes: int = READ_AHEAD_BYTES, distrust: Callable[[str], None] = lambda key: None,
                 executor: Executor | None = None) -> None:
        """Make a reader.

        Args: ``distrust`` is called with the key of an object of which damaged bytes were read. ``executor``
            decompresses frames that are read ahead; None: the loop decompresses all frames.
        """
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
        """Loads of heads in progress."""
        self._frames: dict[Extent, asyncio.Task[None]] = {}
        """Loads of frames in progress."""
        self._neighbours: dict[Hashable, asyncio.Task[bytes]] = {}
        """Loads of neighbouring indexes in progress."""
        self._unseen = 0
        self._decoding = asyncio.Lock()
        self._decoded_rows = 0

    # --- blocks in memory ---------------------------------------------------------------------------------------------

    @property
    def has_urls(self) -> bool:
        """True if a block can be read by a URL."""
        return self._store.has_urls

    def url_of(self, ref: BlockRef, byte_range: str) -> str | None:
        """Return a URL that reads this range of the object of a block; None: there is none now."""
        return self._store.url_of(self._key_of(ref), byte_range)

    def cached_head(self, block: StoredBlock) -> Head | None:
        """Return the block's head if it is in memory."""
        ref = _stored(block)
        head: Head | None = self._cache.get(_id(ref))
        if head is None and (data := self._whole(ref)) is not None:
            head = _head_from(data[ref.index_offset:ref.index_offset + ref.index_bytes], block, self._key_of(ref))
            self._cache.put(_id(ref), head, head.size)
        return head

    def cached_chunk(self, block: StoredBlock, ordinal: int) -> Chunk | None:
        """Return the chunk with message ``ordinal`` if it is in memory."""
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
                self._mark_used(extent, number)
            elif extent.data is not None:
                try:
                    chunk = self._decode(extent, number, ref)
                except FormatError:
                    return None  # the caller loads the frame again, which raises the error
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
        self._cache.put(self._segment_key(position), data, len(data))

    def _segment_key(self, position: Position) -> Hashable:
        """Return the key of a whole segment in the cache, which the shards of a store share."""
        return (self._paths.shard, position) if self._paths.shard else position

    def _put(self, key: Hashable, chunk: Chunk) -> None:
        self._cache.put(key, chunk, chunk.size)
        self._unseen += len(chunk)
        if self._unseen >= _UNSEEN_MAX:
            self._unseen = 0
            gc.collect(0)

    def _whole(self, ref: BlockRef) -> bytes | None:
        if ref.place is not BlockPlace.LOG or (key := self._segment_key(ref.position)) not in self._cache:
            return None
        data: bytes = self._cache.get(key)
        return data

    # --- loads --------------------------------------------------------------------------------------------------------

    async def head(self, block: StoredBlock, begun: Callable[[int], None] | None = None, *,
                   neighbours: bool = False) -> Head:
        """Load the block's head.

        Args: ``begun``: as for ``chunk``. A caller that will read all frames gives it, and the frames of a small block
            are then loaded with its head. ``neighbours``: the heads of other streams' blocks in the same object are
            needed soon.
        Raises: NotFound; StoreError; Corrupt.
        """
        return await self._head(block, begun, 0 if begun is None else self._whole_ahead_bytes, neighbours)

    async def _head(self, block: StoredBlock, begun: Callable[[int], None] | None, whole_bytes: int,
                    neighbours: bool = False) -> Head:
        head = self.cached_head(block)
        if head is None:
            head = await shielded(self._head_load(block, begun, whole_bytes, neighbours))
        if block.starts is None:
            block.starts = head.starts
        return head

    async def core(self, block: StoredBlock) -> BlockCore:
        """Load the block's core; it is not cached, as it is read once after a restart.

        Raises: NotFound; StoreError; Corrupt.
        """
        ref = _stored(block)
        key = self._key_of(ref)
        data = await self._store.get(key, ref.core_offset, ref.core_offset + ref.core_bytes)
        return decode_core(data, ref.position, ref.stream_id, object_id=ref.object_id, name=key, offset=ref.core_offset)

    async def subjects(self, page: SubjectPage) -> SubjectRows:
        """Load a page of subjects; it is not cached, since the caller makes an index of it at once.

        Raises: NotFound; StoreError; FormatError.
        """
        return await self._load_page(page.place, page.count, lambda data: decode_subjects(data, page))

    async def ids(self, part: IdPart) -> list[IdRows]:
        """Load the message ids of a part, from memory or from its page; they are not cached.

        Raises: as ``subjects``.
        """
        return await self._load_page(part.place, part.count, lambda data: decode_ids(part, data)[1])

    async def _load_page(self, ref: PageRef | None, count: int, decode: Callable[[bytes], _T]) -> _T:
        """Load a page of a checkpoint and decode it, in a thread if it has many rows.

        ``ref`` None: the rows are in memory, and ``decode`` is called with b"".
        """
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
        """Load the chunk with message ``ordinal``.

        Args: ``begun`` is given by a caller that reads in order: the whole extent is loaded. It is called when the
            first frame of the extent is decoded, with the ordinal after the extent's last message.
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
            load: asyncio.Future[Any] | None = self._frames.get(extent) or self._heads.get(_id(ref))
            if extent.data is None and load is not None:
                await shielded(load)
            chunk = self._cache.peek((*_id(ref), number)) or self._decode(extent, number, ref)
        assert isinstance(chunk, Chunk)
        return chunk

    def read_head_ahead(self, block: StoredBlock) -> None:
        """Begin to load the head of a block that is too large to be loaded whole; report no errors."""
        ref = _stored(block)
        ident = _id(ref)
        if (ref.index_bytes + ref.frames_bytes > self._whole_ahead_bytes and ident not in self._heads
                and self._cache.peek(ident) is None and self._whole(ref) is None):
            self._head_load(block, None, 0)

    def read_ahead(self, block: StoredBlock, ordinal: int, begun: Callable[[int], None],
                   pieces: int = 1) -> int | None:
        """Begin to load the extent with message ``ordinal``, unless it is in memory or loading; report no errors.

        Args: ``pieces``: the number of extents that are loaded together, as one, if there is room.
        Returns: the ordinal after the extent's last message; None if it is not known yet, or if there is no room.
        """
        ref = _stored(block)
        ident = _id(ref)
        head: Head | None = self._cache.peek(ident)
        if head is None:
            if self._whole(ref) is not None:
                return ref.count
            if ident not in self._heads:
                if not self.window.make_room_ahead(min(ref.frames_bytes, self._whole_ahead_bytes)):
                    return None
                self._head_load(block, begun, self._whole_ahead_bytes).add_done_callback(
                    lambda load: self._read_ahead_after(load, block, ordinal, begun))
            return ref.count if self.window.find(ident, 0) is not None else None
        number, count = head.frame_of(ordinal), len(head.frames)
        if (extent := self.window.find(ident, number)) is not None:
            end = extent.end
        elif (*ident, number) in self._cache:
            end = number + 1
        elif self.window.make_room_ahead(_size(head, number, self._extent_end(ident, head, number, pieces))):
            end = self._extent(ref, head, number, begun, pieces).end
        elif self.window.make_room_ahead(_size(head, number, self._extent_end(ident, head, number))):
            end = self._extent(ref, head, number, begun).end
        else:
            return None
        return head.starts[end] if end < count else ref.count

    def _read_ahead_after(self, load: asyncio.Task[Head], block: StoredBlock, ordinal: int,
                          begun: Callable[[int], None]) -> None:
        """Continue ``read_ahead`` once the head is loaded; its task still references it, so it is in the cache."""
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
        """Return the load of a head, which all concurrent callers share.

        The frames are loaded, too, if they lie beside the index, both are at most ``whole_bytes``, and there is room.
        """
        ref = _stored(block)
        ident, extent = _id(ref), None
        task = self._heads.get(ident)
        if task is None:
            if (ref.index_offset + ref.index_bytes == ref.frames_offset and ref.frames_bytes
                    and ref.index_bytes + ref.frames_bytes <= whole_bytes and self.window.make_room(ref.frames_bytes)):
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
        if neighbours and (index := await self._load_among_neighbours(ref, key)):
            with suppress(FormatError):  # the index is loaded again, alone, which reports the error
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
                self._fill(extent, head, key, data, ref.index_bytes)
            if self._decoded_rows >= _ROWS_AT_ONCE:
                self._decoded_rows = 0
                await asyncio.sleep(0)
        return head

    async def _load_among_neighbours(self, ref: BlockRef, key: str) -> bytes:
        """Load the block's index together with neighbouring indexes; b"" if it must be loaded alone."""
        number, at = divmod(ref.index_offset, _NEIGHBOURS_BYTES)
        if ref.place.of_stream or ref.index_bytes > _NEIGHBOURS_INDEX_MAX or at + ref.index_bytes > _NEIGHBOURS_BYTES:
            return b""
        ident = (ref.place, self._segment_key(ref.position), ref.object_id, number)
        data: bytes | None = self._cache.get(ident)
        if data is None:
            load = self._neighbours.get(ident)
            if load is None:
                start = number * _NEIGHBOURS_BYTES
                # All indexes are before the frames of every block, so the load ends there.
                load = self._neighbours[ident] = asyncio.ensure_future(
                    self._store.get(key, start, min(start + _NEIGHBOURS_BYTES, ref.frames_offset)))
                load.add_done_callback(lambda load: self._neighbours_done(load, ident))
            data = await shielded(load)
        return data[at:at + ref.index_bytes]

    def _neighbours_done(self, load: asyncio.Task[bytes], ident: Hashable) -> None:
        del self._neighbours[ident]
        if not _failed(load):
            self._cache.put(ident, load.result(), len(load.result()))

    def _extent_end(self, ident: tuple[int, ...], head: Head, first: int, pieces: int = 1) -> int:
        """Return the end of the extent with frame ``first``: it is cut before a frame that is in memory or loading."""
        frames, end = head.frames, first + 1
        stored = max(frames[-1].offset + frames[-1].stored_bytes, 1)
        extents = max(1, round(stored / self._read_ahead_bytes))
        number = frames[first].offset * extents // stored // pieces
        while (end < len(frames) and frames[end].offset * extents // stored // pieces == number
               and (*ident, end) not in self._cache and self.window.find(ident, end) is None):
            end += 1
        return end

    def _extent(self, ref: BlockRef, head: Head, first: int, begun: Callable[[int], None] | None,
                pieces: int = 1) -> Extent:
        """Begin to load frame ``first``, or its extent if the caller reads in order and there is room."""
        ident, end = _id(ref), first + 1
        if begun is not None:
            end = self._extent_end(ident, head, first, pieces)
            if not self.window.make_room(_size(head, first, end)):
                room = self.window.bytes_free // _LEFT_SHARE
                while end > first + 1 and _size(head, first, end) > room:
                    end -= 1
        extent = Extent(ident, first, end, _size(head, first, end), begun)
        self.window.add(extent)
        task = self._frames[extent] = asyncio.ensure_future(self._load_frames(extent, ref, head))
        task.add_done_callback(lambda load: self._frames_done(load, extent))
        return extent

    async def _load_frames(self, extent: Extent, ref: BlockRef, head: Head) -> None:
        at, key = ref.frames_offset + head.frames[extent.first].offset, self._key_of(ref)
        self._fill(extent, head, key, await self._store.get(key, at, at + extent.size))

    def _fill(self, extent: Extent, head: Head, key: str, data: bytes, index_bytes: int = 0) -> None:
        extent.fill(head, data, index_bytes)
        self.window.drop_if_used(extent)
        if self._unpacker is not None:
            self._unpacker.begin(extent, key)

    def _frames_done(self, load: asyncio.Task[None], extent: Extent) -> None:
        del self._frames[extent]
        if _failed(load):
            self.window.drop(extent)

    def _decode(self, extent: Extent, number: int, ref: BlockRef) -> Chunk:
        """Decode a frame of a loaded extent, and cache it. Raises: Corrupt."""
        head = extent.head
        if head is None:
            raise RuntimeError("the extent is not loaded yet")
        key = self._key_of(ref)
        body = None if self._unpacker is None else self._unpacker.pop_frame(extent, number, key)
        try:
            if body is None:
                body = frame_body(head, number, extent.frame(number), key)
            chunk = cut_frame(head, number, body, key)
        except FormatError:
            self.window.drop(extent)
            self._distrust(key)
            raise
        # A filtered reader needs head and chunk at once; if one evicted the other, it would load them in turns for
        # ever.
        self._cache.renew(head)
        self._put((*_id(ref), number), chunk)
        self._mark_used(extent, number)
        return chunk

    def _mark_used(self, extent: Extent, number: int) -> None:
        """Record that a frame of an extent was used.

        Call this also for a frame that came from the cache. Otherwise the extent would stay in the window without need,
        and other readers would get only single frames.
        """
        head, begun = extent.head, extent.begun
        if begun is not None and head is not None:
            extent.begun = None
            self.window.skip_before(extent, number)
            begun(head.starts[extent.end] if extent.end < len(head.frames) else head.count)
        self.window.mark_used(extent, number)


def _failed(load: asyncio.Task[Any]) -> bool:
    """Return True if a load failed.

    This also retrieves the error of a load whose callers were all cancelled, which asyncio would report otherwise.
    """
    return load.cancelled() or load.exception() is not None


def _size(head: Head, first: int, end: int) -> int:
    """Return the stored bytes of frames ``first`` to ``end`` (half-open)."""
    last = head.frames[end - 1]
    return last.offset + last.stored_bytes - head.frames[first].offset


def _stored(block: StoredBlock) -> BlockRef:
    assert block.ref is not None, "a block is read from the store before it is stored"
    return block.ref


def _head_from(index: bytes, block: StoredBlock, key: str) -> Head:
    """Decode a head. The check is less thorough if ``starts`` is set: it was checked before, or we wrote it."""
    return (decode_index if block.starts is None else decode_known_index)(index, _stored(block), key)


def _id(ref: BlockRef) -> tuple[int, int, int, int, int]:
    epoch, number = ref.position
    return ref.stream_id, epoch, number, ref.object_id, ref.core_offset  # a run may hold several blocks of a stream
