"""An expired lease: nothing is answered until a put has proved ownership; nothing delays that put."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.base.clock import GuardedClock
from broker.storage.checkpoint.settings import CheckpointSettings
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
    """Stop the process for that long; it resumes where it was interrupted."""
    clock.advance(seconds * SECOND)


def test_an_idle_owner_that_was_stopped_answers_after_a_put() -> None:
    """Shows that calls are answered in order, including batched ones, and as soon as that put is stored."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        log, answered = rig.log, []
        log.wait(answered.append, 0)
        assert answered == [0], "a call that depends on persisted state only is answered at once"
        stopped(clock, 60)
        before = log.position
        log.wait(answered.append, 1)
        log.wait_batched(answered.extend, 2, 3)
        log.wait_batched(answered.extend, 4)
        log.wait(answered.append, 5)
        assert answered == [0]
        began_ns = clock.monotonic_ns()
        await log.persisted()
        assert answered == [0, 1, 2, 3, 4, 5]
        assert clock.monotonic_ns() - began_ns <= 11 * MS
        assert log.position == Position(1, before.number + 1)
        assert log.waiting_bytes == 0
        log.wait(answered.append, 6)
        assert answered[-1] == 6
    in_virtual_time(main)


def test_a_reader_after_the_lease_requests_the_put_that_renews_it() -> None:
    """Shows that it need not wait for the next heartbeat, whose timer stopped with the machine, and that one put is
    enough for all readers."""
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
    """Shows it for a virtual machine that is paused with all its clocks, after which its wall clock is set."""
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


def test_a_put_after_one_that_is_not_stored_proves_nothing() -> None:
    """Number 2 hangs, 3 is stored after the lease: it may be after a seal. When 2 is stored, both of them count."""
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
    """Shows that the put that was to prove ownership finds the other owner's seal."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        answered: list[int] = []
        stall = rig.store.stall_put(rig.store.puts)
        stopped(clock, 60)
        await Rig(rig.shared, clock, "b", 2).take_shard()
        rig.log.wait(answered.append, 1)
        stall.release()
        with pytest.raises(Fenced):
            await rig.log.persisted()
        await asyncio.sleep(60)
        assert answered == []
    in_virtual_time(main)


def test_a_put_from_before_the_stop_proves_nothing_after_it() -> None:
    """A segment is stored, and the process is stopped before it gets the result. Decisions after it resumes wait for
    that segment, which proves ownership only as of a minute ago. So they are answered after the next put."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, put_timeout_ns=None)
        answered: list[str] = []
        stream.publish()
        await asyncio.sleep(0.006)  # it is stored, and the answer is on its way
        stopped(clock, 60)
        rig.log.wait(answered.append, "stale")
        before = rig.log.position
        await asyncio.sleep(0.005)
        assert rig.log.position > before
        assert answered == []
        rig.log.wait(answered.append, "later")
        await rig.log.persisted()
        assert answered == ["stale", "later"]
    in_virtual_time(main)


def test_without_a_lease_a_stopped_owner_answers_at_once() -> None:
    """Shows that no proof is needed: its lock is held as long as the process lives."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock, lease_ns=None)
        stopped(clock, 60)
        answered: list[int] = []
        rig.log.wait(answered.append, 1)
        assert answered == [1]
    in_virtual_time(main)


def test_commits_that_wait_for_a_checkpoint_do_not_end_the_lease() -> None:
    """No page is stored for ten minutes, so commits are held. One is put each T/3; no standby takes over."""
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


def test_heartbeats_are_put_each_third_of_the_lease_until_the_work_is_done() -> None:
    """Shows also that the number of the last is known when ``renew_during`` returns, however long its put takes."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock, faults=Faults(latency_ns=10 * MS))
        taken = await rig.take_shard()
        heartbeat = RecoveryHeartbeat(rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng,
                                      LogSettings(lease_ns=T), taken.began_ns)
        assert await heartbeat.renew_during(asyncio.sleep(62, "done")) == "done"
        assert heartbeat.position == Position(1, 12) == rig.log_keys()[-1]
        assert clock.monotonic_ns() - heartbeat.proved_ns <= T // 3
        stall = rig.store.stall_put(rig.store.puts)
        renewal = asyncio.ensure_future(RecoveryHeartbeat(
            rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng, LogSettings(lease_ns=T),
            taken.began_ns - T).renew_during(asyncio.sleep(1)))
        await asyncio.sleep(4)
        assert not renewal.done()
        stall.release()
        await renewal
    in_virtual_time(main)


def test_an_owner_that_is_sealed_during_recovery_stops_at_once_and_knows_the_sealer() -> None:
    """Shows that it does not replay a shard to the end that another broker owns by then."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock, "a", settings=ShardSettings(log=LogSettings(lease_ns=T)))
        taken = await rig.take_shard()
        heartbeat = RecoveryHeartbeat(rig.store, PATHS.log, taken.epoch, rig.me.nonce, clock, rig.rng,
                                      LogSettings(lease_ns=T), taken.began_ns)
        renewal = asyncio.ensure_future(heartbeat.renew_during(asyncio.sleep(3600)))
        await asyncio.sleep(1)
        await Rig(rig.shared, clock, "b", 2).take_shard()
        began_ns = clock.monotonic_ns()
        with pytest.raises(Fenced) as fenced:
            await renewal
        assert fenced.value.by == "b"
        assert clock.monotonic_ns() - began_ns <= T // 3 + SECOND
    in_virtual_time(main)
