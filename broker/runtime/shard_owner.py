"""A shard of a process's store: the process waits until it may take the shard, takes it, runs it, and releases it.

    opened ── waiting (standby) ── take, recover ──> owner ──┬── give_back: drained, sealed, lock released
                 ^   ^                 │                     └── lost: fenced, or the log has failed
                 │   └── failed: another broker was faster,        │
                 │       or the store is failing                   │
                 └──────────── wait T ── abandon <─────────────────┘ (fenced by a broker of another name)

Owns the lock, the shard's epoch and log, its block reader and its scrubbing. Does not own the store (``store_host``),
nor the reaction to a loss (``app``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from broker.base.backoff import Backoff
from broker.base.errors import StartError, StoreInUse
from broker.base.histogram import Histogram
from broker.cluster.hold_off import HoldOff
from broker.cluster.ownership import Earlier, Overtaken, Watched, do_nothing, newest_claimant, seal_at, take_shard
from broker.cluster.standby import wait_for_lease, wait_for_lock
from broker.storage.format.errors import CutOff, FormatError, KeyMissing
from broker.storage.format.header import FORMAT_VERSION, Position
from broker.storage.format.records.opening import SHARDS_VERSION
from broker.storage.journal_replay import journal_place, log_replayed, replay_journal
from broker.storage.keys.deleted import KeysOfDeletedStreams
from broker.storage.keys.opening import decode_all, missing_key
from broker.storage.keys.shard_keys import KeyedStore
from broker.storage.log.listener import LogListener
from broker.storage.log.putter import Segment
from broker.storage.objectstore import NotFound, StoreError, StoreLock, Transient
from broker.storage.objectstore.file import directory_of
from broker.storage.objectstore.unsynced import SyncFailed
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, StoreRetry
from broker.storage.read.damage import explain
from broker.storage.read.reader import BlockReader
from broker.storage.read.recovery import recover_ended
from broker.storage.read.snapshot import Snapshot, replay
from broker.storage.read.steps import run
from broker.storage.shard import Shard, ShardSettings
from broker.storage.unsynced_tail import log_tail, repair_tail

if TYPE_CHECKING:
    from types import ModuleType

    from broker.maintenance.scrub import Finding, Scrubber
    from broker.runtime.store_host import StoreHost

__all__ = ["ShardOwner", "do_nothing"]

log = logging.getLogger(__name__)

_COMMIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0)
"""In seconds, up to the lease: narrow around the time of a put to S3 and around the commit interval."""
_SILENCE_DOUBLED_MAX = 3
"""A standby waits for T of silence, and for twice as long after each take-over that it lost, at most this many times.
Otherwise brokers that are too slow for T would fence each other for ever."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 30.0
"""The first and the longest pause after a take-over that a failing store ended; each take-over leaves a claim
behind."""
_FIRST_SCRUB_SECONDS = 600.0
"""The time from a start to the first scrub, so that a broker that restarts again and again does not scrub."""
_UNOWNED_SECONDS = 5.0
"""An owner that cannot be replaced within two leases and this time counts as alive."""
_AHEAD_SECONDS = 15.0
"""The time for which a shard that was read ahead is kept in memory: longer than a hand-over may take."""


