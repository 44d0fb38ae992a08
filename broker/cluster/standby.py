"""The wait of a standby for the moment to take a shard. A wrong guess costs a take-over, never a message: seals fence.

On S3 the log is the lease: an idle owner puts an empty segment every T/3; a standby asks for the next number and the
next epoch every T/6, and up to every T/24 if the owner puts more than that. The wait for T begins at the poll that
found the last entry, up to one pause after its put: the busier the owner, the sooner a standby takes over. T itself is
never shortened, because the owner may answer for that long.

A process that owns several shards has heartbeats of its own, and the logs of its idle shards are quiet. So a standby
follows these (``heartbeat_watch``). It polls a log that has not grown each T only, and at once after the last heartbeat
or if one is overdue: what was committed since the last poll must not make it wait for another T.

    it takes over                   when
    if the shard is free, at once   there is no owner; or the last one sealed its own epoch (a clean stop);
                                    or the last claim is under our own configured name (a restart)
    otherwise                       no new entry and no heartbeat was found for T, by its own monotonic clock

If another broker is to take a free shard, this one leaves it free for a while (``HoldOff``). If the owner gives the
shard to this broker, it says where the seal is. Then one round of requests replaces the search for it, even in the
middle of a search.

The wait returns the end of the log that it saw (``Watched``). An owner may wake up after the last poll, and the short
cuts consider the last claim alone, so ``ownership.take_shard`` compares, and delays its first answer if another lease
may run.

A poll counts from its beginning, so old answers (of a process that was stopped, or a slow store) do not prove silence.
A store that did not answer us may not have answered the owner either: then T starts again.

On a directory a lock decides: flock takes it, and the process holds it for life, even while it is paused.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from broker.base.clock import Clock
from broker.cluster.entries import end_of_segments
from broker.cluster.heartbeat_watch import Followed, HeartbeatWatch
from broker.cluster.hold_off import NEVER_NS, HoldOff
from broker.cluster.identity import Identity
from broker.cluster.ownership import Watched, newest_checkpoint, newest_claim
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, Position
from broker.storage.objectstore.base import NotFound, ObjectStore, StoreLock, Transient
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry

__all__ = ["LEASE_NS", "LOCK_POLL_NS", "wait_for_lease", "wait_for_lock"]

LEASE_NS = 15_000_000_000
"""T, the lease."""
LOCK_POLL_NS = 100_000_000
_POLLS = 6
"""The polls within T, while the log grows slowly."""
_POLLS_MAX = 24
_ENTRIES_A_POLL = 3
"""The new entries that a poll should find: then polls cost about a sixth of the owner's puts."""
_MARGIN_NS = 1_000_000
"""Timers may fire a little early."""

_log = logging.getLogger(__name__)


def _nothing() -> None:
    pass


async def wait_for_lock(store: ObjectStore, paths: ShardPaths, on_wait: Callable[[], object] = _nothing, *,
                        clock: Clock | None = None, hold_off: HoldOff | None = None) -> StoreLock:
    """Return the shard's lock as soon as no other process holds it. Raises: StoreRefused if locks do not work here.

    Args: ``hold_off``: how long the lock must have been free by ``clock``, whenever it is tried; None: no time.
    """
    assert store.try_lock is not None
    hold_off = hold_off or HoldOff()
    folder = paths.prefix.rstrip("/")
    waiting = False
    free_since_ns: int | None = None
    while True:
        lock = store.try_lock(folder)
        if lock is None:
            free_since_ns = None
        elif clock is None or not (delay_ns := hold_off.delay_ns):
            return lock
        else:
            now_ns = clock.monotonic_ns()
            free_since_ns = now_ns if free_since_ns is None else free_since_ns
            if now_ns - free_since_ns >= delay_ns:
                return lock
            lock.release()
        if not waiting:
            waiting = True
            on_wait()
            _log.info("standby: another broker holds the lock of %s%s" if lock is None
                      else "standby: another broker is to hold the lock of %s%s", store.url, f"/{folder}")
        await hold_off.sleep(LOCK_POLL_NS / 1e9)


