"""The shards of a store that several brokers own: this process takes its own, and stands by for the others.

Each shard has a task of its own, so a process keeps the others when it loses one:

    wait ── take ── settle and serve ── lost ── close ── wait T ── wait …

A shard that is to be another broker's is taken once nobody has owned it for T. Shards are dense in the store, so one
that has never been taken waits until the one before it has been.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.base.errors import StartError
from broker.runtime.shard_owner import ShardOwner
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.objectstore import StoreError
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced
from broker.storage.shard import Shard

if TYPE_CHECKING:
    from broker.maintenance.scrub import Finding
    from broker.runtime.store_host import StoreHost

__all__ = ["OwnShards"]

log = logging.getLogger(__name__)

_DENSE_SECONDS: Final = 0.1


class OwnShards:
    """The owners of a store's shards. ``first`` is that of shard 0.

    Args: ``serve(owner)`` settles and serves a shard that was taken, and raises Fenced if it was lost meanwhile;
        ``close(number)`` ends that; ``fail(why)`` is called with what must end the process; ``damaged``: as for
        ``ShardOwner``.
    """

    def __init__(self, host: StoreHost, serve: Callable[[ShardOwner], Awaitable[object]],
                 close: Callable[[int], Awaitable[object]], fail: Callable[[str], object], *,
                 damaged: Callable[[Finding], object] = lambda _: None) -> None:
        self._host = host
        self._serve = serve
        self._close = close
        self._fail = fail
        settings = host.settings
        own = settings.own or ()
        self._lost = [asyncio.Event() for _ in range(settings.shards)]
        self._taken = [asyncio.Event() for _ in range(settings.shards)]
        """Set once a shard serves, or another broker is known to have it."""
        self._own = [self._taken[number] for number in own]
        self._owners = [ShardOwner(
            host, number, partial(self._on_lost, number), waits=self._taken[number].set,
            before_claim=partial(self._dense, number), damaged=damaged, patient=number not in own)
            for number in range(settings.shards)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def first(self) -> ShardOwner:
        return self._owners[0]

    def __iter__(self) -> Iterator[ShardOwner]:
        """Yield the owners of the shards that this process has; if it has none, that of shard 0."""
        held = [owner for owner in self._owners if owner.shard is not None]
        return iter(held or self._owners[:1])

    @property
    def standby(self) -> bool:
        """True if this process waits for all shards."""
        return all(owner.shard is None for owner in self._owners)

    @property
    def failed(self) -> bool:
        """Flag: never true; each shard is taken again by itself."""
        return False

    async def start(self) -> None:
        """Begin to take the shards; return once each of our own serves, or is another broker's.

        Raises: StartError, StoreError.
        """
        there, wanted = await self._host.shard_count(), len(self._owners)
        if there > wanted:
            raise StartError(f"jetblock {{ shards: {wanted} }}: the store has {there} shards, and each needs an owner: "
                             f"set shards to {there} for all brokers, or let one broker without own retire empty ones")
        self._tasks = [asyncio.create_task(self._keep(owner), name=f"shard {owner.number}") for owner in self._owners]
        waiting = [asyncio.create_task(taken.wait()) for taken in self._own]
        try:
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()

    async def stop_taking(self) -> None:
        """Take no more shards, and keep those that this process has."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def give_back(self) -> None:
        """Release all shards cleanly."""
        await self.stop_taking()
        for owner in self._owners:
            await owner.give_back()

    async def abandon(self) -> None:
        """Stop using all shards at once."""
        await self.stop_taking()
        for owner in self._owners:
            await owner.abandon()

    async def _keep(self, owner: ShardOwner) -> None:
        number = owner.number
        try:
            while True:
                self._lost[number].clear()
                shard = await owner.acquire()
                if await self._served(owner, shard):
                    await self._lost[number].wait()
                    log.warning("shard %d is lost: closing its streams, and waiting as a standby", number)
                    await self._close(number)
                await owner.abandon()
                await asyncio.sleep(self._host.settings.lease_ns / 1e9)
        except StartError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("shard %d cannot be kept", number)
            self._fail(f"shard {number} cannot be kept: {error!r}")
        finally:
            self._taken[number].set()

    async def _served(self, owner: ShardOwner, shard: Shard) -> bool:
        """Serve a shard that was taken; return False if it cannot be served now."""
        try:
            await self._serve(owner)
        except (Fenced, StoreError, FormatError, CutOff) as error:
            log.warning("shard %d cannot be served: %s", owner.number, error)
            await self._close(owner.number)
            return False
        log.info("Shard %d, epoch %d: %d streams, %d segments replayed", owner.number, shard.log.epoch,
                 len(shard.state.streams), shard.recovered.segments)
        self._taken[owner.number].set()
        return True

    async def _dense(self, number: int) -> None:
        """Wait until the shard before a shard has been taken once: readers count shards up to the first without."""
        if number:
            before = ShardPaths(number - 1).epochs
            while not await self._host.retrying.list(before, limit=1):  # noqa: ASYNC110  # another process takes it
                await asyncio.sleep(_DENSE_SECONDS)

    def _on_lost(self, number: int, error: BaseException) -> None:
        owner = self._owners[number]
        if not isinstance(error, Fenced):
            self._fail(str(error))
        elif owner.is_our_double(error):
            self._fail(str(owner.double(error)))
        else:
            log.warning("%s", error)
            self._lost[number].set()
