"""Blocks of idle streams are unloaded above a limit, and loaded again by any access that needs them."""

from __future__ import annotations

import asyncio

import pytest

from broker.jetstream.stream import dropping
from broker.jetstream.stream.dropping import BlockBudget, drop_blocks
from broker.jetstream.stream.stream import Stream
from tests.jetstream.stream.world import World, ask, everything, pub, publish, read_all

MINUTE_NS = 60_000_000_000


async def filled(world: World, name: str, blocks: int, **config: object) -> Stream:
    """Create a stream with ``blocks`` loaded blocks of one message each."""
    stream = world.stream(name, **config)
    for n in range(blocks):
        publish(world, stream, pub(b"%b.%d" % (name.encode(), n % 3), b"%d" % n))
        await world.settle(stream)
    await stream.load_blocks()
    return stream


async def test_an_access_loads_unloaded_blocks() -> None:
    """Reads, removals, limits and consumers' reads behave as before, and the stream's numbers stay the same."""
    world = World()
    stream = await filled(world, "S", 9, max_msgs=20)
    before, numbers = await everything(stream), (stream.first_seq, stream.msgs, stream.size_bytes, stream.first_time_ns)
    assert drop_blocks(stream) == stream.msgs == 9
    assert not stream.live.blocks_loaded
    assert (stream.first_seq, stream.msgs, stream.size_bytes, stream.first_time_ns) == numbers
    assert await read_all(stream) == before
    assert drop_blocks(stream) == 9
    assert await everything(stream) == before
    assert drop_blocks(stream) == 9
    await stream.delete_msg(4, True)
    assert drop_blocks(stream) == 0, "the removal is not stored yet"
    await world.settle(stream)
    assert drop_blocks(stream) == 8
    publish(world, stream, pub(b"S.a", b"new"))
    assert drop_blocks(stream) == 0, "a block is open"
    await world.settle(stream)
    assert await stream.purge(b"S.1", 0, 0) == 3
    await world.settle(stream)
    assert [seq for seq, _, _ in await everything(stream)] == [1, 3, 6, 7, 9, 10]
    assert drop_blocks(stream) == 6
    for n in range(20):
        publish(world, stream, pub(b"S.b", b"%d" % n))
    await world.settle(stream)
    assert (stream.first_seq, stream.msgs) == (11, 20)
    assert drop_blocks(await world.restart(stream)) == 0, "the blocks were not loaded"
    await world.close()


async def test_many_blocks_added_since_then_are_loaded_at_once_or_before() -> None:
    """A reader that loads them first does not wait, however many blocks the stream got since it was unloaded."""
    world = World()
    stream = await filled(world, "S", 3)
    assert drop_blocks(stream) == 3
    for n in range(2100):
        publish(world, stream, pub(b"S.a", b"%d" % n))
        await world.settle(stream)
    assert not stream.live.blocks_loaded
    assert len(await read_all(stream)) == 2103
    await world.close()


