"""One lease for all shards of a process: what it costs, and that no two brokers ever answer for one shard.

Real owners of four shards run in virtual time on a store like S3.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

import pytest

from broker.cluster.heartbeat import Heartbeats
from broker.cluster.heartbeat_watch import HeartbeatWatch
from broker.cluster.identity import Identity
from broker.config.settings import StorageSettings
from broker.runtime.shard_set import ShardSet
from broker.runtime.store_host import StoreHost
from broker.storage.format.heartbeat import Heartbeat
from broker.storage.objectstore.base import Listing, StoreRefused, Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import HEARTBEATS, HeartbeatPaths, ShardPaths
from tests.runtime.brokers import Costly, Inline, TrustedClock, in_virtual_time
from tests.storage.objectstore.faulty import Faults, FaultyStore
from tests.storage.rig import MS, SECOND

SHARDS = 4
T = 15.0
HOUR = 3600


class CountingStore(Costly):
    """Counts requests by kind."""

    def __init__(self, shared: MemoryStore, seed: int) -> None:
        super().__init__(shared, 30 * MS, 0, seed)
        self.counts: Counter[str] = Counter()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.counts["get"] += 1
        return await super().get(key, start, end)

    async def put(self, key: str, data: object) -> None:
        self.counts["put"] += 1
        await super().put(key, data)  # type: ignore[arg-type]

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self.counts["list"] += 1
        return await super().list(prefix, after, limit)


class Process:
    """A process that takes all shards of a store."""

    def __init__(self, name: str, shared: MemoryStore, clock: TrustedClock, seed: int, shards: int = SHARDS) -> None:
        self.store = CountingStore(shared, seed)
        with patch("broker.runtime.store_host.open_store", lambda *_, **__: self.store):
            host = StoreHost(StorageSettings(url="s3://x/y", scrub_interval_ns=0, shards=shards), name,
                             clock, lambda: 1 << 20)  # type: ignore[arg-type]
        host.encoders = Inline()
        self.losses: list[BaseException] = []
        self.shards = ShardSet(host, self.losses.append)

    @property
    def answers(self) -> int:
        """The number of shards for which this process answers from memory."""
        return sum(owner.shard is not None and owner.shard.log.failure is None and not owner.shard.log.lease_expired
                   for owner in self.shards)


class QuietLog:
    """The log of a shard whose lease is renewed. Attributes: ``renewed``: how often."""

    epoch = 1
    quiet = True

    def __init__(self) -> None:
        self.renewed = 0

    def renew_lease(self, began_ns: int) -> None:
        self.renewed += 1


def two_answer(first: Process, second: Process) -> bool:
    """Return whether both processes answer for the same shard."""
    first_answers, second_answers = (
        {owner.number for owner in process.shards
         if owner.shard is not None and owner.shard.log.failure is None and not owner.shard.log.lease_expired}
        for process in (first, second))
    return bool(first_answers & second_answers)


def heartbeats(shared: MemoryStore) -> int:
    return sum(key.startswith(HEARTBEATS) for key in shared.objects)


@pytest.mark.parametrize("shards", [2, 8])
def test_idle_shards_cost_one_heartbeat(shards: int) -> None:
    """However many shards a process has, it puts one object each T/3, and a standby asks for it twice."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Process("a", shared, clock, 1, shards)
        await owner.shards.acquire()
        standby = Process("b", shared, clock, 2, shards)
        taking = asyncio.create_task(standby.shards.acquire())
        await asyncio.sleep(60)
        owner.store.counts.clear()
        standby.store.counts.clear()
        await asyncio.sleep(HOUR)
        beats = HOUR / (T / 3)
        assert beats * 0.95 <= owner.store.counts["put"] <= beats * 1.02
        assert owner.store.counts["get"] <= shards * beats * 1.02
        assert owner.store.counts["list"] < 5 * shards  # the search for orphans after a start
        assert standby.store.counts["put"] == standby.store.counts["list"] == 0
        assert standby.store.counts["get"] <= 2.1 * beats + 3.2 * shards * HOUR / T
        assert owner.answers == shards
        assert heartbeats(shared) < 10
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)

    in_virtual_time(main)


