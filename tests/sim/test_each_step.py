"""A new owner is stopped between each two of its steps: from its first call of the store to its first checkpoint.

The random histories of ``test_simulation`` stop brokers anywhere, so a stop between two given steps is rare in them.
Here every step is tried in order. A first broker serves and is killed. A second one claims the shard, recovers,
publishes and cuts a checkpoint. At its call number k of the store, counted from its claim, one of these happens, before
or after the store has acted:

    killed      the second broker is killed, and a third one takes over
    paused      the second broker is paused until a third one has taken over, and wakes up deposed
    gone        the store refuses every call of every broker for longer than a lease

Afterwards the oracle reads the store: nothing acknowledged is missing, and each epoch had one writer.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.cluster.identity import Identity
from broker.cluster.ownership import take_shard
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced
from tests.manual_clock import ManualClock
from tests.sim.broken import RULES
from tests.sim.loop import SimLoop
from tests.sim.oracle import Lost
from tests.sim.process import Broker
from tests.sim.world import World
from tests.storage.objectstore.faulty import Faults, FaultyStore

EVENTS = ("killed", "paused", "gone")
SERVING_S = 4.0
"""Virtual time for which the first broker serves."""

QUIET_S = 15.0
"""Virtual time in which a broker takes over from a dead one and cuts a checkpoint."""

STRIDE = 4
"""The default run tries every fourth step, each event from another one; the soak run tries every step."""


class SteppedWorld(World):
    """Three brokers without random faults; the second one is stopped at its call number ``step``."""

    def __init__(self, seed: int, event: str, side: str, step: int) -> None:
        super().__init__(seed, brokers=3, fault_factor=0.0)
        self.clocks = self.storms = None
        self.event, self.side, self.step = event, side, step
        self.stopped_at = ""
        """The operation and the key that the second broker was stopped at."""
        self.put_root = False
        """True if the second broker had begun to put a checkpoint's root by then."""

    async def _main(self) -> None:
        first, second, third = self.brokers
        first.start()
        await asyncio.sleep(SERVING_S)
        first.kill()
        second.start()
        reached = self._stop_at_step(second)
        async with asyncio.timeout(4 * QUIET_S):
            await reached.wait()
        third.start()
        if self.event == "killed":
            second.kill()
        elif self.event == "paused":
            await asyncio.sleep(QUIET_S)
            second.resume()
        else:
            await self._without_store(2 * self.lease_ns / 1e9)
        await asyncio.sleep(QUIET_S)
        self.oracle.check()
        assert len(self.epochs) > 1, "nobody took over"
        for broker in (second, third):
            if not broker.dead:
                broker.kill()

    def _stop_at_step(self, broker: Broker) -> asyncio.Event:
        """Stop ``broker`` at its call number ``step`` after its claim. Returns: an event that is set then."""
        store = broker.store
        assert store is not None
        hook = getattr(store, self.side)
        reached = asyncio.Event()
        calls = -1

        async def count(operation: str, key: str) -> None:
            nonlocal calls
            if calls >= 0 or (operation == "put" and "/epochs/" in key):
                calls += 1
            if calls >= 0 and not reached.is_set():
                self.put_root |= operation == "put" and "/checkpoint/" in key
            if calls == self.step and not reached.is_set():
                self.stopped_at = f"{operation} {key}"
                if self.event == "gone":
                    store.down = True
                else:
                    broker.pause()
                reached.set()
            await hook(operation, key)

        setattr(store, self.side, count)
        return reached

    async def _without_store(self, seconds: float) -> None:
        stores = [broker.store for broker in self.brokers if broker.store is not None and not broker.dead]
        for store in stores:
            store.down = True
        await asyncio.sleep(seconds)
        for store in stores:
            store.down = False


def play(seed: int, event: str, side: str, first: int, stride: int) -> list[str]:
    """Play the steps of one seed until one at or after the put of the first checkpoint's root. Returns: the calls that
    were stopped."""
    stopped: list[str] = []
    while True:
        world = SteppedWorld(seed, event, side, first + stride * len(stopped))
        world.run()
        stopped.append(world.stopped_at)
        if world.put_root:
            return stopped


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("event", EVENTS)
def test_a_new_owner_is_stopped_at_each_step(event: str, side: str) -> None:
    assert len(play(2, event, side, EVENTS.index(event), STRIDE)) > 15


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("event", EVENTS)
def test_a_new_owner_is_stopped_at_each_step_soak(event: str, side: str, seed: int) -> None:
    """A new owner is stopped at every step of several histories, with compaction and without."""
    assert play(seed, event, side, 0, 1)


def test_the_oracle_notices_a_removed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeping the seal of a paused owner's log loses messages, and a step shows it."""
    RULES["keep-seals"](monkeypatch)
    with pytest.raises(Lost):
        play(2, "paused", "before", 0, 1)


async def _claims(brokers: int, store: MemoryStore, clock: ManualClock) -> list[int]:
    async def claim(name: str) -> int | None:
        rng = random.Random(name)
        connection = FaultyStore(store, rng=rng, faults=Faults(latency_ns=20_000_000))
        try:
            taken = await take_shard(connection, ShardPaths(0), Identity(name, rng.randbytes(16)), clock, rng)
        except Fenced:
            return None
        return taken.epoch

    epochs = await asyncio.gather(*(claim(f"b{number}") for number in range(brokers)))
    return [epoch for epoch in epochs if epoch is not None]


def test_fifty_brokers_claim_at_once() -> None:
    """Each of fifty brokers that claim at the same time gets its own epoch or is fenced; the newest is not."""
    clock, store = ManualClock(), MemoryStore()
    loop = SimLoop(clock)
    try:
        epochs = loop.run_until_complete(_claims(50, store, clock))
    finally:
        loop.end()
    assert len(epochs) == len(set(epochs))
    assert max(epochs) == 50
