"""A live broker on a live store serves again within a stated time, for a log of any length.

The numbers of claims and objects do not grow with the log. The real shard owner runs in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from broker.base.errors import StartError
from broker.storage.format.claim import Claim
from broker.storage.format.header import Position
from broker.storage.objectstore.base import StoreRefused, Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import Fenced
from broker.storage.shard import Shard
from tests.runtime.brokers import Broker, TrustedClock, grow_log, in_virtual_time, log_size
from tests.storage.rig import MS, PATHS, SECOND, Stream

T = 15.0
"""The lease in seconds."""
BARE = 1.5
"""The seconds of a take-over with a short log, at 30 ms for a call."""


def epochs(shared: MemoryStore) -> int:
    return sum("/epochs/" in key for key in shared.objects)


async def long_log(shared: MemoryStore, clock: TrustedClock, count: int) -> None:
    """Make a store whose owner of epoch 1 is dead, and left ``count`` segments that no checkpoint covers."""
    dead = Broker("dead", shared, clock)
    await dead.serving(BARE)
    shard = dead.shard_owner.shard
    assert shard is not None
    await dead.kill()
    grow_log(shared, 1, shard.log.position.number + 1, count, shard.log.nonce)


def test_an_idle_owner_keeps_few_objects_and_is_replaced_in_time() -> None:
    """Six hours of heartbeats cause checkpoint rounds, too. Then the owner is killed, and one of two standbys takes
    over and keeps the shard."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("a", shared, clock)
        for _ in range(6):
            await asyncio.sleep(3600)
            # What rounds release stays for readers, by default for ten minutes: about a hundred heartbeats.
            assert log_size(shared) < 400
            assert len(shared.objects) < 420
        await owner.kill()
        b, c = Broker("b", shared, clock, seed=2), Broker("c", shared, clock, seed=3)
        await asyncio.sleep(T + T / 6 + BARE)
        assert b.serves != c.serves
        tenures = len(b.served_since_ns) + len(c.served_since_ns)
        await asyncio.sleep(600)
        assert len(b.served_since_ns) + len(c.served_since_ns) == tenures == 1
        assert epochs(shared) <= 3
    in_virtual_time(main)


def test_the_same_name_takes_over_at_once_after_idle_days() -> None:
    """A supervised restart does not wait for T."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("a", shared, clock)
        await asyncio.sleep(2 * 3600)
        await owner.kill()
        assert await Broker("a", shared, clock, seed=2).serving(BARE) < BARE
        assert epochs(shared) == 2
    in_virtual_time(main)


def test_a_recovery_that_outlasts_the_lease_is_left_alone() -> None:
    """4000 segments, replayed at a second for each 32, take two minutes. Two standbys wait meanwhile, and neither takes
    over, because the taker sends heartbeats; when it serves in the end, its lease is fresh."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 4000)
        taker = Broker("taker", shared, clock, latency_ns=SECOND, seed=2)
        await asyncio.sleep(60)
        others = [Broker(f"other {i}", shared, clock, seed=3 + i) for i in range(2)]
        await taker.serving(300)
        assert not any(other.served_since_ns or other.losses for other in others)
        assert epochs(shared) == 2
        shard = taker.shard_owner.shard
        assert shard is not None
        assert shard.recovered.objects > 4000
        await asyncio.sleep(900)
        assert taker.serves
        assert not any(other.served_since_ns for other in others)
    in_virtual_time(main)


