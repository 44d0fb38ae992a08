"""A broker of the simulation: its processes, one after another, and its connection to the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.base.clock import Clock, GuardedClock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.cluster.standby import wait_for_lease
from broker.storage.format.codec import Compression
from broker.storage.format.errors import CutOff
from broker.storage.format.keyring import Cipher
from broker.storage.keys.deleted import KeysOfDeletedStreams
from broker.storage.keys.shard_keys import KeyedStore, ShardKeys
from broker.storage.objectstore.base import StoreError
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced
from broker.storage.shard import Shard
from tests.sim.oracle import Lost
from tests.sim.reading import Reading
from tests.storage.objectstore.faulty import FaultyStore

if TYPE_CHECKING:
    from tests.sim.owner import Owner
    from tests.sim.world import World

__all__ = ["Broker"]

SECOND = 1_000_000_000


class Broker:
    """Process runs, one after another, under one name. Each owns the same shard."""

    def __init__(self, world: World, name: str, shard: int = 0) -> None:
        self.world = world
        self.name = name
        self.paths = ShardPaths(shard)
        self.dead = True
        self.owner: Owner | None = None
        self.store: FaultyStore | None = None
        self.clock: Clock = world.clock
        self._answered: Callable[[], None] = lambda: None
        self._paused: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a new process."""
        self.dead = False
        world = self.world
        self.store = FaultyStore(world.shared, rng=random.Random(world.rng.getrandbits(64)), faults=world.faults)
        self.store.before, self.store.after = self._before_operation, self._after_operation
        self.store.down = world.storms is not None and world.storms.raging
        if world.clocks is not None:
            self.clock, self._answered = world.clocks.clock_of(self.name)
        self._task = asyncio.get_running_loop().create_task(self._life(), name=self.name)

    def kill(self) -> None:
        """Kill the process as by kill -9: a request that has not reached the store never will, except for late puts."""
        self.dead = True
        assert self.store is not None
        assert self._task is not None
        self.store.halt()
        self.world.injected.update(self.store.injected)
        if self.owner is not None:
            self.owner.log.fail(Fenced("killed"), notify=False)
        self._task.cancel()
        self.owner = None
        self.resume()

    def pause(self) -> None:
        """Stop at the next call of the store, before or after it, and publish nothing."""
        if self._paused is None:
            self._paused = asyncio.Event()

    def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    async def unpaused(self) -> None:
        while self._paused is not None:
            await self._paused.wait()

    async def _before_operation(self, operation: str, key: str) -> None:
        clocks = self.world.clocks
        if operation == "delete" and clocks is not None and not clocks.may_delete(self.name):
            self.world.verdict = Lost(f"{self.name} deletes {key}, and its clock is wrong")
        if self.world.storms is not None:
            await self.world.storms.delay(operation)
        await self.unpaused()

    async def _after_operation(self, operation: str, key: str) -> None:
        self._answered()
        await self.unpaused()

    def _clock_trusted(self) -> bool:
        return not isinstance(self.clock, GuardedClock) or self.clock.trusted

    async def _life(self) -> None:
        world, rng = self.world, self.world.rng
        store = self.store
        assert store is not None
        me = Identity(self.name, rng.randbytes(16))
        while True:
            run_rng = random.Random(rng.getrandbits(64))
            shard: Shard | None = None
            settings, keys, opened = world.settings(), None, store
            if world.masters is not None:
                keys = ShardKeys(self.paths, world.masters, Cipher.AES, me.nonce, Compression.ZSTD)
                settings.log.codec, opened = keys.codec, KeyedStore(store, keys)
            reading = Reading(store, self.paths, self.clock, run_rng, keys)
            try:
                watched = None
                if rng.random() < 0.5:
                    watched = await wait_for_lease(store, self.paths, me, self.clock, run_rng, world.lease_ns)
                taken = await take_shard(store, self.paths, me, self.clock, run_rng, watched,
                                         before_claim=reading.load_keys, ended=reading.begin)
                shard = await Shard.open(
                    opened, self.paths, taken.epoch, me.nonce, self.clock, run_rng, settings,
                    began_ns=taken.began_ns, clock_trusted=self._clock_trusted, earlier=reading.task,
                    opening=taken.opening,
                    after_round=None if keys is None else KeysOfDeletedStreams(
                        keys, reading.retrying, self.clock).after_round)
                if keys is not None:
                    await keys.begin(taken.epoch, list(shard.state.streams.values()), reading.retrying)
                world.opened(self, taken.epoch, shard.state)
                self.owner = world.make_owner(self, shard)
                await self.owner.work(world.clock.monotonic_ns() + rng.randint(2, 60) * SECOND)
                if shard.log.failure is not None:
                    raise shard.log.failure
                world.note("clean stop", self.name)
                end = await shard.close(checkpoint=rng.random() < 0.7)
                await seal_at(store, self.paths, end, taken.epoch, me, self.clock, run_rng)
            except (Fenced, StoreError, CutOff) as error:
                world.note("ended", self.name, type(error).__name__)
            finally:
                reading.end()
                self.owner = None
                if shard is not None:
                    world.deleted += shard.sweeper.deleted
                if shard is not None and not self.dead:
                    await shard.abandon()
            await asyncio.sleep(rng.choice((0.0, 0.5, 5.0)))