@pytest.mark.parametrize("killed_after_s", [60.0, 61.3, 62.7, 64.1])
def test_a_dead_process_is_replaced_within_a_second_after_t(killed_after_s: float) -> None:
    """A standby takes all shards of the dead process, not before T after its last heartbeat and within a second of
    that. It deletes the heartbeats that the dead process left."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(killed_after_s)
        first.store.halt()
        died_ns = clock.monotonic_ns()
        await taking
        assert T - 5 < (clock.monotonic_ns() - died_ns) / SECOND < T + 1
        assert second.answers == SHARDS
        assert heartbeats(shared) <= 1
        await first.shards.abandon()

    in_virtual_time(main)


def test_a_clean_stop_frees_all_shards_soon() -> None:
    """The last heartbeat says that the process owns nothing: a standby that polls the logs each T finds it in T/3."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        await first.shards.give_back()
        began_ns = clock.monotonic_ns()
        await taking
        assert (clock.monotonic_ns() - began_ns) / SECOND < T / 3 + 1

    in_virtual_time(main)


@pytest.mark.parametrize("ends", ["stopped", "killed, and started again under its name"])
def test_heartbeats_of_ended_processes_are_deleted(ends: str) -> None:
    """Each process that ends leaves its newest heartbeats. One that lives for two leases deletes them all."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        for seed in range(1, 4):
            process = Process("a", shared, clock, seed)
            await process.shards.acquire()
            await asyncio.sleep(20)
            if ends == "stopped":
                await process.shards.give_back()
            else:
                process.store.halt()
                await process.shards.abandon()
        assert heartbeats(shared) > 10
        last = Process("a", shared, clock, 4)
        await last.shards.acquire()
        await asyncio.sleep(2 * T + T / 2)
        assert heartbeats(shared) < 10
        assert last.answers == SHARDS

    in_virtual_time(main)


@pytest.mark.parametrize("paused_s", [10.0, 14.8, 15.3, 16.0, 17.0, 40.0])
def test_a_process_that_was_paused_never_answers_beside_its_successor(paused_s: float) -> None:
    """The store answers nothing that an owner asks for a while. Whenever it wakes up, no shard has two that answer."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        awake = asyncio.Event()

        async def pause(operation: str, key: str) -> None:
            await awake.wait()

        first.store.before = pause
        for step in range(600):
            if step * 0.1 >= paused_s:
                awake.set()
            await asyncio.sleep(0.1)
            served = {owner.number for owner in second.shards
                      if owner.shard is not None and not owner.shard.log.lease_expired} if taking.done() else set()
            for owner in first.shards:
                if owner.shard is not None and owner.shard.log.failure is None and not owner.shard.log.lease_expired:
                    assert owner.number not in served
        assert (first.answers, second.answers) in ((SHARDS, 0), (0, SHARDS))
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking

    in_virtual_time(main)


def test_one_shard_that_is_taken_by_mistake_is_given_up() -> None:
    """Another process claims one shard of a live owner: the owner keeps the others, and stops answering for that one
    within the lease, though it goes on putting heartbeats."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        await asyncio.sleep(60)
        await second.shards.first._take_and_recover(None)
        await asyncio.sleep(T)
        assert first.answers == SHARDS - 1
        assert len(first.losses) == 1

    in_virtual_time(main)


def test_a_failing_store_ends_the_lease() -> None:
    """While no heartbeat can be put, no shard is answered for after T; afterwards all are, without a loss."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first = Process("a", shared, clock, 1)
        await first.shards.acquire()
        await asyncio.sleep(60)
        fails = True

        async def fail(operation: str, key: str) -> None:
            if fails:
                raise Transient("503 Slow Down")

        first.store.before = fail
        await asyncio.sleep(T + 0.1)
        assert first.answers == 0
        await asyncio.sleep(60)
        fails = False
        await asyncio.sleep(T)
        assert (first.answers, first.losses) == (SHARDS, [])

    in_virtual_time(main)


