"""When to try to take a shard. Wrong guesses cost a take-over, never a message: that is what seals are for.

On S3 the log is the lease: an owner that is idle puts an empty segment every T/3; a standby asks for the next number
and the next epoch every T/6, and goes ahead when it has seen nothing new for T by its own monotonic clock. At once:
when there is no owner, when the last one sealed its own epoch (a clean stop), and when the last claim is by our own
name, which somebody must have configured (a restart).

It returns what it saw (``Watched``), since an owner may come to life after the last look, and the short cuts look at the
last claim alone: ``ownership.take`` compares, and holds its first answer back where somebody's lease may still run.

A look counts from when it began, so one whose answers are old (a process that was stopped, a store that was silent) is
no proof of silence; and a store that gave us no answer may have given the owner none: T begins anew.

On a directory a lock is: taken by flock, held for life. A paused process keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from broker.clock import Clock
from broker.cluster.entries import end_of_segments
from broker.cluster.identity import Identity
from broker.cluster.ownership import Watched, newest_checkpoint, positions
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.header import HEADER_BYTES, Position
from broker.storage.objectstore.base import NotFound, ObjectStore, StoreLock, Transient
from broker.storage.paths import ShardPaths
from broker.storage.put import Patience

__all__ = ["LEASE_NS", "LOCK_POLL_NS", "wait_for_lease", "wait_for_lock"]

LEASE_NS = 15_000_000_000
"""T."""
LOCK_POLL_NS = 100_000_000

_log = logging.getLogger(__name__)


def _nothing() -> None:
    pass


async def wait_for_lock(store: ObjectStore, paths: ShardPaths, on_wait: Callable[[], object] = _nothing) -> StoreLock:
    """The shard's lock, once nobody else holds it. Raises: StoreRefused where locks don't work."""
    assert store.try_lock is not None
    folder = paths.prefix.rstrip("/")
    waiting = False
    while (lock := store.try_lock(folder)) is None:
        if not waiting:
            waiting = True
            on_wait()
            _log.info("standby: another broker holds the lock of %s%s", store.url, f"/{folder}")
        await asyncio.sleep(LOCK_POLL_NS / 1e9)
    return lock


async def wait_for_lease(store: ObjectStore, paths: ShardPaths, me: Identity, clock: Clock, rng: random.Random,
                         lease_ns: int = LEASE_NS, on_wait: Callable[[], object] = _nothing, *,
                         silence_ns: int | None = None) -> Watched:
    """Return when the shard may be tried for: its log has not grown for ``silence_ns``, or one of the short cuts holds.

    Args: lease_ns is T, by which the log is looked at; silence_ns, T unless given: more for who tried in vain before.
    Raises: Corrupt, StoreRefused. Transient errors are waited out: a store that cannot be read cannot be taken.
    """
    watch = _Watch(store, paths, me, Patience(store, clock, rng))
    silence_ns = silence_ns or lease_ns
    seen_at_ns = clock.monotonic_ns()
    waiting = False
    while True:
        began_ns = clock.monotonic_ns()
        try:
            grew = await watch.look()
            if watch.free:
                return watch.seen(silent=False)
            if not grew and began_ns - seen_at_ns >= silence_ns:
                # What we wait for may have been swept since the last look: then a checkpoint lies beyond it.
                if not await watch.skip_to_checkpoint():
                    return watch.seen(silent=True)
                grew = True
        except Transient as error:
            _log.info("standby: the store does not answer: %s", error)
            grew = True
        if grew:
            seen_at_ns = clock.monotonic_ns()
        if not waiting:
            waiting = True
            on_wait()
            _log.info("standby: %s owns %s%s", watch.owner or "another broker", store.url, f"/{paths.prefix}")
        await asyncio.sleep(lease_ns / 6e9)


class _Watch:
    """What a standby knows of the log's end."""

    def __init__(self, store: ObjectStore, paths: ShardPaths, me: Identity, patience: Patience) -> None:
        self.free = False
        self.owner = ""
        self._store = store
        self._paths = paths
        self._me = me
        self._patience = patience
        self._next: Position | None = None

    async def look(self) -> bool:
        """Whether there is anything that was not there at the last look."""
        store, paths, patience = self._store, self._paths, self._patience
        grew = False
        if self._next is None:
            self._next = _after(await newest_checkpoint(store, paths, patience))
            claims = await positions(store, paths.epochs, paths.epoch(self._next.epoch), patience)
            if claims:
                self._next = Position(claims[-1].epoch, 0)
            grew = True
        # Epochs follow each other without a gap, so the next claim has a name: a GET, where a listing costs a put.
        while await self._claimed(self._next.epoch + 1):
            self._next = Position(self._next.epoch + 1, 0)
            grew = True
        if not self._next.epoch:
            self.free = True  # nobody ever was
            return grew
        if grew:
            self.owner = await self._claimant(self._next.epoch)
            if self.owner == self._me.name:
                self.free = True
                return True
        number, seal = await end_of_segments(store, paths, self._next, patience)
        if number > self._next.number:
            self._next = Position(self._next.epoch, number)
            grew = True
        if seal is not None:
            self.free = await self._sealed_by_owner(self._next)
        return grew

    def seen(self, *, silent: bool) -> Watched:
        """How far the log went at the last look."""
        return Watched(*(self._next or Position(0, 0)), silent)

    async def skip_to_checkpoint(self) -> bool:
        """Whether a checkpoint lies at or beyond the number that is waited for; then the watch goes on behind it."""
        newest = await newest_checkpoint(self._store, self._paths, self._patience)
        if self._next is not None and newest >= self._next:
            self._next = _after(newest)
            return True
        return False

    async def _claimed(self, epoch: int) -> bool:
        try:
            await self._get(self._paths.epoch(epoch), HEADER_BYTES)
        except NotFound:
            return False
        return True

    async def _claimant(self, epoch: int) -> str:
        return Claim.decode(await self._get(self._paths.epoch(epoch)), epoch).owner

    async def _sealed_by_owner(self, position: Position) -> bool:
        """Whether the seal there ends its epoch by its owner's own hand."""
        try:
            data = await self._get(self._paths.log(position))
        except NotFound:
            return False
        return Seal.decode(data, position).sealer_epoch == position.epoch

    async def _get(self, key: str, end: int | None = None) -> bytes:
        return await self._patience.ask(lambda: self._store.get(key, 0, end), f"get {key}")


def _after(position: Position) -> Position:
    return Position(position.epoch, position.number + 1) if position.epoch else position
