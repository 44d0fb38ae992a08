"""A seeded simulation: one store, several brokers that may all believe they own it, and an oracle that reads it afresh.

The brokers run the real engine: ownership, recovery, log, checkpoints, sweeping, and for every second seed compaction.
Simulated around it:

    Network     each broker's connection to the store, which refuses, loses answers, is slow, and lets puts take effect
                late, also after the broker's death (FaultyStore); a broker can be paused there longer than any sweep
    Owner       streams that publish, remove, trim and have a consumer, through the same BlockOwner interface as the
                broker's own streams
    Oracle      the acknowledgements, and the check that a fresh reader of the store finds them

These faults must be survived: any number of brokers that do not wait for the lease, killed at any await, paused at any
store call; any order of late puts; sweeps without grace; clocks that leap; a store that refuses everything for a while,
or is slow to list (``tests.sim.storms``). A store that loses or changes what it acknowledged is not survived, and not
tried.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from typing import Any

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.keys.master import Masters
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.applied import ShardState
from tests.manual_clock import ManualClock
from tests.sim.clocks import Clocks
from tests.sim.loop import SimLoop
from tests.sim.oracle import Lost, Oracle
from tests.sim.owner import Owner
from tests.sim.process import Broker
from tests.sim.settings import eager_compaction
from tests.sim.storms import Storms
from tests.storage.objectstore.faulty import Faults

__all__ = ["World"]

SECOND = 1_000_000_000


class World:
    """A run of one seed."""

    shards = 1

    def __init__(self, seed: int, *, brokers: int = 3, seconds: int = 90, fault_factor: float | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.loop = SimLoop(self.clock)
        self.shared = MemoryStore()
        self.oracle = Oracle(self.shared, self.shards)
        factor = self.rng.choice((0.0, 0.3, 1.0, 2.0)) if fault_factor is None else fault_factor
        self.faults = Faults(slow=0.10, slow_ns_max=2 * SECOND, refused=0.02, unanswered=0.02, lost=0.01, late=0.02,
                             late_ns_max=20 * SECOND, latency_ns=self.rng.choice((0, 2_000_000, 20_000_000)),
                             timeout_ns=3 * SECOND).scaled(factor)
        self.lease_ns = self.rng.choice((3, 6)) * SECOND
        self.seconds = seconds
        self.brokers = [Broker(self, f"b{i}", i % self.shards) for i in range(brokers)]
        self.streams = 0
        self.epochs: dict[tuple[int, int], str] = {}
        """The broker of each epoch, by shard and epoch."""
        self.deleted = 0
        """Number of swept objects."""
        self.counts: Counter[str] = Counter()
        """Number of leaps of clocks, by kind; of storms, and of slow listings."""
        self.clocks: Clocks | None = None
        if seed % 3 == 0:
            self.clocks = Clocks(self.clock, self.loop, random.Random(seed), self.counts, dated=True)
        self.storms: Storms | None = None
        if seed % 3 == 1:
            self.storms = Storms(self.loop, random.Random(seed), self.counts,
                                 lambda: [broker.store for broker in self.brokers if broker.store is not None])
        self.masters: Masters | None = None
        """The master keys, in worlds with encryption."""
        self.verdict: Lost | None = None
        """The first broken promise that was detected during the run."""
        self.injected: set[str] = set()
        """Kinds of fault that happened."""
        self._payload = 0
        self._digest = hashlib.sha256()

    def run(self) -> str:
        """Run to the end; return a digest of the whole history. Raises: Lost, and any other error."""
        try:
            self.loop.run_until_complete(self._main())
            if self.loop.errors:
                context = self.loop.errors[0]
                raise Lost(f"the loop's exception handler was called: {context['message']}"
                           ) from context.get("exception")
            if self.verdict is not None:
                raise self.verdict
            self.oracle.check()
            self.oracle.one_writer_each()
            for key in sorted(self.shared.objects):
                self._digest.update(key.encode() + hashlib.sha256(self.shared.objects[key]).digest())
            return self._digest.hexdigest()
        except Lost as lost:
            raise Lost(f"seed {self.seed}: {lost}") from lost
        finally:
            self.loop.end()

    def note(self, *what: Any) -> None:
        """Add an event to the digest."""
        self._digest.update(repr((self.clock.monotonic_ns(), what)).encode())

    def opened(self, broker: Broker, epoch: int, state: ShardState) -> None:
        """Record that a broker recovered, and compare the state that it will serve."""
        which = broker.paths.shard, epoch
        if which in self.epochs:
            raise Lost(f"epoch {epoch} was opened by {self.epochs[which]} and by {broker.name}")
        self.epochs[which] = broker.name
        self.note("opened", broker.name, epoch)
        end = state.position
        if self.shards == 1 and which == max(self.epochs):
            # No later epoch was opened, so the state must contain everything acknowledged until now.
            self.oracle.compare(state)
        assert end.epoch == epoch

    def make_owner(self, broker: Broker, shard: Shard) -> Owner:
        """Return the owner of a shard that a broker has taken."""
        return Owner(broker, shard)

    def payloads(self, count: int) -> list[bytes]:
        self._payload += count
        return [b"%012d" % (self._payload - i) for i in range(count)]

    def settings(self) -> ShardSettings:
        rng = self.rng
        return ShardSettings(
            log=LogSettings(segment_bytes=rng.choice((60, 200, 4 << 20)), puts_in_flight=rng.choice((1, 2, 4)),
                            commit_interval_ns=rng.choice((0, 0, 20_000_000)), lease_ns=self.lease_ns,
                            put_timeout_ns=2 * SECOND),
            checkpoint=CheckpointSettings(segments=rng.choice((3, 8, 20)), replayed_segments=10, replayed_epochs=3),
            sweep_grace_ns=0, compaction=eager_compaction(rng.choice) if self.seed % 2 else None)

    async def _main(self) -> None:
        rng = self.rng
        for broker in self.brokers:
            broker.start()
        end_ns = self.seconds * SECOND
        next_check_ns = 0
        while self.clock.monotonic_ns() < end_ns:
            await asyncio.sleep(rng.expovariate(1 / 1.5))
            broker = rng.choice(self.brokers)
            draw = rng.random()
            if draw < 0.10:
                broker.kill()
                self.note("killed", broker.name)
                await asyncio.sleep(rng.choice((0.0, 1.0)))
                broker.start()
            elif draw < 0.35:
                broker.pause()
            elif draw < 0.60:
                for other in self.brokers:
                    if rng.random() < 0.5:
                        other.resume()
            if self.clocks is not None:
                self.clocks.perhaps_leap([broker.name for broker in self.brokers])
            if self.storms is not None:
                self.storms.perhaps_begin()
            if self.clock.monotonic_ns() >= next_check_ns:
                next_check_ns = self.clock.monotonic_ns() + 3 * SECOND
                self.oracle.check()
        for broker in self.brokers:
            broker.kill()
        # Puts that are late in the network take effect, and are checked afterwards.
        for broker in self.brokers:
            assert broker.store is not None
            await broker.store.late_puts_done()
