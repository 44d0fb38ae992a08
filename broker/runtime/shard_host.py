"""One broker as the host of a shard: it waits for its turn, takes the shard, runs it, and releases it.

    opened ── probe ──> waiting (standby) ── take, recover ──> owner ──┬── give_back: drained, sealed, lock released
                          ^   ^                   │                    └── lost: fenced, or the log cannot go on
                          │   └── failed: another was faster,                │
                          │       or the store is failing                    │
                          └────────────── wait T ── abandon <────────────────┘ (fenced by another's name)

Owns the store with its wrappers, the lock, the shard and its block reader. Does not own what follows a loss (``app``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from broker.base.clock import GuardedClock
from broker.base.errors import StartError, StoreInUse
from broker.base.gotime import format_duration
from broker.base.histogram import Histogram
from broker.cluster.identity import Identity
from broker.cluster.ownership import Overtaken, Watched, newest_claimant, seal_at, take
from broker.cluster.standby import wait_for_lease, wait_for_lock
from broker.config.settings import StorageSettings, default_store_url
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import NONCE_BYTES, Position
from broker.storage.format.store import StoreFormat
from broker.storage.log.listener import LogListener
from broker.storage.log.putter import Segment
from broker.storage.objectstore import StoreError, StoreLock, Transient, open_store
from broker.storage.objectstore.file import directory_of
from broker.storage.objectstore.instrumented import InstrumentedStore
from broker.storage.objectstore.probe import probe
from broker.storage.objectstore.race import expect_one_winner
from broker.storage.objectstore.reserving import ReservingStore
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.objectstore.unsynced import SyncFailed
from broker.storage.paths import COPYING, FORMAT, PROBE, ROOT, ShardPaths
from broker.storage.put import Backoff, Fenced, Patience
from broker.storage.read.cache import Cache
from broker.storage.read.damage import explain
from broker.storage.read.disk_cache import DiskCache
from broker.storage.read.reader import BlockReader
from broker.storage.shard import Shard, ShardSettings, reserve_left_by
from broker.storage.unsynced_tail import settle, tell_tail

if TYPE_CHECKING:
    from types import ModuleType

    from broker.maintenance.scrub import Finding, Scrubber

__all__ = ["ShardHost"]

log = logging.getLogger(__name__)

_COMMIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0)
"""Seconds: fine where a put of S3 and the commit interval lie, up to the lease."""
_TRIES = 6
"""A read, or the start, waits this many request timeouts (5 s) for a failing store: half a minute."""
_SILENCE_SECONDS = 2.0
"""A start that waits longer than this for its store logs it, even if no request has failed."""
_SILENCE_DOUBLED_MAX = 3
"""A standby waits for T of silence, doubled after each take-over that it lost, at most this many times: brokers too
slow for each other's T must not take turns for ever."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 30.0
"""The pause between take-overs that a failing store ended, doubled each time, since each leaves a claim behind."""
_FIRST_SCRUB_SECONDS = 600.0
"""A broker that is restarted over and over does not begin to scrub."""
_CLOCK_SECONDS = 60.0
"""How often the clock is compared with the store's for the log; whoever expires or deletes anything compares it itself."""
_UNPACKING_THREADS = 2
"""Threads that decompress what is read ahead."""
_UNOWNED_SECONDS = 5.0
"""Beyond two leases, the time in which an owner that died must be replaced; otherwise the owner counts as alive."""
_STOP_PATIENCE_SECONDS = 1.0
"""A clean stop gives up on a store that has completed no put for one request timeout plus this."""


