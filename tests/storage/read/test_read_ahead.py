"""Reading ahead: extents are loaded once, whole small blocks with one GET, and no more than there is room for."""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.format.errors import Corrupt
from broker.storage.objectstore.base import NotFound
from broker.storage.read.window import Extent, Window
from tests.storage.read.test_reader import AT, SHARD, make, unheeded


async def test_a_small_block_is_loaded_whole() -> None:
    """Index and frames of a block that is alone in its object are loaded by one GET, for any first caller; then by
    none."""
    store, reader, block = await make(count=40, ahead=1 << 20)
    ordinals: list[int] = []
    head, chunk = await asyncio.gather(reader.head(block, ordinals.append), reader.chunk(block, 7))
    assert head.count == 40
    for ordinal in range(40):
        assert (reader.cached_chunk(block, ordinal) or chunk).bodies
    assert len(store.ranges) == 1
    assert ordinals == [40]
    assert (reader.window.bytes, len(reader.window)) == (0, 0)


async def test_a_frame_read_ahead_is_requested_once() -> None:
    """While an extent is loading, a caller that needs any of its frames waits for that GET. Extents begin where the
    last one ended."""
    store, reader, block = await make(ahead=300_000)
    ends: list[int] = []
    await reader.chunk(block, 0, ends.append)
    assert len(ends) == 1
    store.go.clear()
    at = ends[0]
    following = reader.read_ahead(block, at, ends.append)
    assert following is not None
    assert at < following < 40
    assert reader.read_ahead(block, at + 7, unheeded) == following
    demands = [asyncio.ensure_future(reader.chunk(block, ordinal)) for ordinal in range(at, following)]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(*demands)
    assert len(store.ranges) == 3
    assert ends == [at, following]
    while following is not None and following < 40:
        following = reader.read_ahead(block, following, unheeded)
    assert following == 40
    for ordinal in range(40):
        assert (await reader.chunk(block, ordinal)).bodies
    (_, first), *ranges = store.ranges[1:]
    for start, end in ranges:
        assert start == first
        assert end is not None
        first = end
    assert len(reader.window) == 0


@pytest.mark.parametrize("room", [True, False])
async def test_extents_are_loaded_together(room: bool) -> None:
    """Two extents need one GET, from where the first begins to where the second ends; only the first, if there is no
    room for both."""
    _, single, other = await make(count=80, ahead=400_000)
    ends: list[int] = []
    await single.chunk(other, 0, ends.append)
    while ends[-1] < 80:
        end = single.read_ahead(other, ends[-1], unheeded)
        assert end is not None
        ends.append(end)
    assert len(ends) == 4
    store, reader, block = await make(count=80, ahead=400_000, cache_bytes=12 << 20)
    await reader.chunk(block, 0, unheeded)
    # The first extent was loaded alone, so the second one completes its pair.
    assert reader.read_ahead(block, ends[0], unheeded, 2) == ends[1]
    reader.window.add(Extent("another", 0, 4, 50_000 if room else 900_000, unheeded))
    assert reader.read_ahead(block, ends[1], unheeded, 2) == (ends[3] if room else ends[2])
    await asyncio.sleep(0)
    assert len(store.ranges) == 4
    await asyncio.gather(single.close(), reader.close())


async def test_the_head_of_a_large_block_is_loaded_ahead() -> None:
    """It is loaded once, and a reader then needs no GET for it. A small block is loaded whole by its reader instead."""
    store, reader, block = await make(ahead=300_000)
    reader.read_head_ahead(block)
    reader.read_head_ahead(block)
    await reader.head(block)
    reader.read_head_ahead(block)
    assert store.ranges == [(block.ref.index_offset, block.ref.index_offset + block.ref.index_bytes)]
    store, reader, block = await make(ahead=1 << 20)
    reader.read_head_ahead(block)
    await asyncio.sleep(0)
    assert store.ranges == []
    await store.delete(SHARD.log(AT))
    store, reader, block = await make(ahead=300_000)
    await store.delete(SHARD.log(AT))
    reader.read_head_ahead(block)  # nobody waits for it, so its error is reported to nobody
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(NotFound):
        await reader.head(block)


async def test_cached_frames_do_not_keep_their_extent() -> None:
    """An extent leaves the window after its last frame, even if some frames were in the cache before the request, or
    came there during the load. Frames before the first one that the reader needs do not keep the extent."""
    store, reader, block = await make(ahead=400_000)
    starts = (await reader.head(block)).starts
    held = [await reader.chunk(block, starts[2]), await reader.chunk(block, starts[4])]
    store.go.clear()
    reading = asyncio.ensure_future(reader.chunk(block, starts[1], unheeded))
    await asyncio.sleep(0)
    assert reader.window.bytes
    assert reader.cached_chunk(block, starts[2]) is held[0]
    assert reader.window.bytes
    store.go.set()
    await reading
    for ordinal in range(starts[3], block.ref.count):
        assert reader.cached_chunk(block, ordinal) or await reader.chunk(block, ordinal, unheeded)
    assert (reader.window.bytes, len(reader.window)) == (0, 0)


async def test_skipped_frames_do_not_keep_a_block_loaded_whole() -> None:
    """A block is loaded whole for a reader that begins in the middle: the frames of the first half do not keep the
    extent."""
    store, reader, block = await make(ahead=1 << 20)
    ends: list[int] = []
    for ordinal in range(20, 40):
        assert await reader.chunk(block, ordinal, ends.append)
    assert len(store.ranges) == 1
    assert ends == [40]
    assert len(reader.window) == 0


