"""The reader: ranged GETs of heads and frames, one for all callers, with read-ahead, bounded by the cache."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence

import pytest

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.errors import Corrupt
from broker.storage.format.frame import Chunk
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.section import SECTIONS, UNCOMPRESSED
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import SealedBlock, encode_segment, seal_block
from broker.storage.objectstore.base import NotFound
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, object_key
from broker.storage.read import reader as reader_module
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader

SHARD = ShardPaths(0)
AT = Position(1, 7)


class RecordingStore(MemoryStore):
    """A store that records each GET, and whose GETs a test can hold up."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int | None]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.ranges.append((start, end))
        await self.go.wait()
        return await super().get(key, start, end)


class Stored:
    def __init__(self, ref: BlockRef) -> None:
        self.ref = ref
        self.starts: Sequence[int] | None = None


def unheeded(ordinal: int) -> None:
    """Ignore that an extent is used: a reader in order that does not read ahead."""


async def make(count: int = 40, size: int = 20_000, cache_bytes: int = 1 << 24,
               ahead: int = 1 << 20) -> tuple[RecordingStore, BlockReader, Stored]:
    """Make one block of ``count`` messages of ``size`` bytes that do not shrink, about six in each frame."""
    import random
    rng = random.Random(5)
    store = RecordingStore()
    block: OpenBlock[None] = OpenBlock(77, None)
    for i in range(count):
        block.append_run(100 + i, [b"S.%d" % (i % 3)], None, [b"%06d" % i + rng.randbytes(size)], 1_000 + i)
    sealed = seal_block(block, AT)
    await store.put(SHARD.log(AT), encode_segment(AT, bytes(16), [sealed], UNCOMPRESSED))
    assert sealed.ref is not None
    reader = BlockReader(store, Cache(cache_bytes), lambda ref: object_key(SHARD, ref), SHARD, read_ahead_bytes=ahead)
    return store, reader, Stored(sealed.ref)


async def test_a_message_costs_one_get_of_the_head_and_one_of_its_frame() -> None:
    """The index is loaded with an empty cache, then one frame; the messages beside it cost no GET."""
    store, reader, block = await make()
    assert reader.cached_chunk(block, 17) is None
    chunk = await reader.chunk(block, 17)
    assert chunk.seq(17 - chunk.start) == 117
    assert chunk.bodies[17 - chunk.start].startswith(b"000017")
    ref = block.ref
    assert store.ranges[0] == (ref.index_offset, ref.index_offset + ref.index_bytes)
    assert len(store.ranges) == 2
    start, end = store.ranges[1]
    assert end is not None
    assert 0 < end - start < 140_000
    assert reader.cached_chunk(block, chunk.start) is chunk
    assert await reader.chunk(block, chunk.start + len(chunk) - 1) is chunk
    assert len(store.ranges) == 2


async def test_reading_ahead_takes_neighbours_in_one_get() -> None:
    """A reader in order gets the following frames of the block with the first one, about ``read_ahead_bytes``."""
    store, reader, block = await make(ahead=300_000)
    await reader.chunk(block, 0, begun=unheeded)
    assert len(store.ranges) == 2
    start, end = store.ranges[1]
    assert end is not None
    assert 300_000 < end - start <= 450_000
    assert reader.cached_chunk(block, 7) is not None
    assert reader.cached_chunk(block, 39) is None
    assert len(store.ranges) == 2


async def test_concurrent_callers_share_one_load() -> None:
    """Ten concurrent callers cause one GET of the head and one of the frame; cancelling one does not stop the
    others."""
    store, reader, block = await make()
    store.go.clear()
    tasks = [asyncio.ensure_future(reader.chunk(block, 3)) for _ in range(10)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    store.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len({id(chunk) for chunk in results[1:]}) == 1
    assert len(store.ranges) == 2


async def test_a_failed_load_is_tried_again() -> None:
    """A load that fails raises for all callers that wait for it; the next call tries again."""
    store, reader, block = await make()
    data = store.objects.pop(SHARD.log(AT))
    results = await asyncio.gather(reader.head(block), reader.head(block), return_exceptions=True)
    assert all(isinstance(result, NotFound) for result in results)
    store.objects[SHARD.log(AT)] = data
    assert (await reader.head(block)).count == 40


async def test_damage_is_found() -> None:
    """A flipped bit in a frame, or in the index, raises Corrupt, and the part is not cached."""
    store, reader, block = await make()
    key, ref = SHARD.log(AT), block.ref
    sound = store.objects[key]
    for at in (ref.index_offset + 80, ref.frames_offset + 5):
        store.objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:]
        with pytest.raises(Corrupt):
            await reader.chunk(block, 0)
    store.objects[key] = sound
    assert (await reader.chunk(block, 0)).first_seq == 100


