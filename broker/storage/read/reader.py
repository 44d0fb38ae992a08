"""Stored blocks in decoded form: heads and chunks, from the cache or by ranged GETs.

Owns: loading, once for all concurrent callers, and reading ahead.
Does not own: which blocks a stream has (jetstream), the bound on memory (cache), the layout (format).

    head(block)            one GET of its index
    subjects(page)         one GET of a page with the subjects of very many blocks
    chunk(block, ordinal)  one GET of a frame, or of several neighbouring ones up to ``read_ahead_bytes`` when read ahead;
                           before it one of the index, unless that is cached

A segment of many small blocks is cached whole, as it was put: a block that is never read costs only its bytes, and one
that is read needs no GET.

A block whose object is gone raises NotFound: it was released and swept, and the caller looks its sequences up again.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, decode_core
from broker.storage.format.frame import Chunk
from broker.storage.format.header import Position
from broker.storage.format.index import Head, decode_frame, decode_index, decode_known_index
from broker.storage.format.subject_rows import SubjectRows
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.read.cache import Cache
from broker.storage.state.subjects import SubjectPage, decode_subjects

__all__ = ["BlockReader", "StoredBlock"]

READ_AHEAD_BYTES = 1 << 20

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
    """Reads blocks of one store. ``key_of`` builds the key of a block's object."""

    def __init__(self, store: ObjectStore, cache: Cache, key_of: Callable[[BlockRef], str], *,
                 read_ahead_bytes: int = READ_AHEAD_BYTES, paths: ShardPaths | None = None) -> None:
        self._store = store
        self._paths = paths or ShardPaths()
        self._cache = cache
        self._key_of = key_of
        self._read_ahead_bytes = read_ahead_bytes
        self._loads: dict[Hashable, asyncio.Task[Any]] = {}
        self._unseen = 0
        self._decoding = asyncio.Lock()
        self._decoded_rows = 0

    # --- what is in memory --------------------------------------------------------------------------------------------

    def cached_head(self, block: StoredBlock) -> Head | None:
        """The block's head if it is in memory."""
        ref = _stored(block)
        head: Head | None = self._cache.get(_id(ref))
        if head is None and (data := self._whole(ref)) is not None:
            head = _decoded(data[ref.index_offset:ref.index_offset + ref.index_bytes], block, self._key_of(ref))
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

    async def head(self, block: StoredBlock) -> Head:
        """The block's head. Raises: NotFound; StoreError; Corrupt."""
        head = self.cached_head(block)
        if head is None:
            ref = _stored(block)
            head = await self._once(_id(ref), lambda: self._load_head(block))
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
        ref = page.place
        data = await self._store.get(self._paths.pages(ref.position), ref.offset, ref.offset + ref.size)
        if page.count > _ROWS_INLINE_MAX:
            return await asyncio.to_thread(decode_subjects, data, page)
        return decode_subjects(data, page)

    async def chunk(self, block: StoredBlock, ordinal: int, read_ahead: bool = False) -> Chunk:
        """The chunk with message ``ordinal``; with ``read_ahead``, its successors in the block are loaded as well.

        Raises: NotFound; StoreError; Corrupt.
        """
        chunk = self.cached_chunk(block, ordinal)
        if chunk is not None:
            return chunk
        ref, head = _stored(block), await self.head(block)
        first = head.frame_of(ordinal)
        key = (*_id(ref), first)
        chunk = self._cache.get(key)
        if chunk is None:
            chunk = await self._once(key, lambda: self._load(ref, head, first, read_ahead))
        assert isinstance(chunk, Chunk)
        return chunk

    async def close(self) -> None:
        """Cancel the loads in progress, and with them their callers."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def _once(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        """Share one load among all concurrent callers; cancelling one of them does not stop it."""
        task = self._loads.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fetch_once(key, load))
            task.add_done_callback(_retrieve_error)
            self._loads[key] = task
        return await asyncio.shield(task)

    async def _fetch_once(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await load()
        finally:
            del self._loads[key]

    async def _load_head(self, block: StoredBlock) -> Head:
        ref = _stored(block)
        key = self._key_of(ref)
        data = await self._store.get(key, ref.index_offset, ref.index_offset + ref.index_bytes)
        async with self._decoding:
            if ref.count > _ROWS_INLINE_MAX:
                head = await asyncio.to_thread(_decoded, data, block, key)
            else:
                head = _decoded(data, block, key)
                self._decoded_rows += ref.count
            self._cache.put(_id(ref), head, head.size)
            if self._decoded_rows >= _ROWS_AT_ONCE:
                self._decoded_rows = 0
                await asyncio.sleep(0)
        return head

    async def _load(self, ref: BlockRef, head: Head, first: int, read_ahead: bool) -> Chunk:
        """Load frame ``first``, and the following ones that fit and are not cached; returns the chunk of ``first``."""
        frames, key = head.frames, _id(ref)
        end, size = first + 1, frames[first].stored_bytes
        while (read_ahead and end < len(frames) and (*key, end) not in self._cache
               and size + frames[end].stored_bytes <= self._read_ahead_bytes):
            size += frames[end].stored_bytes
            end += 1
        base, name = ref.frames_offset, self._key_of(ref)
        data = await self._store.get(name, base + frames[first].offset, base + frames[first].offset + size)
        wanted = None
        # The wanted one is decoded last, with the head put in just before it, so both are the newest in the cache. A
        # filtered reader needs both at once; if one evicted the other, it would load them in turns for ever.
        for number in (*range(first + 1, end), first):
            frame = frames[number]
            at = frame.offset - frames[first].offset
            chunk = decode_frame(head, number, data[at:at + frame.stored_bytes], name)
            if number == first:
                self._cache.put(key, head, head.size)
            self._put((*key, number), chunk)
            if number == first:
                wanted = chunk
            else:
                # A frame takes up to a millisecond of the loop.
                await asyncio.sleep(0)
        assert wanted is not None
        return wanted


def _retrieve_error(load: asyncio.Task[Any]) -> None:
    """If all callers were cancelled meanwhile, none of them retrieves the error."""
    if not load.cancelled():
        load.exception()


def _stored(block: StoredBlock) -> BlockRef:
    assert block.ref is not None, "a block is read from the store before it is stored"
    return block.ref


def _decoded(index: bytes, block: StoredBlock, key: str) -> Head:
    """The head; checked thoroughly unless it was before, or this process wrote it: then it is known where frames start."""
    return (decode_index if block.starts is None else decode_known_index)(index, _stored(block), key)


def _id(ref: BlockRef) -> tuple[int, int, int, int, int]:
    epoch, number = ref.position
    return ref.stream_id, epoch, number, ref.object_id, ref.core_offset  # a run may hold several blocks of a stream
