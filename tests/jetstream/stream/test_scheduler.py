"""Schedules: when they fire, what they publish, what ends them; and a restart changes none of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.base.gotime import format_time
from broker.jetstream.stream.stream import Stream
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, ask, everything, pub, publish

SECOND = 1_000_000_000


async def fires(world: World, stream: Stream, seconds: float = 0) -> None:
    """Let time pass, and let the stream's due schedules fire."""
    world.clock.advance(int(seconds * SECOND))
    stream.scheduler.passes.begin()
    for _ in range(2000):
        if not stream.scheduler.passes.running:
            break
        await asyncio.sleep(0.001)


async def passes(world: World, stream: Stream, seconds: float = 0) -> None:
    """Let time pass, and publish for due schedules."""
    await fires(world, stream, seconds)
    await world.settle(stream)


def schedule(world: World, pattern: str, subject: bytes = b"S.a", **headers: str) -> Any:
    return pub(subject, b"payload", Nats_Schedule=pattern, Nats_Schedule_Target="S.t", **headers)


async def count(stream: Stream, subject: bytes = b"S.t") -> int:
    return len([1 for _, one, _ in await everything(stream) if one == subject])


def at(world: World, seconds: int) -> str:
    return "@at " + format_time(world.clock.now_ns() + seconds * SECOND)


@pytest.mark.shows("publish.schedule_at")
async def test_a_time_fires_once_and_is_purged_with_it() -> None:
    """The schedule fires also if its time passed while the broker was down."""
    world = World(settings=LogSettings(segment_count=3))
    stream = world.stream(allow_msg_schedules=True)
    await ask(world, stream, schedule(world, at(world, 10), a="b"))
    await passes(world, stream, 9.9)
    assert await count(stream) == 0
    stream = await world.restart(stream)
    await passes(world, stream, 100)
    assert await everything(stream) == [(2, b"S.t", b"payload")]
    msg = await stream.get_last(b"S.t")
    assert msg is not None
    assert msg.headers == b"NATS/1.0\r\na: b\r\nNats-Scheduler: S.a\r\nNats-Schedule-Next: purge\r\n\r\n"
    await passes(world, stream, 100)
    assert await count(stream) == 1
    assert not stream.scheduler.schedules
    assert not world.log.state.streams[stream.stream_id].schedules
    await world.close()


@pytest.mark.shows("publish.schedule_repeated")
async def test_an_interval_fires_again_and_again() -> None:
    """A single message makes up for missed times; a restart in between neither loses nor repeats a message."""
    world = World()
    stream = world.stream(allow_msg_schedules=True)
    await ask(world, stream, schedule(world, "@every 10s"))
    for fired in (1, 2):
        await passes(world, stream, 10.5)
        assert await count(stream) == fired
    stream = await world.restart(stream)
    await passes(world, stream)
    assert await count(stream) == 2
    stream.scheduler.close()
    world.clock.advance(1000 * SECOND)
    stream = await world.restart(stream)
    await passes(world, stream)
    await passes(world, stream)
    assert await count(stream) == 3
    await passes(world, stream, 10.5)
    assert await count(stream) == 4
    await world.close()


@pytest.mark.parametrize("repeats", [False, True])
async def test_a_schedule_that_waits_for_others_fires_once(repeats: bool) -> None:
    """A publish waits in the queue until its schedule fires again: tried for a time, and for an interval."""
    world = World()
    stream = world.stream(allow_msg_schedules=True)
    await ask(world, stream, schedule(world, "@every 10s" if repeats else at(world, 10)))
    stream.queue.begin()
    for seconds in (10.5, 2.5, 2.5):
        await fires(world, stream, seconds)
    assert stream.last_seq == 1
    stream.queue.end()
    await world.settle(stream)
    assert await count(stream) == 1
    await passes(world, stream, 10)
    assert await count(stream) == 1 + repeats
    await world.close()


async def test_a_schedule_that_waits_behind_its_end_does_not_remove_that() -> None:
    """A plain message to a schedule's subject ends the schedule; the schedule's own publish waits behind that
    message."""
    world = World()
    stream = world.stream(allow_msg_schedules=True)
    await ask(world, stream, schedule(world, at(world, 10)))
    stream.queue.begin()
    publish(world, stream, pub(b"S.a", b"plain"))
    await fires(world, stream, 10.5)
    stream.queue.end()
    await world.settle(stream)
    for _ in range(2):
        await passes(world, stream, 3)
    assert (b"S.a", b"plain") in [row[1:] for row in await everything(stream)]
    assert await count(stream) == 0
    assert not stream.scheduler.schedules
    await world.close()


@pytest.mark.shows("publish.schedule_options")
async def test_events_that_end_a_schedule() -> None:
    """A purge, a delete, a newer schedule, an ending message, and a later plain message each end a schedule."""
    world = World()
    stream = world.stream(allow_msg_schedules=True)
    for number in range(5):
        await ask(world, stream, schedule(world, "@every 10s", b"S.%d" % number, Nats_Schedule_Rollup="sub"))
    await stream.purge(b"S.0")
    await stream.delete_msg(2, True)
    await ask(world, stream, schedule(world, at(world, 1000), b"S.2"))
    assert "seq" in await ask(world, stream, pub(b"S.end", Nats_Schedule_Next="purge", Nats_Scheduler="S.3"))
    await ask(world, stream, pub(b"S.4", b"plain"))
    await passes(world, stream, 11)
    assert await count(stream) == 0
    assert len(stream.scheduler.schedules) == 1
    stream = await world.restart(stream)
    await passes(world, stream, 11)
    assert await count(stream) == 0
    assert await count(stream, b"S.3") == 0
    await world.close()


async def test_a_refused_publish_of_a_schedule_is_retried() -> None:
    world = World()
    stream = world.stream(allow_msg_schedules=True, max_msg_size=90)
    assert "seq" in await ask(world, stream, pub(b"S.a", Nats_Schedule="@every 10s", Nats_Schedule_Target="S.t"))
    await world.update(stream, max_msg_size=10)
    await passes(world, stream, 11)
    assert await count(stream) == 0
    await world.update(stream, max_msg_size=-1)
    await passes(world, stream, 1)
    assert await count(stream) == 0
    await passes(world, stream, 1)
    assert await count(stream) == 1
    await world.close()


async def test_nothing_fires_while_the_clock_is_not_trusted() -> None:
    world = World()
    stream = world.stream(allow_msg_schedules=True)
    await ask(world, stream, schedule(world, at(world, 10)))
    trusted = False
    world.log.clock_trusted = lambda: trusted
    await passes(world, stream, 3600)
    assert await count(stream) == 0
    trusted = True
    await passes(world, stream)
    assert await count(stream) == 1
    await world.close()