async def test_a_small_cache_still_reads_everything() -> None:
    """Every message is found even with a cache smaller than one frame, by more GETs."""
    _, reader, block = await make(cache_bytes=1000)
    for ordinal in range(40):
        chunk = await reader.chunk(block, ordinal, begun=unheeded)
        assert chunk.bodies[ordinal - chunk.start].startswith(b"%06d" % ordinal)


@pytest.mark.parametrize("cache_bytes", [0, 1000, 150_000])
async def test_head_and_chunk_are_cached_together(cache_bytes: int) -> None:
    """A filtered reader, which asks again after each load, finds the head and the chunk even in a very small cache."""
    store, reader, block = await make(cache_bytes=cache_bytes, ahead=300_000)
    for ordinal in range(40):
        await reader.head(block)
        chunk = await reader.chunk(block, ordinal, begun=unheeded)
        assert reader.cached_head(block) is not None
        assert reader.cached_chunk(block, ordinal) is chunk
    assert len(store.ranges) < 20


async def heads(count: int, messages: int) -> tuple[BlockReader, list[Stored]]:
    """Make ``count`` blocks, none of which is cached."""
    store = RecordingStore()
    blocks = []
    for number in range(count):
        opened: OpenBlock[None] = OpenBlock(77, None)
        opened.append_run(1 + number * messages, [b"S.%d" % i for i in range(messages)], None, [b"x"] * messages, 5)
        at = Position(1, 7 + number)
        sealed = seal_block(opened, at)
        await store.put(SHARD.log(at), encode_segment(at, bytes(16), [sealed], UNCOMPRESSED))
        assert sealed.ref is not None
        blocks.append(Stored(sealed.ref))
    return BlockReader(store, Cache(0), lambda ref: object_key(SHARD, ref), SHARD), blocks


async def test_heads_that_come_together_are_decoded_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many loads end in one turn of the loop: it decodes at most a bounded number of messages and one head."""
    reader, blocks = await heads(12, 40)
    monkeypatch.setattr(reader_module, "_ROWS_AT_ONCE", 100)
    turn, decoded = 0, []

    def counted(data: bytes, ref: BlockRef, name: str) -> Head:
        decoded.append(turn)
        return decode_index(data, ref, name)

    monkeypatch.setattr(reader_module, "decode_index", counted)
    loading = asyncio.gather(*map(reader.head, blocks))
    while not loading.done():
        turn += 1
        await asyncio.sleep(0)
    assert [head.first_seq for head in await loading] == [block.ref.first_seq for block in blocks]
    assert len(decoded) == 12
    assert max(map(decoded.count, decoded)) <= 3


async def test_a_large_head_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop continues meanwhile."""
    reader, [block] = await heads(1, 40)
    monkeypatch.setattr(reader_module, "_ROWS_INLINE_MAX", 39)
    threads = []

    def noted(data: bytes, ref: BlockRef, name: str) -> Head:
        threads.append(threading.current_thread())
        return decode_index(data, ref, name)

    monkeypatch.setattr(reader_module, "decode_index", noted)
    assert (await reader.head(block)).count == 40
    assert threads != [threading.main_thread()]
    assert len(threads) == 1


