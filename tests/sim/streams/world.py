"""A seeded simulation of real streams: one store, brokers that take it from each other, clients, and their records.

    Process        one process run: JetStream with its account, streams, consumers and API, the router, the shard with
                   log, checkpoints and sweeper, its own connection to the store (FaultyStore) and a cache, perhaps tiny
    Client         requests to it, and answers
    StreamRecord   all requests and their answers
    StoreChecker   a fresh reader of the store, which compares

There are two kinds of world. A leased one is like S3: up to three brokers, each waiting for the lease; puts that are
slow, refused, unanswered, lost or late. A locked one is like a directory: one process at a time, no lease, so that idle
days cost nothing.

These faults must be survived: kills at any await, a broker whose store stalls while its clients continue, take-overs,
clean stops, sweeps without grace, a damaged newest checkpoint (one at a time), caches smaller than one head, settings
changed and the broker killed meanwhile; clocks that leap (``tests.sim.clocks``); a store that refuses everything for a
while, or is slow to list (``tests.sim.storms``). Two cases are not survived, and not tried: a store that loses or
changes anything but one newest checkpoint, and two damaged checkpoints.

At the end all faults stop, and ``calm`` checks the state that must then be reached, within a stated time.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.keys.master import LocalKey, Masters
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import NotFound
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from broker.storage.state.applied import ShardState
from tests.manual_clock import ManualClock
from tests.sim.clocks import Clocks
from tests.sim.loop import SimLoop
from tests.sim.settings import eager_compaction
from tests.sim.storms import Storms
from tests.sim.streams import calm
from tests.sim.streams.batches import Batches
from tests.sim.streams.checker import PATHS, Message, StoreChecker
from tests.sim.streams.copies import Copies
from tests.sim.streams.counters import Counters
from tests.sim.streams.lifetimes import Lifetimes
from tests.sim.streams.network import Late
from tests.sim.streams.process import Process
from tests.sim.streams.record import Lost, StreamRecord
from tests.sim.streams.schedules import Schedules
from tests.sim.streams.special import Special
from tests.sim.streams.staging import Staging
from tests.sim.streams.usage import CONSUMERS, STREAMS, USUAL
from tests.storage.objectstore.faulty import Faults

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

__all__ = ["FEATURES", "World"]

SECOND = 1_000_000_000
DAY = 86_400 * SECOND

FAMILIES = (Copies, Lifetimes, Batches, Counters, Schedules)

FEATURES = frozenset(("end checks", "captures", "settings", "heads", "tiny cache", "flights", "edges",
                      "newest", "objects", "lease wait"))
"""Parts of the world that may be left out, to see what the others find:

    settings     limits change, and the broker is killed meanwhile
    captures     advisories and replies go into streams
    edges        sequences near 2^63 and 2^64
    heads        roll-ups that read many heads
    tiny cache   smaller than the blocks that one operation reads
    newest       last_per_subject under a lease
    flights      a read that failed after its reader was cancelled leaves no trace
    lease wait   each broker that takes the shard waits until the last owner's lease has expired
    end checks   the state after all faults is checked (``calm``)
    objects      the store is empty at the end

