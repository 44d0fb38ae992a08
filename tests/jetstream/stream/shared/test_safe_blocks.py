"""Readers of messages that are safe and not persisted: blocks that still grow, and closed ones whose puts run."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from broker.jetstream.filters import Filters
from tests.jetstream.stream.world import Listener, World, everything, pub, publish, read_all, turns


class Held:
    """A world whose puts wait until ``go`` is set."""

    def __init__(self) -> None:
        self.world = World()
        self.go = asyncio.Event()
        self.go.set()
        put = self.world.store.put

        async def held(key: str, data: Any) -> None:
            await self.go.wait()
            await put(key, data)

        self.world.store.put = held  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(3))
async def test_readers_see_the_safe_messages_only(seed: int) -> None:
    """Shows by random publishes and deletes that each reader, with filters or without, gets the live messages up to
    ``safe_seq``, from persisted blocks, closed ones and the open one; and that counts agree with that."""
    held, rng = Held(), random.Random(seed)
    world = held.world
    stream = world.stream(max_msgs_per_subject=rng.choice((-1, 3)), allow_direct=True)
    await world.settle()
    filters = [None, Filters((b"S.1",)), Filters((b"S.1", b"S.2")), Filters((b"S.*",)), Filters((b"S.none",))]
    for _ in range(40):
        match rng.randrange(5):
            case 0 | 1 | 2:
                publish(world, stream,
                        *(pub(b"S.%d" % rng.randrange(4), b"%d" % i) for i in range(rng.randrange(1, 9))))
            case 3:
                await turns(rng.randrange(8))
            case 4:
                held.go.set()
                await turns(rng.randrange(12))
        held.go.clear()
        await turns(12)  # nothing is persisted while the readers wait for loads
        if stream.msgs and not rng.randrange(3):
            live = [seq for seq, _, _ in await everything(stream)]
            if live:
                await stream.delete_msg(rng.choice(live), False)
        if stream.last_seq > stream.safe_seq and rng.randrange(2):
            stream.safe(rng.randrange(stream.safe_seq + 1, stream.last_seq + 1))
        expected = await everything(stream)
        for one in filters:
            wanted = [row for row in expected if row[0] <= stream.safe_seq and (one is None or one.match(row[1]))]
            assert await read_all(stream, one) == wanted
            for seq in (1, rng.randrange(1, stream.last_seq + 2)):
                counted = await stream.count_from(seq, one)
                assert counted == (sum(row[0] >= seq for row in wanted), stream.safe_seq)
    held.go.set()
    await world.settle(stream)
    assert stream.safe_seq == stream.last_seq
    assert await read_all(stream) == await everything(stream)
    await world.close()


async def test_readers_at_the_same_place_share_a_chunk() -> None:
    """Shows that a chunk of a growing block is cut once for all readers, stays as it is, and that consumers are woken
    once for each advance."""
    held = Held()
    world = held.world
    stream = world.stream()
    await world.settle()
    stream.listeners.by_name["c"] = listener = Listener()  # type: ignore[index]
    publish(world, stream, *(pub(b"S.a", b"%d" % i) for i in range(3)))
    held.go.clear()
    stream.safe(2)
    stream.safe(2)
    assert listener.woken == 1
    first, again = stream.next_chunk(1, None), stream.next_chunk(2, None)
    assert isinstance(first, tuple)
    assert isinstance(again, tuple)
    assert first[0] is again[0]
    assert len(first[0]) == 2
    assert (first[2], again[2]) == (0, 1)
    assert stream.next_chunk(3, None) is None
    publish(world, stream, pub(b"S.a", b"3"))
    stream.safe(4)
    assert len(first[0]) == 2
    following = stream.next_chunk(3, None)
    assert isinstance(following, tuple)
    assert list(following[0].bodies) == [b"2", b"3"]
    held.go.set()
    await world.settle(stream)
    assert listener.woken == 2
    await world.close()
