"""Decisions and requests that need data not in memory: they finish, however small the cache; others continue."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import tests.jetstream.stream.world as worlds
from broker.jetstream.consumer.cursor.cursor import Cursor, MessageColumns  # type: ignore[attr-defined]
from broker.jetstream.filters import Filters
from broker.jetstream.stream.state import subject_state
from broker.jetstream.stream.state.decision import WAIT_SECONDS, Decision, Stuck, decide
from broker.jetstream.stream.state.heads import HEADS_AT_ONCE
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.stream.stream import Stream
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.memory import MemoryStore
from tests.jetstream.stream.world import (
    TINY_CACHE_BYTES,
    Listener,
    World,
    ask,
    everything,
    pub,
    publish,
    read_all,
    turns,
)
from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop

GET_NS = 20_000_000


class Gets(MemoryStore):
    """A store that counts gets, in all and at once; they take ``seconds``, and fail while ``error`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0
        self.at_once = self.at_once_max = 0
        self.seconds = 0.0
        self.error: Exception | None = None

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise type(self.error)(*self.error.args)
            return await super().get(key, start, end)
        finally:
            self.at_once -= 1


@pytest.fixture
def cache_bytes() -> None:
    """Return None: the cache is tiny throughout."""


@pytest.fixture
def long_waits() -> None:
    """Keep the real time limits of decisions: these tests run in virtual time."""


@pytest.fixture
def virtual() -> Iterator[SimLoop]:
    """Yield an event loop in virtual time."""
    loop = SimLoop(ManualClock())
    yield loop
    loop.close()


def run(loop: SimLoop, monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    """Run ``scenario(world, store)`` in virtual time, over a store that counts, with a cache of 4 KiB."""
    monkeypatch.setattr(worlds, "ManualClock", lambda: loop.clock)

    async def main() -> None:
        world = World(cache_bytes=TINY_CACHE_BYTES)
        world.store = store = Gets()
        world._begin(world.log.state)
        try:
            await scenario(world, store)
        finally:
            await world.close()

    loop.run_until_complete(main())
    assert not loop.errors, loop.errors


async def filled(world: World, blocks: int, **config: Any) -> Stream:
    """Return a stream of blocks that are not loaded, with 20 subjects each."""
    stream = world.stream(**config)
    await world.settle()
    for i in range(blocks):
        publish(world, stream, *[pub(b"S.k%d.%d" % (k, i), b"x", reply=b"") for k in range(20)])
        await world.log.persisted()
    return await world.restart(stream, ids_in_blocks=True)


async def answered(world: World, *replies: bytes, seconds: float = 30.0) -> float:
    """Wait for the answers to publishes; return how many seconds that took."""
    began = world.clock.monotonic_ns()
    while not all(reply in world.bus.replies for reply in replies):
        await asyncio.sleep(0.01)
        taken = (world.clock.monotonic_ns() - began) / 1e9
        assert taken < seconds, f"no answer in {seconds} s"
    return (world.clock.monotonic_ns() - began) / 1e9


# --- requests that need many heads ------------------------------------------------------------------------------------


def test_publishes_continue_during_a_filtered_purge(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge of one subject in 300 blocks that are not in memory loads them concurrently, within the limit.

    A publish in the meantime is accepted at once, and is not purged.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 300)
        store.seconds, store.at_once_max = GET_NS / 1e9, 0
        purge = asyncio.create_task(stream.purge(b"S.k3.*"))
        await asyncio.sleep(0.05)
        [reply] = publish(world, stream, pub(b"S.k3.new", b"y"))
        assert await answered(world, reply) < 0.1
        assert not purge.done()
        began = world.clock.monotonic_ns()
        assert await purge == 300
        assert (world.clock.monotonic_ns() - began) / 1e9 < 1
        assert 1 < store.at_once_max <= HEADS_AT_ONCE
        last = await stream.get_last(b"S.k3.*")
        assert last is not None
        assert (last.subject, stream.msgs) == (b"S.k3.new", 300 * 19 + 1)

    run(virtual, monkeypatch, scenario)


def test_a_purge_keeps_the_number_that_it_must_while_others_are_removed(virtual: SimLoop,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the newest 150 of 300 messages stay, though others are removed while the purge reads, as by acks."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 300)
        seqs = [20 * i + 4 for i in range(300)]
        store.seconds = GET_NS / 1e9
        purge = asyncio.create_task(stream.purge(b"S.k3.*", keep=150))
        gone = 0
        for seq in reversed(seqs[:150]):
            if not purge.done():
                gone += await stream.delete_msg(seq, erase=False)
        assert gone > 10
        assert await purge == 150 - gone
        store.seconds = 0.0
        assert await stream.last_seqs_by_subject(Filters((b"S.k3.*",)), seqs[-1]) == seqs[150:]
        assert await stream.purge(b"S.k3.*", keep=150) == await stream.purge(b"S.k3.299", keep=1) == 0
        assert await stream.purge(b"S.*.299", keep=7) == 13

    run(virtual, monkeypatch, scenario)


def test_consumers_miss_nothing_published_during_a_filtered_purge(virtual: SimLoop,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is published while a purge that has removed everything searches for the first remaining message.

    A consumer of that subject alone continues with it.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 50)
        store.seconds = GET_NS / 1e9
        narrow = Listener("narrow", ["S.k3.*"])
        stream.listeners.by_name = {narrow.name: narrow}
        purge = asyncio.create_task(stream.purge(b"S.k3.*"))
        for _ in range(10_000):
            if stream.msgs == 50 * 19:
                break
            await asyncio.sleep(0.001)
        assert (stream.msgs, purge.done()) == (50 * 19, False)
        assert (await ask(world, stream, pub(b"S.k3.new", b"y")))["seq"] == 1001
        assert await purge == 50
        assert narrow.moved == [1001]

    run(virtual, monkeypatch, scenario)


def test_a_roll_up_over_more_heads_than_the_cache_holds(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roll-up reads each head once for the index, and only the block that has the replaced message."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 100, allow_rollup_hdrs=True)
        store.gets = 0
        rolled, behind = publish(world, stream, pub(b"S.k7.40", b"new", Nats_Rollup="sub"), pub(b"S.other"))
        await answered(world, rolled, behind)
        assert store.gets <= 110
        assert world.bus.answer(rolled)["seq"] == 2001
        assert world.bus.answer(behind)["seq"] == 2002
        assert [msg for msg in await everything(stream) if msg[1] == b"S.k7.40"] == [(2001, b"S.k7.40", b"new")]
        # Roll up one of many subjects, in all blocks.
        rolled = publish(world, stream, pub(b"S.k3.*", b"all", Nats_Rollup="sub"))[0]
        await answered(world, rolled)
        assert stream.msgs == 2001 - 100 + 1
        assert store.at_once_max <= HEADS_AT_ONCE

    run(virtual, monkeypatch, scenario)


def test_a_roll_up_that_takes_too_long_is_refused_and_then_done(virtual: SimLoop,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """A search on a slow store continues after the refusal; publishes that need no load are accepted.

    A retry of the same roll-up finds the search done, and removes newer messages too.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 60, allow_rollup_hdrs=True)
        await stream.info_state()
        store.seconds = 2.0
        rolled, behind = publish(world, stream, pub(b"S.k3.*", b"1", Nats_Rollup="sub"), pub(b"S.k3.later"))
        assert await answered(world, rolled, behind) == pytest.approx(WAIT_SECONDS, abs=0.1)
        assert world.bus.answer(rolled)["error"]["err_code"] == 10008
        assert world.bus.answer(behind)["seq"] == 1201
        again = publish(world, stream, pub(b"S.k3.*", b"2", Nats_Rollup="sub"))[0]
        assert await answered(world, again) < 0.1
        assert world.bus.answer(again)["error"]["err_code"] == 10008
        await asyncio.sleep(60)
        done = publish(world, stream, pub(b"S.k3.*", b"3", Nats_Rollup="sub"))[0]
        assert await answered(world, done) < WAIT_SECONDS
        assert world.bus.answer(done)["seq"] == 1202
        assert stream.msgs == 1201 - 61 + 1

    run(virtual, monkeypatch, scenario)


def test_an_index_that_takes_too_long(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes that need the subjects of a stream that is not loaded are refused in time; others are accepted.

    The index is built meanwhile.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 64)
        store.seconds = 3.0
        asks = pub(b"S.k1.1", b"y", Nats_Expected_Last_Subject_Sequence="22")
        also = pub(b"S.k1.1", b"y", Nats_Expected_Last_Subject_Sequence="22")
        plain = pub(b"S.plain", b"y")
        publish(world, stream, asks, also, plain)
        assert await answered(world, asks[1], also[1], plain[1]) < WAIT_SECONDS + 0.1
        assert [world.bus.answer(one[1])["error"]["err_code"] for one in (asks, also)] == [10008, 10008]
        assert world.bus.answer(plain[1])["seq"] == 1281
        await asyncio.sleep(30)
        third = publish(world, stream, pub(b"S.k1.1", b"y", Nats_Expected_Last_Subject_Sequence="22"))[0]
        assert await answered(world, third) < 0.1
        assert world.bus.answer(third)["seq"] == 1282

    run(virtual, monkeypatch, scenario)


def test_a_walk_that_fails_leaves_no_error_behind(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loads of one purge all fail, and the caller of another one is cancelled: nothing remains of either."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 30)
        store.seconds, store.error = 0.1, Transient("no answer")
        with pytest.raises(Transient):
            await stream.purge(b"S.k3.*")
        purge = asyncio.create_task(stream.purge(b"S.k3.*"))
        await asyncio.sleep(0.05)
        purge.cancel()
        await asyncio.sleep(1)
        store.error = None
        gc.collect()
        assert await stream.purge(b"S.k3.*") == 30

    run(virtual, monkeypatch, scenario)


# --- the subject index ------------------------------------------------------------------------------------------------


async def test_a_deferred_removal_of_a_block_with_a_dead_message() -> None:
    """A block of one subject that lost a message is removed at the front while its head is not in memory.

    The index subtracts it once it has the head; STREAM.INFO, expectations and all other publishes are answered.
    """
    world = World(cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream(max_msgs=12)
    await world.settle()
    for i in range(4):
        publish(world, stream, *[pub(b"S.a" if i % 2 == 0 else b"S.b", b"x", reply=b"") for _ in range(3)])
        await world.log.persisted()
    assert await stream.delete_msg(2, False)
    await world.log.persisted()
    stream = await world.restart(stream)
    assert (await stream.info_state())["num_subjects"] == 2
    world.reader._cache.clear()
    publish(world, stream, *[pub(b"S.a", b"y", reply=b"") for _ in range(4)])
    await world.log.persisted()
    shown = await asyncio.wait_for(stream.info_state(subjects_filter=b">"), 30)
    assert shown["subjects"] == {"S.a": 7, "S.b": 5}
    expecting, plain = pub(b"S.a", b"z", Nats_Expected_Last_Subject_Sequence="16"), pub(b"S.b", b"z")
    publish(world, stream, expecting, plain)
    await asyncio.wait_for(world.settle(stream), 30)
    assert [world.bus.answer(one[1])["seq"] for one in (expecting, plain)] == [17, 18]
    await world.close()


async def test_an_index_merged_up_to_the_middle_of_a_block() -> None:
    """Two expectations are in one block, and its head is evicted then: the next access merges the rest of the block."""
    world = World(cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream()
    await world.settle()
    publish(world, stream, *[pub(b"S.%d" % i, b"x", Nats_Expected_Last_Subject_Sequence="0") for i in range(8)])
    await world.settle(stream)
    world.reader._cache.clear()
    answer = await asyncio.wait_for(ask(world, stream, pub(b"S.1", Nats_Expected_Last_Subject_Sequence="2")), 30)
    assert answer["seq"] == 9
    assert (await asyncio.wait_for(stream.info_state(), 30))["num_subjects"] == 8
    await world.close()


async def test_the_last_of_a_subject_far_back() -> None:
    """The last message of a subject is deleted; the one before it is behind more blocks than are held at once."""
    world = World(cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream()
    await world.settle()
    publish(world, stream, pub(b"S.a"), *[pub(b"S.%d" % i) for i in range(20)])
    await world.settle()
    for _ in range(3 * HEADS_AT_ONCE):
        publish(world, stream, *[pub(b"S.%d" % i) for i in range(20)])
        await world.settle()
    newest = (await ask(world, stream, pub(b"S.a")))["seq"]
    stream = await world.restart(stream)
    assert (await stream.info_state())["num_subjects"] == 21
    assert await stream.delete_msg(newest, False)
    world.reader._cache.clear()
    wrong = await asyncio.wait_for(ask(world, stream, pub(b"S.a", Nats_Expected_Last_Subject_Sequence="9")), 30)
    assert wrong["error"]["err_code"] == 10071
    assert wrong["error"]["description"].endswith(": 1")
    assert (await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Subject_Sequence="1")))["seq"] == newest + 1
    await world.close()


async def test_a_wrong_expectation_by_wildcard_is_not_kept() -> None:
    """The result of a lookup for a refused publish is not used for the next one if there were others in between."""
    world = World()
    stream = world.stream()
    await ask(world, stream, pub(b"S.a.1"))
    expects = {"Nats_Expected_Last_Subject_Sequence_Subject": "S.a.*"}
    wrong = await ask(world, stream, pub(b"S.b", Nats_Expected_Last_Subject_Sequence="9", **expects))
    assert wrong["error"]["err_code"] == 10071
    await ask(world, stream, pub(b"S.a.2"))
    stale = await ask(world, stream, pub(b"S.b", Nats_Expected_Last_Subject_Sequence="1", **expects))
    assert stale["error"]["err_code"] == 10071
    assert (await ask(world, stream, pub(b"S.b", Nats_Expected_Last_Subject_Sequence="2", **expects)))["seq"] == 3
    await world.close()


# --- decisions that cannot be taken -----------------------------------------------------------------------------------


async def test_a_decision_that_repeats_itself_is_an_error() -> None:
    """Stuck is raised for a request of nothing, of loaded data, of the same work again, or of too many heads."""
    world = World()
    stream = world.stream()
    for _ in range(HEADS_AT_ONCE + 1):
        await ask(world, stream, pub(b"S.a"))
    live, heads = stream.live, stream.heads

    def for_nothing() -> None:
        raise NotLoaded("nothing")

    def again() -> None:
        raise NotLoaded("a head", (live.blocks[0],))

    async def work() -> None:
        worked.append(1)

    def the_same_work() -> None:
        raise NotLoaded("work", work=work)

    worked: list[int] = []
    for ask_for in (for_nothing, again, the_same_work):
        with pytest.raises(Stuck):
            await asyncio.wait_for(decide(live, heads, ask_for), 30)
    assert worked == [1]
    with pytest.raises(Stuck):
        await Decision(live, heads).load_missing(NotLoaded("all", live.blocks))
    await world.close()


def test_an_unexpected_error_of_a_load(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch,
                                       caplog: pytest.LogCaptureFixture) -> None:
    """Each affected publish is answered at once with 10008, and the error is logged; the store is not asked repeatedly.

    Everything else continues, and once the error is gone, publishes are accepted again.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 3)
        store.error = ZeroDivisionError("injected")
        store.gets = 0
        msgs = [pub(b"S.k1.1", b"y", Nats_Msg_Id=str(i)) for i in range(50)]
        plain = pub(b"S.plain")
        publish(world, stream, *msgs, plain)
        assert await answered(world, *(msg[1] for msg in msgs), plain[1]) < 1
        assert {world.bus.answer(msg[1])["error"]["err_code"] for msg in msgs} == {10008}
        assert world.bus.answer(plain[1])["seq"] == 61
        assert store.gets < 10
        assert any(record.exc_info for record in caplog.records)
        await asyncio.sleep(10)
        store.error = None
        assert (await ask(world, stream, pub(b"S.k1.1", Nats_Msg_Id="new")))["seq"] == 62

    run(virtual, monkeypatch, scenario)


# --- limits are enforced ----------------------------------------------------------------------------------------------


async def grown(world: World, **config: Any) -> Stream:
    stream = world.stream(**config)
    await world.settle()
    for _ in range(5):
        publish(world, stream, *[pub(b"S.k%d" % k, b"x", reply=b"") for k in range(50)])
        await world.log.persisted()
    return await world.restart(stream)


def test_an_update_killed_half_way_is_completed(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of max_msgs_per_subject 5 → 1 is persisted, its removals are not: the next start makes them.

    Once the log records that, a start reads nothing.
    """
    async def scenario(world: World, store: Gets) -> None:
        stream = await grown(world)
        store.seconds = 0.2
        world.update(stream, max_msgs_per_subject=1)
        await asyncio.sleep(0.05)
        stream = await world.restart(stream)
        assert (stream.config.max_msgs_per_subject, stream.msgs) == (1, 250)
        await asyncio.sleep(5)
        assert stream.msgs == 50
        await world.settle(stream)
        stream = await world.restart(stream)
        store.gets = 0
        await asyncio.sleep(5)
        assert (stream.msgs, store.gets) == (50, 0)

    run(virtual, monkeypatch, scenario)


def test_limits_raised_and_lowered_over_kills(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start compares the stream with its records: raised limits need no check, lowered ones do."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await grown(world, max_msgs_per_subject=5)
        store.gets = 0
        await world.update(stream, max_msgs_per_subject=7)
        await world.settle(stream)
        stream = await world.restart(stream)
        await asyncio.sleep(5)
        assert (stream.msgs, store.gets) == (250, 0)
        store.seconds = 0.2
        world.update(stream, max_msgs_per_subject=2)
        await asyncio.sleep(0.05)
        stream = await world.restart(stream)
        # The limit is raised again before the lower one was enforced: there may still be more than three.
        world.update(stream, max_msgs_per_subject=3)
        await asyncio.sleep(0.05)
        stream = await world.restart(stream)
        await asyncio.sleep(5)
        assert stream.msgs == 150

    run(virtual, monkeypatch, scenario)


def test_a_store_without_the_progress_of_enforcement(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start after an earlier release checks the limits, and records that for the next start."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await grown(world)
        world.log.block(stream).add(StreamUpdate({**stream.config.to_json(), "max_msgs_per_subject": 2}))
        world.log.urgent()
        await world.settle()
        stream = await world.restart(stream)
        await asyncio.sleep(5)
        assert stream.msgs == 100
        await world.settle(stream)
        stream = await world.restart(stream)
        store.gets = 0
        await asyncio.sleep(5)
        assert (stream.msgs, store.gets) == (100, 0)

    run(virtual, monkeypatch, scenario)


def test_an_update_that_waits_for_the_store(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits cannot be enforced: that is reported, publishes continue, and it is retried until the store
    answers."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await grown(world)
        store.error = Transient("no answer")
        with pytest.raises(Transient):
            await world.update(stream, max_msgs_per_subject=1, max_msgs=240)
        # A message that needs the index of subjects is refused, not kept waiting.
        refused = publish(world, stream, pub(b"S.new"))[0]
        assert await answered(world, refused) < WAIT_SECONDS
        assert world.bus.answer(refused)["error"]["err_code"] == 10008
        store.error = None
        await asyncio.sleep(10)
        assert stream.msgs == 50
        assert (await ask(world, stream, pub(b"S.new")))["seq"] == 251

    run(virtual, monkeypatch, scenario)


async def test_a_lower_max_age_counts_at_once() -> None:
    """The timer set for the longer age is reset."""
    world = World()
    stream = world.stream(max_age=3_600_000_000_000)
    await ask(world, stream, pub(b"S.a"))
    world.clock.advance(10_000_000_000)
    await world.update(stream, max_age=1_000_000_000)
    async with asyncio.timeout(30):
        while stream.msgs:  # noqa: ASYNC110  # it is the stream's
            await asyncio.sleep(0.01)
    await world.close()


# --- consumers --------------------------------------------------------------------------------------------------------


async def test_a_filtered_consumer_skips_blocks_without_a_match() -> None:
    """The consumer needs the head of each block to skip it, then a head and a chunk at once; each step makes progress.

    Other readers read as much as the cache holds between any two of its steps.
    """
    world = World(cache_bytes=0)
    stream = await filled(world, 12)
    last = (await ask(world, stream, pub(b"S.wanted")))["seq"]
    publish(world, stream, *[pub(b"S.after%d" % i, reply=b"") for i in range(20)])
    await world.settle()
    stream = await world.restart(stream)
    assert await stream.delete_msg(5, False)
    cursor = Cursor(stream, Filters([b"S.wanted"]), 1, set())
    await cursor.recount()
    assert cursor.pending == 1
    for _ in range(3 * len(stream.live.blocks)):
        loading = cursor.count() or cursor.next_messages(10, 1000)
        if isinstance(loading, MessageColumns):
            break
        assert loading is not None
        await loading.ready
        for block in stream.live.blocks[:3]:
            await stream.reader.head(block)
    else:
        raise AssertionError("the same data is loaded again and again")
    assert list(loading.seqs) == [last]
    cursor.advance(loading, 1)
    await world.close()


# --- side by side -----------------------------------------------------------------------------------------------------


async def test_consumers_are_notified_of_a_filtered_purge() -> None:
    """A filtered purge notifies consumers where to continue, after the last message was removed."""
    world = World(cache_bytes=TINY_CACHE_BYTES)
    stream = await filled(world, 10)
    listener = Listener(filters=["S.k3.*"])
    stream.listeners.by_name["c"] = listener
    assert await stream.purge(b"S.k3.*") == 10
    assert sum(msgs for _, _, msgs, _, _ in listener.gone) == 10
    assert listener.moved == [stream.last_seq + 1]
    await turns()
    await world.close()


def test_old_messages_expire_while_another_limit_waits(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that needs heads which cannot be read does not stop expiry, which needs none."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 5, max_age=30 * 10**9)
        store.error = Transient("no")
        limited = world.update(stream, max_msgs_per_subject=1)
        await asyncio.sleep(60)
        assert isinstance(limited.exception(), Transient)
        assert stream.msgs == 0
        store.error = None

    run(virtual, monkeypatch, scenario)


@pytest.mark.parametrize("seconds", [0.7, 20.0])
def test_a_waiting_publish_that_a_full_log_refuses(seconds: float, virtual: SimLoop,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered once; the data loaded for it is released, and the next publish to wait has its full time."""
    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 40)
        await stream.subjects.build()
        stream.subjects.forget()
        store.seconds = seconds
        with monkeypatch.context() as patch:
            called: list[Any] = []
            patch.setattr(stream.log, "room", lambda: False)
            patch.setattr(stream.log, "when_room", called.append)
            # The first publish waits, having passed while there was room; a second one finds the log full.
            patch.setattr(stream.queue, "closed", False)
            stream.sequencer.run([first := pub(b"S.k1.1", Nats_Expected_Last_Subject_Sequence="22")], 0, 1, None,
                                 world.clock.now_ns())
            second, = publish(world, stream, pub(b"S.x"))
            await asyncio.sleep(1.5)
        for fn in called:
            fn()
        assert b"10167" in world.bus.replies[first[1]][0]
        assert b"10167" in world.bus.replies[second][0]
        innocent, = publish(world, stream, pub(b"S.x"))
        await asyncio.sleep(90)
        assert world.bus.answer(innocent)["seq"] == 801
        store.seconds = 0.5
        stream.subjects.forget()
        third, = publish(world, stream, pub(b"S.k1.1", Nats_Expected_Last_Subject_Sequence="22"))
        await answered(world, third)
        assert world.bus.answer(third)["seq"] == 802
        assert [len(world.bus.replies[one]) for one in (first[1], second, innocent, third)] == [1, 1, 1, 1]

    run(virtual, monkeypatch, scenario)


async def test_heads_are_next_right_after_a_turn_that_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index merges for as long as a turn may take, and needs a head at once in the next turn: it makes progress."""
    monkeypatch.setattr(subject_state, "_ROWS_AT_ONCE", 8)
    world = World(cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream()
    await world.settle()
    for i in range(2):
        publish(world, stream, pub(b"S.a", b"%d" % i))
        await world.settle()
    publish(world, stream, *[pub(b"S.k%d" % k) for k in range(20)])
    await world.settle()
    stream = await world.restart(stream)
    assert len(await stream.queries._search.matching(Filters())) == 21
    await world.close()


def test_blocks_that_cannot_match_are_not_loaded(virtual: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filtered reader and requests by subject load the blocks that have the subject, and one in a hundred others.

    After many excluded blocks one block is loaded, so that the loop gets a turn.
    """

    async def scenario(world: World, store: Gets) -> None:
        stream = await filled(world, 300, max_msgs_per_subject=-1)
        for wanted, seqs in ((b"S.k7.150", [150 * 20 + 8]), (b"S.k3.299", [299 * 20 + 4]), (b"S.k21.*", [])):
            filters = Filters((wanted,))
            store.gets = 0
            assert [row[0] for row in await read_all(stream, filters)] == seqs
            assert store.gets < 40, (wanted, store.gets)
            store.gets = 0
            assert await stream.queries.next_seq(filters, 1) == (seqs or [0])[0]
            assert store.gets < 40, (wanted, store.gets)
            store.gets = 0
            assert (await stream.queries.count_from(2, filters))[0] == len(seqs)
            assert store.gets < 40, (wanted, store.gets)

    run(virtual, monkeypatch, scenario)