async def test_too_many_readers_for_the_window_take_parts_of_it() -> None:
    """A load whose extent does not fit requests as many frames as fit into half of the free room. A quarter
    of the window is reserved for loads that a caller waits for."""
    # A window of 1 MiB; one extent, frames of 120 kB.
    store, reader, block = await make(cache_bytes=4 << 20, ahead=800_000)
    head = await reader.head(block)
    reader.window.add(another := Extent("another", 0, 4, 520_000, unheeded))
    await reader.chunk(block, 0, unheeded)
    assert len(store.ranges) == 2
    start, end = store.ranges[-1]
    assert end is not None
    assert end - start == head.frames[2].offset
    reader.window.drop(another)
    reader.window.add(Extent("another", 0, 4, 300_000, unheeded))
    assert reader.read_ahead(block, head.starts[-4], unheeded) is None
    assert len(store.ranges) == 2
    await reader.chunk(block, head.starts[-4], unheeded)
    start, end = store.ranges[-1]
    assert end is not None
    assert end - start == head.frames[-1].offset + head.frames[-1].stored_bytes - head.frames[-4].offset


async def test_without_room_single_frames_are_got() -> None:
    """A cache without room has a window without room: nothing is read ahead, and a load requests one frame."""
    store, reader, block = await make(cache_bytes=0, ahead=300_000)
    await reader.chunk(block, 0, unheeded)
    assert reader.read_ahead(block, 20, unheeded) is None
    await asyncio.sleep(0)
    (start, end), = store.ranges[1:]
    assert end is not None
    assert end - start < 140_000
    assert reader.window.bytes == 0


async def test_a_failed_read_ahead_is_loaded_again() -> None:
    """A failed read ahead is forgotten, and a reader that needs the frames loads them again."""
    store, reader, block = await make(ahead=300_000)
    ends: list[int] = []
    await reader.chunk(block, 0, ends.append)
    data = store.objects.pop(SHARD.log(AT))
    assert reader.read_ahead(block, ends[0], unheeded) is not None
    await turns()
    with pytest.raises(NotFound):
        await reader.chunk(block, ends[0])
    store.objects[SHARD.log(AT)] = data
    assert (await reader.chunk(block, ends[0])).start <= ends[0]


async def test_damage_read_ahead_is_reported_by_a_load() -> None:
    """A frame read ahead with a wrong checksum is not served: a caller that needs it loads it again, which reports
    the damage."""
    store, reader, block = await make(ahead=300_000)
    ends: list[int] = []
    head = await reader.head(block)
    await reader.chunk(block, 0, ends.append)
    number = head.frame_of(ends[0])
    key, sound = SHARD.log(AT), store.objects[SHARD.log(AT)]
    at = block.ref.frames_offset + head.frames[number].offset + 9
    store.objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:]
    reader.read_ahead(block, ends[0], unheeded)
    await turns()
    extent = reader.window.find(extent_of(block), number)
    assert extent is not None
    assert extent.data is not None
    assert reader.cached_chunk(block, ends[0]) is None
    with pytest.raises(Corrupt):
        await reader.chunk(block, ends[0])
    store.objects[key] = sound
    assert (await reader.chunk(block, ends[0])).bodies[0].startswith(b"%06d" % (ends[0]))


async def turns() -> None:
    """Let the loads end that do not wait for the store."""
    for _ in range(20):
        await asyncio.sleep(0)


def extent_of(block: object) -> object:
    ref = block.ref  # type: ignore[attr-defined]
    return ref.stream_id, *ref.position, ref.object_id, ref.core_offset


def test_stale_extents_are_dropped_when_their_room_is_needed() -> None:
    """Extents of readers that stopped are dropped once four times the window was loaded, and not before."""
    window = Window(100)
    abandoned = Extent("a", 0, 4, 60, None)
    window.add(abandoned)
    assert window.find("a", 3) is abandoned
    assert window.find("a", 4) is None
    assert not window.make_room(50)
    for number in range(10):
        passing = Extent("b", number, number + 1, 40, None)
        assert window.make_room(40)
        window.add(passing)
        window.drop(passing)
    assert not window.make_room(50)
    window.add(last := Extent("b", 10, 11, 40, None))
    window.drop(last)
    assert window.make_room(50)
    assert (window.bytes, len(window), window.find("a", 0)) == (0, 0, None)


@pytest.mark.parametrize("size", [1, 40_000], ids=["tiny", "large"])
def test_extents_of_cancelled_callers_are_bounded(size: int) -> None:
    """Single frames are loaded even without room. If their callers were cancelled, these extents are dropped, too."""
    window = Window(1 << 20)
    for number in range(20_000):
        window.add(Extent(number, 0, 1, size, None))
        assert window.bytes <= 4 * window.bytes_max + size
        assert len(window) <= 4 * 1024 + 1
    assert not window.make_room(1 << 19) or size == 1
    for number in range(8 * 1024):  # other readers continue, and soon get the room of these extents
        window.add(last := Extent("b", number, number + 1, size, None))
        window.drop(last)
    assert window.make_room(1 << 19)


async def test_a_larger_block_is_loaded_whole_for_a_reader_in_order() -> None:
    """A full segment's block is loaded with its index by one GET for a reader in order, and in extents for others."""
    store, reader, block = await make(ahead=400_000)  # 0.8 MB
    await reader.chunk(block, 0, unheeded)
    for ordinal in range(40):
        assert reader.cached_chunk(block, ordinal) is not None
    assert len(store.ranges) == 1
    store, reader, block = await make(ahead=400_000)
    await reader.chunk(block, 0)
    assert len(store.ranges) == 2
    store, reader, block = await make(ahead=300_000)  # more than 2.25 times ``read_ahead_bytes``
    await reader.chunk(block, 0, unheeded)
    assert len(store.ranges) == 2
