"""The real engine in virtual time on a faulty store: in every history, a fresh reader finds what was acknowledged.

Run one seed again: ``pytest tests/sim -k 'seed and 17'``, or ``World(17).run()``. ``tests.sim.world`` lists the faults
that are survived; ``tests.sim.broken`` the rules that are removed on purpose.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.broken import RULES
from tests.sim.oracle import Lost
from tests.sim.planted import outdated
from tests.sim.world import World

SEEDS = 40
COUNTED_SEEDS = (*range(8), 9, 10, 13, 15, 16, 19, 21, 22)
"""Seeds that run where their faults are counted, and for longer."""
SOAK_SEEDS = int(os.environ.get("JETBLOCK_TEST_SEEDS", "10000")) // 5


def run(seed: int, **settings: int) -> World:
    world = World(seed, **settings)
    try:
        world.run()
    except Lost:
        raise
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return world


@pytest.mark.parametrize("seed", sorted(set(range(SEEDS)).difference(COUNTED_SEEDS)))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Three brokers that do not wait for the lease are killed and paused anywhere, on a store that fails in every
    allowed way."""
    run(seed, seconds=60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1000 + SOAK_SEEDS, 100))
def test_nothing_acknowledged_is_lost_soak(first: int) -> None:
    """Nothing is lost in longer runs with up to five brokers."""
    for seed in range(first, first + 100):
        run(seed, brokers=2 + seed % 4, seconds=180)


def test_a_seed_is_a_history() -> None:
    """A seed gives the same digest of every object, reply and instant each time; another seed gives another."""
    digests = [World(seed, seconds=40).run() for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_the_seeds_cause_every_fault() -> None:
    """Take-overs, checkpoints, sweeps, kills and each kind of fault happen in a handful of seeds."""
    epochs = acked = removed = deleted = 0
    faults: set[str] = set()
    counts: Counter[str] = Counter()
    for seed in COUNTED_SEEDS:
        world = run(seed)
        epochs += len(world.epochs)
        acked += len(world.oracle.acked)
        removed += len(world.oracle.removed)
        deleted += world.deleted
        faults |= world.injected
        counts += world.counts
    assert epochs > 20
    assert acked > 2000
    assert removed > 500
    assert deleted > 100
    assert faults >= {"slow", "refused", "unanswered", "lost", "late"}
    assert counts.keys() >= {"clock ahead", "clock behind", "clock small", "clock store", "clock all"}
    assert counts["storm"] >= 5
    assert counts["slow listing"] >= 5


KNOWN = {"relist": [427], "bounded-window": [36]}
"""Seeds that need a rule which most seeds miss, tried first."""

RARE = {"relist", "bounded-window", "released"}
"""Rules that would cost minutes if the history of the known seed changed: for the soak. Each history that such a rule
excludes has its own scripted test, in ``tests/cluster/test_ownership.py`` or
``tests/storage/checkpoint/test_sweeper.py``."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", [
    pytest.param(rule, marks=pytest.mark.soak if rule in RARE else ()) for rule in sorted(RULES)])
def test_the_oracle_detects(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed loses a message without one rule of the protocol, and the oracle reports it."""
    RULES[rule](monkeypatch)
    for seed in (*KNOWN.get(rule, ()), *range(300)):
        try:
            World(seed, seconds=120).run()
        except Exception as error:
            if outdated(error):
                raise
            return
    pytest.fail(f"no seed needed the rule {rule}")