def test_from_the_claim_to_the_opening_the_length_of_the_log_does_not_count() -> None:
    """The taker sends no heartbeats before its opening, so the end is found in a few round trips, and epochs are sealed
    concurrently."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 10_000)
        claimed_ns: list[int] = []
        opened_ns: list[int] = []
        taker = Broker("b", shared, clock, latency_ns=300 * MS, seed=2)

        async def note(operation: str, key: str) -> None:
            if operation == "put" and key == PATHS.epoch(2):
                claimed_ns.append(clock.monotonic_ns())
            elif operation == "put" and key == PATHS.log(Position(2, 0)):
                opened_ns.append(clock.monotonic_ns())

        taker.store.before = note
        await taker.serving(900)
        assert opened_ns[0] - claimed_ns[0] < 5 * SECOND
    in_virtual_time(main)


def test_a_taker_that_keeps_losing_waits_longer() -> None:
    """One of two takers succeeds in the end, though both are so slow that each fences the other after its claim."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 10)
        slow = [Broker(f"slow {i}", shared, clock, latency_ns=4 * SECOND, seed=2 + i) for i in range(2)]
        await asyncio.sleep(900)
        assert sum(broker.serves for broker in slow) == 1
        before = epochs(shared)
        await asyncio.sleep(900)
        assert epochs(shared) == before <= 8
    in_virtual_time(main)


@pytest.mark.parametrize("operation", ["get", "list", "put"])
@pytest.mark.parametrize("error", [Transient, StoreRefused])
def test_store_errors_while_taking_over_do_not_end_a_standby(operation: str, error: type[Exception]) -> None:
    """If the store fails for five minutes during a take-over, the standby logs that, waits, and takes over
    afterwards."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("a", shared, clock)
        await owner.serving(BARE)
        standby = Broker("b", shared, clock, seed=2)
        await asyncio.sleep(60)
        await owner.kill()
        down = False

        async def fail(called: str, key: str) -> None:
            nonlocal down
            down = down or (called == "put" and key == PATHS.epoch(2))
            if down and called == operation:
                raise error(f"{called} {key}: injected")

        standby.store.before = fail
        await asyncio.sleep(300)
        assert not standby.served_since_ns
        assert standby.error is None
        standby.store.before = None
        await standby.serving(T + 45 + BARE)
        assert epochs(shared) < 40
    in_virtual_time(main)


def test_two_brokers_without_names_are_owner_and_standby() -> None:
    """Two brokers without server_name on one host and store have different names, so one waits for the other."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        one = Broker(None, shared, clock)
        await one.serving(BARE)
        two = Broker(None, shared, clock, seed=2)
        await asyncio.sleep(200)
        assert one.serves
        assert two.shard_owner.standby
        assert not one.losses
        assert epochs(shared) == 1
    in_virtual_time(main)


def test_of_two_brokers_with_one_name_one_serves() -> None:
    """The second takes over as a restart would, even in the middle of a long recovery; the first one ends and logs
    why."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 6000)
        one = Broker("same", shared, clock, latency_ns=300 * MS, seed=2)
        await asyncio.sleep(40)
        assert one.shard_owner.shard is None
        two = Broker("same", shared, clock, latency_ns=300 * MS, seed=3)
        await two.serving(600)
        assert isinstance(one.error, StartError)
        assert "two copies of one configuration" in str(one.error)
        assert epochs(shared) == 3
    in_virtual_time(main)


def test_a_port_that_is_taken_leaves_the_shard_alone() -> None:
    """If ``before_claim`` fails, there is no claim and no seal, and the owner continues to serve."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        one = Broker("same", shared, clock)
        await one.serving(BARE)

        async def refuse() -> None:
            raise StartError("the port is taken")

        two = Broker("same", shared, clock, seed=2, before_claim=refuse)
        await asyncio.sleep(60)
        assert str(two.error) == "the port is taken"
        assert one.serves
        assert epochs(shared) == 1
    in_virtual_time(main)


