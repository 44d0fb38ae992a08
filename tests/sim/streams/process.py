"""A process run of a broker: the real JetStream on the real router, over a shard that it takes, loses and takes
again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from broker.base.clock import GuardedClock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.cluster.standby import wait_for_lease
from broker.jetstream.api.first_use import import_first_used
from broker.jetstream.engine import JetStream
from broker.server.routing.router import Router
from broker.storage.erasure.eraser import ErasureSettings
from broker.storage.format.codec import Compression
from broker.storage.format.errors import CutOff
from broker.storage.format.header import NONCE_BYTES
from broker.storage.format.keyring import Cipher
from broker.storage.keys.deleted import KeysOfDeletedStreams
from broker.storage.keys.shard_keys import KeyedStore, ShardKeys
from broker.storage.objectstore.base import ObjectStore, StoreError
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.shard import Shard
from tests.sim.reading import Reading
from tests.sim.streams.client import Client
from tests.sim.streams.network import Connection
from tests.sim.streams.record import Lost
from tests.storage.listening import Listening

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream
    from tests.sim.streams.world import World

__all__ = ["Process"]

PATHS = ShardPaths(0)
SECOND = 1_000_000_000

import_first_used()
# Otherwise the first world of a process would import them in a thread, and have another history than later ones.


class Process:
    """A process run from its start to its kill or clean end. ``serving`` while it has the shard, as far as it knows."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = self.ended = False
        self.serving = False
        self.freezes = self.thaws = False
        """``freezes``: a pause begins when the next put has been stored, before its answer. ``thaws``: the pause ends
        once another process answers."""
        self.masters = world.masters
        self.epoch = 0
        self.shard: Shard | None = None
        self.rng = random.Random(world.rng.getrandbits(64))
        self.store = Connection(world.shared, rng=random.Random(world.rng.getrandbits(64)), faults=world.faults,
                                late=world.late)
        self.store.before, self.store.after = self._before_operation, self._after_operation
        self.clock, self._answered = world.clocks.clock_of(name) if world.clocks is not None else (world.clock,
                                                                                                   _nothing)
        self.store.down = world.storms is not None and world.storms.raging
        self.rightful_ns = 0
        """The time from which nobody else may answer, as far as the take-over promises that."""
        self.put_ns = -1
        """The time of the last stored put of this process."""
        self.router = Router(self.clock, random.Random(self.rng.getrandbits(64)), world.loop.call_soon)
        self.js = JetStream(self.clock, random.Random(self.rng.getrandbits(64)))
        self.js.add_account("$G", self.router)
        self.cache = Cache(world.cache_bytes)
        self.client = Client(world, self)
        self._me = Identity(name, self.rng.randbytes(NONCE_BYTES))
        self._paused: asyncio.Event | None = None
        self._paused_ns = 0
        self._cleaning_up: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._clean = False
        self.js.listen()
        self._task = world.loop.create_task(self._live(), name=name)
        self._task.add_done_callback(world.process_ended)

    def streams(self) -> dict[str, Stream]:
        """Return its live streams by name; none while it does not serve."""
        return self.js.accounts["$G"].streams if self.serving and not self.dead else {}

    def pause(self) -> None:
        """Let the store neither answer nor receive anything until ``resume``; clients are served meanwhile."""
        if self._paused is None:
            self._paused = asyncio.Event()
            self._paused_ns = self.world.clock.monotonic_ns()

    def resume(self) -> None:
        self.freezes = False
        if self._paused is not None:
            self.world.counts["pause past the lease"] += (
                self.serving and self.world.clock.monotonic_ns() - self._paused_ns > self.world.lease_ns)
            self._paused.set()
            self._paused = None
            self.thaws = False

    def stop(self) -> None:
        """Request a clean end; ``ended`` becomes true with it."""
        self._clean = True
        self._over.set()

    def kill_now(self) -> None:
        """Kill the process at once, as by kill -9: a request that has not reached the store never will, except for late
        puts."""
        if self.dead:
            return
        self.dead = True
        self.serving = False
        self.store.halt()
        self.world.process_died(self)
        if self.shard is not None:
            self.shard.log.fail(Fenced("killed"), notify=False)
        self._task.cancel()
        self.resume()
        self._cleaning_up = self.world.loop.create_task(self._clean_up(), name=f"clean up {self.name}")

    async def kill(self) -> None:
        """Kill the process, and wait until all its tasks have ended."""
        self.kill_now()
        assert self._cleaning_up is not None
        await self._cleaning_up

    async def _clean_up(self) -> None:
        """End the timers and tasks that a dead process would not have, but that share the loop."""
        await asyncio.gather(self._task, return_exceptions=True)
        await self.js.close()
        await self.js.stop()
        if self.shard is not None:
            await self.shard.abandon()

    def _clock_trusted(self) -> bool:
        return not isinstance(self.clock, GuardedClock) or self.clock.trusted

    async def _before_operation(self, operation: str, key: str) -> None:
        if operation == "delete" and self.world.clocks is not None and not key.startswith((PATHS.requests, PATHS.keys)):
            self.world.run_check(self._may_delete, key)
        if self.world.storms is not None:
            await self.world.storms.delay(operation)
        await self._unpaused()

    async def _unpaused(self) -> None:
        while self._paused is not None:
            await self._paused.wait()

    def _may_delete(self, key: str) -> None:
        if self.world.clocks is not None and not self.world.clocks.may_delete(self.name):
            raise Lost(f"{self.name} deletes {key}, and its clock is wrong")

    async def _after_operation(self, operation: str, key: str) -> None:
        self._answered()
        if operation == "put":
            self.put_ns = self.world.clock.monotonic_ns()
            if self.freezes:
                self.freezes, self.thaws = False, True
                self.pause()
        await self._unpaused()

    async def _live(self) -> None:
        world, rng, lost = self.world, self.rng, 0
        while not self._clean:
            settings, keys = world.settings(), None
            store: ObjectStore = self.store
            if "keys" in world.features:
                keys = ShardKeys(PATHS, self.masters, Cipher.AES, self._me.nonce, Compression.ZSTD)
                settings.log.codec, store = keys.codec, KeyedStore(self.store, keys)
            reading = Reading(self.store, PATHS, self.clock, rng, keys)
            try:
                waits = not world.leased or rng.random() < 0.85
                watched = None
                if world.leased:
                    watched = await wait_for_lease(self.store, PATHS, self._me, self.clock, rng, world.lease_ns,
                                                   silence_ns=world.lease_ns << min(lost, 4) if waits else 1)
                    watched = watched._replace(silent=watched.silent and waits)
                taken = await take_shard(self.store, PATHS, self._me, self.clock, rng, watched, world.lease_ns,
                                         before_claim=reading.load_keys, ended=reading.begin)
                if "lease wait" not in world.features:
                    self.rightful_ns = world.clock.monotonic_ns() + world.lease_ns
                self.shard = await Shard.open(
                    store, PATHS, taken.epoch, self._me.nonce, self.clock, rng, settings, began_ns=taken.began_ns,
                    serve_from_ns=taken.serve_from_ns, clock_trusted=self._clock_trusted, earlier=reading.task,
                    opening=taken.opening,
                    after_round=None if keys is None else KeysOfDeletedStreams(
                        keys, reading.retrying, self.clock).after_round)
                if keys is not None:
                    await keys.begin(taken.epoch, list(self.shard.state.streams.values()), reading.retrying)
                if self.shard.log.lease_expired:
                    # An owner that starts to serve now would find that it may not read, as in ShardOwner.
                    await self.shard.log.persisted()
                lost = 0
                await self._serve(self.shard)
            except (Fenced, StoreError, CutOff) as error:
                world.note("ended", self.name, type(error).__name__)
                lost += isinstance(error, Fenced)
            finally:
                reading.end()
            if not self._clean:
                await asyncio.sleep(rng.choice((0.1, 1.0, 5.0)))
        self.ended = True

    def _erased(self) -> None:
        self.world.counts["erased"] += 1

    async def _serve(self, shard: Shard) -> None:
        world = self.world
        self.epoch = shard.log.epoch
        world.opened(self, shard.state)
        shard.log.listen(Listening(log_failed=lambda _: self._over.set()))
        retrying = RetryingStore(self.store, clock=self.clock, rng=self.rng, give_up_ns=15 * SECOND)
        reader = BlockReader(retrying, self.cache, shard.key_of, PATHS)
        try:
            eraser = None
            if "erasures" in world.features:
                eraser = shard.eraser
                eraser.settings = ErasureSettings(delay_ns=SECOND // 10, poll_ns=SECOND)
                eraser.on_done = self._erased
            if world.staging is not None:
                await self.js.open(0, shard.log, reader, inbox=world.staging.settings,
                                   release_runs=shard.sweeper.release_runs, eraser=eraser)
            else:
                await self.js.open(0, shard.log, reader, eraser=eraser)
            self.serving = True
            if shard.log.failure is None:
                await self._over.wait()
            self.serving = False
            clean = self._clean and shard.log.failure is None
            await self.js.close(notify=clean)
            if clean:
                end = await shard.close(checkpoint=self.rng.random() < 0.7)
                await seal_at(self.store, PATHS, end, end.epoch, self._me, self.clock, self.rng)
                world.note("clean end", self.name)
        finally:
            self.serving = False
            if not self.dead:
                await self.js.close()
                await shard.abandon()
                self.cache.clear()
                self.world.process_died(self)
                self._over.clear()
                self.shard = None


def _nothing() -> None:
    pass
