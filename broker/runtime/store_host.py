"""The store of one process, and what all its shards share: the probe at the start, the clock watch, caches and
identity.

A ``ShardOwner`` (``shard_owner``) takes each shard on the store, and owns its lock, epoch and log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from broker.base.clock import GuardedClock
from broker.base.errors import StartError
from broker.base.gotime import format_duration
from broker.cluster.heartbeat import Heartbeats
from broker.cluster.heartbeat_watch import HeartbeatWatch
from broker.cluster.identity import Identity
from broker.config.settings import StorageSettings, default_store_url
from broker.storage.format.codec import Compression
from broker.storage.format.errors import FormatError
from broker.storage.format.header import NONCE_BYTES
from broker.storage.format.keyring import Cipher
from broker.storage.format.store import StoreFormat
from broker.storage.keys.master import BadKey, Masters
from broker.storage.keys.opening import decode_all, open_all
from broker.storage.keys.shard_keys import ShardKeys, read_wrapped
from broker.storage.log.commit_budget import CommitBudget
from broker.storage.log.log import Log
from broker.storage.objectstore import StoreError, open_store
from broker.storage.objectstore.instrumented import InstrumentedStore
from broker.storage.objectstore.probe import probe
from broker.storage.objectstore.race import expect_one_winner
from broker.storage.objectstore.reserving import ReservingStore
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.paths import COPYING, FORMAT, PROBE, ROOT, ShardPaths
from broker.storage.read.cache import Cache
from broker.storage.read.damage import explain
from broker.storage.read.disk_cache import DiskCache
from broker.storage.shard import ShardSettings, reserve_left_by

__all__ = ["StoreHost"]

log = logging.getLogger(__name__)

_TRIES = 6
"""The number of request timeouts for which a read, or the start, waits for a failing store: half a minute by
default."""
_SILENCE_SECONDS = 2.0
"""A start that waits longer than this for its store logs it, even if no request has failed."""
_CLOCK_SECONDS = 60.0
"""The interval at which the clock is compared with the store's for the log. Code that expires or deletes anything
compares them itself."""
_SHARE_SECONDS = 1.0
"""The interval at which the puts of the shards are counted."""
_READ_BYTES = 256 * 1024
"""Bytes of small messages that one read of a connection brings at most."""
_UNPACKING_THREADS = 2
"""Threads that decompress blocks read ahead."""
_PUT_GRACE_SECONDS = 1.0
"""Added to the timeout of a put: after both, a store that has completed no put counts as one that takes nothing."""


class StoreHost:
    """The store with its wrappers. Call ``check`` once before any shard is taken, and ``close`` at the end.

    Attributes: ``store`` counts and times requests; ``retrying`` is the same store with retries; ``room`` says whether
        the store is full; ``disk_cache`` is None if none is configured; ``scrubs``: whether stored objects are checked
        in the background.
    """

    def __init__(self, settings: StorageSettings, server_name: str, clock: GuardedClock,
                 max_payload: Callable[[], int]) -> None:
        """Open the store.

        Args: ``server_name`` names the owner of shards; "": a name is made up. ``max_payload()`` returns the most bytes
            of a message.
        Raises: StartError.
        """
        self.settings = settings
        self.clock = clock
        # Nonces and epochs must differ between runs, whatever the seed of the rest of the broker.
        self.rng = random.Random(os.urandom(32))
        url = settings.url or default_store_url()
        try:
            self.masters = Masters.of(settings.key, settings.prev_key)
        except BadKey as error:
            raise StartError(f"jetstream {{ key }}: {error}") from None
        try:
            bare = open_store(url, endpoint=settings.s3_endpoint, region=settings.s3_region, keys=_s3_keys(settings),
                              put_timeout_ns=settings.put_timeout_ns, get_timeout_ns=2 * settings.put_timeout_ns,
                              sync_interval_ns=settings.sync_interval_ns)
        except (ValueError, StoreError) as error:
            raise StartError(str(error)) from None
        self.room = ReservingStore(bare, settings.reserve_bytes, reserve_left_by, clock,
                                   burst=lambda: max_payload() + _READ_BYTES)
        self.store = InstrumentedStore(self.room, clock=clock)
        self.cache = Cache(settings.cache_bytes)
        self.retrying = RetryingStore(self.store, clock=clock, rng=self.rng,
                                      give_up_ns=_TRIES * settings.put_timeout_ns, on_trouble=self._log_waiting)
        self.disk_cache = self._make_disk_cache(url)
        self.identity = Identity.make(server_name or None, self.rng)
        self.scrubs = bool(settings.scrub_interval_ns) and not url.startswith("memory:")
        self.encoders: Executor = ThreadPoolExecutor(settings.puts_in_flight, thread_name_prefix="encode")
        self.unpacking = ThreadPoolExecutor(_UNPACKING_THREADS, thread_name_prefix="unpack")
        self.store_id = b""
        """The store's id, known after ``check``."""
        self._logs: set[Log] = set()
        """The logs of the shards that this process owns."""
        self.heartbeat_watch = HeartbeatWatch(self.store, clock, self.rng, settings.lease_ns)
        self._heartbeats: Heartbeats | None = None
        if self.store.puts_cost:
            self._heartbeats = Heartbeats(self.store, self.identity, clock, self.rng, settings.lease_ns,
                                          always=settings.own is not None)
        self.commit_budget = CommitBudget(ShardSettings.for_store(self.store, settings).log.commit_interval_ns)
        self._sharing: asyncio.Task[None] | None = None
        """Shares the interval between commits among the shards, while this process has any."""
        self._watching: asyncio.Task[None] | None = None
        self._clock_was_trusted = True
        self._logs_waiting = False
        """True if a request that fails or takes long is logged; once, during ``check``."""

    def _make_disk_cache(self, url: str) -> DiskCache | None:
        """Raises: StartError."""
        folder = self.settings.cache_directory
        if not folder:
            return None
        if not url.startswith("s3:"):
            raise StartError(f"jetblock.cache_directory keeps what is read from a bucket, and the store is {url}: "
                             "leave it out")
        try:
            return DiskCache(self.retrying, folder, self.settings.cache_directory_bytes)
        except OSError as error:
            raise StartError(f"jetblock.cache_directory: no file can be made in {folder}: {error}") from None

    def keys_of(self, paths: ShardPaths) -> ShardKeys | None:
        """Return the keys of a shard, not loaded yet; None if no key is configured."""
        if self.masters is None:
            return None
        cipher = Cipher.AES if self.settings.cipher == "aes" else Cipher.CHACHA
        return ShardKeys(paths, self.masters, cipher, self.identity.nonce,
                         Compression[self.settings.compression.upper()])

    async def read_keys(self, paths: ShardPaths) -> None:
        """Add the keys of another broker's shard to the ring of this process, which has a master key.

        Raises: KeyMissing: they are wrapped by a master key that is not configured; FormatError; StoreError.
        """
        objects = decode_all(await read_wrapped(self.retrying, paths))
        assert self.masters is not None
        await asyncio.to_thread(open_all, objects, self.masters, self.store.url)

    async def finishes(self, task: asyncio.Task[None]) -> bool:
        """Wait for the end of a task that puts objects. Returns: False once the store takes nothing: no put of this
        process has completed for one request timeout and a second.
        """
        while not task.done():
            done = self.puts_done
            await asyncio.wait((task,), timeout=self.settings.put_timeout_ns / 1e9 + _PUT_GRACE_SECONDS)
            if not task.done() and self.puts_done == done:
                return False
        return True

    async def check(self, *, must_exist: bool = False) -> None:
        """Probe the store, and create it if there is none; with ``must_exist``, that is an error. Raises:
        StartError."""
        fresh = StoreFormat.make(self.rng.randbytes(NONCE_BYTES), self.clock.now_ns())
        # A request that fails earlier is logged at once: the last attempt may end before the timer does.
        self._logs_waiting = True
        waiting = asyncio.get_running_loop().call_later(_SILENCE_SECONDS, self._log_waiting)
        try:
            if must_exist and not await self.retrying.list(ROOT, limit=1):
                raise StartError(f"{self.store.url}: there is no jetblock store: check the path or prefix")
            self.store_id = StoreFormat.decode(await probe(
                self.retrying, FORMAT, [fresh.encode()], unfinished=COPYING,
                race=partial(expect_one_winner, self.retrying, PROBE, random.Random(fresh.store_id), self.clock)
                if self.store.puts_cost else None)).store_id
        except FormatError as error:
            # The error is about the store's format object; its key has no shard's number.
            raise StartError(explain(error, ShardPaths(0), self.store.url)) from None
        except StoreError as error:
            raise StartError(str(error)) from None
        finally:
            waiting.cancel()
            self._logs_waiting = False
        self.clock.witness = self.store.now_ns
        self._compare_clocks()
        self._watching = asyncio.create_task(self._watch_clock(), name="watch the clock")

    async def shard_count(self) -> int:
        """Return the number of the store's shards: those that have been taken once, and shard 0. Raises: StoreError."""
        count = 1
        while await self.retrying.list(ShardPaths(count).epochs, limit=1):
            count += 1
        return count

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(_CLOCK_SECONDS)
            self._compare_clocks()

    def _compare_clocks(self) -> None:
        """Log when the machine's clock and the store's begin to differ, and when they agree again."""
        before, self._clock_was_trusted = self._clock_was_trusted, self.clock.trusted
        if before and not self._clock_was_trusted:
            log.warning("This machine's clock is %s: no message expires and nothing is deleted until it is right",
                        self._disagreement())
        elif self._clock_was_trusted and not before:
            log.info("This machine's clock is right again: messages expire, and what is not needed is deleted")

    def _disagreement(self) -> str:
        apart_ns = self.clock.apart_ns
        other = "what it was plus the time since then" if self.store.now_ns() is None else "the store's"
        whole_s = abs(apart_ns) // 1_000_000_000
        return f"{format_duration(whole_s * 1_000_000_000)} {'ahead of' if apart_ns > 0 else 'behind'} {other}"

    def _log_waiting(self) -> None:
        if not self._logs_waiting:
            return
        self._logs_waiting = False
        log.warning("%s has not answered yet, trying for %g s in all (%d failed requests so far)", self.store.url,
                    _TRIES * self.settings.put_timeout_ns / 1e9, self.store.errors)

    # --- for the owners of shards -------------------------------------------------------------------------------------

    def attach(self, log: Log, paths: ShardPaths) -> None:
        """Register the log of a shard that this process has taken. The log is notified when the store is full or has
        room."""
        if self._heartbeats is not None:
            self._heartbeats.add(log, paths)
        if self._sharing is None and log.settings.commit_interval_ns:
            self._sharing = asyncio.create_task(self._share_interval(), name="share the commit interval")
        log.store_room = self.room
        self.room.observe(log.store_room_changed)
        log.store_room_changed()
        self._logs.add(log)
        self.room.start()

    async def detach(self, log: Log | None, *, sealed: bool = False) -> None:
        """Remove a shard's log (None: the shard was not recovered), which we have ``sealed``. After the last one, clear
        the caches: the shards may get other owners."""
        if log is not None:
            self.room.stop_observing(log.store_room_changed)
            self._logs.discard(log)
            if self._heartbeats is not None:
                await self._heartbeats.remove(log, sealed=sealed)
        if not self._logs:
            if self._sharing is not None:
                self._sharing.cancel()
                await asyncio.gather(self._sharing, return_exceptions=True)
                self._sharing = None
            await self.room.stop()
            self.cache.clear()
            if self.disk_cache is not None:
                self.disk_cache.clear()

    async def _share_interval(self) -> None:
        while True:
            self.commit_budget.measure(self._logs, self.clock.monotonic_ns())
            await asyncio.sleep(_SHARE_SECONDS)

    @property
    def retries(self) -> int:
        """The number of reads that were tried again."""
        return self.retrying.retries

    @property
    def puts_done(self) -> int:
        """The number of successful puts. Reads do not count: they succeed on a store that has become read-only."""
        puts = self.store.operations["put"]
        return puts.count - sum(puts.errors.values())

    async def close(self) -> None:
        """Close the store."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._heartbeats is not None:
            await self._heartbeats.close()
        self.encoders.shutdown(wait=False)
        self.unpacking.shutdown(wait=False, cancel_futures=True)
        if self.disk_cache is not None:
            await self.disk_cache.close()
        await self.store.close()


def _s3_keys(settings: StorageSettings) -> tuple[str, str, str | None] | None:
    """Return the S3 access key, secret and session token; None if no key is configured (AWS's chain is used).

    A missing part comes from the environment; its session token belongs only to the access key that it names.
    """
    if not (settings.s3_access_key_id or settings.s3_secret_access_key):
        return None
    named = os.environ.get("AWS_ACCESS_KEY_ID", "")
    access_key_id = settings.s3_access_key_id or named
    return (access_key_id, settings.s3_secret_access_key or os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
            os.environ.get("AWS_SESSION_TOKEN") if named in ("", access_key_id) else None)
