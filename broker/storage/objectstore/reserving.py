"""A wrapper for a store that may become full: it keeps a reserve, which essential objects may use.

    put ── StoreFull ──> full; may this object use the reserve? ── yes ──> release a part of the reserve ──> put again,
                                  │                                           until nothing is left to release
                                  └── no, or nothing is left to release ──> raise the StoreFull
    full ── the reserve is complete again, with room beside it, for as long as the store's counting lags ──> not full

While ``full`` is set, callers store nothing that can wait: publishes are refused. Purges, deletes, acks and checkpoints
use the reserve, so that an operator can make room through the broker.

On a directory ``full`` begins before the disk is full, as soon as less than the size of the reserve and of one burst of
messages is free beside it. So there is room for the log's tail, which was sequenced before.

A bucket's quota may lag: MinIO uses the result of its last scan. So it refuses puts for some time after the reserve was
deleted, and accepts puts for some time although there is no room. The lag is measured as the time from a release of the
reserve to the next put that succeeds. The store must accept the reserve for that long before it is no longer full.
Otherwise publishes would be accepted between any two scans, until the bucket exceeded its quota by more than the
reserve.
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
"""The time after a failed put for which the reserve is not refilled: the put is retried and needs the room."""

_LAG_NS_MAX: Final = 60_000_000_000
"""The bound of the measured lag: a put that succeeded late may have waited for an operator instead."""


class StoreRoom(Protocol):
    """The room of a store, as a log sees it."""

    full: StoreFull | None
    """The error that gives the reason why only essential objects may be stored; None if all may be."""
    bytes_free: int
    """The bytes that the log may store."""


class _Roomy:
    full: StoreFull | None = None
    bytes_free = _UNKNOWN


ROOMY: Final[StoreRoom] = _Roomy()
"""The room of a store that is never full."""


class ReservingStore(Wrapper):
    """A store with a reserve.

    Attributes: ``full`` is the error that gives the reason why only essential objects may be stored; None while all may
    be. ``bytes_free`` is the room that is left, half of the reserve included, less one burst.

    The log accepts a burst of messages while its tail is below ``bytes_free``, so there is room for one more burst.
    Half of the reserve is left for requests that make room, and for a start after a kill.
    """

    def __init__(self, inner: ObjectStore, size: int, leave: Callable[[str], float], clock: Clock, *,
                 burst: Callable[[], int] = lambda: 0, retry_seconds: float | None = None) -> None:
        """Wrap ``inner``.

        Args: ``size`` is the size of the reserve in bytes. ``leave(key)`` is the share of the reserve (0 to 1) that a
            put of this key must leave; 1 means that it may not use the reserve. ``burst``: see ``ObjectStore.reserve``.
            ``retry_seconds`` is the pause between two tests whether a full store has room again.
        """
        super().__init__(inner)
        self.full: StoreFull | None = None
        self.bytes_free = _UNKNOWN
        self._observers: list[Callable[[], object]] = []
        self._reserve: Reserve | None = inner.reserve(size, burst) if inner.reserve is not None else None
        self._leave = leave
        self._burst = burst
        self._clock = clock
        self._retry_s = retry_seconds if retry_seconds is not None else 5.0 if inner.puts_cost else 1.0
        self._failed_ns: int | None = None
        self._released_ns: int | None = None
        """The time when a part of the reserve was released; None after the next put that succeeds."""
        self._lag_ns = 0
        """The measured lag of the store's quota."""
        self._accepting_since_ns: int | None = None
        """The time since which a full store has accepted the reserve and every put."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
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
        """Make the reserve, and watch for room, until ``stop``. Only the store's owner may call this."""
        self._loop = asyncio.get_running_loop()
        if self._reserve is not None and self._watching is None:
            self._watching = self._loop.create_task(self._watch(self._reserve), name="reserve of the store")

    async def stop(self) -> None:
        """Stop watching for room; the reserve stays."""
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
                self._set_full(error)
                leave = self._leave(key)
                if self._reserve is None or leave >= 1 or not await self._reserve.release_soon(size_of(data), leave):
                    self._note_failed_put(leave)
                    raise
                if self._released_ns is None:
                    self._released_ns = self._clock.monotonic_ns()
            else:
                if self._released_ns is not None:
                    self._lag_ns = min(self._clock.monotonic_ns() - self._released_ns, _LAG_NS_MAX)
                    self._released_ns = None
                self._measure_room()
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
                self._set_full(error)
                leave = self._leave(key)
                if self._reserve is None or leave >= 1 or not self._reserve.release(size_of(data), leave):
                    self._note_failed_put(leave)
                    raise
            else:
                self._measure_room()
                return

    # The methods below may run in worker threads.

    def _note_failed_put(self, leave: float) -> None:
        if leave < 1:
            self._failed_ns = self._clock.monotonic_ns()

    def _measure_room(self) -> None:
        """Update ``bytes_free`` after a put, and set ``full`` if too little room is left."""
        if self._reserve is None or (free := self._reserve.bytes_free()) is None:
            return
        size = self._reserve.size
        self.bytes_free = free - size // 2 - self._burst() if size else free
        if self.full is None and self._reserve.is_low(free):
            self._set_full(StoreFull(f"{self.url}: the disk is almost full ({free >> 10} KiB are left, the reserve "
                                     f"among them); free some room, and the broker continues"))

    def _set_full(self, error: StoreFull) -> None:
        began = self.full is None
        self.full = error
        self._accepting_since_ns = None
        if began and self._loop is not None:
            self._loop.call_soon_threadsafe(self._notify_observers)

    # The methods below run on the loop.

    def _notify_observers(self) -> None:
        if self.full is not None:
            _log.warning("%s; until then publishes to streams of this store are refused (10023); purges and deletes "
                         "are carried out", self.full)
        else:
            _log.info("%s has room again", self.url)
        self._changed.set()
        for observer in list(self._observers):
            observer()

    def _lag_is_over(self) -> bool:
        """Return True once a full store has accepted everything for longer than its quota lags."""
        now_ns = self._clock.monotonic_ns()
        if self._accepting_since_ns is None:
            self._accepting_since_ns = now_ns
        return self._lag_ns < self._retry_s * 1e9 or now_ns - self._accepting_since_ns >= self._lag_ns

    async def _watch(self, reserve: Reserve) -> None:
        """Complete the reserve whenever a part of it is missing."""
        if self.full is not None:
            self._notify_observers()
        while True:
            complete = False
            try:
                # A put that failed a short time ago needs the room more than the reserve does.
                waits = self._failed_ns is not None and self._clock.monotonic_ns() - self._failed_ns <= _QUIET_NS
                complete = not waits and await reserve.fill()
                if not complete and self.full is None:
                    self._set_full(StoreFull(f"{self.url}: the disk is almost full; free some room, and the broker "
                                             f"continues"))
            except StoreFull as error:
                self._set_full(error)
            except StoreError:
                pass  # the next turn of this loop tries again
            if complete:
                if self.full is not None and self._lag_is_over():
                    self.full = None
                    self._measure_room()
                    if self.full is None:
                        self._notify_observers()
                if self.full is None:
                    self._changed.clear()
                    await self._changed.wait()
            await asyncio.sleep(self._retry_s)
