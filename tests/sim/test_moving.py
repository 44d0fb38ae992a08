"""Streams move between three shards in virtual time on a faulty store: each is in one place, with all its messages.

Run one seed again: ``MovingWorld(17).run()``.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from broker.jetstream.account.unused import UnusedStream
from broker.storage.format.keyring import KEYS, PREFIX_BYTES
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.sealing import SealingCodec
from broker.storage.keys.master import LocalKey, Masters
from broker.storage.state.stream_entry import pack_whole
from tests.key_ring import forget_keys
from tests.sim.moving import MovingOwner, MovingWorld
from tests.sim.oracle import Lost
from tests.sim.owner import SimStream

SOAK_SEEDS = int(os.environ.get("JETBLOCK_TEST_SEEDS", "10000")) // 10

SEEDS = (1, 2, 3, 4)

pytestmark = pytest.mark.shows("cluster.moves")


def test_moving_streams_lose_nothing() -> None:
    """Owners of three shards are killed, paused and deposed while streams move between the shards."""
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        world = MovingWorld(seed, seconds=40)
        world.run()
        counts += world.counts
    assert counts["moved"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1000 + SOAK_SEEDS, 50))
def test_moving_streams_lose_nothing_soak(first: int) -> None:
    """Nothing is lost in longer runs."""
    for seed in range(first, first + 50):
        MovingWorld(seed, seconds=180).run()


class EncryptedWorld(MovingWorld):
    """The store is encrypted: streams keep their keys when they move."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.masters = Masters(LocalKey(b"the master key of the simulation"))


def _seals(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Count the sections by key id, salt and counter; the random part of their nonces would hide a repeated one."""
    seal_of, used = SealingCodec.seal, Counter[bytes]()

    def seal(codec: SealingCodec, *arguments: Any) -> Any:
        header, stored = seal_of(codec, *arguments)
        used[stored[:PREFIX_BYTES + 4]] += 1
        return header, stored

    monkeypatch.setattr(SealingCodec, "seal", seal)
    return used


def _moving_encrypted(seeds: Iterable[int], seconds: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        with monkeypatch.context() as patch:
            forget_keys(patch)
            used = _seals(patch)
            world = EncryptedWorld(seed, seconds=seconds)
            world.run()
            counts += world.counts
            salts = Counter((prefix[:8], prefix[8:PREFIX_BYTES]) for prefix in used)
            of_streams = Counter(key_id for key_id, _ in salts if (key := KEYS.get(key_id)) is not None and key.owner)
            counts["salts of one stream"] = max(counts["salts of one stream"], *of_streams.values(), 0)
            counts["sections"] += used.total()
            assert used.most_common(1)[0][1] == 1, f"seed {seed}: a nonce repeats"
    return counts


def test_no_nonce_repeats_while_streams_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of an encrypted store move between owners that are killed, paused and deposed, and each keeps its key: no
    two sections, stored or lost, have one key and nonce. Shards that streams have left drop their keys, and no message
    is lost with a key."""
    counts = _moving_encrypted(SEEDS[1:2], 60, monkeypatch)
    assert counts["moved"]
    assert counts["sections"] > 1000
    assert counts["salts of one stream"] > 3


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1000 + SOAK_SEEDS // 2, 50))
def test_no_nonce_repeats_while_streams_move_soak(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in longer runs."""
    _moving_encrypted(range(first, first + 50), 180, monkeypatch)


async def _take_at_once(self: MovingOwner, entry: CatalogueEntry) -> None:
    """Take a stream that has not left yet."""
    read = await self._read(entry.shard)
    if (state := read.streams.get(entry.stream_id)) is not None:
        self.log.block(UnusedStream(state)).add(Arrival(entry.shard, pack_whole(state)))
        await self._commit()
        self.streams[entry.stream_id] = SimStream(self, entry.stream_id, self.log.state.streams[entry.stream_id])


def _end_at_once(self: MovingOwner, entry: CatalogueEntry, states: object, rng: random.Random) -> CatalogueEntry:
    """End a move, whatever the shards have."""
    return replace(entry, to=(entry.shard + 1) % 3) if entry.to is None else replace(
        entry, shard=entry.to, to=None, moves=entry.moves + 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "broken"), [("_take", _take_at_once), ("_next", _end_at_once)])
def test_the_checks_find_broken_steps(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arrival before the departure, or an end of the move before the arrival, loses messages in some seed."""
    monkeypatch.setattr(MovingOwner, name, broken)
    for seed in range(20):
        try:
            MovingWorld(seed, seconds=60).run()
        except Lost:
            return
    pytest.fail("no seed needed the step")