class ShardHost(LogListener):
    """The store and, between ``acquire`` and ``give_back`` or ``abandon``, the shard on it."""

    def __init__(self, settings: StorageSettings, server_name: str, clock: GuardedClock,
                 lost: Callable[[BaseException], None]) -> None:
        """Args: ``server_name`` is the owner's; "": one is generated. ``lost`` is called once each time ownership is
            lost; call ``abandon`` then."""
        self.on_standby: Callable[[], object] = lambda: None
        """Called each time it begins to wait for another broker, or for the store."""
        self.on_turn: Callable[[], Awaitable[object]] = _nothing
        """Awaited when our turn has come, before the shard is touched; ``acquire`` passes its StartError on."""
        self._settings = settings
        self._clock = clock
        self._lost = lost
        # Nonces and epochs must differ between runs, whatever the seed of the rest of the broker.
        self._rng = random.Random(os.urandom(32))
        url = settings.url or default_store_url()
        try:
            bare = open_store(url, endpoint=settings.s3_endpoint, region=settings.s3_region,
                              keys=_s3_keys(settings),
                              put_timeout_ns=settings.put_timeout_ns, get_timeout_ns=2 * settings.put_timeout_ns,
                              sync_interval_ns=settings.sync_interval_ns)
        except (ValueError, StoreError) as error:
            raise StartError(str(error)) from None
        self.room = ReservingStore(bare, settings.reserve_bytes, reserve_left_by, clock)
        self.store = InstrumentedStore(self.room, clock=clock)
        self.cache = Cache(settings.cache_bytes)
        self.shard: Shard | None = None
        self._in_use = asyncio.Event()
        """Set when this host began to wait for another broker."""
        self.standby = False
        """Whether it waits for another broker to stop, or tries to replace it."""
        self.commit_latency = Histogram(_COMMIT_BOUNDS)
        """How long calls waited for the segments that were stored."""
        self.recovery_ns = 0
        """How long the last take-over took, from our turn to serving."""
        self._served = False
        self._patient = RetryingStore(self.store, clock=clock, rng=self._rng,
                                      give_up_ns=_TRIES * settings.put_timeout_ns)
        self.disk_cache = self._make_disk_cache(url)
        self._identity = Identity.make(server_name or None, self._rng)
        self._paths = ShardPaths(0)
        self.on_damage: Callable[[Finding], object] = lambda _: None
        """Called once for each damaged object that scrubbing finds."""
        self.scrubber: Scrubber | None = None
        """None until the first pass begins."""
        self._scrubs = bool(settings.scrub_interval_ns) and not url.startswith("memory:")
        self._before_scrub: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._clock_believed = True
        self._waiting_told = False
        self._lock: StoreLock | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._unpacking = ThreadPoolExecutor(_UNPACKING_THREADS, thread_name_prefix="unpack")

    @property
    def reader(self) -> BlockReader:
        """Reads the blocks of the shard, which is ours."""
        if self.shard is None:
            raise RuntimeError("the shard is not ours")
        if self.disk_cache is None:
            return BlockReader(self._patient, self.cache, self.shard.key_of, self._paths, executor=self._unpacking)
        return BlockReader(self.disk_cache, self.cache, self.shard.key_of, self._paths, distrust=self.disk_cache.forget,
                           executor=self._unpacking)

    def _make_disk_cache(self, url: str) -> DiskCache | None:
        """Raises: StartError."""
        folder = self._settings.cache_directory
        if not folder:
            return None
        if not url.startswith("s3:"):
            raise StartError(f"jetblock.cache_directory keeps what is read from a bucket, and the store is {url}: leave it out")
        try:
            return DiskCache(self._patient, folder, self._settings.cache_directory_bytes)
        except OSError as error:
            raise StartError(f"jetblock.cache_directory: no file can be made in {folder}: {error}") from None

    async def check(self, *, must_exist: bool = False) -> None:
        """Probe the store, and make it if there is none, unless it ``must_exist``. Raises: StartError."""
        fresh = StoreFormat.make(self._rng.randbytes(NONCE_BYTES), self._clock.now_ns())
        waiting = asyncio.get_running_loop().call_later(_SILENCE_SECONDS, self._tell_waiting)
        # A request that fails earlier is logged at once: the last attempt may end before the timer does.
        self._patient.on_trouble = self._tell_waiting
        try:
            if must_exist and not await self._patient.list(ROOT, limit=1):
                raise StartError(f"{self.store.url}: there is no jetblock store: check the path or prefix")
            StoreFormat.decode(await probe(
                self._patient, FORMAT, [fresh.encode()], unfinished=COPYING,
                race=partial(expect_one_winner, self._patient, PROBE, random.Random(fresh.store_id), self._clock)
                if self.store.puts_cost else None))
        except (StoreError, FormatError) as error:
            raise StartError(self._told(error)) from None
        finally:
            waiting.cancel()
            self._patient.on_trouble = None
        self._clock.witness = self.store.now_ns
        self._look_at_clock()
        self._watching = asyncio.create_task(self._watch_clock(), name="watch the clock")

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(_CLOCK_SECONDS)
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """Say so when the clock is no longer believed, and when it is again."""
        believed, self._clock_believed = self._clock_believed, self._clock.trusted
        if believed and not self._clock_believed:
            log.warning("This machine's clock is %s: no message expires and nothing is deleted until it is right",
                        self._disagreement())
        elif self._clock_believed and not believed:
            log.info("This machine's clock is right again: messages expire, and what is not needed is deleted")

    def _disagreement(self) -> str:
        apart_ns = self._clock.apart_ns
        other = "what it was plus the time since then" if self.store.now_ns() is None else "the store's"
        whole_s = abs(apart_ns) // 1_000_000_000
        return f"{format_duration(whole_s * 1_000_000_000)} {'ahead of' if apart_ns > 0 else 'behind'} {other}"

    def _tell_waiting(self) -> None:
        if self._waiting_told:
            return
        self._waiting_told = True
        log.warning("%s has not answered yet, trying for %g s in all (%d failed requests so far)", self.store.url,
                    _TRIES * self._settings.put_timeout_ns / 1e9, self.store.errors)

    async def acquire(self) -> Shard:
        """Wait for our turn, then take the shard, however often others are faster or the store fails meanwhile.

        Raises: StartError, where waiting does not help: two copies of one configuration, a damaged store, one that
            refuses us at the first attempt.
        """
        lost = 0
        backoff = Backoff(self._rng, _PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        while True:
            try:
                watched = await self._turn(self._settings.lease_ns << min(lost, _SILENCE_DOUBLED_MAX))
                await self.on_turn()
                return await self._own(watched)
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
                raise StartError(self._told(error)) from None
            except BaseException:
                if self.shard is None:
                    self._release()
                raise

    async def acquire_unowned(self) -> Shard:
        """As ``acquire``, for callers that do not want to wait for a live owner to stop.

        On S3, the last owner may have died; that is known after a lease of silence.
        Raises: StoreInUse; StartError.
        """
        acquiring = asyncio.create_task(self.acquire(), name="acquire")
        waiting = asyncio.create_task(self._in_use.wait(), name="wait for a standby")
        try:
            await asyncio.wait((acquiring, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.done() and self.store.try_lock is None:
                await asyncio.wait((acquiring,), timeout=2 * self._settings.lease_ns / 1e9 + _UNOWNED_SECONDS)
            if not acquiring.done():
                raise StoreInUse(f"{self.store.url}: another broker owns the store")
            return await acquiring
        finally:
            waiting.cancel()
            acquiring.cancel()
            await asyncio.gather(acquiring, waiting, return_exceptions=True)

    async def _turn(self, silence_ns: int) -> Watched | None:
        """Return when we may try, with what was seen of the last owner (None: there is none). Raises: StoreError;
        FormatError."""
        store, settings = self.store, self._settings
        if store.try_lock is not None:
            self._lock = await wait_for_lock(store, self._paths, self._wait_for_owner)
            return None
        return await wait_for_lease(store, self._paths, self._identity, self._clock, self._rng, settings.lease_ns,
                                    self._wait_for_owner, silence_ns=silence_ns)

    async def _own(self, watched: Watched | None) -> Shard:
        """Take the shard and recover it. Raises: Overtaken; Fenced, with ``by``; StoreError; FormatError; CutOff."""
        store, paths, clock, rng = self.store, self._paths, self._clock, self._rng
        settings = ShardSettings.for_store(store, self._settings)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._settings.puts_in_flight, thread_name_prefix="encode")
        began_ns = clock.monotonic_ns()
        directory = directory_of(store)
        try:
            if directory is not None:
                tell_tail(await asyncio.to_thread(settle, directory, paths), store.url)
            taken = await take(store, paths, self._identity, clock, rng, watched, self._settings.lease_ns)
            if directory is not None:
                directory.unsynced.on_failure = partial(self._sync_failed, asyncio.get_running_loop())
                await asyncio.to_thread(directory.start_unsynced, paths.logs, paths.log(Position(taken.epoch, 1)))
            if (held_ns := taken.serve_from_ns - clock.monotonic_ns()) > 0:
                log.info("The last owner of %s may answer for up to %.1f s yet; serving after that", store.url, held_ns / 1e9)
            shard = self.shard = await Shard.open(
                store, paths, taken.epoch, self._identity.nonce, clock, rng, settings, began_ns=taken.began_ns,
                serve_from_ns=taken.serve_from_ns, executor=self._executor, clock_trusted=lambda: clock.trusted)
            if shard.log.lease_expired:
                # Streams opened with an expired lease could not serve reads.
                await shard.log.persisted()
        except Fenced as fenced:
            if fenced.by or isinstance(fenced, Overtaken):
                raise
            raise Fenced(str(fenced), await newest_claimant(store, paths, Patience(store, clock, rng))) from None
        for problem in shard.recovered.problems:
            log.warning("a checkpoint cannot be used, an older one was: %s", problem)
        self.recovery_ns = clock.monotonic_ns() - began_ns
        shard.log.listen(self)
        shard.log.store_room = self.room
        self.room.on_change = shard.log.store_room_changed
        shard.log.store_room_changed()
        self.room.start()
        self.standby, self._served = False, True
        if self._scrubs:
            self._before_scrub = asyncio.create_task(self._begin_scrub(shard), name="until the first scrub")
        return shard

    async def _begin_scrub(self, shard: Shard) -> None:
        settings = self._settings
        await asyncio.sleep(min(_FIRST_SCRUB_SECONDS, settings.scrub_interval_ns / 1e9))
        if self.scrubber is None:
            # What it needs takes a tenth of a second to import.
            scrub = await asyncio.to_thread(_import_scrub)
            self.scrubber = scrub.Scrubber(self._patient, self._paths, self._clock, scrub.ScrubSettings(
                settings.scrub_interval_ns, settings.scrub_bytes_per_second), lambda finding: self.on_damage(finding))
        self.scrubber.start(lambda: shard.state)

    async def _stop_scrub(self) -> None:
        """A pass goes on where it was if the shard is ours again."""
        if self._before_scrub is not None:
            self._before_scrub.cancel()
            await asyncio.gather(self._before_scrub, return_exceptions=True)
            self._before_scrub = None
        if self.scrubber is not None:
            await self.scrubber.stop()

    def segment_persisted(self, segment: Segment) -> None:
        """Measure the commit."""
        if segment.urgent_ns:
            self.commit_latency.observe((self._clock.monotonic_ns() - segment.urgent_ns) / 1e9)

    @property
    def retries(self) -> int:
        """Reads that were tried again."""
        return self._patient.retries

    def log_failed(self, error: BaseException) -> None:
        """The shard is lost, unless we gave it up."""
        if self.shard is not None:
            self._lost(error)

    def _sync_failed(self, loop: asyncio.AbstractEventLoop, failure: SyncFailed) -> None:
        """In a thread: what was acknowledged since the last sync may not be on the disk, so nothing more is."""
        def end() -> None:
            if self.shard is not None:
                self.shard.log.fail(failure)

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end)

    async def _sync(self, end: bool) -> None:
        """Sync what was put unsynced; ``end``: from then on, nothing more is."""
        directory = directory_of(self.store)
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
        self.on_standby()

    def is_our_double(self, error: BaseException) -> bool:
        """Whether we were fenced by a broker of our own name: two copies of one configuration must not take turns."""
        return isinstance(error, Fenced) and error.by == self._identity.name

    def double(self, fenced: Fenced) -> StartError:
        """The error to end the process with."""
        return StartError(f"{fenced}, under our own name: two copies of one configuration run on this store; give them "
                          f"different server_names, or stop one")

    async def give_back(self) -> None:
        """Release the shard cleanly: commit everything sequenced, write a checkpoint, seal the epoch, release the lock.

        A store that no longer accepts puts does not keep the process alive for ever: what is sequenced but not stored,
        and so not acknowledged (except on ``async`` streams), is then dropped, as by a kill.
        """
        await self._stop_scrub()
        shard = self.shard
        if shard is not None:
            # It may take longer than a put, and every put of the stop would wait for it.
            await self._sync(end=False)
            closing = asyncio.create_task(self._close(shard), name="close the log")
            while not closing.done():
                done = self._puts_done
                await asyncio.wait((closing,), timeout=self._settings.put_timeout_ns / 1e9 + _STOP_PATIENCE_SECONDS)
                if not closing.done() and self._puts_done == done:
                    closing.cancel()
                    log.error("the log was not closed cleanly: %s takes nothing: %s; %d bytes that were not stored are "
                              "dropped", self.store.url, shard.log.store_error or "no answer", shard.log.tail_bytes)
                    break
            await asyncio.gather(closing, return_exceptions=True)
        await self.abandon()

    async def _close(self, shard: Shard) -> None:
        try:
            end = await shard.close()
            await seal_at(self.store, self._paths, end, end.epoch, self._identity, self._clock, self._rng)
        except (StoreError, FormatError, Fenced) as error:
            log.error("the log was not closed cleanly: %s", error)

    @property
    def _puts_done(self) -> int:
        """The number of successful puts. Reads do not count: they still work on a store that turned read-only."""
        puts = self.store.operations["put"]
        return puts.count - sum(puts.errors.values())

    async def abandon(self) -> None:
        """Stop at once; what is not persisted is dropped."""
        await self._stop_scrub()
        if self.shard is not None:
            shard, self.shard = self.shard, None
            await shard.abandon()
        await self.room.stop()
        await self._sync(end=True)
        self.cache.clear()
        if self.disk_cache is not None:
            self.disk_cache.clear()
        self._release()

    async def close(self) -> None:
        """Close the store."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._unpacking.shutdown(wait=False, cancel_futures=True)
        if self.disk_cache is not None:
            await self.disk_cache.close()
        await self.store.close()

    def _told(self, error: Exception) -> str:
        return explain(error, self._paths, self.store.url) if isinstance(error, FormatError) else str(error)

    def _release(self) -> None:
        if self._lock is not None:
            # Its mark is ours only as long as the lock is. Nothing is left to sync, unless a start was cancelled.
            if (directory := directory_of(self.store)) is not None:
                with suppress(StoreError):
                    directory.stop_unsynced()
            self._lock.release()
            self._lock = None


def _s3_keys(settings: StorageSettings) -> tuple[str, str, str | None] | None:
    """The configured S3 keys: access key, secret and session token; None: the AWS chain finds them.

    The environment completes what is not configured; its session token belongs to the access key that it names.
    """
    if not (settings.s3_access_key_id or settings.s3_secret_access_key):
        return None
    named = os.environ.get("AWS_ACCESS_KEY_ID", "")
    access_key_id = settings.s3_access_key_id or named
    return (access_key_id, settings.s3_secret_access_key or os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
            os.environ.get("AWS_SESSION_TOKEN") if named in ("", access_key_id) else None)


def _import_scrub() -> ModuleType:
    from broker.maintenance import scrub

    return scrub


async def _nothing() -> None:
    pass