def test_a_shard_that_was_swept_while_it_was_recovered_is_lost_not_damaged() -> None:
    """A taker freezes in its recovery; the next one replays, checkpoints and sweeps everything that the first still
    needs. When the first wakes, missing objects do not end it: it becomes a standby."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 400)
        frozen = Broker("frozen", shared, clock, seed=2)
        reached, wakes = asyncio.Event(), asyncio.Event()

        async def freeze(operation: str, key: str) -> None:
            if (operation == "get" and key == PATHS.log(Position(1, 200))) or reached.is_set():
                reached.set()
                await wakes.wait()

        frozen.store.before = freeze
        await reached.wait()
        other = Broker("other", shared, clock, seed=3)
        await other.serving(2 * T)
        await asyncio.sleep(3600)
        assert PATHS.log(Position(1, 200)) not in shared.objects
        frozen.store.before = None
        wakes.set()
        await asyncio.sleep(120)
        assert frozen.error is None
        assert frozen.shard_owner.standby
        assert other.serves
    in_virtual_time(main)


def test_looking_for_orphans_delays_no_commit() -> None:
    """100 000 objects, 2 s for each thousand listed, take minutes. Meanwhile commits continue, rounds are cut, and a
    standby sees nothing but a live owner."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        await long_log(shared, clock, 0)
        first = Broker("first", shared, clock, seed=2)
        await first.serving(T + T)
        assert first.shard_owner.shard is not None
        position = first.shard_owner.shard.log.position
        await first.stop()
        grow_log(shared, 1, 1 << 20, 100_000, bytes(16))  # beyond its end: orphans
        assert position.epoch == 2
        worst_ns = 0

        async def publish(shard: Shard) -> None:
            nonlocal worst_ns
            stream = Stream(shard.log)
            stream.create()
            while True:
                began_ns = clock.monotonic_ns()
                stream.publish()
                await shard.log.persisted()
                worst_ns = max(worst_ns, clock.monotonic_ns() - began_ns)
                await asyncio.sleep(0.05)

        owner = Broker("b", shared, clock, latency_ns=5 * MS, page_ns=2 * SECOND, seed=3)
        owner.serve = publish
        await owner.serving(BARE)
        standby = Broker("c", shared, clock, latency_ns=5 * MS, seed=4)
        await asyncio.sleep(200)
        assert owner.shard_owner.shard is not None
        assert owner.shard_owner.shard.checkpointer.rounds > 5
        assert worst_ns < SECOND
        assert log_size(shared) > 100_000
        assert owner.serves
        assert not standby.served_since_ns
        assert not any(isinstance(loss, Fenced) for loss in owner.losses)
    in_virtual_time(main)


async def never_two(*brokers: Broker) -> None:
    """Fail if two brokers may answer from memory at the same time."""
    while True:
        serving = [broker.store_host.identity.name for broker in brokers if broker.serves]
        assert len(serving) < 2, f"{serving} all answer"
        await asyncio.sleep(0.05)


async def for_a_while(seconds: float, *brokers: Broker) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await never_two(*brokers)