async def wait_for_lease(store: ObjectStore, paths: ShardPaths, me: Identity, clock: Clock, rng: random.Random,
                         lease_ns: int = LEASE_NS, on_wait: Callable[[], object] = _nothing, *,
                         silence_ns: int | None = None, hold_off: HoldOff | None = None,
                         heartbeats: HeartbeatWatch | None = None) -> Watched:
    """Return when taking the shard may be tried: its log has not grown for ``silence_ns``, or it is free.

    Args: lease_ns is T, which sets the interval of polls; silence_ns is T by default, and longer after failed attempts;
        hold_off: how long the shard must have been free; None: no time. heartbeats: those of other processes, shared by
        the waits of this one.
    Raises: Corrupt, StoreRefused. After a Transient error the wait continues: a store that fails cannot be taken.
    """
    silence_ns, hold_off = silence_ns or lease_ns, hold_off or HoldOff()
    watch = _Watch(store, paths, me, StoreRetry(store, clock, rng),
                   heartbeats or HeartbeatWatch(store, clock, rng, lease_ns), hold_off)
    seen_at_ns = clock.monotonic_ns()
    free_since_ns: int | None = None
    waiting = False
    last_ns = clock.monotonic_ns()
    try:
        while True:
            began_ns = clock.monotonic_ns()
            since_ns, last_ns = began_ns - last_ns, began_ns
            try:
                grew = await hold_off.poll(watch.poll)
                seen_at_ns = max(seen_at_ns, watch.heartbeat_ns)
                free_since_ns = (free_since_ns or began_ns) if watch.free else None
                if free_since_ns is not None and began_ns - free_since_ns >= hold_off.delay_ns:
                    return watch.seen(silent=False)
                if hold_off.delay_ns >= NEVER_NS:
                    grew = True
                elif not grew and began_ns - seen_at_ns >= silence_ns:
                    # The awaited number may have been swept since the last poll: then there is a checkpoint beyond it.
                    # The owner may have begun to put heartbeats, or the next one was deleted, or found just now.
                    if not (await watch.skip_to_checkpoint() or await watch.beats_again()
                            or watch.heartbeat_ns > seen_at_ns):
                        _log.info("standby: %s has put nothing for %.1f s: taking %s%s", watch.owner or
                                  "another broker", (clock.monotonic_ns() - seen_at_ns) / 1e9, store.url,
                                  f"/{paths.prefix}")
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
            until_silent_ns = seen_at_ns + silence_ns - clock.monotonic_ns() + _MARGIN_NS
            quiet = watch.beats and not watch.found
            usual_ns = lease_ns if quiet else _pause_ns(lease_ns, watch.found, since_ns)
            pauses = [usual_ns, until_silent_ns]
            if free_since_ns is not None:
                pauses.append(free_since_ns + hold_off.delay_ns - clock.monotonic_ns() + _MARGIN_NS)
            await hold_off.sleep(min(pause for pause in pauses if pause > 0) / 1e9)
    finally:
        await watch.close()


