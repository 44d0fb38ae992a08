"""Publishes that wait for a stream: back-pressure of the log, and operations that need data not in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.jetstream.bus import Msg
from broker.jetstream.stream.shared import queue
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.memory import MemoryStore
from tests.jetstream.stream.world import Source, World, ask, everything, pub, publish, turns


class StuckStore(MemoryStore):
    """A store whose puts and gets wait while ``unblocked`` is clear; gets fail while ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.broken = False
        self.gets = 0

    async def put(self, key: str, data: Sequence[bytes]) -> None:
        await self.unblocked.wait()
        await super().put(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        if self.broken:
            raise Transient("no answer")
        await self.unblocked.wait()
        return await super().get(key, start, end)


def stuck_world(**settings: Any) -> tuple[World, StuckStore]:
    world = World(settings=LogSettings(**settings))
    world.store = store = StuckStore()
    world._begin(world.log.state)
    return world, store


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition did not become true")


@pytest.mark.shows("publish.back_pressure")
async def test_a_full_log_slows_and_then_refuses() -> None:
    """While the log has no room, publishers are held for a second, then refused with 429 and 10167.

    Sequenced messages are acknowledged once the store works again, and then publishes are accepted again.
    """
    world, store = stuck_world(tail_bytes_max=2000)
    stream = world.stream()
    await world.settle()
    store.unblocked.clear()
    first = publish(world, stream, *(pub(b"S.a", b"x" * 100) for _ in range(30)))
    assert stream.last_seq == 30
    source = Source()
    queued = pub(b"S.a", b"queued")
    silent = pub(b"S.a", b"silent", reply=b"")
    publish(world, stream, queued, silent, source=source)
    publish(world, stream, pub(b"S.a"), source=source)
    assert (source.holds, source.held) == (1, 1)
    assert world.bus.order == []
    await until(lambda: bool(world.bus.order))
    assert source.holds == 0
    assert world.bus.headers[queued[1]] == b"NATS/1.0 429 Too Many Requests\r\n\r\n"
    assert world.bus.answer(queued[1])["error"]["err_code"] == 10167
    assert (stream.queue.refused, stream.sequencer.replies.dropped) == (3, 1)
    late = pub(b"S.a", b"late")
    publish(world, stream, late, source=source)
    assert world.bus.answer(late[1])["error"]["err_code"] == 10167
    assert source.held == 1
    store.unblocked.set()
    await world.settle()
    assert [world.bus.answer(reply)["seq"] for reply in first] == list(range(1, 31))
    assert await ask(world, stream, pub(b"S.a")) == {"stream": "S", "seq": 31}
    await world.close()


async def test_a_short_hold_refuses_no_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued publishes are sequenced in order if the store works again in time, and the sources are released."""
    monkeypatch.setattr(queue, "HOLD_SECONDS", 30.0)
    world, store = stuck_world(tail_bytes_max=2000)
    stream = world.stream()
    await world.settle()
    store.unblocked.clear()
    publish(world, stream, *(pub(b"S.a", b"x" * 100) for _ in range(30)))
    source = Source()
    for i in range(5):
        publish(world, stream, pub(b"S.b", b"%d" % i), source=source)
    assert source.holds == 1
    await turns()
    store.unblocked.set()
    await until(lambda: stream.last_seq == 35)
    await world.settle(stream)
    assert source.holds == 0
    assert [payload for _, subject, payload in await everything(stream) if subject == b"S.b"] == [
        b"0", b"1", b"2", b"3", b"4"]
    assert stream.queue.refused == 0
    await world.close()


async def test_queued_bytes_are_bounded() -> None:
    """Publishes beyond the queue's limit are refused at once."""
    world, store = stuck_world(tail_bytes_max=2000)
    stream = world.stream()
    stream.queue.bytes_max = 10_000
    await world.settle()
    store.unblocked.clear()
    publish(world, stream, *(pub(b"S.a", b"x" * 100) for _ in range(30)))
    for _ in range(10):
        publish(world, stream, pub(b"S.a", b"x" * 1000))
    assert stream.queue.bytes <= 10_000
    assert stream.queue.refused == 2
    store.unblocked.set()
    await until(lambda: stream.last_seq == 38)
    await world.close()


@pytest.mark.parametrize("what", ["subjects", "replies"])
@pytest.mark.parametrize("config", [{}, {"allow_rollup_hdrs": True}, {"discard": "new", "max_msgs": 10_000}])
@pytest.mark.parametrize("run", [1, 40])
async def test_long_names_fill_segments_and_the_tail(what: str, config: dict[str, Any], run: int) -> None:
    """Messages have no body, and 64 KiB of subject or reply each: no segment exceeds its limit many times.

    So no index grows larger than a reader accepts. The tail and the stream's queue have no room beyond their limits.
    """
    world, store = stuck_world(segment_bytes=1 << 20, tail_bytes_max=8 << 20)
    stream = world.stream(**config)
    await world.settle()

    def some(first: int) -> list[Msg]:
        return [pub(b"S.%d.%b" % (i, b"s" * 65_536)) if what == "subjects" else
                pub(b"S.a", reply=b"_R.%d.%b" % (i, b"r" * 65_536)) for i in range(first, first + run)]

    before = world.log.commit_count
    for first in range(0, 240, run):
        publish(world, stream, *some(first))
        await turns()
    await world.settle(stream)
    assert stream.last_seq == 240
    assert world.log.commit_count - before >= (240 >> 4) // (5 if run > 1 else 3)
    if what == "subjects":
        blocks = world.log.state.streams[stream.stream_id].blocks
        assert max(entry.ref.bytes for entry in blocks) < (5 << 20)
        assert [subject for _, subject, _ in await everything(stream)] == [
            b"S.%d.%b" % (i, b"s" * 65_536) for i in range(240)]
    store.unblocked.clear()
    stream.queue.bytes_max = 4 << 20
    for first in range(240, 640, run):
        publish(world, stream, *some(first))
        await turns(1)
    assert not world.log.room()
    assert world.log.tail_bytes < (8 << 20) + (3 << 20)
    assert stream.queue.bytes <= stream.queue.bytes_max
    assert stream.queue.refused > 0
    store.unblocked.set()
    await world.settle(stream)
    await world.close()


async def test_operations_behind_a_waiting_decision_wait_their_turn() -> None:
    """An expectation on a subject needs heads from the store after a restart.

    Publishes, a delete and a purge behind it are queued, and done in their order.
    """
    world, store = stuck_world()
    stream = world.stream()
    # More subjects than a block lists by itself.
    publish(world, stream, *(pub(b"S.%d" % i, b"x") for i in range(20)))
    await world.settle()
    stream = await world.restart(stream)
    store.unblocked.clear()
    asked = pub(b"S.3", b"y", Nats_Expected_Last_Subject_Sequence="4")
    publish(world, stream, pub(b"S.first"), asked, pub(b"S.behind"))
    publish(world, stream, pub(b"S.later"))
    deleted = asyncio.ensure_future(stream.delete_msg(22, True))
    await turns()
    publish(world, stream, pub(b"S.last"))
    assert stream.last_seq == 21
    assert not deleted.done()
    store.unblocked.set()
    assert await deleted
    await world.settle(stream)
    assert world.bus.answer(asked[1]) == {"stream": "S", "seq": 22}
    tail = [(seq, subject) for seq, subject, _ in await everything(stream) if seq > 20]
    assert tail == [(21, b"S.first"), (23, b"S.behind"), (24, b"S.later"), (25, b"S.last")]
    await world.close()


async def test_a_decision_whose_data_cannot_be_read_is_refused() -> None:
    """The publish gets 10008 if the store does not answer, and those behind it continue."""
    world, store = stuck_world(segment_count=4)
    stream = world.stream(duplicate_window=1_000_000_000)
    for i in range(3):
        await ask(world, stream, pub(b"S.%d" % i, Nats_Msg_Id=str(i)))
    stream = await world.restart(stream, ids_in_blocks=True)
    store.broken = True
    asked, behind = pub(b"S.3", Nats_Msg_Id="9"), pub(b"S.4")
    publish(world, stream, asked, behind)
    await until(lambda: stream.last_seq == 4)
    await world.settle(stream)
    assert world.bus.answer(asked[1])["error"]["err_code"] == 10008
    assert world.bus.answer(behind[1]) == {"stream": "S", "seq": 4}
    store.broken = False
    assert (await ask(world, stream, pub(b"S.3", Nats_Msg_Id="1")))["duplicate"]
    await world.close()


async def test_a_cancelled_turn_lets_the_next_go() -> None:
    """A request that is cancelled while it waits, or just as its turn comes, does not block those behind it."""
    world, store = stuck_world(segment_count=4)
    stream = world.stream()
    for i in range(8):
        await ask(world, stream, pub(b"S.%d" % i))
    stream = await world.restart(stream)
    store.unblocked.clear()
    tasks = [asyncio.ensure_future(stream.delete_msg(seq, True)) for seq in (1, 2, 3)]
    await turns()
    tasks[1].cancel()
    await turns()
    tasks[0].cancel()
    store.unblocked.set()
    assert await tasks[2]
    assert await ask(world, stream, pub(b"S.x")) == {"stream": "S", "seq": 9}
    await world.close()


async def test_a_long_queue_is_sequenced_in_several_turns() -> None:
    """3000 publishes, each of which is decided by itself, wait for an operation; then they are sequenced in slices.

    Other callbacks run between the slices, and a publish that arrives meanwhile gets its sequence after all of them.
    """
    world = World()
    stream = world.stream(republish={"src": "S.>", "dest": "R.>"})
    await world.settle()
    stream.queue.begin()
    msgs = [pub(b"S.%d" % i) for i in range(3000)]
    publish(world, stream, *msgs)
    stream.queue.end()
    assert 0 < stream.last_seq < 1000
    last = pub(b"S.last")
    publish(world, stream, last)
    turns_taken = 0
    while stream.last_seq < 3001:
        before = stream.last_seq
        await asyncio.sleep(0)
        assert stream.last_seq - before < 1000
        turns_taken += 1
    assert turns_taken > 3
    assert not stream.queue.closed
    await world.settle()
    assert [world.bus.answer(msg[1])["seq"] for msg in msgs] == list(range(1, 3001))
    assert world.bus.answer(last[1])["seq"] == 3001
    assert stream.queue.bytes == 0
    await world.close()
