"""The heartbeats of a process that owns several shards: one object in each third of a lease, whatever their number.

They show standbys that the process is alive (``heartbeat_watch``), and renew the leases of its idle shards:

    this process                                        another broker
    put heartbeats/<run>-<n>, begun at b
    for each shard: is its next epoch claimed?
      no: the lease of the shard runs from b            claim the next epoch, seal the ones before
      yes: it is not renewed; the shard's log puts a    is there a heartbeat beyond the last one seen?
      segment of its own, and finds the seal              no: the old lease is over; serve at once
                                                          yes: serve a lease after the seals

Why no lease outlasts the wait of the other broker: a heartbeat that it does not find is stored after its claim, so the
question about the claim, which comes after that, finds it.

A heartbeat is never needed for safety of what is stored: epochs and seals decide that. A process with one shard has no
heartbeats, since the log of the shard has them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import Final, Protocol

from broker.base.clock import Clock
from broker.cluster.identity import Identity
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES
from broker.storage.format.heartbeat import Heartbeat
from broker.storage.objectstore.base import NotFound, ObjectStore, PreconditionFailed, StoreError
from broker.storage.paths import HEARTBEATS, HeartbeatPaths, ShardPaths
from broker.storage.put import StoreRetry

__all__ = ["Heartbeats", "Leased", "delete_heartbeats", "heartbeats_after"]

_log = logging.getLogger(__name__)

_KEPT: Final = 8
"""The number of heartbeats that are kept, the newest ones: a standby asks for one after the other."""

_DELETES_AFTER: Final = 7
"""The heartbeat of a run, two leases after its first one, after which it deletes those of runs that have ended. By then
each standby of such a run has found that it ended."""


class Leased(Protocol):
    """The log of a shard that this process owns."""

    @property
    def epoch(self) -> int: ...

    @property
    def quiet(self) -> bool:
        """True if nothing was stored since the last put of an empty segment."""

    def renew_lease(self, began_ns: int) -> None:
        """Renew the lease: a request that began at ``began_ns``, by the outside clock, has proved our ownership."""


class Heartbeats:
    """Puts the heartbeats of this process run while it owns several shards.

    Args: ``always``: also while it owns only one, because other brokers own the others.
    """

    def __init__(self, store: ObjectStore, me: Identity, clock: Clock, rng: random.Random, lease_ns: int, *,
                 always: bool) -> None:
        self._store = store
        self._me = me
        self._clock = clock
        self._retry = StoreRetry(store, clock, rng)
        self._lease_ns = lease_ns
        self._fewest = 1 if always else 2
        self._paths = HeartbeatPaths(me.nonce)
        self._number = 0
        """The number of the newest heartbeat."""
        self._oldest = 1
        """The number of the oldest heartbeat that is not deleted."""
        self._ended_deleted = False
        self._shards: dict[Leased, ShardPaths] = {}
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        """The put of the last heartbeat."""

    def add(self, log: Leased, paths: ShardPaths) -> None:
        """Renew the lease of a shard that was taken."""
        self._shards[log] = paths
        if self._task is None and len(self._shards) >= self._fewest:
            self._task = asyncio.get_running_loop().create_task(self._keep_beating(), name="heartbeats")

    async def remove(self, log: Leased, *, sealed: bool) -> None:
        """Stop renewing the lease of a shard. After the last shard, no more heartbeats are put. If we have ``sealed``
        it, a last one says so, and standbys poll the logs at once; that put may outlast this call.
        """
        self._shards.pop(log, None)
        if self._shards or self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if sealed:
            self._ending = asyncio.get_running_loop().create_task(self._put_last(), name="last heartbeat")

    async def close(self) -> None:
        """Wait for the last heartbeat."""
        if self._ending is not None:
            await asyncio.wait((self._ending,))  # whose cancellation does not cancel the put

    async def _put_last(self) -> None:
        with suppress(StoreError):
            await self._put(last=True)

    async def _keep_beating(self) -> None:
        await self.close()  # this process has a shard again
        while True:
            began_ns = self._clock.monotonic_ns()
            try:
                await self._beat()
            except (StoreError, FormatError) as error:
                _log.info("no heartbeat could be put: %s", error)
            pause_ns = began_ns + self._lease_ns // 3 - self._clock.monotonic_ns()
            await asyncio.sleep(max(pause_ns, self._lease_ns // 24) / 1e9)

    async def _beat(self) -> None:
        began_ns = self._clock.outside_ns()
        await self._put()
        await asyncio.gather(*(self._renew(log, paths, began_ns) for log, paths in list(self._shards.items())))
        while self._oldest <= self._number - _KEPT:
            await self._store.delete(self._paths.heartbeat(self._oldest))
            self._oldest += 1
        if not self._ended_deleted and self._number >= _DELETES_AFTER:
            await self._delete_ended()
            self._ended_deleted = True

    async def _put(self, *, last: bool = False) -> None:
        """Put the next heartbeat. After an error it is tried again under its number.

        If that number is stored, the answer of an earlier put was lost. Standbys may have found that heartbeat long
        ago, so it proves nothing about the present, and may not say ``last``: another one follows it.
        """
        try:
            await self._put_next(last=last)
        except PreconditionFailed:
            self._number += 1
            await self._put_next(last=last)

    async def _put_next(self, *, last: bool) -> None:
        number = self._number + 1
        beat = Heartbeat(self._me.nonce, number, self._me.name, self._clock.now_ns(), last)
        await self._store.put(self._paths.heartbeat(number), [beat.encode()])
        self._number = number

    async def _delete_ended(self) -> None:
        """Delete the heartbeats of other runs whose newest one says that it is the last, or has our name: no other live
        process may have that. A run that goes on all the same has later ones, which are not deleted.
        """
        runs: dict[str, list[str]] = {}
        for info in await self._retry.call(lambda: self._store.list(HEARTBEATS), f"list {HEARTBEATS}"):
            runs.setdefault(info.key.rpartition("-")[0], []).append(info.key)
        runs.pop(self._paths.prefix.removesuffix("-"), None)
        for keys in runs.values():
            with suppress(NotFound):
                newest = Heartbeat.decode(await self._store.get(keys[-1]), int(keys[-1].rpartition("-")[2], 16))
                if newest.last or newest.owner == self._me.name:
                    await asyncio.gather(*map(self._store.delete, keys))

    async def _renew(self, log: Leased, paths: ShardPaths, began_ns: int) -> None:
        """Renew a shard's lease, unless its log does so by its puts, or another broker has claimed the shard."""
        if not log.quiet:
            return
        try:
            await self._store.get(paths.epoch(log.epoch + 1), 0, HEADER_BYTES)
        except NotFound:
            log.renew_lease(began_ns)


async def heartbeats_after(store: ObjectStore, run_id: bytes, number: int, retry: StoreRetry) -> list[int]:
    """Return the numbers of the heartbeats of a run after ``number``, ascending."""
    paths = HeartbeatPaths(run_id)
    found = await retry.call(lambda: store.list(paths.prefix, paths.heartbeat(number)), f"list {paths.prefix}")
    return [at for info in found if (at := paths.number_of(info.key))]


async def delete_heartbeats(store: ObjectStore, run_id: bytes, newest: int, retry: StoreRetry) -> None:
    """Delete the heartbeats of a silent run up to number ``newest``. If it wakes up, standbys must find later ones."""
    paths = HeartbeatPaths(run_id)
    numbers = [number for number in await heartbeats_after(store, run_id, 0, retry) if number <= newest]
    await asyncio.gather(*(store.delete(paths.heartbeat(number)) for number in numbers))
