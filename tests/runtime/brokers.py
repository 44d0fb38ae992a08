"""Brokers in virtual time: the real ``ShardOwner`` on a simulated store like S3."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar
from unittest.mock import patch

from broker.config.settings import StorageSettings
from broker.runtime.shard_owner import ShardOwner
from broker.runtime.store_host import StoreHost
from broker.storage.format.header import Position
from broker.storage.log.writer import encode_segment
from broker.storage.objectstore.base import Listing, ObjectStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import Shard
from tests.manual_clock import ManualClock
from tests.storage import rig
from tests.storage.objectstore.faulty import Faults, FaultyStore
from tests.storage.rig import MS, PATHS, SECOND

__all__ = ["Broker", "TrustedClock", "grow_log", "in_virtual_time", "log_size"]

T = TypeVar("T")


class TrustedClock(ManualClock):
    """A clock like ``GuardedClock``, with a second source that always agrees."""

    trusted = True

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        super().__init__(now_ns)
        self.witness: Callable[[], int | None] = lambda: None


class Inline(Executor):
    """An executor that works in the caller's thread, because threads have no virtual time."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Costly(FaultyStore):
    """A process's connection to a store like S3: each call, and each page of 1000 keys of a listing, has a latency."""

    def __init__(self, shared: ObjectStore, latency_ns: int, page_ns: int, seed: int) -> None:
        super().__init__(shared, rng=random.Random(seed), faults=Faults(latency_ns=latency_ns))
        self.puts_cost = True
        self.try_lock = None
        self.page_ns = page_ns

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        found = await super().list(prefix, after, limit)
        await asyncio.sleep(self.page_ns * (len(found) // 1000) / 1e9)
        return found


class Broker:
    """A process that is owner, standby and owner again, like ``App``. As owner it runs ``serve(shard)``."""

    def __init__(self, name: str | None, shared: MemoryStore, clock: TrustedClock, *, latency_ns: int = 30 * MS,
                 page_ns: int = 0, seed: int = 1, before_claim: Callable[[], Awaitable[object]] | None = None,
                 **settings: Any) -> None:
        self.clock = clock
        self.store = Costly(shared, latency_ns, page_ns, seed)
        with patch("broker.runtime.store_host.open_store", lambda *_, **__: self.store):
            storage = StorageSettings(url="s3://x/y", scrub_interval_ns=0, **settings)
            self.store_host = StoreHost(storage, name or "", clock, lambda: 1 << 20)  # type: ignore[arg-type]
        self.store_host.encoders = Inline()
        self.shard_owner = ShardOwner(self.store_host, 0, self._lost,
                                      **({"before_claim": before_claim} if before_claim is not None else {}))
        self.served_since_ns: list[int] = []
        """The time at which each ownership began."""
        self.losses: list[BaseException] = []
        self.serve: Callable[[Shard], Coroutine[Any, Any, None]] | None = None
        self._gone = asyncio.Event()
        self._life = asyncio.create_task(self._live(), name=f"life of {name}")

    @property
    def serves(self) -> bool:
        shard = self.shard_owner.shard
        return shard is not None and shard.log.failure is None and not shard.log.lease_expired and not self._life.done()

    @property
    def error(self) -> BaseException | None:
        """Return the error that ended the process."""
        return self._life.exception() if self._life.done() else None

    async def serving(self, seconds: float) -> float:
        """Wait until the process serves; return the seconds. Fail if it takes longer than ``seconds``."""
        began_ns = self.clock.monotonic_ns()
        while not self.serves:
            took = (self.clock.monotonic_ns() - began_ns) / SECOND
            assert took < seconds, "it never serves"
            assert self.error is None, self.error
            await asyncio.sleep(0.1)
        return (self.clock.monotonic_ns() - began_ns) / SECOND

    async def kill(self) -> None:
        """End the process as SIGKILL does: no further call reaches the store."""
        self.store.halt()
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        if self.shard_owner.shard is not None:
            await self.shard_owner.shard.abandon()

    async def stop(self) -> None:
        """Stop the process cleanly."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await self.shard_owner.give_back()

    def _lost(self, error: BaseException) -> None:
        self.losses.append(error)
        self._gone.set()

    async def _live(self) -> None:
        while True:
            shard = await self.shard_owner.acquire()
            self.served_since_ns.append(self.clock.monotonic_ns())
            self._gone.clear()
            work = asyncio.create_task(self.serve(shard)) if self.serve is not None else None
            await self._gone.wait()
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            if self.shard_owner.is_our_double(self.losses[-1]):
                raise self.losses[-1]
            await self.shard_owner.abandon()
            await asyncio.sleep(15)


def grow_log(shared: MemoryStore, epoch: int, first: int, count: int, nonce: bytes) -> None:
    """Put the segments of ``count`` heartbeats of the owner of ``epoch``, without a checkpoint."""
    for number in range(first, first + count):
        position = Position(epoch, number)
        shared.objects[PATHS.log(position)] = b"".join(encode_segment(position, nonce, []))
    shared._keys[:] = sorted(shared.objects)


def log_size(shared: MemoryStore) -> int:
    return sum("/log/" in key for key in shared.objects)


def in_virtual_time(main: Callable[[TrustedClock], Coroutine[Any, Any, T]]) -> T:
    """Run ``main`` in virtual time, as in ``tests.storage.rig``, with a clock that a shard host accepts."""
    return rig.in_virtual_time(main, TrustedClock)