def _pause_ns(lease_ns: int, found: int, since_ns: int) -> int:
    """Return the pause until the next poll, after one that ``found`` new entries, put within ``since_ns``."""
    usual_ns = lease_ns // _POLLS
    return min(usual_ns, max(lease_ns // _POLLS_MAX, _ENTRIES_A_POLL * since_ns // found)) if found else usual_ns


class _Watch:
    """The end of the log as a standby knows it."""

    def __init__(self, store: ObjectStore, paths: ShardPaths, me: Identity, retry: StoreRetry,
                 heartbeats: HeartbeatWatch, hold_off: HoldOff) -> None:
        self.free = False
        self.owner = ""
        self.found = 0
        """The new entries that the last poll found in the log of an epoch that was known before."""
        self._store = store
        self._paths = paths
        self._me = me
        self._retry = retry
        self._heartbeats = heartbeats
        self._hold_off = hold_off
        self._wake = hold_off.wake
        self._next: Position | None = None
        self._known = 0
        """The epoch that ``free``, ``owner`` and the heartbeats belong to."""
        self._run_id = b""
        self._followed: Followed | None = None
        """The heartbeats of the owner, if it has any."""

    @property
    def beats(self) -> bool:
        """True if the owner has heartbeats, and goes on."""
        return self._followed is not None and not self._followed.last

    @property
    def _is_ours(self) -> bool:
        """True if the last claim is under our own name."""
        return self.owner == self._me.name

    @property
    def heartbeat_ns(self) -> int:
        """When the newest heartbeat of the owner was seen; 0: none was."""
        return self._followed.seen_at_ns if self._followed is not None else 0

    async def beats_again(self) -> bool:
        """Return whether the owner has put a heartbeat that was not found yet; follow its heartbeats from now on."""
        if self._followed is not None:
            return await self._heartbeats.has_newer(self._followed)
        await self._follow()
        return self._followed is not None

    async def close(self) -> None:
        """Stop following the owner's heartbeats."""
        followed, self._followed = self._followed, None
        if followed is not None:
            await self._heartbeats.leave(followed, self._wake)

    async def _follow(self) -> None:
        if self._run_id:
            self._followed = await self._heartbeats.follow(self._run_id, self._wake)

    async def poll(self) -> bool:
        """Read the end of the log; return whether it has changed since the last poll."""
        store, paths, retry = self._store, self._paths, self._retry
        grew = False
        self.found = 0
        if (seal := self._hold_off.seal) is not None and seal >= (self._next or seal) and await self._ends_at(seal):
            self._next, self.free = seal, True
            return True
        if self._next is None:
            newest = await newest_checkpoint(store, paths, retry)
            epoch = await newest_claim(store, paths, newest, retry)
            self._next = Position(epoch, 0) if epoch > newest.epoch else _after(newest)
            grew = True
        # Epochs have no gaps, so the next claim's key is known: a GET, while a listing costs as much as a put.
        while await self._claimed(self._next.epoch + 1):
            self._next = Position(self._next.epoch + 1, 0)
            grew = True
        if not self._next.epoch:
            self.free = True  # there has never been an owner
            return grew
        if self._next.epoch != self._known:  # also if the poll that found the epoch was ended by an error, or a message
            self.free, grew = False, True
            await self.close()
            self.owner, self._run_id = await self._claimant(self._next.epoch)
            if not self._is_ours:
                await self._follow()
            self._known = self._next.epoch
            if self._is_ours:
                self.free = True
                return True
        number, seal_there = await end_of_segments(store, paths, self._next, retry, gently=True)
        if number > self._next.number:
            self.found = 0 if grew else number - self._next.number
            self._next = Position(self._next.epoch, number)
            self.free = self._is_ours  # the entries of an earlier run, or of this one before it lost the shard
            grew = True
        if seal_there is not None:
            self.free = await self._sealed_by_owner(self._next)
        return grew

    async def _ends_at(self, seal: Position) -> bool:
        """Return whether the owner of the newest epoch has sealed it there, which it does after all of its puts."""
        try:
            claimed, sealed = await asyncio.gather(self._claimed(seal.epoch + 1), self._sealed_by_owner(seal))
        except (FormatError, ValueError):
            return False  # another entry is there, or this is no position of a log
        return sealed and not claimed

    def seen(self, *, silent: bool) -> Watched:
        """Return the end of the log at the last poll."""
        number = self._followed.number if self._followed is not None else 0
        return Watched(*(self._next or Position(0, 0)), silent, self._run_id, number)

    async def skip_to_checkpoint(self) -> bool:
        """Return whether there is a checkpoint at or beyond the awaited number; then the wait continues after it."""
        newest = await newest_checkpoint(self._store, self._paths, self._retry)
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

    async def _claimant(self, epoch: int) -> tuple[str, bytes]:
        """Return the name and the id of the process run that claimed an epoch."""
        try:
            claim = Claim.decode(await self._get(self._paths.epoch(epoch)), epoch)
        except NotFound:
            return "", b""  # the store has lost the claim
        return claim.owner, claim.run_id

    async def _sealed_by_owner(self, position: Position) -> bool:
        """Return whether the owner of the epoch put the seal there."""
        try:
            data = await self._get(self._paths.log(position))
        except NotFound:
            return False
        return Seal.decode(data, position).sealer_epoch == position.epoch

    async def _get(self, key: str, end: int | None = None) -> bytes:
        return await self._retry.call(lambda: self._store.get(key, 0, end), f"get {key}")


def _after(position: Position) -> Position:
    return Position(position.epoch, position.number + 1) if position.epoch else position
