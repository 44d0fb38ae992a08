"""Past the lease nothing is answered until a put has proved ownership of the shard; that put is never held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.base.clock import GuardedClock
from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.format.header import Position
from broker.storage.log.heartbeat import RecoveryHeartbeat
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import Fenced
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, SECOND, Publisher, Rig, Stream, in_virtual_time

T = 15 * SECOND


async def opened(clock: ManualClock, **log: Any) -> tuple[Rig, Stream]:
    rig = Rig(MemoryStore(), clock, faults=Faults(latency_ns=10 * MS), settings=ShardSettings(
        log=LogSettings(**{"lease_ns": T, "put_timeout_ns": 5 * SECOND, **log})))
    await rig.open()
    stream = Stream(rig.log)
    stream.create()
    await rig.log.persisted()
    return rig, stream


def stopped(clock: ManualClock, seconds: int) -> None:
    """The process is stopped for that long, and resumes where it was interrupted."""
    clock.advance(seconds * SECOND)


def test_an_idle_owner_that_was_stopped_answers_after_a_put() -> None:
    """In the order requested, batched answers included, and no later than that put takes."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        log, told = rig.log, []
        log.wait(told.append, 0)
        assert told == [0], "what is persisted is answered at once"
        stopped(clock, 60)
        before = log.position
        log.wait(told.append, 1)
        log.wait_batched(told.extend, 2, 3)
        log.wait_batched(told.extend, 4)
        log.wait(told.append, 5)
        assert told == [0]
        began_ns = clock.monotonic_ns()
        await log.persisted()
        assert told == [0, 1, 2, 3, 4, 5]
        assert clock.monotonic_ns() - began_ns <= 11 * MS
        assert log.position == Position(1, before.number + 1)
        assert log.waiting_bytes == 0
        log.wait(told.append, 6)
        assert told[-1] == 6
    in_virtual_time(main)


def test_a_reader_past_the_lease_asks_for_the_put_that_renews_it() -> None:
    """It need not wait for the next heartbeat, whose timer stood still with the machine. One put is enough for all readers."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        log = rig.log
        assert log.lease_held()
        stopped(clock, 60)
        before = log.position
        began_ns = clock.monotonic_ns()
        assert not any(log.lease_held() for _ in range(3))
        while log.lease_expired:
            await asyncio.sleep(0.001)
            log.lease_held()
        assert clock.monotonic_ns() - began_ns <= 12 * MS
        await asyncio.sleep(1)
        assert log.position == Position(1, before.number + 1)
    in_virtual_time(main)


def test_a_pause_that_only_the_wall_clock_shows_ends_the_lease() -> None:
    """A virtual machine is paused with all its clocks, and then its wall clock is set."""
    async def main(clock: ManualClock) -> None:
        guarded = GuardedClock(clock.now_ns, clock.monotonic_ns)
        rig = Rig(MemoryStore(), clock, faults=Faults(latency_ns=10 * MS), settings=ShardSettings(
            log=LogSettings(lease_ns=T, put_timeout_ns=5 * SECOND)))
        rig.clock = guarded  # type: ignore[assignment]
        await rig.open()
        log = rig.log
        assert not log.lease_expired
        clock.leap(60 * SECOND)
        assert log.lease_expired
        await log.persisted()
        assert not log.lease_expired, "a put that began since then proves the lease"
    in_virtual_time(main)


def test_what_lands_behind_a_put_that_did_not_proves_nothing() -> None:
    """Number 2 hangs, 3 lands past the lease: it may lie beyond a seal. When 2 has landed, both of them count."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, puts_in_flight=2, commit_interval_ns=20 * MS, put_timeout_ns=None)
        log = rig.log
        stall = rig.store.stall_put(rig.store.puts)
        stream.publish()
        await stall.reached.wait()
        stopped(clock, 14)
        stream.publish()
        behind = PATHS.log(Position(1, log.position.number + 2))
        await asyncio.sleep(2)
        assert behind in rig.shared.objects  # type: ignore[attr-defined]
        assert log.lease_expired
        stall.release()
        await log.persisted()
        assert not log.lease_expired
    in_virtual_time(main)


