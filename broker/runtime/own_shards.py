"""The shards of a store that several brokers own: this process takes its own, and stands by for the others.

Each shard has a task of its own, so a process keeps the others when it loses one:

                                  ┌── lost ── close ── wait T ──────────────────────────────> wait …
    wait ── take ── settle, serve ┤
                                  ├── given ── checkpoint, close, drain, seal ── the other takes it ──> wait …
                                  │                                           └─ it does not: take it back
                                  └── cut off ── the same ── wait until this process is in reach again ──> wait …

``jetblock { own }`` says how long a free shard is left to other brokers (``_delay_ns``):

    [0, 3]    these are taken at once; each other shard once nobody has owned it for T
    auto      any shard; the later, the more shards this process has

Shards are dense in the store, so one that has never been taken waits until the one before it has been.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from broker.base.errors import StartError
from broker.base.shielded import shielded
from broker.cluster.hold_off import NEVER_NS, HoldOff
from broker.jetstream.owners.giving import NotTaken
from broker.runtime.shard_owner import ShardOwner
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
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

_AUTO_DELAY_NS: Final = 250_000_000
"""With ``auto``, the time for which a free shard is left to brokers with fewer shards, for each shard held."""


class Services(Protocol):
    """Serves the streams of a shard."""

    def ended(self, number: int) -> None:
        """Begin to read what ``serve`` needs for a shard that is being taken: its earlier owners cannot store anything
        more."""

    async def serve(self, owner: ShardOwner) -> None:
        """Settle and serve a shard that was taken. Raises: Fenced if it was lost meanwhile; StoreError, FormatError,
        CutOff."""

    async def close(self, number: int, *, given: bool) -> None:
        """End that; ``given``: the log is intact, so clients are notified, and last records are written."""

    def fail(self, why: str) -> None:
        """End the process."""


class _Gift:
    """A shard on its way to another broker, which is named ``to``; ``take(seal)`` returns once that serves it."""

    def __init__(self, to: str, take: Callable[[Position | None], Awaitable[object]]) -> None:
        self.to = to
        self.take = take
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class _OwnShard:
    """One shard in this process, which may own it."""

    def __init__(self, delay_ns: Callable[[], int]) -> None:
        self.hold_off = HoldOff(delay_ns)
        self.ended = asyncio.Event()
        """Set when the shard is lost, or is to be given away."""
        self.known = asyncio.Event()
        """Set once the shard serves, or another broker is known to have it."""
        self.serving = asyncio.Event()
        self.gift: _Gift | None = None
        self.claiming = False
        """True from the end of a wait until the shard is taken, or cannot be taken."""

    def end_gift(self, error: Exception | None = None) -> None:
        """Tell whoever waits for the gift, if there is one, that it is done, or why not."""
        gift, self.gift = self.gift, None
        if gift is not None and not gift.done.done():
            if error is None:
                gift.done.set_result(None)
            else:
                gift.done.set_exception(error)


class OwnShards:
    """The owners of a store's shards. ``first`` is that of shard 0; ``damaged``: as for ``ShardOwner``."""

    def __init__(self, host: StoreHost, services: Services, *,
                 damaged: Callable[[Finding], object] = lambda _: None) -> None:
        self._host = host
        self._services = services
        settings = host.settings
        self.own = settings.own if settings.own is not None else ()
        """The numbers of the shards that are this broker's, or "auto"."""
        self._parts = [_OwnShard(partial(self._delay_ns, number, host.rng.randrange(_AUTO_DELAY_NS)))
                       for number in range(settings.shards)]
        self._owners = [ShardOwner(
            host, number, partial(self._on_lost, number), waits=partial(self._on_wait, part),
            before_claim=partial(self._before_claim, number), ended=partial(services.ended, number), damaged=damaged,
            hold_off=part.hold_off)
            for number, part in enumerate(self._parts)]
        self._tasks: list[asyncio.Task[None]] = []
        self._writing: set[asyncio.Task[None]] = set()
        self._claimed: set[int] = set()
        """Shards that have been taken once, as far as this process has looked."""
        self._cut_off = False
        """True while no other server is connected: this process takes no shards."""
        self._giving_up = False
        """True while no client is connected, either: it gives its shards up."""

    def _delay_ns(self, number: int, jitter_ns: int) -> int:
        """Return the time for which a free shard is left to other brokers."""
        if self._cut_off:
            return NEVER_NS
        if self.own != "auto":
            return 0 if number in self.own else self._host.settings.lease_ns
        more = sum(owner.shard is not None or part.claiming
                   for owner, part in zip(self._owners, self._parts, strict=True))
        return more * _AUTO_DELAY_NS + jitter_ns

    @property
    def first(self) -> ShardOwner:
        return self._owners[0]

    @property
    def count(self) -> int:
        """The number of the store's shards."""
        return len(self._owners)

    def __iter__(self) -> Iterator[ShardOwner]:
        """Yield the owners of the shards that this process has; if it has none, that of shard 0."""
        return iter(self._held() or self._owners[:1])

    def _held(self) -> list[ShardOwner]:
        return [owner for owner in self._owners if owner.shard is not None]

    def committed(self) -> dict[int, int]:
        """Return the bytes that the shards which are served have committed so far, by number."""
        return {owner.number: owner.shard.log.commit_bytes
                for owner, part in zip(self._owners, self._parts, strict=True)
                if owner.shard is not None and part.serving.is_set() and part.gift is None}

    @property
    def standby(self) -> bool:
        """True if this process waits for all shards."""
        return not self._held()

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
        self._claimed = set(range(there)) if there > 1 else set()  # shard 0 counts even if it was never taken
        self._tasks = [asyncio.create_task(self._keep(owner, part), name=f"shard {owner.number}")
                       for owner, part in zip(self._owners, self._parts, strict=True)]
        # With auto it is not known which shards are ours: those that are free, until all could have been taken.
        seconds = (wanted + 1) * _AUTO_DELAY_NS / 1e9 if isinstance(self.own, str) else None
        own = range(wanted) if isinstance(self.own, str) else self.own
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for number in own:
                    await self._parts[number].known.wait()

    # --- giving and taking --------------------------------------------------------------------------------------------

    async def write_checkpoint(self, number: int) -> None:
        """Write a checkpoint of a shard that is about to be given away. After a cancellation it is written to its end:
        the shard serves on, and its later checkpoints follow this one.

        Raises: NotTaken: the store takes nothing, so the shard cannot be closed cleanly now.
        """
        writing = asyncio.create_task(self._owners[number].write_checkpoint(), name="checkpoint before a hand-over")
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        if not await self._host.finishes(writing):
            raise NotTaken(f"shard {number} stays: {self._host.store.url} takes nothing")
        writing.result()

    async def read_ahead(self, number: int) -> None:
        """Read a shard that another broker is about to give to this process."""
        await self._owners[number].read_ahead()

    async def give(self, number: int, to: str, take: Callable[[Position | None], Awaitable[object]]) -> None:
        """Hand a shard over to the broker that is named ``to``; return once that serves it.

        Args: ``take(seal)`` lets that broker take the shard, which is sealed there, and returns once it serves; None:
            the shard could not be sealed.
        Raises: NotTaken: this process takes the shard back, or did not have it.
        """
        if number not in self.committed():
            raise NotTaken(f"shard {number} is not served here")
        part = self._parts[number]
        gift = part.gift = _Gift(to, take)
        part.ended.set()
        await shielded(gift.done)

    async def take(self, number: int, seconds: float, seal: Position | None = None) -> None:
        """Take a shard, whose owner has sealed it, at once; return when it serves.

        Args: ``seal``: where its owner says that it has sealed it; None: not known.
        Raises: NotTaken.
        """
        part = self._parts[number]
        part.hold_off.end(seconds, seal)
        try:
            async with asyncio.timeout(seconds):
                await part.serving.wait()
        except TimeoutError:
            part.hold_off.begin()
            raise NotTaken(f"shard {number} could not be taken within {seconds:g} s") from None

    def leave(self, number: int, seconds: float) -> None:
        """Leave a shard to another broker for so long: its owner seals it for that one."""
        self._parts[number].hold_off.leave(seconds)

    def set_cut_off(self, cut_off: bool, *, clients: bool) -> None:
        """Take no shards while this process is cut off from other servers, and give all up unless it has clients."""
        giving_up = cut_off and not clients
        if (cut_off, giving_up) == (self._cut_off, self._giving_up):
            return
        self._cut_off, self._giving_up = cut_off, giving_up
        if giving_up:
            log.warning("This broker is cut off from other servers and has no clients: giving up its shards")
        elif cut_off:
            log.warning("This broker is cut off from other servers: keeping its shards for its clients")
        else:
            log.info("This broker is connected to other servers again")
        for part in self._parts:
            part.hold_off.wake()
            if giving_up:
                part.ended.set()

    async def stop_taking(self) -> None:
        """Take no more shards, and keep those that this process has."""
        await asyncio.gather(*(part.gift.done for part in self._parts if part.gift is not None),
                             return_exceptions=True)
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

    # --- the life of one shard ----------------------------------------------------------------------------------------

    async def _keep(self, owner: ShardOwner, part: _OwnShard) -> None:
        number = owner.number
        try:
            while True:
                shard = await owner.acquire()
                self._claimed.add(number)
                part.ended.clear()  # only what happens to the shard from now on counts
                part.claiming = False
                part.hold_off.begin()
                if await self._served(owner, part, shard):
                    while part.gift is None and not self._giving_up and shard.log.failure is None:
                        await part.ended.wait()
                        part.ended.clear()
                    part.serving.clear()
                    if part.gift is not None and shard.log.failure is None:
                        await self._hand_over(owner, part, part.gift)
                        continue
                    if self._giving_up and shard.log.failure is None:
                        await owner.write_checkpoint()
                        await self._seal(owner)
                        continue
                    part.end_gift(NotTaken("the shard was lost"))
                    log.warning("shard %d is lost: closing its streams, and waiting as a standby", number)
                    await self._services.close(number, given=False)
                await owner.abandon()
                await part.hold_off.sleep(self._host.settings.lease_ns / 1e9)
        except StartError as error:
            self._services.fail(str(error))
        except Exception as error:
            log.exception("shard %d cannot be kept", number)
            self._services.fail(f"shard {number} cannot be kept: {error!r}")
        finally:
            part.known.set()

    async def _hand_over(self, owner: ShardOwner, part: _OwnShard, gift: _Gift) -> None:
        """Close a shard, seal it, and let the other broker take it. Until it is closed, it serves.

        A crash of either broker in between is a take-over: the shard is sealed, and free, or its owner is silent for T.
        """
        number = owner.number
        log.info("Shard %d: handing it over to %s", number, gift.to)
        seal: Position | None = None
        try:
            seal = await self._seal(owner)
            await gift.take(seal)
            part.end_gift()
        except NotTaken as error:
            log.warning("shard %d: %s did not take it, taking it back: %s", number, gift.to, error)
            part.hold_off.end(self._host.settings.lease_ns / 1e9, seal)
            part.end_gift(error)
        finally:
            part.end_gift(NotTaken("this broker stops"))

    async def _seal(self, owner: ShardOwner) -> Position | None:
        """Close a shard, and seal it: any broker may take it at once. Returns: the position of the seal, if it is put.
        """
        await self._services.close(owner.number, given=True)
        return await owner.give_back(checkpoint=False)

    async def _served(self, owner: ShardOwner, part: _OwnShard, shard: Shard) -> bool:
        """Serve a shard that was taken; return False if it cannot be served now."""
        try:
            await self._services.serve(owner)
        except (Fenced, StoreError, FormatError, CutOff) as error:
            log.warning("shard %d cannot be served: %s", owner.number, error)
            await self._services.close(owner.number, given=False)
            return False
        log.info("Shard %d, epoch %d: %d streams, %d segments replayed", owner.number, shard.log.epoch,
                 len(shard.state.streams), shard.recovered.segments)
        part.known.set()
        part.serving.set()
        return True

    def _on_wait(self, part: _OwnShard) -> None:
        part.claiming = False
        if self.own != "auto":
            part.known.set()

    async def _before_claim(self, number: int) -> None:
        """Wait until the shard before a shard has been taken once: readers count shards up to the first without."""
        self._parts[number].claiming = True
        if number and number - 1 not in self._claimed:
            before = ShardPaths(number - 1).epochs
            while not await self._host.retrying.list(before, limit=1):  # noqa: ASYNC110  # another process takes it
                await asyncio.sleep(_DENSE_SECONDS)
            self._claimed.add(number - 1)

    def _on_lost(self, number: int, error: BaseException) -> None:
        owner = self._owners[number]
        if not isinstance(error, Fenced):
            self._services.fail(str(error))
        elif owner.is_our_double(error):
            self._services.fail(str(owner.double(error)))
        else:
            log.warning("%s", error)
            self._parts[number].ended.set()