Two features make special worlds: ``retention``, work queues and interest streams; ``special``, two of the families.
"""


class World:
    """A run of one seed."""

    def __init__(self, seed: int, *, steps: int = 90, features: frozenset[str] = FEATURES) -> None:
        self.seed = seed
        self.features = features
        self.steps = steps
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.loop = SimLoop(self.clock, random.Random(seed))
        self.shared = MemoryStore()
        self.records: dict[int, StreamRecord] = {}
        self.sent_to: dict[bytes, StreamRecord] = {}
        """Payload to the stream to which it was published."""
        self.checker = StoreChecker(self.shared, self.records)
        self.late: Late = Late(list)
        self.compacts = seed % 7 in (0, 2, 5)
        """True if blocks are compacted, as often as possible. The seed decides, so that other seeds keep their
        histories."""
        self.counts: Counter[str] = Counter()
        """The number of events of each kind."""
        self.staging = Staging(self, self.shared) if seed % 5 == 4 else None
        """Staged messages, in worlds that have them; decided by the seed, too."""
        self.checker.staging = self.staging
        self.leased = rng.random() < 0.6
        self.lease_ns = rng.choice((2, 4)) * SECOND
        self.clocks: Clocks | None = None
        if seed % 3 == 1:
            self.clocks = Clocks(self.clock, self.loop, random.Random(seed), self.counts, dated=self.leased)
        """Clocks that leap, in worlds that have them; decided by the seed, too."""
        self.storms: Storms | None = None
        if seed % 3 == 1 and self.leased:
            self.storms = Storms(self.loop, random.Random(seed), self.counts, lambda: [p.store for p in self.processes])
        factor = rng.choice((0.0, 0.3, 1.0, 2.0)) if self.leased else rng.choice((0.0, 0.0, 0.5))
        self.faults = Faults(slow=0.05, slow_ns_max=2 * SECOND, refused=0.02, unanswered=0.02, lost=0.01, late=0.02,
                             late_ns_max=20 * SECOND, timeout_ns=2 * SECOND,
                             latency_ns=rng.choice((0, 2_000_000, 30_000_000))).scaled(factor)
        self.cache_bytes = rng.choice((1, 4096, 1 << 14, 1 << 20)) if "tiny cache" in features else 1 << 20
        self.settings_change = "settings" in features
        self.edges = "edges" in features
        kinds = [kind for kind in USUAL if kind not in ("edge", "audit", "echo", "object")]
        kinds += ["edge"] * self.edges + ["audit",
                                          "echo"] * ("captures" in features) + ["object"] * ("heads" in features)
        self.kinds = rng.sample(kinds, rng.randint(2, 5))
        if "retention" in features:
            self.kinds = ["queue", "interest"]
        self.specials: dict[str, Special] = {}
        """Families of streams with their own oracle, by kind of stream."""
        if "special" in features:
            of_this = [FAMILIES[(seed + at) % len(FAMILIES)](self) for at in (0, 1 + seed // 5 % 2)]
            self.specials = {kind: special for special in of_this for kind in special.kinds}
            self.kinds = list(self.specials)
        self.checker.specials = self.specials
        self.consumers = [name for name in CONSUMERS if name != "newest" or "newest" in features or not self.leased]
        self.brokers = rng.choice((1, 2, 2, 3)) if self.leased else 1
        self.processes: list[Process] = []
        self.masters = Masters(LocalKey(b"the master key of the simulation"))
        """The master keys of processes that start now, in worlds with encryption."""
        self.empties = "objects" in features and rng.random() < (0.05 if self.leased else 0.4)
        """True if everything is deleted at the end, and the remaining objects are counted. Idle time is slow under a
        lease, so few worlds do so."""
        self.answered_epoch = 0
        """The newest epoch whose owner has answered anybody rightfully; from then on no earlier owner may answer."""
        self.newest_epoch = 0
        """The newest epoch whose owner has answered anybody."""
        self.calm = False
        self.epochs: dict[int, str] = {}
        self._verdict: Exception | None = None
        self._damaged: set[str] = set()
        self._number = 0
        self._digest = hashlib.sha256()

    def run(self) -> str:
        """Run to the end; return a digest of the whole history. Raises: Lost, and any other error."""
        # The cache finds every object that is referred to, also by a cycle of garbage; chance must not decide when that
        # is collected.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.loop.run_until_complete(self._main())
            self._no_errors()
            for key in sorted(self.shared.objects):
                self._digest.update(key.encode() + hashlib.sha256(self.shared.objects[key]).digest())
            return self._digest.hexdigest()
        except Exception as error:
            first = self._verdict or error
            raise Lost(f"seed {self.seed}: {first}") from first
        finally:
            self.loop.end()
            if collects:
                gc.enable()

    def _no_errors(self) -> None:
        if self._verdict is not None:
            raise self._verdict
        for context in self.loop.errors:
            if "flights" not in self.features and isinstance(context.get("exception"), NotFound):
                continue
            raise Lost(f"the loop's exception handler was called: {context['message']}: {context.get('exception')!r}"
                       ) from context.get("exception")

    # Notifications of processes and clients.

    def note(self, *what: Any) -> None:
        """Add an event to the digest."""
        self._digest.update(repr((self.clock.monotonic_ns(), what)).encode())

    def next_number(self) -> int:
        """Return a number that was never used."""
        self._number += 1
        return self._number

    def opened(self, process: Process, state: ShardState) -> None:
        """Record that a broker recovered, and compare the state that it will serve."""
        epoch = process.epoch
        if epoch in self.epochs:
            raise Lost(f"epoch {epoch} was opened by {self.epochs[epoch]} and by {process.name}")
        self.epochs[epoch] = process.name
        self.note("opened", process.name, epoch)
        if max(self.epochs) == epoch:
            self.checker.compare(state, self.clock.now_ns())

    def others_put(self, process: Process, since_ns: int) -> bool:
        """Return whether another living broker has put anything since then."""
        return any(p.put_ns >= since_ns for p in self.processes if p is not process and not p.dead)

    def process_died(self, process: Process) -> None:
        """Mark the memory streams of a process run as gone with it."""
        for record in self.records.values():
            if record.memory and record.epoch == process.epoch:
                record.status = "gone"

    def stream_appeared(self, process: Process, stream: Stream) -> StreamRecord:
        """Return a new record of an existing stream of which no client knows yet."""
        life = stream.config.metadata["life"]
        config = {"name": stream.name, **STREAMS[stream.name], "metadata": {"life": life}}
        special = self.specials.get(stream.name)
        record = (special.record if special is not None else StreamRecord)(stream.stream_id, stream.name, config)
        self.records[stream.stream_id] = record
        if (clocks := self.clocks) is not None:
            record.slack_ns = clocks.slack_ns
            record.suspended_ns = lambda: clocks.suspended_ns
        record.epoch = process.epoch
        return record

    def run_check(self, check: Callable[..., object], *args: Any) -> None:
        """Call ``check`` and keep its error, since the broker that calls this takes any exception for its own."""
        try:
            check(*args)
        except Exception as error:
            self._verdict = self._verdict or error
            raise

    def process_ended(self, task: asyncio.Task[None]) -> None:
        """Record the error with which a process ended, if any."""
        if not task.cancelled() and (error := task.exception()) is not None and isinstance(error, Exception):
            self._verdict = self._verdict or error

    def settings(self) -> ShardSettings:
        rng = self.rng
        log = LogSettings(segment_bytes=rng.choice((200, 2000, 4 << 20)), puts_in_flight=rng.choice((1, 2, 4)),
                          commit_interval_ns=rng.choice((0, 0, 20_000_000)),
                          lease_ns=self.lease_ns if self.leased else None,
                          put_timeout_ns=2 * SECOND if self.leased else None)
        checkpoint = CheckpointSettings(segments=rng.choice((3, 8, 25)), empty_segments=rng.choice((4, 12)),
                                        replayed_segments=10, replayed_epochs=3)
        return ShardSettings(log=log, checkpoint=checkpoint, sweep_grace_ns=0,
                             compaction=eager_compaction(rng.choice) if self.compacts else None)

    # The course of a run.

    async def _main(self) -> None:
        rng = self.rng
        self.processes = [Process(self, f"b{at}") for at in range(self.brokers)]
        for step in range(self.steps):
            serving = [p for p in self.processes if p.serving]
            if serving:
                process = rng.choice(serving)
                for _ in range(rng.randint(1, 3)):
                    process.client.do_random_operation()
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.02, 0.2, 0.6, 1.2) if serving else (0.6, 1.5)))
            await self._chaos()
            self._no_errors()
            if step % 24 == 23:
                self.check_store()
        if "end checks" in self.features:
            await calm.restore_and_check(self)
            if self.staging is not None:
                await self.staging.check_end()
        for process in self.processes:
            await process.kill()
        for process in self.processes:
            await process.store.late_puts_done()
        self.check_store()

    def check_store(self) -> dict[int, dict[int, Message]]:
        """Replay the store and compare, and check the states that the owners themselves have applied."""
        for process in self.processes:
            if process.serving and process.shard is not None:
                self.checker.check_names(process.shard.state)
        return self.checker.check_store(self.clock.now_ns())

    def start(self, at: int) -> None:
        """Start a new process of broker number ``at``."""
        self.processes[at] = Process(self, f"b{at}")

    async def _chaos(self) -> None:
        """Cause a fault at random."""
        rng, draw = self.rng, self.rng.random()
        at = rng.randrange(len(self.processes))
        for paused in self.processes:
            if paused.thaws and self.newest_epoch > paused.epoch:
                paused.resume()  # so that it finds itself deposed
        for other, struck in enumerate(self.processes):
            if struck.dead:
                at, draw = other, 0.0
        process = self.processes[at]
        if draw < 0.03:
            self.note("kill", process.name)
            self.counts["kill"] += 1
            await process.kill()
            if rng.random() < 0.4:
                self._damage()
            await asyncio.sleep(rng.choice((0.0, 1.0)))
            self.start(at)
        elif draw < 0.045 and process.serving:
            self.counts["stop"] += 1
            process.stop()
            await self._until(lambda: process.ended, 30)
            await process.kill()
            self.start(at)
        elif draw < 0.07 and self.leased:
            self.counts["pause"] += 1
            if rng.random() < 0.5:
                process.pause()
            else:
                process.freezes = True
        elif draw < 0.095:
            process.resume()
        elif draw < 0.115:
            await asyncio.sleep(rng.choice((3, 12)) if self.leased else rng.choice((3, 30, 4000, 3 * 86_400)))
        if self.clocks is not None:
            self.clocks.perhaps_leap([process.name for process in self.processes])
        if self.storms is not None:
            self.storms.perhaps_begin()

    def _damage(self) -> None:
        """Damage the newest checkpoint, so that it cannot be read; the one before it can."""
        roots = sorted(key for key in self.shared.objects if key.startswith(PATHS.checkpoints))
        if len(roots) > 1 and not any(root in self._damaged for root in roots):
            data = bytearray(self.shared.objects[roots[-1]])
            data[self.rng.randrange(40, len(data))] ^= 0x40
            self.shared.objects[roots[-1]] = bytes(data)
            self._damaged.add(roots[-1])
            self.counts["damaged"] += 1

    async def _until(self, done: Callable[[], object], seconds: float) -> bool:
        """Wait until ``done()``; return False if that took too long."""
        end_ns = self.clock.monotonic_ns() + int(seconds * SECOND)
        while not done():
            if self.clock.monotonic_ns() >= end_ns:
                return False
            await asyncio.sleep(0.1)
        return True