def test_a_fenced_owner_that_was_stopped_answers_nothing() -> None:
    """The put that was to prove ownership meets the other owner's seal."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        told: list[int] = []
        stall = rig.store.stall_put(rig.store.puts)
        stopped(clock, 60)
        await Rig(rig.shared, clock, "b", 2).take()
        rig.log.wait(told.append, 1)
        stall.release()
        with pytest.raises(Fenced):
            await rig.log.persisted()
        await asyncio.sleep(60)
        assert told == []
    in_virtual_time(main)


def test_a_put_from_before_the_stop_proves_nothing_after_it() -> None:
    """A segment lands, the process is stopped before it gets the result, and wakes. Decisions made then wait for that
    segment, which proves ownership only as of a minute ago: they are answered after the next put."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, put_timeout_ns=None)
        told: list[str] = []
        stream.publish()
        await asyncio.sleep(0.006)  # it has landed, and the answer is on its way
        stopped(clock, 60)
        rig.log.wait(told.append, "stale")
        before = rig.log.position
        await asyncio.sleep(0.005)
        assert rig.log.position > before
        assert told == []
        rig.log.wait(told.append, "later")
        await rig.log.persisted()
        assert told == ["stale", "later"]
    in_virtual_time(main)


def test_without_a_lease_a_stopped_owner_answers_at_once() -> None:
    """Its lock is held as long as the process lives."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock, lease_ns=None)
        stopped(clock, 60)
        told: list[int] = []
        rig.log.wait(told.append, 1)
        assert told == [1]
    in_virtual_time(main)


def test_commits_that_wait_for_a_checkpoint_do_not_end_the_lease() -> None:
    """No page lands for ten minutes, so commits are held; one goes out each T/3 all the same, and no standby takes over."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=ShardSettings(
            log=LogSettings(lease_ns=T), checkpoint=CheckpointSettings(segments=5)))
        shard = await rig.open()
        acked: dict[int, bytes] = {}
        client = Publisher(rig, acked)

        async def no_pages(operation: str, key: str) -> None:
            if operation == "put" and "/pages/" in key:
                raise Transient("busy")

        rig.store.before = no_pages
        work = asyncio.ensure_future(client.publish_many(200))
        for _ in range(600):
            await asyncio.sleep(1)
            assert not shard.log.lease_expired
        assert not work.done()
        assert len(acked) <= 20 + 600 / 5
        rig.store.before = None
        await work
        assert len(acked) == 200
    in_virtual_time(main)


def test_signs_of_life_come_each_third_of_the_lease_until_the_work_is_done() -> None:
    """And the number of the last is known when ``beside`` returns, however long its put takes."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock, faults=Faults(latency_ns=10 * MS))
        taken = await rig.take()
        heartbeat = RecoveryHeartbeat(rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng, LogSettings(lease_ns=T),
                      taken.began_ns)
        assert await heartbeat.renew_during(asyncio.sleep(62, "done")) == "done"
        assert heartbeat.position == Position(1, 12) == rig.log_keys()[-1]
        assert clock.monotonic_ns() - heartbeat.proved_ns <= T // 3
        stall = rig.store.stall_put(rig.store.puts)
        beside = asyncio.ensure_future(RecoveryHeartbeat(rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng,
                                             LogSettings(lease_ns=T), taken.began_ns - T).renew_during(asyncio.sleep(1)))
        await asyncio.sleep(4)
        assert not beside.done()
        stall.release()
        await beside
    in_virtual_time(main)


def test_an_owner_sealed_while_it_recovers_is_told_at_once_and_by_whom() -> None:
    """It does not replay to the end of a shard that another broker owns by now."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock, "a", settings=ShardSettings(log=LogSettings(lease_ns=T)))
        taken = await rig.take()
        heartbeat = RecoveryHeartbeat(rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng, LogSettings(lease_ns=T),
                      taken.began_ns)
        beside = asyncio.ensure_future(heartbeat.renew_during(asyncio.sleep(3600)))
        await asyncio.sleep(1)
        await Rig(rig.shared, clock, "b", 2).take()
        began_ns = clock.monotonic_ns()
        with pytest.raises(Fenced) as fenced:
            await beside
        assert fenced.value.by == "b"
        assert clock.monotonic_ns() - began_ns <= T // 3 + SECOND
    in_virtual_time(main)
