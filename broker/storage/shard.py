"""A shard that is run by its owner: recovery, the log with its checkpointer, sweeper and compaction, a clean stop.

Ownership is decided before (``cluster.ownership``): the epoch is an argument. After a clean stop the caller puts the
seal at the position that ``close`` returns.

    wait_for_lock or wait_for_lease -> take_shard -> Shard.open -> serve -> Shard.close -> seal_at -> release the lock
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from broker.base.clock import Clock
from broker.config.settings import StorageSettings
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.sweeper import READER_GRACE_NS, Sweeper
from broker.storage.compaction.compactor import Compactor
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.erasure.eraser import Eraser, ErasureSettings
from broker.storage.format.block import BlockRef
from broker.storage.format.codec import Compression
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.section import SectionCodec
from broker.storage.log.heartbeat import RecoveryHeartbeat
from broker.storage.log.journal import JournalPlace
from broker.storage.log.journaled_log import JournaledLog
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import HEARTBEATS, ShardPaths, block_key, object_key, parse
from broker.storage.put import StoreRetry
from broker.storage.read.recovery import add_opening, recover
from broker.storage.read.snapshot import Snapshot
from broker.storage.state.applied import ShardState

__all__ = ["Shard", "ShardSettings", "reserve_left_by"]

_RESERVE_LEFT = {ObjectKind.FORMAT: 0.0, ObjectKind.CLAIM: 0.0, ObjectKind.SEGMENT: 0.0, ObjectKind.ROOT: 0.5,
                 ObjectKind.PAGES: 0.5}
"""The share of the reserve that a put of each kind of object must leave. Half of the reserve is for the log alone:
without it, no purge can be stored."""


_POLL_NS_MIN, _POLL_NS_MAX = 50_000_000, 5_000_000_000
"""How often an erasure looks whether an object is deleted: a tenth of the grace, within these bounds."""


def reserve_left_by(key: str) -> float:
    """Return the share of a full store's reserve that a put of ``key`` must leave; 1: it can wait, as runs can."""
    if key.startswith(HEARTBEATS):
        return 0.0
    parsed = parse(key)
    return 1.0 if parsed is None else _RESERVE_LEFT.get(parsed.kind, 1.0)


