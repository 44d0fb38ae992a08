"""A standby takes over after silence of the log, a clean stop, a claim under its own name, or a released lock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.cluster.heartbeat import Heartbeats
from broker.cluster.hold_off import NEVER_NS, HoldOff
from broker.cluster.ownership import seal_at
from broker.cluster.standby import wait_for_lease, wait_for_lock
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.header import Position
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import PATHS, SECOND, Counting, Publisher, Rig, in_virtual_time

T = 15 * SECOND
LEASED = ShardSettings(log=LogSettings(lease_ns=T), checkpoint=CheckpointSettings(segments=4), sweep_grace_ns=0)


class OtherShard:
    """The log of another shard of the same process."""

    epoch = 1
    quiet = False

    def renew_lease(self, began_ns: int) -> None:
        """Do nothing."""


async def waited(rig: Rig) -> float:
    """Return the seconds until the rig may take over."""
    began_ns = rig.clock.monotonic_ns()
    await wait_for_lease(rig.store, PATHS, rig.me, rig.clock, rig.rng, T)
    return (rig.clock.monotonic_ns() - began_ns) / SECOND


def test_an_empty_store_has_no_owner() -> None:
    """The first broker on a store does not wait."""
    async def main(clock: ManualClock) -> None:
        assert await waited(Rig(MemoryStore(), clock)) < 0.1
    in_virtual_time(main)


def test_a_live_owner_is_left_alone_and_a_dead_one_replaced_after_t() -> None:
    """A standby sees an idle owner's empty segments; T after the last of them it takes over."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        await a.open()
        await Publisher(a, {}).publish_many(3)
        waiting = asyncio.ensure_future(waited(Rig(shared, clock, "b", 2)))
        await asyncio.sleep(120)
        assert not waiting.done()
        a.store.halt()
        died_ns = clock.monotonic_ns()
        await waiting
        assert 10 <= (clock.monotonic_ns() - died_ns) / SECOND <= 15 + 5
    in_virtual_time(main)


def test_an_idle_owner_costs_its_standby_few_requests() -> None:
    """There are two polls for each heartbeat. Each reads the next claim and the next entry; one reads an entry more."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        await a.open()
        b = Rig(shared, clock, "b", 2)
        counting = Counting(b.store)
        waiting = asyncio.ensure_future(wait_for_lease(counting, PATHS, b.me, clock, b.rng, T))
        await asyncio.sleep(60)
        counting.calls.clear()
        await asyncio.sleep(600)
        looks = 600 / (T / SECOND / 6)
        assert 2 * looks - 10 <= len(counting.calls) <= 2.6 * looks
        assert {operation for operation, _ in counting.calls} == {"get"}
        waiting.cancel()
    in_virtual_time(main)


@pytest.mark.parametrize(("a_second", "late", "gets"), [(0.25, 2.6, 2.0), (2.0, 1.7, 6.0), (10.0, 0.8, 30.0)])
@pytest.mark.parametrize("killed_after_s", [40.0, 40.7, 41.3, 41.9])
def test_a_busy_owner_is_replaced_sooner(a_second: float, late: float, gets: float, killed_after_s: float) -> None:
    """The more an owner puts, the more often a standby polls, and the sooner after T it takes over from a dead owner.

    Args: a_second: puts. late: seconds beyond T. gets: a second, at most; each costs a thirteenth of a put.
    """
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=ShardSettings(log=LogSettings(lease_ns=T)))
        await a.open()
        client = Publisher(a, {})
        b = Rig(shared, clock, "b", 2)
        counting = Counting(b.store)
        waiting = asyncio.ensure_future(wait_for_lease(counting, PATHS, b.me, clock, b.rng, T))
        began_ns = put_ns = clock.monotonic_ns()
        while clock.monotonic_ns() - began_ns < killed_after_s * SECOND:
            put_ns = clock.monotonic_ns()
            await client.publish_many(1)
            await asyncio.sleep(1 / a_second)
        assert not waiting.done()
        assert len(counting.calls) <= gets * killed_after_s
        a.store.halt()
        assert (await waiting).silent
        assert 15 <= (clock.monotonic_ns() - put_ns) / SECOND <= 15 + late
    in_virtual_time(main)


def test_a_busy_owner_that_sweeps_is_seen_too() -> None:
    """The number that a standby waits for may be swept between two polls; a checkpoint beyond it proves that the owner
    is alive."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        await a.open()
        client = Publisher(a, {})
        waiting = asyncio.ensure_future(waited(Rig(shared, clock, "b", 2)))
        for _ in range(40):
            await client.publish_many(12)
            client.stream.remove(client.stream.first_seq, client.stream.last_seq)
            await asyncio.sleep(2.6)
        assert not waiting.done()
        waiting.cancel()
    in_virtual_time(main)