async def test_a_checked_head_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is loaded again is only compared with its checksums."""
    store, reader, block = await make(cache_bytes=0)
    first = list((await reader.head(block)).subjects)

    def unexpected(*args: object) -> Head:
        raise AssertionError("it was checked before")

    monkeypatch.setattr(reader_module, "decode_index", unexpected)
    await reader.chunk(block, 39)
    await reader.chunk(block, 0)
    again = BlockReader(store, Cache(0), lambda ref: object_key(SHARD, ref), SHARD)
    assert list((await again.head(block)).subjects) == first
    key, at = SHARD.log(AT), block.ref.index_offset + 80
    sound = store.objects[key]
    store.objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:]
    with pytest.raises(Corrupt):
        await BlockReader(store, Cache(0), lambda ref: object_key(SHARD, ref), SHARD).head(block)


async def test_closing_cancels_loads() -> None:
    """Callers that wait for a load are cancelled when the reader closes, and no task remains."""
    store, reader, block = await make()
    store.go.clear()
    task = asyncio.ensure_future(reader.chunk(block, 3))
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_persisted_block_is_cached() -> None:
    """Admitted chunks and heads are found without any GET."""
    store, reader, _ = await make()
    other: OpenBlock[None] = OpenBlock(77, None)
    other.append_run(1, [b"S"] * 3, None, [b"a", b"b", b"c"], 5)
    sealed = seal_block(other, Position(1, 8))
    encode_segment(Position(1, 8), bytes(16), [sealed], UNCOMPRESSED)
    assert sealed.ref is not None
    reader.admit(sealed.ref, sealed.head, sealed.chunks)
    chunk = reader.cached_chunk(Stored(sealed.ref), 2)
    assert chunk is not None
    assert list(chunk.bodies) == [b"a", b"b", b"c"]
    assert store.ranges == []


async def test_a_cached_segment_is_read_without_a_get() -> None:
    """Small blocks are decoded from the whole segment while it is cached."""
    store, reader, _ = await make()
    opened: list[OpenBlock[None]] = [OpenBlock(number, None) for number in (1, 2)]
    for block in opened:
        block.append_run(1, [b"S"] * 2, None, [b"a" * 300, b"b%d" % block.stream_id], 5)
    sealed = [SealedBlock.of_small(block, Position(1, 8)) for block in opened]
    reader.admit_segment(Position(1, 8), b"".join(encode_segment(Position(1, 8), bytes(16), sealed)))
    for stored in sealed:
        assert stored.ref is not None
        chunk = reader.cached_chunk(Stored(stored.ref), 1)
        assert chunk is not None
        assert list(chunk.bodies) == [b"a" * 300, b"b%d" % stored.stream_id]
        assert (await reader.head(Stored(stored.ref))).frames[0].raw_bytes == 302
    assert store.ranges == []


async def test_the_garbage_collector_untracks_cached_messages() -> None:
    """The garbage collector's next run visits hardly any of many thousand cached messages, nor the subjects of their
    blocks."""
    _, reader, _ = await make()
    chunks: list[Chunk] = []
    columns: list[Sequence[object]] = []
    for number in range(20):
        block: OpenBlock[None] = OpenBlock(77, None)
        block.append_run(1, [b"S%d" % i for i in range(1000)], None, [b"%d" % i for i in range(1000)], 5)
        sealed = seal_block(block, Position(1, 8 + number))
        encode_segment(sealed.position, bytes(16), [sealed])
        assert sealed.ref is not None
        reader.admit(sealed.ref, sealed.head, sealed.chunks)
        chunks += sealed.chunks
        head = sealed.head
        assert head is not None
        columns += head.subjects, head.subject_counts, head.subject_firsts, head.subject_lasts
    assert sum(len(chunk) for chunk in chunks if gc.is_tracked(chunk.bodies)) <= 9000
    assert sum(len(column) for column in columns if gc.is_tracked(column)) <= 4 * 9000


async def side_by_side(count: int = 600, subjects: int = 1) -> tuple[RecordingStore, BlockReader, list[Stored], str]:
    """Make a run of ``count`` streams with a block each, of three messages."""
    store = RecordingStore()
    sealed: list[SealedBlock[None]] = []
    for stream_id in range(1, count + 1):
        block: OpenBlock[None] = OpenBlock(stream_id, None)
        for i in range(3 * subjects):
            block.append_run(1 + i, [b"S.%d.%d" % (stream_id, i % subjects)], None, [b"%d" % i * 50], 1_000 + 7 * i)
        sealed.append(seal_block(block, AT, object_id=9))
    data = encode_segment(AT, bytes(16), sealed, SECTIONS, kind=ObjectKind.RUN, object_id=9, place=BlockPlace.RUN)
    key = SHARD.run(AT, 9)
    await store.put(key, data)
    reader = BlockReader(store, Cache(1 << 24), lambda ref: object_key(SHARD, ref), SHARD)
    return store, reader, [Stored(block.ref) for block in sealed if block.ref is not None], key


async def test_heads_of_neighbours_are_got_together() -> None:
    """The heads of 600 streams' blocks in one object cost as many GETs as their indexes have pieces, and one for
    each index on an edge between two pieces. They are requested at the same time, and one by one."""
    store, reader, blocks, _ = await side_by_side()
    alone = BlockReader(store, Cache(1 << 24), lambda ref: object_key(SHARD, ref), SHARD)
    expected = [await alone.head(Stored(block.ref)) for block in blocks]
    end = blocks[-1].ref.index_offset + blocks[-1].ref.index_bytes
    pieces = end // reader_module._NEIGHBOURS_BYTES + 1
    store.ranges.clear()
    first = await asyncio.gather(*[reader.head(block, neighbours=True) for block in blocks[:300]])
    heads = [*first, *[await reader.head(block, neighbours=True) for block in blocks[300:]]]
    assert [(head.starts, head.seq_of(2), head.time_of(2), head.subject_of(0)) for head in heads] == [
        (head.starts, head.seq_of(2), head.time_of(2), head.subject_of(0)) for head in expected]
    assert len(store.ranges) <= pieces + (pieces - 1)
    assert all(stop is not None and stop <= blocks[0].ref.frames_offset for _, stop in store.ranges), "no frames"


async def test_a_large_index_is_got_alone() -> None:
    """A large index is loaded without its neighbours, and they without it."""
    store, reader, blocks, _ = await side_by_side(4, subjects=9000)
    assert all(block.ref.index_bytes > reader_module._NEIGHBOURS_INDEX_MAX for block in blocks)
    store.ranges.clear()
    await reader.head(blocks[1], neighbours=True)
    ref = blocks[1].ref
    assert store.ranges == [(ref.index_offset, ref.index_offset + ref.index_bytes)]


async def test_a_damaged_index_among_its_neighbours_is_named_and_leaves_them_alone() -> None:
    """The other heads are read. The damaged one raises each time, and is found again once the store is repaired."""
    store, reader, blocks, key = await side_by_side(100)
    whole = store.objects[key]
    at = blocks[40].ref.index_offset + 20
    store.objects[key] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]
    assert (await reader.head(blocks[39], neighbours=True)).count == 3
    for _ in range(2):
        with pytest.raises(Corrupt):
            await reader.head(blocks[40], neighbours=True)
    assert (await reader.head(blocks[41], neighbours=True)).count == 3
    store.objects[key] = whole
    assert (await reader.head(blocks[40], neighbours=True)).count == 3


async def test_neighbouring_indexes_of_a_missing_object() -> None:
    """All callers that wait for the load get its error; a later caller loads again."""
    store, reader, blocks, key = await side_by_side(10)
    whole = store.objects.pop(key)
    answers = await asyncio.gather(*[reader.head(block, neighbours=True) for block in blocks], return_exceptions=True)
    assert all(isinstance(answer, NotFound) for answer in answers)
    store.objects[key] = whole
    assert (await reader.head(blocks[3], neighbours=True)).count == 3


async def test_closing_ends_loads_of_neighbours() -> None:
    """The callers are cancelled, and no task remains."""
    store, reader, blocks, _ = await side_by_side(10)
    store.go.clear()
    waiting = [asyncio.ensure_future(reader.head(block, neighbours=True)) for block in blocks]
    for _ in range(5):
        await asyncio.sleep(0)
    await reader.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
