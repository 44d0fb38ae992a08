"""Messages that expire by their own TTL: when they expire, with which reads, their markers; with restarts in
between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.retention import ttl
from broker.jetstream.stream.stream import Stream
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import Listener, World, ask, everything, pub, publish

SECOND = 1_000_000_000


async def passes(world: World, stream: Stream, seconds: float = 0) -> None:
    """Let time pass, and due messages expire."""
    world.clock.advance(int(seconds * SECOND))
    stream.ttls.passes.begin()
    await until(lambda: not stream.ttls.passes.running)
    await world.settle(stream)


async def until(done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition did not become true")


class Gets:
    """Counts reads from the store."""

    def __init__(self, world: World, monkeypatch: Any) -> None:
        self.count = 0
        get = world.store.get

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return await get(*args, **kwargs)

        monkeypatch.setattr(world.store, "get", counted)


async def test_a_restart_reads_nothing_and_loses_nothing(monkeypatch: Any) -> None:
    """Expiry continues from the replayed state, and blocks that expire as a whole are not read."""
    world = World(settings=LogSettings(segment_count=8))
    stream = world.stream(allow_msg_ttl=True)
    for i in range(40):
        await ask(world, stream, pub(b"S.%d" % (i % 7), b"x", Nats_TTL="60s" if i < 32 else "never"))
    gets = Gets(world, monkeypatch)
    stream = await world.restart(stream)
    world.reader._cache.clear()
    await passes(world, stream, 59.9)
    assert (stream.msgs, gets.count) == (40, 0)
    await passes(world, stream, 0.1)
    assert (stream.msgs, stream.first_seq, gets.count) == (8, 33, 0)
    stream = await world.restart(stream)
    assert (stream.msgs, stream.first_seq, len(stream.ttls.expiries)) == (8, 33, 8)
    await world.close()


@pytest.mark.shows("stream.msg_ttl")
async def test_only_due_messages_expire() -> None:
    """Messages with other TTLs, or none, stay between those that expire; no head must be loaded."""
    world = World(settings=LogSettings(segment_count=5))
    stream = world.stream(allow_msg_ttl=True)
    ttls = ["1s", "10s", "", "2", "never"]
    msgs = [pub(b"S.a", b"%d" % i, **({"Nats_TTL": ttl} if (ttl := ttls[i % 5]) else {})) for i in range(30)]
    publish(world, stream, *msgs[:20])
    for msg in msgs[20:]:
        await ask(world, stream, msg)
    world.reader._cache.clear()
    await passes(world, stream, 1)
    assert [seq for seq, _, _ in await everything(stream)] == [seq for seq in range(1, 31) if seq % 5 != 1]
    world.reader._cache.clear()
    await passes(world, stream, 1)
    assert [seq for seq, _, _ in await everything(stream)] == [seq for seq in range(1, 31) if seq % 5 not in (1, 4)]
    await passes(world, stream, 1000)
    assert [seq for seq, _, _ in await everything(stream)] == [seq for seq in range(1, 31) if seq % 5 in (3, 0)]
    stream = await world.restart(stream)
    assert stream.msgs == 12
    await world.close()


async def test_a_timer_is_set_for_the_earliest() -> None:
    """A message expires without any request, even if a message with a longer TTL came first."""
    world = World()
    stream = world.stream(allow_msg_ttl=True)
    await ask(world, stream, pub(b"S.a", Nats_TTL="1h"))
    await ask(world, stream, pub(b"S.b", Nats_TTL="1s"))
    world.clock.advance(SECOND - 10_000_000)
    stream.ttls.close()
    stream.ttls.arm()
    world.clock.advance(10_000_000)
    await until(lambda: stream.msgs == 1)
    await world.close()


async def test_nothing_expires_while_the_clock_is_not_trusted() -> None:
    world = World()
    stream = world.stream(allow_msg_ttl=True, max_age=10 * SECOND)
    await ask(world, stream, pub(b"S.a", Nats_TTL="1s"))
    await ask(world, stream, pub(b"S.b", Nats_TTL="never"))
    await ask(world, stream, pub(b"S.c"))
    trusted = False
    world.log.clock_trusted = lambda: trusted
    await passes(world, stream, 3600)
    assert stream.msgs == 3
    trusted = True
    await passes(world, stream)
    assert await everything(stream) == [(2, b"S.b", b"")]
    await world.close()


async def test_a_timer_that_is_set_by_a_wrong_clock_is_set_again() -> None:
    """A clock that is an hour behind, and not trusted, is right a moment later: the message expires at once."""
    world = World()
    stream = world.stream(allow_msg_ttl=True)
    await ask(world, stream, pub(b"S.a", Nats_TTL="10"))
    trusted = False
    world.log.clock_trusted = lambda: trusted
    world.clock.leap(-3000 * SECOND)
    stream = await world.restart(stream)
    world.log.clock_trusted = lambda: trusted
    stream.ttls.passes.cancel()
    stream.ttls.arm()
    world.clock.leap(3010 * SECOND)
    trusted = True
    async with asyncio.timeout(30):
        while stream.msgs:  # noqa: ASYNC110  # it is the stream's
            await asyncio.sleep(0.002)
    await world.close()


async def test_max_age_skips_messages_that_never_expire() -> None:
    """Blocks at the front that consist of such messages are not examined again and again."""
    world = World(settings=LogSettings(segment_count=4))
    stream = world.stream(allow_msg_ttl=True, max_age=10 * SECOND)
    for i in range(24):
        await ask(world, stream, pub(b"S.a", b"%d" % i, **({"Nats_TTL": "never"} if i < 8 or i % 4 == 0 else {})))
        world.clock.advance(SECOND)
    await passes(world, stream)
    assert [seq for seq, _, _ in await everything(stream)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, *range(16, 25)]
    assert stream.ttls._aged_seq == 14
    await passes(world, stream, 100)
    kept = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 21]
    assert [seq for seq, _, _ in await everything(stream)] == kept
    stream = await world.restart(stream)
    await passes(world, stream, 100)
    assert [seq for seq, _, _ in await everything(stream)] == kept
    for seq in kept:
        await stream.delete_msg(seq, True)
    assert not stream.ttls.ages_one_by_one
    await world.close()


async def test_consumers_are_notified_of_expired_messages() -> None:
    world = World()
    stream = world.stream(allow_msg_ttl=True)
    listener = Listener()
    stream.listeners.by_name[listener.name] = listener  # type: ignore[index]
    publish(world, stream, pub(b"S.a", Nats_TTL="1s"), pub(b"S.b"), pub(b"S.c", Nats_TTL="1s"))
    await world.settle(stream)
    await passes(world, stream, 1)
    assert [gone[:3] for gone in listener.gone] == [(1, 1, 1), (3, 3, 1)]
    await world.close()


async def test_overwritten_keys_leave_nothing_behind() -> None:
    """Memory and checkpoints have the expiries of live messages only."""
    world = World(settings=LogSettings(segment_count=10))
    stream = world.stream(allow_msg_ttl=True, max_msgs_per_subject=1)
    for i in range(100):
        await ask(world, stream, pub(b"S.%d" % (i % 3), Nats_TTL="1h"))
    publish(world, stream, *[pub(b"S.x", Nats_TTL="1h") for _ in range(30)])
    await world.settle(stream)
    assert len(stream.ttls.expiries) == len(world.log.state.streams[stream.stream_id].expiries) == 4
    await stream.purge(None)
    await world.settle(stream)
    assert not stream.ttls.expiries
    assert not world.log.state.streams[stream.stream_id].expiries
    await world.close()


# --- delete markers ---------------------------------------------------------------------------------------------------

async def headers_of(stream: Stream, subject: bytes) -> bytes:
    msg = await stream.get_last(subject)
    return b"" if msg is None else msg.headers


MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 5s\r\nNats-Rollup: sub\r\n\r\n"


@pytest.mark.shows("stream.delete_markers")
async def test_a_marker_replaces_the_last_message() -> None:
    """A marker replaces a message that expires by TTL or by max_age, also after a restart, and then expires itself."""
    world = World()
    stream = world.stream(subject_delete_marker_ttl=5 * SECOND, max_age=20 * SECOND)
    await ask(world, stream, pub(b"S.a", Nats_TTL="6s"))
    await ask(world, stream, pub(b"S.b", b"old"))
    await ask(world, stream, pub(b"S.b", b"new"))
    stream = await world.restart(stream)
    await passes(world, stream, 6)
    assert await headers_of(stream, b"S.a") == MARKER
    assert [seq for seq, _, _ in await everything(stream)] == [2, 3, 4]
    stream = await world.restart(stream)
    await passes(world, stream, 5)
    assert [seq for seq, _, _ in await everything(stream)] == [2, 3]
    await passes(world, stream, 9)
    assert await headers_of(stream, b"S.b") == MARKER
    assert [seq for seq, _, _ in await everything(stream)] == [5]
    await passes(world, stream, 5)
    assert stream.msgs == 0
    assert stream.last_seq == 5
    await world.close()


async def test_a_marker_that_is_refused_leaves_the_message() -> None:
    """The message stays, as on nats-server.

    The marker is retried every two seconds, and succeeds once there is room.
    """
    world = World()
    stream = world.stream(subject_delete_marker_ttl=5 * SECOND, max_msgs=2, discard="new")
    await ask(world, stream, pub(b"S.a", Nats_TTL="6s"))
    await ask(world, stream, pub(b"S.b"))
    await passes(world, stream, 6)
    assert (await headers_of(stream, b"S.a")).startswith(b"NATS/1.0\r\nNats-TTL: 6s")
    assert stream.ttls._next_due_ns() == world.clock.now_ns() + 2 * SECOND
    await stream.delete_msg(2, True)
    await passes(world, stream, 1.9)
    assert await headers_of(stream, b"S.a") != MARKER
    await passes(world, stream, 0.1)
    assert await headers_of(stream, b"S.a") == MARKER
    await world.close()


async def passes_begun(world: World, stream: Any, count: int) -> None:
    """Run passes one after another, 3 s apart, although their publishes wait in the queue."""
    for _ in range(count):
        stream.ttls.passes.begin()
        await until(lambda: not stream.ttls.passes.running)
        world.clock.advance(3 * SECOND)


async def test_a_marker_that_waits_behind_a_newer_message_does_not_remove_it() -> None:
    """Two publishes wait in the queue: one to the subject of an expiring message, and the marker behind it."""
    world = World()
    stream = world.stream(allow_msg_ttl=True, subject_delete_marker_ttl=30 * SECOND)
    await ask(world, stream, pub(b"S.a", b"old", Nats_TTL="30s"))
    stream.queue.begin()
    publish(world, stream, pub(b"S.a", b"new"))
    world.clock.advance(31 * SECOND)
    await passes_begun(world, stream, 2)
    stream.queue.end()
    await world.settle(stream)
    assert (b"S.a", b"new") in [row[1:] for row in await everything(stream)]
    await passes(world, stream, 3)
    assert await everything(stream) == [(2, b"S.a", b"new")]
    await world.close()


async def test_a_marker_that_waits_is_stored_once() -> None:
    """The marker waits until its message is tried again."""
    world = World()
    stream = world.stream(allow_msg_ttl=True, subject_delete_marker_ttl=30 * SECOND)
    await ask(world, stream, pub(b"S.a", b"old", Nats_TTL="30s"))
    stream.queue.begin()
    world.clock.advance(31 * SECOND)
    await passes_begun(world, stream, 3)
    stream.queue.end()
    await world.settle(stream)
    assert [seq for seq, _, _ in await everything(stream)] == [2]
    await world.close()


async def test_refused_markers_hold_up_nothing_behind_them(monkeypatch: Any) -> None:
    """The stream is full of keys whose markers are refused, more than one pass tries.

    Messages that need no marker expire within a few passes, by TTL and by max_age. The keys expire once there is room.
    """
    monkeypatch.setattr(ttl, "_MARKED_MAX", 20)
    for by_age in (False, True):
        world = World(settings=LogSettings(segment_count=7))
        stream = world.stream(subject_delete_marker_ttl=5 * SECOND, max_msgs=80, discard="new",
                              **({"max_age": 60 * SECOND} if by_age else {"allow_msg_ttl": True}))
        headers = {} if by_age else {"Nats_TTL": "60s"}
        publish(world, stream, *[pub(b"S.%02d" % i, **headers) for i in range(78)])
        publish(world, stream, pub(b"S.z", b"replaced", **headers))
        await world.settle(stream)
        world.clock.advance(55 * SECOND)
        await ask(world, stream, pub(b"S.z", b"stays"))
        await passes(world, stream, 5)
        for _ in range(5):
            assert len(stream.ttls._marked) <= 20
            await passes(world, stream, 2)
        found = [payload for _, subject, payload in await everything(stream) if subject == b"S.z"]
        assert found == [b"stays"]
        await world.update(stream, max_msgs=-1)
        for _ in range(6):
            await passes(world, stream, 2)
        assert not [subject for _, subject, _ in await everything(stream) if subject != b"S.z"]
        await world.close()


async def test_markers_of_many_subjects() -> None:
    """There is one marker for each subject, in order; publishes and deletes in the meantime take precedence."""
    world = World(settings=LogSettings(segment_count=50))
    stream = world.stream(subject_delete_marker_ttl=5 * SECOND)
    publish(world, stream, *[pub(b"S.%03d" % i, Nats_TTL="6s") for i in range(300)])
    await world.settle(stream)
    world.reader._cache.clear()
    world.clock.advance(6 * SECOND)
    stream.ttls.passes.begin()
    publish(world, stream, pub(b"S.299", b"again"))
    await stream.delete_msg(298, True)
    await until(lambda: not stream.ttls.passes.running)
    await world.settle(stream)
    found = await everything(stream)
    assert [subject for _, subject, _ in found if subject != b"S.299"] == [b"S.%03d" % i for i in range(299)
                                                                           if i != 297]
    assert await stream.get_last(b"S.299")
    assert (await stream.get_last(b"S.299")).payload == b"again"  # type: ignore[union-attr]
    assert await stream.count_from(0, Filters([b"S.299"])) == (1, stream.safe_seq)
    await world.close()