def test_the_same_name_takes_over_at_once() -> None:
    """A restart after kill -9 does not wait for T."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        await a.open()
        a.store.halt()
        assert await waited(Rig(shared, clock, "a", 2)) < 0.1
    in_virtual_time(main)


@pytest.mark.shows("cluster.standby")
def test_after_a_clean_stop_any_broker_takes_over_at_once() -> None:
    """A standby takes over at once from an owner that sealed its own epoch."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        shard = await a.open()
        await Publisher(a, {}).publish_many(3)
        end = await shard.close()
        await seal_at(a.store, PATHS, end, 1, a.me, clock, a.rng)
        assert await waited(Rig(shared, clock, "b", 2)) < 0.2
    in_virtual_time(main)


def test_a_store_that_does_not_answer_does_not_mean_a_dead_owner() -> None:
    """A standby for which alone the store is unreachable for five minutes does not take over."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        await a.open()
        b = Rig(shared, clock, "b", 2)
        waiting = asyncio.ensure_future(waited(b))
        await asyncio.sleep(20)
        b.store.down = True
        await asyncio.sleep(300)
        b.store.down = False
        await asyncio.sleep(60)
        assert not waiting.done()
        waiting.cancel()
    in_virtual_time(main)


def test_a_store_that_fails_while_a_new_owner_is_found_does_not_hide_it() -> None:
    """A broker sealed its shard for another one, which takes it. A poll of the first one finds the new claim, and fails
    before it has read whose that is. Later polls must not take the shard for its own, and thus for free.
    """
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a, b = Rig(shared, clock, "a", 1, settings=LEASED), Rig(shared, clock, "b", 2, settings=LEASED)
        end = await (await a.open()).close()
        await seal_at(a.store, PATHS, end, 1, a.me, clock, a.rng)
        hold_off = HoldOff(lambda: 600 * SECOND)
        waiting = asyncio.ensure_future(wait_for_lease(a.store, PATHS, a.me, clock, a.rng, T, hold_off=hold_off))
        await asyncio.sleep(6)
        failed = asyncio.Event()

        async def fail_after_the_claim(operation: str, key: str) -> None:
            if (operation, key) == ("get", PATHS.epoch(2)) and key in shared.objects:
                a.store.down = True
                failed.set()

        a.store.after = fail_after_the_claim
        await b.open()
        await failed.wait()
        await asyncio.sleep(20)
        a.store.down, a.store.after = False, None
        hold_off.end()
        await asyncio.sleep(60)
        assert not waiting.done()
        b.store.halt()
        assert (await waiting).silent
    in_virtual_time(main)


async def test_a_directory_is_waited_for_by_its_lock(tmp_path: Path) -> None:
    """Two brokers on one directory: the second continues when the first releases the lock."""
    first, second = FileStore(tmp_path), FileStore(tmp_path)
    lock = await wait_for_lock(first, PATHS)
    waiting = asyncio.ensure_future(wait_for_lock(second, PATHS))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    lock.release()
    (await asyncio.wait_for(waiting, 30)).release()
    await first.close()
    await second.close()


def test_a_free_shard_is_left_to_others_for_a_while() -> None:
    """A standby that holds off takes a sealed shard after the delay, or at once when it is asked to."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        shard = await a.open()
        await Publisher(a, {}).publish_many(3)
        b, hold_off = Rig(shared, clock, "b", 2), HoldOff(lambda: 5 * SECOND)
        end = await shard.close()
        await seal_at(a.store, PATHS, end, 1, a.me, clock, a.rng)
        began_ns = clock.monotonic_ns()
        await wait_for_lease(b.store, PATHS, b.me, clock, b.rng, T, hold_off=hold_off)
        assert 5 <= (clock.monotonic_ns() - began_ns) / SECOND < 6
        waiting = asyncio.ensure_future(wait_for_lease(b.store, PATHS, b.me, clock, b.rng, T, hold_off=hold_off))
        await asyncio.sleep(1)
        assert not waiting.done()
        hold_off.end()
        assert not (await waiting).silent
        assert (clock.monotonic_ns() - began_ns) / SECOND < 7.5
    in_virtual_time(main)


