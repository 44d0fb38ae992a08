"""State after a restart: ceilings of async streams, streams in memory, outcomes; and the low cost of a restart."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from broker.jetstream.filters import Filters
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from tests.jetstream.stream.world import World, ask, everything, pub, publish, read_all, turns
from tests.storage.listening import Listening


@pytest.mark.shows("stream.persist_mode", "publish.async")
async def test_async_acknowledges_at_once() -> None:
    """PubAcks and refusals of an async stream are sent when the decision is taken; consumers wait for the store."""
    world = World()
    stream = world.stream(persist_mode="async")
    await world.settle()
    run = [pub(b"S.a"), pub(b"S.a", b"", Nats_Expected_Last_Sequence="7"), pub(b"S.a")]
    publish(world, stream, *run)
    assert [world.bus.answer(msg[1])["seq"] for msg in run] == [1, 0, 2]
    assert stream.safe_seq == 0
    assert stream.next_chunk(1, None) is None
    kept = await stream.get(2)
    assert kept is not None
    await world.settle()
    assert stream.safe_seq == 2
    await world.close()


async def test_an_async_stream_never_reuses_a_sequence() -> None:
    """An async stream continues after a crash at its persisted ceiling, and after a clean stop at its sequence.

    After the crash, expectations compare with the sequence before the ceiling.
    """
    world = World()
    stream = world.stream(persist_mode="async")
    await world.settle()
    for _ in range(3):
        await ask(world, stream, pub(b"S.a"))
    lost = pub(b"S.a", b"acknowledged, then lost")
    publish(world, stream, lost)
    assert world.bus.answer(lost[1])["seq"] == 4
    crashed = await world.restart(stream)
    ceiling = crashed.last_seq + 1
    assert ceiling % 65_536 == 0
    answer = await ask(world, crashed, pub(b"S.a", b"", Nats_Expected_Last_Sequence="4"))
    assert answer["error"]["description"] == f"wrong last sequence: {ceiling - 1}"
    assert await ask(world, crashed, pub(b"S.a", b"", Nats_Expected_Last_Sequence=str(ceiling - 1))) == {
        "stream": "S", "seq": ceiling}
    again = await world.restart(crashed, clean=True)
    assert await ask(world, again, pub(b"S.a")) == {"stream": "S", "seq": ceiling + 1}
    assert [seq for seq, _, _ in await everything(again)] == [1, 2, 3, ceiling, ceiling + 1]
    assert (await again.info_state())["num_deleted"] == ceiling - 4
    await world.close()


async def test_ceilings_rise_before_they_are_reached() -> None:
    """Over many steps of the ceiling no sequence at or above the persisted one is assigned, and no publish waits
    long."""
    world = World(settings=LogSettings(segment_count=5000))
    stream = world.stream(persist_mode="async")
    await world.settle()
    run = [pub(b"S.a", reply=b"")] * 1000
    for _ in range(300):
        publish(world, stream, *run)
        assert stream.last_seq < max(stream.ceiling.value, 1)
        await turns(2)
    await world.settle(stream)
    assert stream.last_seq == 300_000
    assert stream.last_seq < stream.ceiling.value
    await world.close()


async def test_a_burst_past_the_ceiling_waits_for_the_next() -> None:
    """A run that needs sequences above the persisted ceiling is sequenced once the higher one is persisted."""
    world = World()
    stream = world.stream(persist_mode="async")
    replies = publish(world, stream, *(pub(b"S.a") for _ in range(3)))
    assert stream.last_seq == 0
    assert world.bus.order == []
    await world.settle(stream)
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 2, 3]
    await world.close()


async def test_memory_streams_store_nothing() -> None:
    """A stream with memory storage answers like any other, keeps its messages in memory, and puts no object."""
    world = World()
    stream = world.stream(storage="memory", max_msgs_per_subject=2)
    await world.settle(stream)
    before = len(world.store.objects)
    for i in range(10):
        assert await ask(world, stream, pub(b"S.%d" % (i % 3), b"%d" % i)) == {"stream": "S", "seq": i + 1}
    expected = [(i + 1, b"S.%d" % (i % 3), b"%d" % i) for i in range(4, 10)]
    assert await everything(stream) == expected
    assert await read_all(stream) == expected
    assert await read_all(stream, Filters([b"S.1"])) == [one for one in expected if one[1] == b"S.1"]
    assert len(world.store.objects) == before
    await world.close()


async def test_a_restart_reads_nothing() -> None:
    """Ten streams are restored without one GET: blocks, subjects and ids are loaded on demand."""

    class CountingStore(MemoryStore):
        gets = 0

        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            self.gets += 1
            return await super().get(key, start, end)

    world = World(settings=LogSettings(segment_count=5))
    world.store = store = CountingStore()
    world._begin(world.log.state)
    stream = world.stream(max_msgs_per_subject=3, max_age=3_600_000_000_000)
    for i in range(30):
        await ask(world, stream, pub(b"S.%d" % i, Nats_Msg_Id=str(i)))
    again = await world.restart(stream)
    assert store.gets == 0
    assert (again.first_seq, again.last_seq, again.msgs, again.safe_seq) == (1, 30, 30, 30)
    assert not again.live.blocks_loaded
    assert await ask(world, again, pub(b"S.x")) == {"stream": "S", "seq": 31}
    assert store.gets > 0
    await world.close()


async def test_restoring_a_stream_makes_only_its_objects() -> None:
    """A stream is restored by a few hundred calls, so ten thousand streams take about a second.

    ``python -m bench.restarts`` has the times.
    """
    world = World()
    stream = world.stream()
    publish(world, stream, *(pub(b"S.%d" % i) for i in range(40)))
    await world.settle()
    state = world.log.state.streams[stream.stream_id]
    calls: list[str] = []

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            calls.append(event)

    sys.setprofile(count)
    try:
        again = type(stream)(stream.config, state, account="$G", stream_id=7, created_ns=0, log=world.log,
                             reader=world.reader, bus=world.bus, clock=world.clock, rng=world.rng)
    finally:
        sys.setprofile(None)
    assert again.last_seq == 40
    assert len(calls) < 300
    await world.close()


async def test_memory_streams_keep_few_blocks_and_no_dead() -> None:
    """A publisher that waits for each PubAck causes blocks of one message. They are joined without their dead messages.

    A filtered reader finds the right messages all the time.
    """
    world = World()
    stream = world.stream(storage="memory", max_msgs_per_subject=1)
    wanted = Filters([b"S.1.*", b"S.3.*"])
    for i in range(1500):
        publish(world, stream, pub(b"S.%d.%d" % (i % 5, i % 300), b"%d" % i, reply=b""))
        await turns(1)
        if i % 250 == 0:
            await read_all(stream, wanted)
    await world.settle(stream)
    expected = [(i + 1, b"S.%d.%d" % (i % 5, i % 300), b"%d" % i) for i in range(1200, 1500)]
    assert await everything(stream) == expected
    assert await read_all(stream, wanted) == [one for one in expected if one[1][:4] in (b"S.1.", b"S.3.")]
    assert len(stream.live.blocks) < 40
    assert sum(block.count for block in stream.live.blocks) < 2 * 300 + 64
    assert await stream.delete_msg(1400, True)
    assert await stream.get(1400) is None
    assert stream.msgs == 299
    await world.close()


@pytest.mark.parametrize("moment", ["before", "open", "in flight", "applied", "persisted", "restarted"])
async def test_blocks_may_be_loaded_at_any_time(moment: str) -> None:
    """A stream that was only published to has no block table in memory; the first reader finds all blocks at any
    time."""
    world = World(cache_bytes=64 << 20)  # newly persisted messages are read from it
    stream = world.stream()

    def check_blocks() -> None:
        first_seqs = [block.first_seq for block in stream.live.blocks]
        assert first_seqs == sorted(set(first_seqs))
        assert sum(block.live_msgs for block in stream.live.blocks) == stream.msgs
        assert sum(block.live_bytes for block in stream.live.blocks) == stream.size_bytes

    expected = [(i + 1, b"S.%d" % (i // 3), b"%d" % i * (i + 1)) for i in range(12)]
    for at in range(0, 12, 3):
        publish(world, stream, *(pub(subject, body) for _, subject, body in expected[at:at + 3]))
        if at == 6:
            assert stream.live.blocks_loaded == (moment == "before")
            if moment == "open":
                check_blocks()
            elif moment == "in flight":
                await turns(1)
                check_blocks()
            elif moment == "applied":
                world.log.listen(Listening(segment_applied=lambda segment: check_blocks()))
        elif moment == "before":
            check_blocks()
        await world.settle()
    if moment == "restarted":
        stream = await world.restart(stream)
        assert not stream.live.blocks_loaded
    check_blocks()
    assert (stream.msgs, stream.first_seq, stream.last_seq, stream.safe_seq) == (12, 1, 12, 12)
    if moment not in ("applied", "restarted"):
        world.store.objects.clear()  # newly persisted messages are still in memory
        assert await read_all(stream) == expected
    assert await stream.purge(None, seq=5) == 4
    await world.settle(stream)
    assert (stream.msgs, stream.first_seq, len(stream.live.blocks)) == (8, 5, 3)
    await world.close()
