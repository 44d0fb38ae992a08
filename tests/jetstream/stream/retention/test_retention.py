"""Removals from a stream by age, updates, deletes and purges, and the notifications to its consumers."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.retention import retention
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import Listener, World, ask, everything, pub, publish
from tests.plain_records import add_record

SECOND = 1_000_000_000


async def expire(world: World, stream: object) -> None:
    stream.retention.expire()  # type: ignore[attr-defined]
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.shows("stream.max_age")
async def test_age_removes_whole_blocks_and_the_edge() -> None:
    """Messages expire when they are max_age old, not before: whole blocks and a part of the next one, loaded or not."""
    world = World(settings=LogSettings(segment_count=4))
    stream = world.stream(max_age=10 * SECOND)
    for i in range(12):
        await ask(world, stream, pub(b"S.a", b"%d" % i))
        world.clock.advance(SECOND)
    world.reader._cache.clear()
    await expire(world, stream)
    assert (stream.first_seq, stream.msgs) == (4, 9)
    world.clock.advance(SECOND - 1)
    await expire(world, stream)
    assert stream.first_seq == 4
    world.clock.advance(1)
    await expire(world, stream)
    assert (stream.first_seq, stream.msgs) == (5, 8)
    await world.settle()
    stream = await world.restart(stream)
    assert (stream.first_seq, stream.msgs) == (5, 8)
    world.clock.advance(100 * SECOND)
    await expire(world, stream)
    state = await stream.info_state()
    assert (state["messages"], state["bytes"], state["first_seq"], state["last_seq"]) == (0, 0, 13, 12)
    assert state["first_ts"] == "0001-01-01T00:00:00Z"
    await world.close()


async def test_messages_stored_together_expire_together_without_a_get() -> None:
    """A block of messages within a quarter of a second expires when its last message is due, without a GET.

    If its head is in memory, it expires message by message.
    """
    async def left(in_memory: bool) -> tuple[list[int], int]:
        world = World(settings=LogSettings(segment_count=3))
        stream = world.stream(max_age=10 * SECOND)
        for _ in range(2):
            for _ in range(3):
                publish(world, stream, pub(b"S.a"))
                world.clock.advance(SECOND // 10)
            await world.settle(stream)
            world.clock.advance(SECOND)
        blocks = stream.live.blocks
        assert [block.count for block in blocks] == [3, 3]
        got: list[str] = []
        get = world.store.get

        async def counted(key: str, start: int = 0, end: int | None = None) -> bytes:
            got.append(key)
            return await get(key, start, end)

        world.store.get = counted  # type: ignore[method-assign]
        if not in_memory:
            world.reader._cache.clear()
        world.clock.advance(10 * SECOND - 2 * (SECOND + 3 * SECOND // 10))
        firsts = []
        for _ in range(4):
            await expire(world, stream)
            firsts.append(stream.first_seq)
            world.clock.advance(SECOND // 10)
        await world.close()
        return firsts, len(got)

    assert await left(False) == ([1, 1, 4, 4], 0)
    assert await left(True) == ([2, 3, 4, 4], 0)


async def test_very_many_old_messages_are_removed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop removes about as many messages as the limit allows; the next turns continue without
    waiting."""
    monkeypatch.setattr(retention, "_MSGS_AT_ONCE", 8)
    world = World(settings=LogSettings(segment_count=4))
    stream = world.stream(max_age=10 * SECOND)
    for _ in range(10):
        publish(world, stream, *[pub(b"S.a")] * 4)
        await world.settle(stream)
    world.clock.advance(100 * SECOND)
    left = []
    stream.retention.expire()
    while stream.msgs:
        left.append(stream.msgs)
        await asyncio.sleep(0)
    steps = [before - after for before, after in pairwise([40, *left, 0]) if before != after]
    assert len(steps) >= 3
    assert max(steps) <= 12
    await world.close()


async def test_age_waits_for_a_clock_that_is_trusted() -> None:
    """Nothing expires while the log reports that the clock cannot be trusted."""
    world = World()
    stream = world.stream(max_age=10 * SECOND)
    await ask(world, stream, pub(b"S.a"))
    trusted = False
    world.log.clock_trusted = lambda: trusted
    world.clock.advance(3600 * SECOND)
    await expire(world, stream)
    assert stream.msgs == 1
    trusted = True
    await expire(world, stream)
    assert stream.msgs == 0
    await world.close()


async def test_a_timer_that_is_set_by_a_wrong_clock_is_set_again() -> None:
    """A clock that is an hour behind, and not trusted, is right a moment later: the message expires at once."""
    world = World()
    stream = world.stream(max_age=10 * SECOND)
    await ask(world, stream, pub(b"S.a"))
    trusted = False
    world.log.clock_trusted = lambda: trusted
    world.clock.leap(-3000 * SECOND)
    stream.retention.close()
    stream.retention.arm()
    world.clock.leap(3010 * SECOND)
    trusted = True
    async with asyncio.timeout(30):
        while stream.msgs:  # noqa: ASYNC110  # it is the stream's
            await asyncio.sleep(0.002)
    await world.close()


async def test_blocks_stay_in_the_store_until_a_message_is_due() -> None:
    """The timer of a restored stream reads nothing from the store before its first message reaches max_age."""
    world = World()
    stream = world.stream(max_age=7200 * SECOND)
    await ask(world, stream, pub(b"S.a"))
    stream = await world.restart(stream)
    world.clock.advance(3600 * SECOND)
    await expire(world, stream)
    assert not stream.live.blocks_loaded
    assert stream.msgs == 1
    world.clock.advance(3600 * SECOND)
    await expire(world, stream)
    assert stream.msgs == 0
    await world.close()