def test_a_shard_of_our_own_name_is_taken_after_the_delay() -> None:
    """A run that lost a shard and holds off, or an earlier one of its name, has left entries and no seal. Its other
    shards may go on, so that its heartbeats prove nothing about this one.
    """
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1, settings=LEASED)
        shard = await a.open()
        await Publisher(a, {}).publish_many(3)
        await shard.abandon()
        beats = Heartbeats(a.store, a.me, clock, a.rng, T, always=True)
        beats.add(OtherShard(), ShardPaths(9))
        began_ns = clock.monotonic_ns()
        await wait_for_lease(a.store, PATHS, a.me, clock, a.rng, T, hold_off=HoldOff(lambda: 5 * SECOND))
        assert 5 <= (clock.monotonic_ns() - began_ns) / SECOND < 10
    in_virtual_time(main)


def test_a_free_shard_on_its_way_to_another_broker_is_left_alone() -> None:
    """The time for which a shard is left, and that in which it is taken at once, both end by themselves."""
    async def main(clock: ManualClock) -> None:
        hold_off = HoldOff(lambda: 1 * SECOND)
        hold_off.leave(5)
        assert hold_off.delay_ns == 5 * SECOND
        hold_off.end(3)
        assert hold_off.delay_ns == 0
        await asyncio.sleep(4)
        assert hold_off.delay_ns == 5 * SECOND
        await asyncio.sleep(2)
        assert hold_off.delay_ns == 1 * SECOND
    in_virtual_time(main)


async def test_a_free_lock_is_left_to_others_for_a_while(tmp_path: Path) -> None:
    """The same on a directory."""
    store, clock, hold_off = FileStore(tmp_path), ManualClock(), HoldOff(lambda: 5 * SECOND)
    waiting = asyncio.ensure_future(wait_for_lock(store, PATHS, clock=clock, hold_off=hold_off))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    hold_off.end()
    (await waiting).release()


async def sealed(shared: MemoryStore, clock: ManualClock, count: int) -> Position:
    """Return the position of the seal of an owner that has published and stopped cleanly."""
    a = Rig(shared, clock, "a", 1)
    await a.open()
    await Publisher(a, {}).publish_many(count)
    assert a.shard is not None
    end = await a.shard.close()
    await seal_at(a.store, PATHS, end, end.epoch, a.me, clock, a.rng)
    return end


def test_a_standby_that_is_told_of_the_seal_does_not_search_for_it() -> None:
    """The message comes while the standby is in the middle of a search, which then ends: one round of requests is left.
    """
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        end = await sealed(shared, clock, 40)
        b, told = Rig(shared, clock, "b", 2), HoldOff(lambda: NEVER_NS)
        b.store.faults = Faults(latency_ns=SECOND)
        counting = Counting(b.store)
        waiting = asyncio.ensure_future(wait_for_lease(counting, PATHS, b.me, clock, b.rng, T, hold_off=told))
        await asyncio.sleep(5.5)
        assert not waiting.done()
        counting.calls.clear()
        told.end(10, end)
        began_ns = clock.monotonic_ns()
        watched = await waiting
        assert clock.monotonic_ns() - began_ns < 1.1 * SECOND
        assert watched[:3] == (end.epoch, end.number, False)
        assert sorted(counting.calls) == [("get", PATHS.epoch(end.epoch + 1)), ("get", PATHS.log(end))]
    in_virtual_time(main)


@pytest.mark.parametrize("what", ["no seal", "the seal of another broker", "an epoch that is over", "no number"])
def test_a_standby_that_is_told_something_wrong_searches(what: str) -> None:
    """The message is only a hint: what is in the store counts."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        end = told_of = await sealed(shared, clock, 10)
        if what == "no seal":
            told_of = Position(end.epoch, end.number - 2)
        elif what == "no number":
            told_of = Position(1 << 40, 3)
        elif what == "the seal of another broker":
            c = Rig(shared, clock, "c", 3)
            await c.take_shard()
            told_of = Position(2, 1)
            await seal_at(c.store, PATHS, told_of, 3, c.me, clock, c.rng)
            end = told_of
        else:
            end = await sealed(shared, clock, 3)
        b, told = Rig(shared, clock, "b", 2), HoldOff()
        told.end(60, told_of)
        watched = await wait_for_lease(b.store, PATHS, b.me, clock, b.rng, T, hold_off=told)
        assert watched[:2] == end
        assert watched.silent is (what == "the seal of another broker")
    in_virtual_time(main)
