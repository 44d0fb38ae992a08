"""Atomic batches that go to the store while they arrive, in the simulation: the promises of its oracle hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from broker.jetstream.api.first_use import import_first_used
from broker.jetstream.stream.publish import atomic
from broker.jetstream.stream.publish.spill import Spill
from tests.sim.conftest import make_small
from tests.sim.streams.world import FEATURES, World

SEEDS = 5
BUSY_SEED = 2
"""The seed of a world in which 30 runs of batches are encoded in threads."""


def world(seed: int) -> World:
    return World(seed, steps=60, features=FEATURES | {"special"})


@pytest.fixture(autouse=True)
def small_batches(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few messages are written to the store."""
    make_small_batches(monkeypatch)


def make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "SPILL_BYTES", 300)


def test_answers_to_batches_stay_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are killed, stopped and paused between any two of their steps; some batches are committed, and some
    dropped."""
    ended: Counter[bool] = Counter()
    end = Spill.end

    def counted(spill: Spill) -> None:
        ended[spill._named] += 1
        end(spill)

    monkeypatch.setattr(Spill, "end", counted)
    for seed in range(SEEDS):
        world(seed).run()
    assert ended[True]
    assert ended[False]


def test_a_seed_is_a_history_in_each_process() -> None:
    """Two processes whose strings have different hashes have the same history, though batches are encoded in
    threads."""
    environments = [{**os.environ, "PYTHONHASHSEED": hash_seed} for hash_seed in ("1", "2")]
    players = [subprocess.Popen([sys.executable, "-m", __name__], cwd=Path(__file__).parents[2], env=environment,
                                stdout=subprocess.PIPE, text=True) for environment in environments]
    shown = [player.communicate()[0].split() for player in players]
    assert [player.returncode for player in players] == [0, 0]
    (digest, count), other = shown
    assert other == [digest, count]
    assert int(count) >= 20


def _play() -> None:
    """Print the digest of a world, and the number of runs of batches that it wrote."""
    import_first_used()  # otherwise a thread does, for which a virtual clock does not wait
    runs = 0
    write = Spill.write

    def counted(*args: object) -> object:
        nonlocal runs
        runs += 1
        return write(*args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        make_small_batches(patch)
        patch.setattr(Spill, "write", counted)
        print(world(BUSY_SEED).run(), runs)


if __name__ == "__main__":
    _play()