def frozen_at(broker: Broker, operation: str, key: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Block all calls of ``broker`` from this call on; return an event for the begin, and one that ends the block."""
    reached, wakes = asyncio.Event(), asyncio.Event()

    async def freeze(called: str, about: str) -> None:
        if reached.is_set() or (called, about) == (operation, key):
            reached.set()
            await wakes.wait()

    broker.store.before = freeze
    return reached, wakes


@pytest.mark.parametrize("operation", ["list", "put"])
def test_an_empty_store_claimed_by_another_broker_is_waited_for(operation: str) -> None:
    """Two brokers find an empty store, and one claims it. The other, which was slow before its claim, deposes
    nobody."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        late = Broker("late", shared, clock, seed=2)
        reached, wakes = frozen_at(late, operation, PATHS.epochs if operation == "list" else PATHS.epoch(1))
        if operation == "list":
            late.store.before, freeze = None, late.store.before
            listed = 0

            async def second(called: str, about: str) -> None:
                nonlocal listed
                listed += (called, about) == ("list", PATHS.epochs)
                if listed > 1 and freeze is not None:  # the first is the wait's
                    await freeze(called, about)

            late.store.before = second
        await reached.wait()
        owner = Broker("owner", shared, clock)
        await owner.serving(BARE)
        await asyncio.sleep(1)
        wakes.set()
        await for_a_while(100, owner, late)
        assert owner.serves
        assert late.shard_owner.standby
        assert epochs(shared) == 1
    in_virtual_time(main)


def test_the_lease_of_an_owner_that_woke_after_the_last_look_is_waited_out() -> None:
    """An owner was silent for T, so the standby takes over. Between the last poll and the seal, one of the owner's puts
    is stored and renews its lease. The owner may answer from memory until the lease ends, so the taker, which sends
    heartbeats meanwhile, serves only after that."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("owner", shared, clock)
        await owner.serving(BARE)
        taker = Broker("taker", shared, clock, seed=2)
        sealing, seals = frozen_at(taker, "put", PATHS.epoch(2))
        paused, wakes = asyncio.Event(), asyncio.Event()

        async def pause(called: str, about: str) -> None:
            paused.set()
            await wakes.wait()

        await asyncio.sleep(7)
        owner.store.before = pause
        await sealing.wait()
        assert paused.is_set()
        assert not owner.serves
        shard = owner.shard_owner.shard
        assert shard is not None
        wakes.set()
        await shard.log.persisted()  # a put that began after it woke is stored
        wakes.clear()  # its later puts get no answer
        assert owner.serves
        woke_ns = clock.monotonic_ns()
        seals.set()
        third = Broker("third", shared, clock, seed=3)
        await for_a_while(2 * T, owner, taker, third)
        assert taker.serves
        assert T - 0.1 < (taker.served_since_ns[0] - woke_ns) / SECOND < T + BARE
        assert not third.served_since_ns
        assert epochs(shared) == 2
    in_virtual_time(main)


@pytest.mark.parametrize("name", ["next", "gone"])
def test_an_abandoned_claim_hides_no_live_owner(name: str) -> None:
    """A standby claims and dies; the owner, which was not sealed, continues to serve. The next taker waited for the
    claim alone, or not at all if the claim has its own name, so it delays its service while the owner may answer."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("owner", shared, clock)
        await owner.serving(BARE)
        shared.objects[PATHS.epoch(2)] = Claim(2, "gone", bytes(16), 0).encode()
        shared._keys[:] = sorted(shared.objects)
        taker = Broker(name, shared, clock, seed=2)
        opening = asyncio.Event()

        async def note(called: str, about: str) -> None:
            if (called, about) == ("put", PATHS.log(Position(3, 0))):
                opening.set()
                owner.store.before = pause  # the answer about the seal comes late

        async def pause(called: str, about: str) -> None:
            await asyncio.Event().wait()

        taker.store.before = note
        await opening.wait()
        assert owner.serves
        await for_a_while(T + BARE, owner, taker)
        assert taker.serves
        assert epochs(shared) == 3
    in_virtual_time(main)


def test_after_a_clean_stop_or_under_our_name_no_lease_is_waited_out() -> None:
    """A clean stop is handed over at once, and so is a restart, although the last put is less than T ago."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        a = Broker("a", shared, clock)
        await a.serving(BARE)
        b = Broker("b", shared, clock, seed=2)
        await asyncio.sleep(60)
        await a.stop()
        assert await b.serving(BARE + T / 6) < BARE + T / 6
        await b.kill()
        assert await Broker("b", shared, clock, seed=3).serving(BARE) < BARE
    in_virtual_time(main)


def test_a_stop_ends_though_deletes_are_refused_for_ever() -> None:
    """A store that became read-only: reads that succeed are not progress of the log. The stop gives up and logs
    that."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("a", shared, clock)
        await owner.serving(BARE)
        shard = owner.shard_owner.shard
        assert shard is not None
        stream = Stream(shard.log)
        stream.create()
        refused = {"delete"}

        async def refuse(called: str, about: str) -> None:
            if called in refused:
                raise StoreRefused(f"{called} {about}: read-only")

        owner.store.before = refuse
        for _ in range(4):  # rounds, so that segments are released
            stream.publish()
            stream.remove(stream.first_seq, stream.last_seq)
            await shard.log.persisted()
            await asyncio.sleep(61)
        await asyncio.sleep(200)  # the sweeper is at work
        refused.add("put")
        stream.publish()
        async with asyncio.timeout(60):
            await owner.stop()
    in_virtual_time(main)
