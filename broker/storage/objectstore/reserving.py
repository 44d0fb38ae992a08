"""A store that may be full: it keeps a reserve, and lets what must be stored use it.

    put ── StoreFull ──> full; may this object use the reserve? ── yes ──> a part of it is released ──> put again, until
             │                                                                nothing is left to release
             └── no, or nothing is left ──> the StoreFull
    full ── the reserve is complete again, and there is room beside it, for as long as the store counts late ──> not full

While the store is full, whoever asks (``full``) stores nothing that can wait: publishes are refused. Purges, deletes, acks
and checkpoints go on by the reserve, so that an operator can make room through the broker.

On a directory ``full`` begins before the disk is full, as soon as less than the size of the reserve is free beside it.
So the log's tail, which was sequenced before, finds room.

A bucket's quota may be counted late: MinIO goes by its last scan, so puts are refused for some time after the reserve was
deleted, and accepted for some time although there is no room. How late it counts is measured, as the time from a release
of the reserve to the next put that lands. For so long the store must take the reserve before it counts as not full.
Otherwise publishes would be accepted between any two scans, until the bucket held more beyond its quota than the reserve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from broker.base.clock import Clock
from broker.storage.objectstore.base import Buffers, ObjectStore, Reserve, StoreError, StoreFull, size_of
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["ROOMY", "ReservingStore", "StoreRoom"]

_log = logging.getLogger(__name__)

_UNKNOWN: Final = 1 << 62

_QUIET_NS: Final = 5_000_000_000
"""After a put that did not fit, the store counts as full for at least this long: a put is tried again sooner."""

_LATE_NS_MAX: Final = 60_000_000_000
"""The longest time that a store is taken to count late: the put that landed may have waited for an operator."""


class StoreRoom(Protocol):
    """What a log asks about its store. ``full`` says why nothing that can wait should be stored; None: it may be."""

    full: StoreFull | None
    bytes_free: int


class _Roomy:
    full: StoreFull | None = None
    bytes_free = _UNKNOWN


ROOMY: Final[StoreRoom] = _Roomy()
"""Always has room."""


class ReservingStore(Wrapper):
    """Attributes: ``full``: why the store should take nothing that can wait, None while it may; ``bytes_free``: what it can take,
    half of the reserve among it.

    The log's tail may grow to ``bytes_free``. The other half of the reserve is left for requests that make room, and for a
    start after a kill.
    """

    def __init__(self, inner: ObjectStore, size: int, leave: Callable[[str], float], clock: Clock, *,
                 retry_seconds: float | None = None) -> None:
        """Args: ``size`` of the reserve in bytes. ``leave(key)`` is the share of the reserve that a put of this key must leave: 1
        if it may not use the reserve. ``retry_seconds``: how often a full store is asked whether it has room."""
        super().__init__(inner)
        self.full: StoreFull | None = None
        self.bytes_free = _UNKNOWN
        self._observers: list[Callable[[], object]] = []
        self._reserve: Reserve | None = inner.reserve(size) if inner.reserve is not None else None
        self._leave = leave
        self._clock = clock
        self._retry_s = retry_seconds if retry_seconds is not None else 5.0 if inner.puts_cost else 1.0
        self._failed_ns: int | None = None
        self._released_ns: int | None = None
        """When a part of the reserve was released, until a put lands."""
        self._late_ns = 0
        """How late the store counts."""
        self._taken_ns: int | None = None
        """Since when a full store has taken the reserve and all else."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._found = asyncio.Event()
        self._inner_put_sync, self._inner_put_unsynced = inner.put_sync, inner.put_unsynced
        if inner.put_sync is not None:
            self.put_sync = self._put_sync
        if inner.put_unsynced is not None:
            self.put_unsynced = self._put_unsynced

    def observe(self, observer: Callable[[], object]) -> None:
        """Call ``observer`` on the loop when ``full`` begins and ends."""
        self._observers.append(observer)

    def stop_observing(self, observer: Callable[[], object]) -> None:
        """Remove an observer; an unknown one is ignored."""
        if observer in self._observers:
            self._observers.remove(observer)

    def start(self) -> None:
        """Make the reserve, and watch for room, until ``stop``. Only the owner of the store may."""
        self._loop = asyncio.get_running_loop()
        if self._reserve is not None and self._watching is None:
            self._watching = self._loop.create_task(self._watch(self._reserve), name="reserve of the store")

    async def stop(self) -> None:
        """Watch no longer."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def close(self) -> None:
        await self.stop()
        await self.inner.close()

    async def put(self, key: str, data: Buffers) -> None:
        while True:
            try:
                await self.inner.put(key, data)
            except StoreFull as error:
                self._does_not_fit(error)
                leave = self._leave(key)
                if self._reserve is None or leave >= 1 or not await self._reserve.release_soon(size_of(data), leave):
                    self._failed(leave)
                    raise
                if self._released_ns is None:
                    self._released_ns = self._clock.monotonic_ns()
            else:
                if self._released_ns is not None:
                    self._late_ns = min(self._clock.monotonic_ns() - self._released_ns, _LATE_NS_MAX)
                    self._released_ns = None
                self._measure()
                return

    def _put_sync(self, key: str, data: Buffers) -> None:
        assert self._inner_put_sync is not None
        put = self._inner_put_sync
        self._put_in_thread(lambda: put(key, data), key, data)

    def _put_unsynced(self, key: str, data: Buffers, first_key: str) -> None:
        assert self._inner_put_unsynced is not None
        put = self._inner_put_unsynced
        self._put_in_thread(lambda: put(key, data, first_key), key, data)

    def _put_in_thread(self, put: Callable[[], None], key: str, data: Buffers) -> None:
        while True:
            try:
                put()
            except StoreFull as error:
                self._does_not_fit(error)
                leave = self._leave(key)
                if self._reserve is None or leave >= 1 or not self._reserve.release(size_of(data), leave):
                    self._failed(leave)
                    raise
            else:
                self._measure()
                return

    # The following may run in threads.

    def _failed(self, leave: float) -> None:
        if leave < 1:
            self._failed_ns = self._clock.monotonic_ns()

    def _measure(self) -> None:
        """After a put: how much room is left?"""
        if self._reserve is None or (free := self._reserve.bytes_free()) is None:
            return
        self.bytes_free = free - self._reserve.size // 2
        if self.full is None and self._reserve.is_low(free):
            self._does_not_fit(StoreFull(f"{self.url}: the disk is almost full ({free >> 10} KiB are left, the reserve among "
                                         f"them); free some room, and the broker continues"))

    def _does_not_fit(self, error: StoreFull) -> None:
        began = self.full is None
        self.full = error
        self._taken_ns = None
        if began and self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell)

    # On the loop.

    def _tell(self) -> None:
        if self.full is not None:
            _log.warning("%s; until then publishes to streams of this store are refused (10023); purges and deletes are carried "
                         "out", self.full)
        else:
            _log.info("%s has room again", self.url)
        self._found.set()
        for observer in list(self._observers):
            observer()

    def _is_settled(self) -> bool:
        """Whether a full store has taken everything for long enough to be believed."""
        now_ns = self._clock.monotonic_ns()
        if self._taken_ns is None:
            self._taken_ns = now_ns
        return self._late_ns < self._retry_s * 1e9 or now_ns - self._taken_ns >= self._late_ns

    async def _watch(self, reserve: Reserve) -> None:
        """Complete the reserve whenever a part of it is missing."""
        if self.full is not None:
            self._tell()
        while True:
            complete = False
            try:
                # The room that a put waits for is not for the reserve.
                waits = self._failed_ns is not None and self._clock.monotonic_ns() - self._failed_ns <= _QUIET_NS
                complete = not waits and await reserve.fill()
                if not complete and self.full is None:
                    self._does_not_fit(StoreFull(f"{self.url}: the disk is almost full; free some room, and the broker continues"))
            except StoreFull as error:
                self._does_not_fit(error)
            except StoreError:
                pass  # it is asked again
            if complete:
                if self.full is not None and self._is_settled():
                    self.full = None
                    self._measure()
                    if self.full is None:
                        self._tell()
                if self.full is None:
                    self._found.clear()
                    await self._found.wait()
            await asyncio.sleep(self._retry_s)
