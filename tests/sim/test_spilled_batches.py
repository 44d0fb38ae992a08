"""Atomic batches that go to the store while they arrive, in the simulation: what its oracle of batches says stays true."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.jetstream.stream.publish import atomic
from broker.jetstream.stream.publish.spill import Spill
from tests.sim.streams.world import FEATURES, World

SEEDS = 5


def test_what_was_told_of_them_stays_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are killed, stopped and paused between any two of their steps; some batches are committed, and some dropped."""
    monkeypatch.setattr(atomic, "SPILL_BYTES", 300)
    ended: Counter[bool] = Counter()
    end = Spill.end

    def counted(spill: Spill) -> None:
        ended[spill._named] += 1
        end(spill)

    monkeypatch.setattr(Spill, "end", counted)
    for seed in range(SEEDS):
        World(seed, steps=60, features=FEATURES | {"special"}).run()
    assert ended[True]
    assert ended[False]