class ShardSettings:
    """The settings of a shard and of its parts."""

    def __init__(self, *, log: LogSettings | None = None, checkpoint: CheckpointSettings | None = None,
                 sweep_grace_ns: int = READER_GRACE_NS, compaction: CompactionSettings | None = None,
                 erasure: ErasureSettings | None = None) -> None:
        self.log = log or LogSettings()
        self.checkpoint = checkpoint or CheckpointSettings()
        self.sweep_grace_ns = sweep_grace_ns
        self.compaction = compaction
        """None: no compaction."""
        self.erasure = erasure or ErasureSettings(grace_ns=sweep_grace_ns)

    @classmethod
    def for_store(cls, store: ObjectStore, settings: StorageSettings, codec: SectionCodec | None = None
                  ) -> ShardSettings:
        """Return the settings for a kind of store; ``codec`` None: one that does not encrypt.

        If puts cost money, there are a lease, time-outs and 20 ms between puts. Otherwise there are none of these, and
        sixteen times as many segments between rounds, since a replay reads their heads from the page cache.
        """
        costly = store.puts_cost
        interval_ns = settings.commit_interval_ns
        if interval_ns is None:
            interval_ns = 20_000_000 if costly else 0
        return cls(
            log=LogSettings(
                segment_bytes=settings.segment_bytes, puts_in_flight=settings.puts_in_flight,
                commit_interval_ns=interval_ns, commit_burst=settings.commit_burst,
                tail_bytes_max=settings.tail_bytes_max,
                lease_ns=settings.lease_ns if costly else None,
                put_timeout_ns=settings.put_timeout_ns if costly else None,
                codec=codec or SectionCodec(Compression[settings.compression.upper()])),
            checkpoint=None if costly else CheckpointSettings(segments=4096), sweep_grace_ns=settings.reader_grace_ns,
            compaction=CompactionSettings(
                cpu=settings.compaction_cpu / 100, bytes_per_second=settings.compaction_bytes_per_second,
                # A directory is read from the page cache.
                **({} if costly else {"recent_bytes": 0})) if settings.compaction else None,
            erasure=ErasureSettings(delay_ns=settings.erase_delay_ns, grace_ns=settings.reader_grace_ns,
                                    poll_ns=max(_POLL_NS_MIN, min(_POLL_NS_MAX, settings.reader_grace_ns // 10))))


class Shard:
    """A shard that this broker owns."""

    def __init__(self, log: Log, checkpointer: Checkpointer, sweeper: Sweeper, snapshot: Snapshot,
                 paths: ShardPaths, compactor: Compactor | None, merger: Compactor, eraser: Eraser) -> None:
        self._paths = paths
        self.log = log
        self.checkpointer = checkpointer
        self.sweeper = sweeper
        self.compactor = compactor
        """None: no compaction in the background."""
        self.merger = merger
        self.eraser = eraser
        self.recovered = snapshot
        """The result of recovery, such as the number of replayed segments and the unusable checkpoints."""

    def key_of(self, ref: BlockRef) -> str:
        """Return the key of the object that contains a block of a stream of this shard."""
        if not ref.place.of_stream:
            return object_key(self._paths, ref)
        stream = self.state.streams.get(ref.stream_id)
        if stream is None:
            raise NotFound(f"{ref!r}: its stream was deleted")
        return block_key(self._paths, stream.account, stream.name, ref)

    @property
    def number(self) -> int:
        """The shard's number in the store."""
        return self._paths.shard

    @property
    def state(self) -> ShardState:
        """The applied state."""
        return self.log.state

    @classmethod
    async def open(cls, store: ObjectStore, paths: ShardPaths, epoch: int, nonce: bytes, clock: Clock,
                   rng: random.Random, settings: ShardSettings | None = None, *, began_ns: int | None = None,
                   serve_from_ns: int = 0, executor: Executor | None = None,
                   clock_trusted: Callable[[], bool] = lambda: True, journal: JournalPlace | None = None,
                   after_round: Callable[[ShardState], Awaitable[None]] | None = None,
                   earlier: Awaitable[Snapshot | None] | None = None, opening: bytes = b"") -> Shard:
        """Recover the shard, whose ``epoch`` was just opened, and start its log.

        Args: began_ns is when, by the outside clock, the put of the opening began. serve_from_ns is the earliest time
            to return, by the monotonic clock. Until then it puts heartbeats, but no root, which would mean that it has
            served. executor encodes segments; None: no threads. journal is where the log keeps its journal; the caller
            has replayed the one of an earlier owner (``journal_replay``). after_round is awaited after each checkpoint;
            it raises nothing. earlier: what ``recover_ended`` has begun to read; opening: the object that opened the
            epoch.
        Raises: Fenced; Corrupt, with the object's key; StoreError.
        """
        settings = settings or ShardSettings()
        heartbeat = RecoveryHeartbeat(store, paths.log, epoch, nonce, clock, rng, settings.log,
                      clock.outside_ns() if began_ns is None else began_ns)
        snapshot = await heartbeat.renew_during(
            _recover(store, paths, epoch, clock, rng, serve_from_ns, earlier, opening))
        for number in range(snapshot.state.position.number + 1, heartbeat.position.number + 1):
            snapshot.state.apply_segment(Position(epoch, number))
        kind: Callable[..., Log] = Log if journal is None else partial(JournaledLog, journal)
        log = kind(store, paths.log, epoch, nonce, snapshot.state, clock, rng, settings.log, executor=executor,
                   began_ns=heartbeat.proved_ns, clock_trusted=clock_trusted)
        sweeper = Sweeper(log, paths, clock, rng, grace_ns=settings.sweep_grace_ns, clock_trusted=clock_trusted)

        async def after(checkpointer: Checkpointer) -> None:
            await sweeper.after_round(checkpointer)
            if after_round is not None:
                await after_round(snapshot.state)

        checkpointer = Checkpointer(log, paths, snapshot, rng, settings.checkpoint, after_round=after,
                                    executor=executor)
        sweeper.start(checkpointer)
        checkpointer.start()
        # A thread of its own: those of the commits are as many as there are puts in flight.
        own = None if executor is None else ThreadPoolExecutor(1, thread_name_prefix="compaction")
        own_rng = random.Random(rng.getrandbits(64) if settings.compaction is not None else epoch)
        compactor = Compactor(log, paths, checkpointer, sweeper, clock, own_rng,
                              settings.compaction or CompactionSettings(recent_bytes=0), executor=own,
                              clock_trusted=clock_trusted)
        if settings.compaction is not None:
            compactor.start()
        eraser = Eraser(log, paths, checkpointer, compactor, clock, own_rng, settings.erasure, clock_trusted)
        return cls(log, checkpointer, sweeper, snapshot, paths, compactor if settings.compaction is not None else None,
                   compactor, eraser)

    async def close(self, *, checkpoint: bool = True) -> Position:
        """Drain the log, write a last checkpoint, and stop. Returns: the first number never used, for the seal.

        Streams must be shut down before. Raises: Fenced, or the error that stopped the log: then no seal is due.
        """
        try:
            await self._stop_compaction()
            await self.log.drain()
            await self.checkpointer.finish()
            await self.sweeper.stop()
            if checkpoint:
                await self.checkpointer.cut()
            if self.log.failure is not None:
                raise self.log.failure
            # A round may have ended meanwhile and released something.
            await self.log.drain()
            while not self.log.idle:  # A heartbeat has begun: the seal states that all numbers before it are stored.
                await self.log.drain()
            return self.log.stop()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Stop at once and drop what is not persisted. May be called twice."""
        await self._stop_compaction()
        await self.checkpointer.stop()
        await self.sweeper.stop()
        await self.log.close()

    async def _stop_compaction(self) -> None:
        await self.eraser.stop()


async def _recover(store: ObjectStore, paths: ShardPaths, epoch: int, clock: Clock, rng: random.Random,
                   serve_from_ns: int, earlier: Awaitable[Snapshot | None] | None, opening: bytes) -> Snapshot:
    before = await earlier if earlier is not None else None
    if before is not None:
        snapshot = add_opening(before, paths, epoch, opening)
    else:
        snapshot = await recover(store, paths, epoch, StoreRetry(store, clock, rng))
    await asyncio.sleep(max(0, serve_from_ns - clock.monotonic_ns()) / 1e9)
    return snapshot