@pytest.mark.parametrize("killed_after_s", [63.0, 69.0])
def test_a_busy_process_that_dies_is_replaced_as_soon(killed_after_s: float) -> None:
    """A standby finds what it committed last within T/6, so it does not wait for another T."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        for _ in range(int(killed_after_s * 2)):
            for owner in first.shards:
                assert owner.shard is not None
                owner.shard.log._cut(heartbeat=True)
                owner.shard.log.schedule_commit()
            await asyncio.sleep(0.5)
        first.store.halt()
        died_ns = clock.monotonic_ns()
        await taking
        assert (clock.monotonic_ns() - died_ns) / SECOND < T + T / 6 + 2
        await first.shards.abandon()

    in_virtual_time(main)


def test_heartbeats_that_cannot_be_deleted_delay_no_take_over() -> None:
    """The store refuses to delete a dead process's heartbeats: they are garbage, and all shards are taken in time."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)

        async def refuse(operation: str, key: str) -> None:
            if operation == "delete":
                raise StoreRefused("403 Access Denied")

        second.store.before = refuse
        first.store.halt()
        died_ns = clock.monotonic_ns()
        await taking
        assert (clock.monotonic_ns() - died_ns) / SECOND < T + 1
        await first.shards.abandon()

    in_virtual_time(main)


def test_a_clean_stop_during_a_heartbeat_frees_all_shards_soon() -> None:
    """A heartbeat is stored and not answered yet when the process stops: its last one gets the next number."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        stored = asyncio.Event()

        async def stall(operation: str, key: str) -> None:
            if operation == "put" and key.startswith(HEARTBEATS) and not stored.is_set():
                stored.set()
                await asyncio.Event().wait()

        first.store.after = stall
        await stored.wait()
        await first.shards.give_back()
        began_ns = clock.monotonic_ns()
        await taking
        assert (clock.monotonic_ns() - began_ns) / SECOND < T / 3 + 1

    in_virtual_time(main)


@pytest.mark.parametrize("standby_from_s", [1, 4])
def test_a_heartbeat_whose_answer_is_lost_proves_nothing_later(standby_from_s: int) -> None:
    """The put is tried again after five seconds, finds itself, and the process is cut off: a standby, which counts from
    the first try, takes its shards and never answers beside it."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        first.store.faults = second.store.faults = Faults(latency_ns=MS)
        await first.shards.acquire()
        await asyncio.sleep(standby_from_s)
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        lost_ns: list[int] = []

        async def lose(operation: str, key: str) -> None:
            if operation == "put" and key.startswith(HEARTBEATS) and not lost_ns:
                lost_ns.append(clock.monotonic_ns())
                await asyncio.sleep(4.9)
                raise Transient("no answer")

        async def cut_off(operation: str, key: str) -> None:
            if lost_ns and clock.monotonic_ns() - lost_ns[0] > 6.5 * SECOND:
                await asyncio.Event().wait()

        first.store.before, first.store.after = cut_off, lose
        for _ in range(1500):
            await asyncio.sleep(0.02)
            assert not two_answer(first, second)
        assert (first.answers, second.answers) == (0, SHARDS)
        await taking
        await first.shards.abandon()

    in_virtual_time(main)