async def test_the_timer_fires_by_itself() -> None:
    """A message expires on time without any request, after a restart too."""
    world = World()
    stream = world.stream(max_age=SECOND)
    await ask(world, stream, pub(b"S.a"))
    stream = await world.restart(stream)
    world.clock.advance(SECOND - 20_000_000)
    stream.retention.close()
    assert stream.live.msgs == 1
    stream.retention.arm()
    world.clock.advance(20_000_000)
    async with asyncio.timeout(30):
        while stream.msgs:  # noqa: ASYNC110  # it is the stream's
            await asyncio.sleep(0.002)
    await world.close()


async def test_consumers_are_notified_of_removals() -> None:
    """Each removal is reported as a range with its count, and its subject if known; purges are marked as such."""
    world = World()
    stream = world.stream(max_msgs=6)
    wide, narrow, other = Listener("wide"), Listener("narrow", ["S.a"]), Listener("other", ["S.b"])
    stream.listeners.by_name = {c.name: c for c in (wide, narrow, other)}
    publish(world, stream, *(pub(b"S.a") if i % 2 else pub(b"S.b") for i in range(8)))
    assert wide.gone == [(1, 2, 2, None, False)]
    await world.settle()
    assert wide.woken == 1
    wide.gone.clear()
    assert await stream.delete_msg(4, True)
    assert wide.gone == [(4, 4, 1, b"S.a", False)]
    wide.gone.clear()
    assert await stream.purge(b"S.a") == 2
    assert wide.gone == [(6, 6, 1, b"S.a", True), (8, 8, 1, b"S.a", True)]
    moved = wide.moved, narrow.moved, other.moved
    assert moved == ([3], [9], []), "a consumer that receives more than the purged subject moves with the front"
    assert await stream.purge(None) == 3
    assert (wide.moved, narrow.moved) == ([3, 9], [9, 9])
    await world.close()


async def test_consumer_deltas_go_with_the_next_segment() -> None:
    """A consumer's state is collected when its stream's block is sealed, and is then in the applied state."""
    world = World()
    stream = world.stream()
    listener = Listener()
    stream.listeners.by_name["c"] = listener
    add_record(stream.log.block(stream), 4, {"name": "c", "config": {}, "created_ns": 1})
    listener.delta = ConsumerDelta("c", delivered=[5, 7, 9])
    stream.dirty(listener)
    stream.log.barrier(stream)
    await world.settle()
    state = world.log.state.streams[stream.stream_id].consumers["c"]
    assert (state.delivered_cseq, state.delivered_sseq, state.last_active_ns) == (5, 7, 9)
    await world.close()


async def test_an_update_comes_before_later_publishes() -> None:
    """Removals by a smaller limit are done before a publish that follows the update is decided."""
    world = World(settings=LogSettings(segment_count=4))
    stream = world.stream()
    for i in range(10):
        await ask(world, stream, pub(b"S.%d" % (i % 2), b"%d" % i))
    world.reader._cache.clear()
    world.update(stream, max_msgs_per_subject=1)
    later = pub(b"S.0", b"", Nats_Expected_Last_Subject_Sequence="9")
    publish(world, stream, later)
    await world.settle(stream)
    assert world.bus.answer(later[1]) == {"stream": "S", "seq": 11}
    assert [seq for seq, _, _ in await everything(stream)] == [10, 11]
    world.update(stream, max_msgs=1)
    await world.settle(stream)
    assert [seq for seq, _, _ in await everything(stream)] == [11]
    stream = await world.restart(stream)
    assert (stream.msgs, stream.first_seq) == (1, 11)
    await world.close()


async def test_purging_beyond_the_end_moves_it() -> None:
    """A purge up to a future sequence makes that the next one, even if no message was removed."""
    world = World()
    stream = world.stream()
    await ask(world, stream, pub(b"S.a"))
    assert await stream.purge(None, 50) == 1
    assert (stream.first_seq, stream.last_seq) == (50, 49)
    await world.settle()
    assert await stream.purge(None, 100) == 0
    await world.settle()
    stream = await world.restart(stream)
    assert (stream.first_seq, stream.last_seq) == (100, 99)
    assert await ask(world, stream, pub(b"S.a")) == {"stream": "S", "seq": 100}
    await world.close()


async def test_a_gap_inside_one_block() -> None:
    """Sequences are skipped between two publishes of one block: gets, counts, deletes and chunks skip the gap."""
    world = World()
    stream = world.stream()
    publish(world, stream, pub(b"S.a"), pub(b"S.b"))
    assert await stream.purge(None, 10) == 2
    publish(world, stream, pub(b"S.c"), pub(b"S.d"))
    for _ in range(2):
        assert [(seq, subject) for seq, subject, _ in await everything(stream)] == [(10, b"S.c"), (11, b"S.d")]
        assert await stream.get(5) is None
        await world.settle()
        world.reader._cache.clear()
    assert await stream.count_from(3, None) == (2, 11)
    assert await stream.count_from(3, Filters([b"S.d"])) == (1, 11)
    assert not await stream.delete_msg(5, True)
    assert await stream.delete_msg(10, True)
    assert (stream.first_seq, stream.msgs) == (11, 1)
    await world.settle()
    stream = await world.restart(stream)
    assert [seq for seq, _, _ in await everything(stream)] == [11]
    await world.close()
