"""The real JetStream in virtual time on a faulty store: whatever happens, what clients were told stays true.

Run one seed again: ``pytest tests/sim/test_streams.py -k 'true and 17'``, or ``World(17).run()``.
``tests.sim.streams.world`` lists the faults that are survived.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.streams import calm
from tests.sim.streams.process import Process
from tests.sim.streams.world import FEATURES, World

SEEDS = 240
COUNTED_SEEDS = 30
"""The first of them, which run where their faults are counted."""
SOAK_SEEDS = int(os.environ.get("JETBLOCK_TEST_SEEDS", "10000"))
RETENTION_SEEDS = 20
SPECIAL_SEEDS = 10
SPECIAL_SOAK_SEEDS = 1000


@pytest.mark.parametrize("first", range(COUNTED_SEEDS, SEEDS, 10))
def test_what_was_told_stays_true(first: int) -> None:
    """Streams and consumers of every kind, brokers killed, stopped and paused, settings changed on the way."""
    for seed in range(first, first + 10):
        World(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 10_000 + SOAK_SEEDS, 100))
def test_what_was_told_stays_true_soak(first: int) -> None:
    """The same, for longer."""
    for seed in range(first, first + 100):
        World(seed, steps=180).run()


@pytest.mark.parametrize("first", range(0, RETENTION_SEEDS, 10))
def test_what_consumers_wait_for_stays(first: int) -> None:
    """The same for work queues and interest streams alone: what nobody has acked is there, what was acked is not."""
    for seed in range(first, first + 10):
        World(seed, features=FEATURES | {"retention"}).run()


def test_special_streams_keep_their_promises() -> None:
    """Mirrors and sources, message TTLs, batches, counters and schedules, each with an oracle of its own, and each
    in use."""
    counts: Counter[str] = Counter()
    for seed in range(SPECIAL_SEEDS):
        world = World(seed, steps=60, features=FEATURES | {"special"})
        world.run()
        counts += world.counts
    for what in ("copied", "committed", "incremented", "carried out", "ended"):
        assert counts[what] >= 10, what


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", ["retention", "special"])
@pytest.mark.parametrize("first", range(10_000, 10_000 + SPECIAL_SOAK_SEEDS, 100))
def test_worlds_of_their_own_soak(world: str, first: int) -> None:
    """The same for longer, of work queues and interest streams too."""
    for seed in range(first, first + 100):
        World(seed, steps=180, features=FEATURES | {world}).run()


def test_streams_that_are_deleted_after_the_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may be carried out late: then the streams that the world asks for go, or are replaced, while it asks."""
    owner_of = calm._owner

    async def owner(world: World) -> Process:
        process = await owner_of(world)
        for record in process.client._records():
            process.client.delete(record)
        world.counts["deleted late"] += len(process.streams())
        return process

    monkeypatch.setattr(calm, "_owner", owner)
    counts: Counter[str] = Counter()
    for seed in range(3):
        world = World(seed, steps=30)
        world.run()
        counts += world.counts
    assert counts["deleted late"] >= 3


def test_a_seed_is_a_history() -> None:
    """Same seed, same digest of every object, answer, delivery and instant; another seed, another."""
    digests = [World(seed, steps=60).run() for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.timeout(600)
def test_the_seeds_cause_every_fault() -> None:
    """The same; and in a few seeds there is everything that the world is made of."""
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for seed in range(COUNTED_SEEDS):
        world = World(seed)
        world.run()
        counts += world.counts
        counts["epochs"] += len(world.epochs)
        counts["days"] += world.clock.monotonic_ns() // (86_400 * 10**9)
        kinds.update(world.kinds)
    assert len(kinds) >= 9
    assert counts["acked"] > 2000
    assert counts["delivered"] > 2000
    assert counts["epochs"] > 60
    for what in ("duplicate", "refused", "read", "kill", "stop", "pause", "damaged", "days", "adopted", "storm",
                 "slow listing",
                 "clock ahead", "clock behind", "clock right again", "clock small", "clock all", "clock store"):
        assert counts[what] >= 5, what
    assert counts["pause past the lease"]
    assert counts["adopted while blocks are compacted"]