class ShardOwner(LogListener):
    """A shard, which this process owns between ``acquire`` and ``give_back`` or ``abandon``.

    Attributes: ``shard`` is None while another process may own it; ``standby`` says that this process waits for another
        owner to stop, or tries to replace it; ``scrubber`` is None until the first pass begins.
    """

    def __init__(self, host: StoreHost, number: int, lost: Callable[[BaseException], object], *,
                 waits: Callable[[], object] = lambda: None, before_claim: Callable[[], Awaitable[object]] = do_nothing,
                 ended: Callable[[], object] = lambda: None,
                 damaged: Callable[[Finding], object] = lambda _: None, hold_off: HoldOff | None = None) -> None:
        """Args:
        number: the shard's number in the store.
        lost: called once each time ownership is lost; the callee must call ``abandon``.
        waits: called each time that a wait for another broker, or for the store, begins.
        before_claim: awaited when the shard may be taken, before it is touched; ``acquire`` passes its StartError on.
        ended: called during each attempt to take the shard. If the attempt succeeds, no earlier owner has stored
            anything since.
        damaged: called once for each damaged object that scrubbing finds.
        hold_off: how long a free shard is left to other brokers; None: it is taken at once.
        """
        self.shard: Shard | None = None
        self.standby = False
        self.scrubber: Scrubber | None = None
        self.commit_latency = Histogram(_COMMIT_BOUNDS)
        """The times from the first call that waits for a commit until it is stored, or safe in the journal."""
        self.recovery_ns = 0
        """The duration of the last take-over, from the end of the wait until the shard is recovered."""
        self._host = host
        self._settings = host.settings
        self._paths = ShardPaths(number)
        self._lost = lost
        self._waits = waits
        self._before_claim = before_claim
        self._ended = ended
        self._damaged = damaged
        self._hold_off = hold_off
        self.number = number
        self._in_use = asyncio.Event()
        """Set when the wait for another broker began."""
        self._served = False
        self._seal: Position | None = None
        """The position of the seal that this process has put at the end of its own epoch; None: it has put none."""
        self._ahead: Snapshot | None = None
        """The shard as it was while another broker owned it, shortly before this process takes it."""
        self._before_scrub: asyncio.Task[None] | None = None
        self._lock: StoreLock | None = None

    @property
    def reader(self) -> BlockReader:
        """A reader of the shard's blocks. Raises: RuntimeError if the shard is not ours."""
        if self.shard is None:
            raise RuntimeError("the shard is not ours")
        host, disk_cache = self._host, self._host.disk_cache
        if disk_cache is None:
            return BlockReader(host.retrying, host.cache, self.shard.key_of, self._paths, executor=host.unpacking)
        return BlockReader(disk_cache, host.cache, self.shard.key_of, self._paths, distrust=disk_cache.forget,
                           executor=host.unpacking)

    async def acquire(self) -> Shard:
        """Wait until the shard may be taken, then take it; try again if another broker is faster or the store fails.

        Raises: StartError, if waiting does not help: two brokers have one name, the store is damaged, or the store
        refuses
            the first attempt.
        """
        lost = 0
        backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, self._host.rng)
        while True:
            try:
                await self._check_master_key()  # a standby with another key would end when it is needed
                watched = await self._wait_until_free(self._settings.lease_ns << min(lost, _SILENCE_DOUBLED_MAX))
                await self._before_claim()
                return await self._take_and_recover(watched)
            except Overtaken as overtaken:
                await self.abandon()
                log.info("%s; waiting as a standby", overtaken)
                self._wait()
            except Fenced as fenced:
                await self.abandon()
                if self.is_our_double(fenced):
                    raise self.double(fenced) from None
                log.warning("%s; waiting as a standby", fenced)
                lost += 1
            except StoreError as error:
                await self.abandon()
                if not (isinstance(error, Transient) or self.standby or self._served):
                    raise StartError(str(error)) from None
                log.warning("the store does not let us take over: %s; waiting as a standby", error)
                self._wait()
                await asyncio.sleep(backoff.next())
            except (FormatError, CutOff) as error:
                await self.abandon()
                raise StartError(self._explanation(error)) from None
            except KeyMissing as error:
                await self.abandon()
                raise StartError(str(error)) from None
            except BaseException:
                if self.shard is None:
                    self._release()
                raise

    async def acquire_unowned(self) -> Shard:
        """Acquire the shard like ``acquire``, but do not wait for a live owner to stop.

        On S3, it is known only after a lease of silence that the last owner has died.
        Raises: StoreInUse; StartError.
        """
        acquiring = asyncio.create_task(self.acquire(), name="acquire")
        waiting = asyncio.create_task(self._in_use.wait(), name="wait for a standby")
        try:
            await asyncio.wait((acquiring, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.done() and self._host.store.try_lock is None:
                await asyncio.wait((acquiring,), timeout=2 * self._settings.lease_ns / 1e9 + _UNOWNED_SECONDS)
            if not acquiring.done():
                raise StoreInUse(f"{self._host.store.url}: another broker owns the store")
            return await acquiring
        finally:
            waiting.cancel()
            acquiring.cancel()
            await asyncio.gather(acquiring, waiting, return_exceptions=True)

    async def read_ahead(self) -> None:
        """Read the shard, which another broker is about to hand over to this one. Then this process, if it takes the
        shard soon, reads only what is added meanwhile.
        """
        if self.shard is not None:
            return
        host, paths = self._host, self._paths
        with suppress(StoreError, FormatError, CutOff, KeyMissing):  # then the take-over reads all of it
            if host.masters is not None:
                await host.read_keys(paths)
            retry = StoreRetry(host.store, host.clock, host.rng)
            ahead = self._ahead = await run(replay(paths, thorough=False), host.store, retry)
            asyncio.get_running_loop().call_later(_AHEAD_SECONDS, self._drop_ahead, ahead)

    def _drop_ahead(self, ahead: Snapshot) -> None:
        if self._ahead is ahead:
            self._ahead = None

    async def _wait_until_free(self, silence_ns: int) -> Watched | None:
        """Wait until the shard may be taken; return the observed end of the log (None if a lock decides).

        Raises: StoreError; FormatError.
        """
        host = self._host
        if host.store.try_lock is not None:
            self._lock = await wait_for_lock(host.store, self._paths, self._wait_for_owner, clock=host.clock,
                                             hold_off=self._hold_off)
            return None
        return await wait_for_lease(host.store, self._paths, host.identity, host.clock, host.rng,
                                    self._settings.lease_ns, self._wait_for_owner, silence_ns=silence_ns,
                                    hold_off=self._hold_off, heartbeats=host.heartbeat_watch)

    async def _take_and_recover(self, watched: Watched | None) -> Shard:
        """Take the shard and recover it. Raises: Overtaken; Fenced, with ``by``; StoreError; FormatError; CutOff."""
        host, paths = self._host, self._paths
        store, clock, rng = host.store, host.clock, host.rng
        keys = host.keys_of(paths)
        settings = ShardSettings.for_store(store, self._settings, None if keys is None else keys.codec)
        began_ns = clock.monotonic_ns()
        directory = directory_of(store)
        reading: asyncio.Task[Snapshot | None] | None = None

        async def check() -> None:
            # Before the claim: a broker with another key, or without one, must not take the shard.
            await (self._check_master_key() if keys is None else keys.load(host.retrying))

        async def read(earlier: Earlier) -> Snapshot | None:
            if directory is None and keys is not None:
                # Again after the seals: an owner that was fenced has put its last keys before its last segment.
                await keys.load(host.retrying)
            ahead, self._ahead = self._ahead, None
            return await recover_ended(store, paths, earlier.roots, earlier.ends, StoreRetry(store, clock, rng), ahead)

        def read_earlier(earlier: Earlier) -> None:
            nonlocal reading
            self._ended()
            reading = asyncio.create_task(read(earlier), name="replay earlier epochs")

        try:
            if directory is not None:
                await check()
                log_tail(await asyncio.to_thread(repair_tail, directory, paths), store.url)
                replay = partial(replay_journal, directory, paths)
                if keys is not None and directory.put_sync is not None:
                    replay = partial(replay, keys.codec, partial(keys.flush_sync, directory.put_sync), keys.replay)
                log_replayed(await asyncio.to_thread(replay), store.url)
            taken = await take_shard(store, paths, host.identity, clock, rng, watched, self._settings.lease_ns,
                                     reader_version=await self._reader_version(),
                                     before_claim=check if directory is None else do_nothing, ended=read_earlier)
            if directory is not None:
                if not paths.shard:  # the log of another shard is synced at each put
                    directory.unsynced.on_failure = partial(self._sync_failed, asyncio.get_running_loop())
                await asyncio.to_thread(directory.start_unsynced, paths.logs, paths.log(Position(taken.epoch, 1)))
            if (held_ns := taken.serve_from_ns - clock.monotonic_ns()) > 0:
                log.info("The last owner of %s may answer for up to %.1f s yet; serving after that", store.url,
                         held_ns / 1e9)
            deleted = None if keys is None else KeysOfDeletedStreams(keys, host.retrying, clock)
            shard = self.shard = await Shard.open(
                store if keys is None else KeyedStore(store, keys), paths, taken.epoch, host.identity.nonce, clock, rng,
                settings, began_ns=taken.began_ns, serve_from_ns=taken.serve_from_ns, executor=host.encoders,
                clock_trusted=lambda: clock.trusted,
                journal=journal_place(directory, paths) if directory is not None and self._settings.journal else None,
                after_round=None if deleted is None else deleted.after_round, earlier=reading, opening=taken.opening)
            if host.disk_cache is not None:
                shard.eraser.on_done = host.disk_cache.clear
            if deleted is not None:
                shard.eraser.until_key_gone = deleted.until_gone
            if keys is not None:
                await keys.begin(taken.epoch, list(shard.state.streams.values()), host.retrying)
                if keys.streams - shard.state.streams.keys():
                    shard.eraser.forget_soon()
            if shard.log.lease_expired:
                # Streams opened with an expired lease could not serve reads.
                await shard.log.persisted()
        except Fenced as fenced:
            if fenced.by or isinstance(fenced, Overtaken):
                raise
            raise Fenced(str(fenced), await newest_claimant(store, paths, StoreRetry(store, clock, rng))) from None
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        for problem in shard.recovered.problems:
            log.warning("a checkpoint cannot be used, an older one was: %s", problem)
        self.recovery_ns = clock.monotonic_ns() - began_ns
        shard.log.listen(self)
        host.attach(shard.log, paths)
        self.standby, self._served = False, True
        if host.scrubs:
            self._before_scrub = asyncio.create_task(self._begin_scrub(shard), name="until the first scrub")
        return shard

    async def _reader_version(self) -> int:
        """Return the version that readers of this epoch need: releases without shards must not serve a part of a
        store."""
        several = not self._paths.shard and (self._settings.shards > 1 or await self._host.shard_count() > 1)
        return SHARDS_VERSION if several else FORMAT_VERSION

    async def _begin_scrub(self, shard: Shard) -> None:
        settings = self._settings
        await asyncio.sleep(min(_FIRST_SCRUB_SECONDS, settings.scrub_interval_ns / 1e9))
        if self.scrubber is None:
            # The scrubber's modules take a tenth of a second to import.
            scrub = await asyncio.to_thread(_import_scrub)
            self.scrubber = scrub.Scrubber(self._host.retrying, self._paths, self._host.clock, scrub.ScrubSettings(
                settings.scrub_interval_ns, settings.scrub_bytes_per_second), self._damaged)
        self.scrubber.start(lambda: shard.state)

    async def _stop_scrub(self) -> None:
        """Stop scrubbing. If the shard is acquired again, the pass continues where it stopped."""
        if self._before_scrub is not None:
            self._before_scrub.cancel()
            await asyncio.gather(self._before_scrub, return_exceptions=True)
            self._before_scrub = None
        if self.scrubber is not None:
            await self.scrubber.stop()

    def segment_persisted(self, segment: Segment) -> None:
        """Measure the commit that stored ``segment``."""
        if segment.urgent_ns:
            self.commit_latency.observe((self._host.clock.monotonic_ns() - segment.urgent_ns) / 1e9)

    def commit_safe(self, urgent_ns: int) -> None:
        """Measure a commit that the journal made safe."""
        self.commit_latency.observe((self._host.clock.monotonic_ns() - urgent_ns) / 1e9)

    def log_failed(self, error: BaseException) -> None:
        """Report the loss of the shard, unless this process gave it up."""
        if self.shard is not None:
            self._lost(error)

    def _sync_failed(self, loop: asyncio.AbstractEventLoop, failure: SyncFailed) -> None:
        """Fail the log, from a sync's thread: acknowledged messages may not be on the disk, so no more are
        acknowledged."""
        def end() -> None:
            if self.shard is not None:
                self.shard.log.fail(failure)

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end)

    async def _sync(self, end: bool) -> None:
        """Sync the objects that were put unsynced; with ``end``, all later puts are synced at once."""
        directory = directory_of(self._host.store)
        if directory is not None:
            try:
                await asyncio.to_thread(directory.stop_unsynced if end else directory.unsynced.sync)
            except StoreError as error:
                log.error("not all that was acknowledged could be synced: %s", error)

    def _wait_for_owner(self) -> None:
        self._in_use.set()
        self._wait()

    def _wait(self) -> None:
        self.standby = True
        self._waits()

    def is_our_double(self, error: BaseException) -> bool:
        """Return whether a broker of our own name fenced us: two copies of one configuration must not fence each other
        in turn."""
        return isinstance(error, Fenced) and error.by == self._host.identity.name

    def double(self, fenced: Fenced) -> StartError:
        """Return the error that ends a process which ``is_our_double`` holds for."""
        return StartError(f"{fenced}, under our own name: two copies of one configuration run on this store; give them "
                          "different server_names, or stop one")

    async def write_checkpoint(self) -> None:
        """Write a checkpoint while the shard serves, so that its next owner has little to replay."""
        if self.shard is not None:
            try:
                await self.shard.checkpointer.cut()
            except (StoreError, FormatError, Fenced) as error:
                log.warning("shard %d: no checkpoint could be written: %s", self.number, error)

    async def give_back(self, *, checkpoint: bool = True) -> Position | None:
        """Release the shard cleanly: commit everything sequenced, seal the epoch, release the lock.

        Args: ``checkpoint``: write a checkpoint before the seal.
        If the store no longer accepts puts, messages that are sequenced and not stored are dropped, as by a kill. They
        are not acknowledged, except on ``async`` streams.
        Returns: the position of the seal; None if there is none.
        """
        await self._stop_scrub()
        shard = self.shard
        if shard is not None:
            # A sync may take longer than a put, and every put of the stop would wait for it.
            await self._sync(end=False)
            closing = asyncio.create_task(self._close(shard, checkpoint), name="close the log")
            if not await self._host.finishes(closing):
                closing.cancel()
                log.error("the log was not closed cleanly: %s takes nothing: %s; %d bytes that were not stored are "
                          "dropped", self._host.store.url, shard.log.store_error or "no answer", shard.log.tail_bytes)
            await asyncio.gather(closing, return_exceptions=True)
        seal = self._seal
        await self.abandon()
        return seal

    async def _close(self, shard: Shard, checkpoint: bool) -> None:
        try:
            end = await shard.close(checkpoint=checkpoint)
            host = self._host
            await seal_at(host.store, self._paths, end, end.epoch, host.identity, host.clock, host.rng)
            self._seal = end
        except (StoreError, FormatError, Fenced) as error:
            log.error("the log was not closed cleanly: %s", error)

    async def abandon(self) -> None:
        """Stop using the shard at once; messages that are not persisted are dropped."""
        await self._stop_scrub()
        shard, self.shard = self.shard, None
        if shard is not None:
            await shard.abandon()
        seal, self._seal = self._seal, None
        await self._host.detach(shard.log if shard is not None else None, sealed=seal is not None)
        await self._sync(end=True)
        self._release()

    async def _check_master_key(self) -> None:
        """Check that a configured master key has wrapped keys of the store.

        Raises: StoreError; FormatError; KeyMissing.
        """
        store, masters, other = self._host.retrying, self._host.masters, ""
        for info in await store.list(self._paths.keys):
            with suppress(NotFound):  # merged meanwhile
                [one] = decode_all([(info.key, await store.get(info.key))])
                if masters is not None and masters.named(one.master) is not None:
                    return
                other = one.master
        if other:
            raise missing_key(store.url, other, masters)

    def _explanation(self, error: Exception) -> str:
        return explain(error, self._paths, self._host.store.url) if isinstance(error, FormatError) else str(error)

    def _release(self) -> None:
        if self._lock is not None:
            # The mark of unsynced puts may be removed only under the lock. Unless a start was cancelled, nothing is
            # unsynced.
            if (directory := directory_of(self._host.store)) is not None:
                with suppress(StoreError):
                    directory.stop_unsynced()
            self._lock.release()
            self._lock = None


def _import_scrub() -> ModuleType:
    from broker.maintenance import scrub

    return scrub
