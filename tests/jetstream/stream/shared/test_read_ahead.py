"""Readers of a stream that is not in memory: the next blocks are loaded before they ask, and only once for all
readers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.stream import Stream
from broker.storage.log.log import LogSettings  # type: ignore[attr-defined]
from tests.jetstream.stream.world import World, pub, publish, turns

BLOCKS, MESSAGES, SIZE = 40, 16, 25_000


@pytest.fixture(autouse=True)
def cache_bytes() -> None:
    """Return None: these worlds have caches of their own."""


class Gets:
    """Counts GETs, in all and at most at once; each GET takes some turns of the loop."""

    def __init__(self, world: World) -> None:
        self.count = self.under_way = self.most = 0
        get = world.store.get

        async def counted(key: str, start: int = 0, end: int | None = None) -> bytes:
            self.count += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            for _ in range(20):
                await asyncio.sleep(0)
            try:
                return await get(key, start, end)
            finally:
                self.under_way -= 1

        world.store.get = counted  # type: ignore[method-assign]


async def stored(world: World, blocks: int = BLOCKS) -> Stream:
    """Return a stream of blocks of 400 kB that do not shrink, none of them in memory."""
    rng = random.Random(4)
    stream = world.stream()
    for number in range(blocks):
        publish(world, stream, *[pub(b"S.%d" % (i % 2), b"%d.%d." % (number, i) + rng.randbytes(SIZE))
                                 for i in range(MESSAGES)])
        await world.settle(stream)
    return await world.restart(stream)


async def read(stream: Stream, seq: int = 1, filters: Filters | None = None,
               pace: Callable[[int], bool] = lambda seq: True, rng: random.Random | None = None) -> list[int]:
    """Return the sequences of all messages from ``seq`` on, chunk by chunk, until ``pace`` returns False.

    With ``rng``, read two messages at a time, with pauses of different lengths.
    """
    seqs: list[int] = []
    while pace(seq) and (found := stream.next_chunk(seq, filters)) is not None:
        if not isinstance(found, tuple):
            await found.ready
            continue
        chunk, _, i = found
        end = len(chunk) if rng is None else min(i + 2, len(chunk))
        seqs += [chunk.seq(k) for k in range(i, end) if filters is None or filters.match(chunk.subjects[k])]
        seq = chunk.seq(end - 1) + 1
        await turns(1 if rng is None else rng.randrange(1, 9))
    return seqs


async def test_the_next_blocks_are_loaded_before_a_reader_needs_them() -> None:
    """Each block costs one GET, with several GETs at once after the reader has come to the end of its first extent."""
    world = World(settings=LogSettings(), cache_bytes=64 << 20)
    stream = await stored(world)
    gets = Gets(world)
    assert await read(stream) == list(range(1, BLOCKS * MESSAGES + 1))
    assert gets.count == BLOCKS
    assert gets.most >= 4
    assert world.reader.window.bytes == 0
    await world.close()


async def test_large_blocks_are_loaded_by_fewer_gets() -> None:
    """Six blocks of 5 MB, each of five extents: a reader needs fewer GETs than that, and one for the head of each."""
    world = World(settings=LogSettings(), cache_bytes=128 << 20)
    rng, stream = random.Random(4), world.stream()
    for number in range(6):
        publish(world, stream, *[pub(b"S.0", b"%d.%d." % (number, i) + rng.randbytes(100_000)) for i in range(50)])
        await world.settle(stream)
    stream = await world.restart(stream)
    gets = Gets(world)
    assert await read(stream) == list(range(1, 301))
    assert gets.count <= 6 + 24
    assert world.reader.window.bytes == 0
    await world.close()


@pytest.mark.parametrize("cache_bytes", [64 << 20, 12 << 20])
async def test_readers_at_different_places_share(cache_bytes: int) -> None:
    """Eight readers begin at different places, less than one GET or more than the cache apart: GETs are within 1.2 of
    one per block."""
    world = World(settings=LogSettings(), cache_bytes=cache_bytes)
    stream = await stored(world)
    gets = Gets(world)
    found = await asyncio.gather(*[read(stream, 1 + MESSAGES * i) for i in range(8)])
    assert [seqs[0] for seqs in found] == [1 + MESSAGES * i for i in range(8)]
    assert all(seqs == list(range(seqs[0], BLOCKS * MESSAGES + 1)) for seqs in found)
    assert gets.count <= 1.2 * BLOCKS
    await world.close()


async def test_readers_too_far_apart_to_share_cost_little_more_than_necessary() -> None:
    """Eight readers are one and a half times the cache's size apart: the GETs are within 1.2 of the fewest possible.

    Their loads compete for the window, and nothing in it is kept for frames that a reader found in the cache.
    """
    apart, cache_bytes = 60, 16 << 20
    blocks = 8 * apart
    world = World(settings=LogSettings(), cache_bytes=cache_bytes)
    stream = await stored(world, blocks)
    gets, rng = Gets(world), random.Random(apart)
    found = await asyncio.gather(*[read(stream, 1 + apart * MESSAGES * i, rng=rng) for i in range(8)])
    assert all(seqs == list(range(1 + apart * MESSAGES * i, blocks * MESSAGES + 1)) for i, seqs in enumerate(found))
    assert gets.count <= 1.2 * fewest(8, apart, cache_bytes / (MESSAGES * SIZE))
    assert len(world.reader.window) == 0
    await world.close()


def fewest(readers: int, apart: int, cached: float) -> float:
    """Return the fewest GETs, of a block each, for equally fast readers that are ``apart`` blocks apart.

    The last reader is as far from the end; the cache has room for ``cached`` blocks. A reader finds a block there if it
    was kept since the reader before it read it, while both advanced by ``apart`` blocks. So the room saves at most that
    many of one reader's GETs, or a part of them.
    """
    saved = cached / apart
    return apart * (readers + sum(max(reading - saved, 0.0) for reading in range(1, readers)))


async def test_a_filtered_reader_reads_ahead_too() -> None:
    """Each frame of each block has matches."""
    world = World(settings=LogSettings(), cache_bytes=64 << 20)
    stream = await stored(world)
    gets = Gets(world)
    seqs = await read(stream, filters=Filters((b"S.0",)))
    assert seqs == list(range(1, BLOCKS * MESSAGES + 1, 2))
    assert gets.most >= 2
    await world.close()


async def test_single_messages_cost_only_their_blocks() -> None:
    """Messages read in any order, like redelivered ones, cause no other loads."""
    world = World(settings=LogSettings(), cache_bytes=64 << 20)
    stream = await stored(world)
    gets = Gets(world)
    for block in (20, 3, 11, 7):
        first = 1 + block * MESSAGES
        await read(stream, first, pace=lambda seq, first=first: seq == first)  # type: ignore[misc]
    await turns(200)
    assert gets.count == 4
    await world.close()


async def test_a_reader_that_stops_leaves_a_bounded_rest() -> None:
    """The data loaded ahead stays within the window, and a later reader uses it."""
    world = World(settings=LogSettings(), cache_bytes=64 << 20)
    stream = await stored(world)
    gets = Gets(world)
    await read(stream, pace=lambda seq: seq <= 5 * MESSAGES)
    await turns(200)
    assert gets.under_way == 0
    assert 0 < world.reader.window.bytes <= world.reader.window.bytes_max
    assert await read(stream) == list(range(1, BLOCKS * MESSAGES + 1))
    assert gets.count == BLOCKS
    await world.close()
