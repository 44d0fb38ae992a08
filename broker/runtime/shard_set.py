"""All shards of a store, which one process takes together: shard 0 first, then the others.

If a lease decides, a standby waits for all shards at the same time, and claims none before it has shard 0: a take-over
takes T, however many shards there are. Locks are taken in order, so that two processes never wait for each other.

A store has the shards that have claims, and as many more as ``jetblock { shards }`` asks for. A shard beyond that
number retires if it is empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from broker.base.errors import StartError
from broker.jetstream.catalogue import settle
from broker.runtime.shard_owner import ShardOwner, do_nothing
from broker.storage.objectstore import StoreError
from broker.storage.shard import Shard

if TYPE_CHECKING:
    from broker.maintenance.scrub import Finding
    from broker.runtime.store_host import StoreHost

__all__ = ["ShardSet"]

log = logging.getLogger(__name__)

_NAMES_SHOWN = 5


class ShardSet:
    """The owners of a store's shards. ``first`` is that of shard 0; for the arguments, see ``ShardOwner``."""

    def __init__(self, host: StoreHost, lost: Callable[[BaseException], object], *,
                 waits: Callable[[], object] = lambda: None,
                 before_claim: Callable[[], Awaitable[object]] = do_nothing,
                 damaged: Callable[[Finding], object] = lambda _: None) -> None:
        self._host = host
        self._first_taken = asyncio.Event()

        async def after_first() -> None:
            await self._first_taken.wait()
            await before_claim()

        self._make: Callable[[int], ShardOwner] = lambda number: ShardOwner(
            host, number, lost, waits=waits, before_claim=after_first if number else before_claim, damaged=damaged)
        self.first = self._make(0)
        self._others: list[ShardOwner] = []

    def __iter__(self) -> Iterator[ShardOwner]:
        yield self.first
        yield from self._others

    @property
    def standby(self) -> bool:
        """True if this process waits for a shard."""
        return any(owner.standby for owner in self)

    @property
    def failed(self) -> bool:
        """True if a shard is not ours, or no longer."""
        return any(owner.shard is None or owner.shard.log.failure is not None for owner in self)

    async def acquire(self, *, wait: bool = True) -> list[Shard]:
        """Take all shards, and carry out what the catalogue says and a shard does not have.

        Args: ``wait`` for the owners of the shards to stop; otherwise StoreInUse is raised.
        Raises: StartError; Fenced if a shard is lost meanwhile.
        """
        self._first_taken.clear()
        waiting: list[asyncio.Task[Shard]] = []
        try:
            if self._host.store.try_lock is None:
                waiting = [asyncio.create_task(_acquire(owner, wait), name="acquire another shard")
                           for owner in self._make_others(await self._known_count())]
            shards = [await _acquire(self.first, wait)]
            self._first_taken.set()
            there = await self._host.shard_count()
            wanted = self._host.settings.shards or there
            for number, owner in enumerate(self._make_others(max(there, wanted))):
                shards.append(await (waiting[number] if number < len(waiting) else _acquire(owner, wait)))
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        for shard in shards[wanted:]:
            _refuse_to_retire(shard, shards[0], wanted)
        await settle({shard.number: shard.log for shard in shards}, self._host.clock.now_ns())
        for owner in self._others[wanted - 1:]:
            await owner.give_back()
        del self._others[wanted - 1:]
        return shards[:wanted]

    def _make_others(self, count: int) -> list[ShardOwner]:
        """Return the owners of the shards from 1 to ``count``, exclusive."""
        self._others += map(self._make, range(len(self._others) + 1, count))
        return self._others[:count - 1]

    async def _known_count(self) -> int:
        """Return the number of shards, as far as the store can be read now."""
        with suppress(StoreError):
            return max(self._host.settings.shards, await self._host.shard_count())
        return max(self._host.settings.shards, 1)

    async def stop_taking(self) -> None:
        """Do nothing: a set takes shards only while ``acquire`` runs."""

    async def give_back(self) -> None:
        """Release all shards cleanly, shard 0 first: the others may wait for its records."""
        for owner in self:
            await owner.give_back()

    async def abandon(self) -> None:
        """Stop using all shards at once."""
        for owner in self:
            await owner.abandon()


async def _acquire(owner: ShardOwner, wait: bool) -> Shard:
    return await (owner.acquire() if wait else owner.acquire_unowned())


def _refuse_to_retire(shard: Shard, first: Shard, wanted: int) -> None:
    """Raise StartError if the shard, which is beyond the wanted number, has streams."""
    names = sorted({f"{one.account}/{one.name}" for one in shard.state.streams.values()}
                   | {f"{one.account}/{one.name}" for one in first.state.catalogue.values()
                      if one.shard == shard.number and not one.deleting})
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        raise StartError(f"jetblock {{ shards: {wanted} }}: shard {shard.number} has streams: "
                         f"{', '.join(names[:_NAMES_SHOWN])}{more}; only empty shards can retire: set shards to "
                         f"{shard.number + 1} or more, or delete these streams")
    log.info("Shard %d is empty, and retires", shard.number)