async def test_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of streams idle for a minute are unloaded, the longest idle first, down to half the limit.

    Other streams keep their blocks, and a stream whose blocks were just loaded again keeps them for a minute.
    """
    world = World()
    streams = []
    for n in range(6):
        streams.append(await filled(world, f"S{n}", 10))
        world.clock.advance(30_000_000_000)
    budget = BlockBudget(lambda: streams, world.clock, most=50)
    held = [stream.live.blocks_held for stream in streams]
    assert held == [10] * 6
    assert await budget.trim() == 40
    assert [stream.live.blocks_held for stream in streams] == [0, 0, 0, 0, 10, 10]
    assert await budget.trim() == 0
    for stream in streams:
        await read_all(stream)
    assert await budget.trim() == 10, "only one stream was idle for a minute and not just loaded again"
    world.clock.advance(MINUTE_NS)
    for stream in streams:
        await read_all(stream)
    assert await budget.trim() == 40
    # A stream that got many blocks since then loads them in turns of the loop.
    monkeypatch.setattr(dropping, "_MANY", 12)
    publish(world, streams[0], pub(b"S0.a", b"x"))
    await world.settle(streams[0])
    await budget.load_many()
    assert not streams[0].live.blocks_loaded
    for _ in range(3):
        publish(world, streams[0], pub(b"S0.a", b"x"))
        await world.settle(streams[0])
    await budget.load_many()
    assert streams[0].live.blocks_held == 14
    await world.close()


async def test_the_budget_is_checked_only_after_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored or loaded blocks cause a check. Above the limit checks are repeated until streams are idle."""
    monkeypatch.setattr(dropping, "_INTERVAL_SECONDS", 0.001)
    world = World()
    streams = [await filled(world, "A", 4), await filled(world, "B", 4)]
    for stream in streams:
        drop_blocks(stream)
    budget = BlockBudget(lambda: streams, world.clock, most=5)
    trim, rounds = budget.trim, asyncio.Queue[int]()

    async def counted_trim() -> int:
        rounds.put_nowait(count := await trim())
        return count

    async def quiet() -> bool:
        for _ in range(100):
            while not rounds.empty():
                rounds.get_nowait()
            await asyncio.sleep(0.02)
            if rounds.empty():
                return True
        return False

    monkeypatch.setattr(budget, "trim", counted_trim)
    for stream in streams:
        stream.on_loaded = budget.changed
    budget.start()
    assert await rounds.get() == 0, "the check at the start"
    assert await quiet()
    await read_all(streams[0])
    assert await rounds.get() == 0
    assert await quiet()
    await read_all(streams[1])
    for _ in range(5):
        assert await rounds.get() == 0, "there are too many blocks, and no stream is idle"
    world.clock.advance(MINUTE_NS)
    while not await rounds.get():
        pass
    assert await quiet()
    await budget.stop()
    await world.close()


async def test_it_runs_beside_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trims by itself after ``start``, and no longer after ``stop``."""
    monkeypatch.setattr(dropping, "_INTERVAL_SECONDS", 0.001)
    world = World()
    stream = await filled(world, "S", 10)
    world.clock.advance(MINUTE_NS)
    budget = BlockBudget(lambda: [stream], world.clock, most=5)
    trim, rounds = budget.trim, asyncio.Queue[int]()

    async def counted_trim() -> int:
        rounds.put_nowait(count := await trim())
        return count

    monkeypatch.setattr(budget, "trim", counted_trim)
    budget.start()
    assert await rounds.get() == 10
    await budget.stop()
    assert len(await read_all(stream)) == 10
    world.clock.advance(2 * MINUTE_NS)
    await asyncio.sleep(0.01)
    assert stream.live.blocks_loaded
    await world.close()


async def test_very_many_streams_are_examined_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for idle streams does not hold the loop, however many streams there are."""
    monkeypatch.setattr(dropping, "_ASKED_AT_ONCE", 2)
    world = World()
    streams = [await filled(world, f"S{n}", 2) for n in range(6)]
    world.clock.advance(MINUTE_NS)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    budget = BlockBudget(lambda: streams, world.clock, most=3)
    assert await budget.trim() == 12
    assert turns >= 3
    turns = 0
    await budget.load_many()
    assert turns >= 3
    counting.cancel()
    await world.close()


async def test_ids_of_removed_messages_are_kept() -> None:
    """A restarted stream that has not read its ids yet is not unloaded while a removed block has some of them."""
    world = World()
    stream = world.stream("S", duplicate_window=10 * MINUTE_NS)
    for n in range(3):
        publish(world, stream, pub(b"S.a", b"%d" % n, Nats_Msg_Id=str(n)))
        await world.settle(stream)
    stream = await world.restart(stream, ids_in_blocks=True)
    await stream.load_blocks()
    await stream.delete_msg(2, False)
    await world.settle(stream)
    world.clock.advance(MINUTE_NS)
    assert drop_blocks(stream) == 0
    assert (await ask(world, stream, pub(b"S.a", b"x", Nats_Msg_Id="1")))["duplicate"]
    stream = await world.restart(stream, ids_in_blocks=True)
    await stream.load_blocks()
    await stream.delete_msg(3, False)
    await world.settle(stream)
    world.clock.advance(10 * MINUTE_NS)
    assert drop_blocks(stream) == 1, "its ids have left the window"
    await world.close()
