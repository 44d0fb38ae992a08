"""The real JetStream in virtual time on a faulty store: in every history, the answers that clients received stay true.

Run one seed again: ``pytest tests/sim/test_streams.py -k 'true and 17'``, or ``World(17).run()``.
``tests.sim.streams.world`` lists the faults that are survived.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from broker.jetstream.account.changes import StreamChanges
from broker.storage.format.sealing import SealingCodec
from tests.key_ring import forget_keys
from tests.sim.streams import calm
from tests.sim.streams.process import Process
from tests.sim.streams.world import FEATURES, World

SEEDS = 60
COUNTED_SEEDS = 30
"""Number of the first seeds, which run where their faults are counted."""
SOAK_SEEDS = int(os.environ.get("JETBLOCK_TEST_SEEDS", "10000"))
RETENTION_SEEDS = 10
SPECIAL_SEEDS = 10
ERASURE_SEEDS = 6
KEYS_SEEDS = 4
COUNTER_END = 28
"""Key id, salt and the counter of the nonce are the first bytes of a sealed section. The random part of the nonce
follows; it would hide a nonce that repeats."""
SPECIAL_SOAK_SEEDS = 1000


@pytest.mark.parametrize("first", range(COUNTED_SEEDS, SEEDS, 10))
def test_answers_stay_true(first: int) -> None:
    """Worlds have streams and consumers of every kind; brokers are killed, stopped and paused, and settings changed."""
    for seed in range(first, first + 10):
        World(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 10_000 + SOAK_SEEDS, 100))
def test_answers_stay_true_soak(first: int) -> None:
    """Answers stay true in longer runs."""
    for seed in range(first, first + 100):
        World(seed, steps=180).run()


@pytest.mark.parametrize("first", range(0, RETENTION_SEEDS, 10))
def test_messages_stay_while_consumers_wait_for_them(first: int) -> None:
    """Work queues and interest streams have every message that some consumer has not acked, and none that all have
    acked."""
    for seed in range(first, first + 10):
        World(seed, features=FEATURES | {"retention"}).run()


def test_special_streams_keep_their_promises() -> None:
    """Mirrors and sources, message TTLs, batches, counters and schedules are used, each with its own oracle."""
    counts: Counter[str] = Counter()
    for seed in range(SPECIAL_SEEDS):
        world = World(seed, steps=60, features=FEATURES | {"special"})
        world.run()
        counts += world.counts
    for what in ("copied", "committed", "incremented", "carried out", "ended"):
        assert counts[what] >= 10, what


def test_no_nonce_repeats_in_a_whole_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers on an encrypted store are killed, fenced and paused; no two sections, stored or lost, have one key and
    nonce. Secure deletes are erased meanwhile, and keys of deleted streams destroyed."""
    forget_keys(monkeypatch)
    seal_of = SealingCodec.seal
    used: Counter[bytes] = Counter()

    def seal(codec: SealingCodec, *arguments: Any) -> Any:
        header, stored = seal_of(codec, *arguments)
        used[stored[:COUNTER_END]] += 1
        return header, stored

    monkeypatch.setattr(SealingCodec, "seal", seal)
    for seed in range(KEYS_SEEDS):
        World(seed, steps=60, features=FEATURES | {"keys", "erasures"}).run()
    assert len(used) > 1000
    assert used.most_common(1)[0][1] == 1


def test_secure_deletes_are_erased() -> None:
    """Brokers erase the bytes of deleted messages while they are killed, fenced and paused; answers stay true."""
    counts: Counter[str] = Counter()
    for seed in range(ERASURE_SEEDS):
        world = World(seed, steps=60, features=FEATURES | {"erasures"})
        world.run()
        counts += world.counts
    assert counts["erased"] >= 5


def test_message_ids_are_known_after_an_erasure_and_a_take_over() -> None:
    """An erasure leaves the message ids of a page to blocks that the stream has loaded already."""
    World(10_111, steps=180, features=FEATURES | {"erasures"}).run()


def test_plain_messages_are_refused_before_the_key_of_a_stream_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged messages wait for a new stream of an encrypted store: nobody could read them if they joined it."""
    forget_keys(monkeypatch)
    World(30_014, steps=15, features=FEATURES | {"erasures", "keys", "special"}).run()


def test_a_stream_is_deleted_after_its_erasures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion may wait for an erasure, and longer than a client: the stream is gone nevertheless."""
    disconnect = StreamChanges._disconnect

    async def later(changes: StreamChanges, stream: Any) -> list[str]:
        if world.calm:
            await asyncio.sleep(12)
        return await disconnect(changes, stream)

    monkeypatch.setattr(StreamChanges, "_disconnect", later)
    world = World(1, steps=20, features=FEATURES | {"erasures"})
    world.empties = True
    world.run()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", ["retention", "special", "erasures", "keys and erasures",
                                   "keys and erasures and special", "keys and erasures and retention"])
@pytest.mark.parametrize("first", range(10_000, 10_000 + SPECIAL_SOAK_SEEDS, 100))
def test_special_worlds_soak(world: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special worlds, and those of work queues and interest streams, keep their promises in longer runs."""
    forget_keys(monkeypatch)
    for seed in range(first, first + 100):
        World(seed, steps=180, features=FEATURES | {*world.split(" and ")}).run()


def test_streams_that_are_deleted_after_the_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may be carried out late: then streams are deleted or replaced while the world asks for them."""
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
    """A seed gives the same digest of every object, answer, delivery and instant each time; another seed gives
    another."""
    digests = [World(seed, steps=60).run() for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.timeout(600)
def test_the_seeds_cause_every_fault() -> None:
    """A few seeds cause every fault, and have every part of the world."""
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
                 "slow listing", "clock ahead", "clock behind", "clock right again", "clock small", "clock all",
                 "clock store"):
        assert counts[what] >= 5, what
    assert counts["pause past the lease"]
    assert counts["adopted while blocks are compacted"]