def test_a_heartbeat_counts_from_the_answer_that_shows_it() -> None:
    """A question takes four seconds, and finds a heartbeat that began after it: the lease runs from then."""
    async def main(clock: TrustedClock) -> None:
        store, run_id = Costly(MemoryStore(), 30 * MS, 0, 1), b"r" * 16
        paths = HeartbeatPaths(run_id)

        async def put(number: int) -> None:
            await store.put(paths.heartbeat(number), [Heartbeat(run_id, number, "a", clock.now_ns()).encode()])

        async def hang(operation: str, key: str) -> None:
            if operation == "get" and key == paths.heartbeat(2):
                await asyncio.sleep(4)

        await put(1)
        watch = HeartbeatWatch(store, clock, random.Random(1), int(T * SECOND))  # type: ignore[arg-type]
        store.before = hang
        followed = await watch.follow(run_id, lambda: None)
        assert followed is not None
        await asyncio.sleep(3)
        began_ns = clock.monotonic_ns()
        await put(2)
        while followed.number < 2:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.1)
        assert followed.seen_at_ns > began_ns
        watch_task = followed.task
        assert watch_task is not None
        watch_task.cancel()
        await asyncio.gather(watch_task, return_exceptions=True)

    in_virtual_time(main)


@pytest.mark.parametrize("moment", ["last look", "deletion"])
def test_a_process_that_is_heard_of_again_during_a_take_over(moment: str) -> None:
    """It puts one heartbeat, which renews the leases of the shards that are not claimed yet: while a standby looks for
    the last time before it takes a shard; or when the taker of shard 0 deletes what the silent process left."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second = Process("a", shared, clock, 1), Process("b", shared, clock, 2)
        await first.shards.acquire()
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        connected, beaten, heard = False, False, asyncio.Event()
        lists = 0

        async def cut_off(operation: str, key: str) -> None:
            nonlocal beaten
            if not connected or "/log/" in key or (beaten and operation == "put"):
                raise Transient("no answer")
            beaten = beaten or operation == "put"

        async def delay(operation: str, key: str) -> None:
            nonlocal connected, lists
            if moment == "last look":
                now = operation == "list" and key.endswith("/checkpoint/")
            else:  # the second list of heartbeats after the opening of shard 0
                now = (operation == "list" and key.startswith(HEARTBEATS)
                       and "v1/shards/0/log/00000002-000000000000" in shared.objects)
                lists += now
                now = now and lists == 2
            if now and not connected:
                connected = True
                await asyncio.sleep(T / 3 + T / 6 + 0.5)
                heard.set()
            elif now:
                await heard.wait()

        first.store.before, second.store.before = cut_off, delay
        for _ in range(500):
            await asyncio.sleep(0.1)
            assert not two_answer(first, second)
        assert beaten
        await taking
        assert second.answers == SHARDS
        await first.shards.abandon()

    in_virtual_time(main)


def test_a_shard_that_is_lost_while_the_last_heartbeat_is_put() -> None:
    """A process gives its last shard away, has one again, and loses it, all while the put of the last heartbeat hangs.
    With the next shard it puts heartbeats as ever.
    """
    async def main(clock: TrustedClock) -> None:
        store = FaultyStore(MemoryStore(), rng=random.Random(1))
        beats = Heartbeats(store, Identity("a", b"n" * 16), clock, random.Random(1), int(T * SECOND), always=True)
        logs = [QuietLog() for _ in range(3)]
        beats.add(logs[0], ShardPaths(0))
        await asyncio.sleep(6)
        answered = asyncio.Event()

        async def hang(operation: str, key: str) -> None:
            if operation == "put":
                await answered.wait()

        store.before = hang
        await beats.remove(logs[0], sealed=True)
        await asyncio.sleep(1)
        beats.add(logs[1], ShardPaths(1))
        await asyncio.sleep(1)
        await beats.remove(logs[1], sealed=False)
        answered.set()
        await asyncio.sleep(1)
        beats.add(logs[2], ShardPaths(2))
        await asyncio.sleep(4 * T)
        assert logs[2].renewed >= 4
        await beats.remove(logs[2], sealed=False)
        await beats.close()

    in_virtual_time(main)
