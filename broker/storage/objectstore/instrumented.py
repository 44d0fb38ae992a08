"""A store that counts calls, bytes, seconds and errors of each operation, for /varz, metrics and benchmarks.

Wrap it around the bare store, and RetryingStore around this wrapper. Then each try counts, as it does on a bucket's
bill.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping

from broker.base.clock import Clock
from broker.storage.objectstore.base import Buffers, Listing, NotFound, ObjectStore, PreconditionFailed, size_of
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["SECONDS_BOUNDS", "InstrumentedStore", "OperationStats"]

SECONDS_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets of ``OperationStats.buckets``, seconds; the last bucket has none."""


class OperationStats:
    """The counts of one operation. All but ``in_flight`` only grow."""

    __slots__ = ("buckets", "bytes", "count", "errors", "in_flight", "ns", "ns_max")

    def __init__(self) -> None:
        self.count = 0
        """The number of calls that ended, including errors."""
        self.bytes = 0
        """The bytes of successful puts and gets; the rows of successful listings."""
        self.ns = 0
        self.ns_max = 0
        self.in_flight = 0
        self.errors: dict[str, int] = {}
        """The number of failed calls for each class of error; NotFound and PreconditionFailed are ordinary answers."""
        self.buckets = [0] * (len(SECONDS_BOUNDS) + 1)

    def as_dict(self) -> dict[str, object]:
        """Return the counts for JSON, with seconds as floats."""
        return {"count": self.count, "bytes": self.bytes, "seconds": self.ns / 1e9, "seconds_max": self.ns_max / 1e9,
                "in_flight": self.in_flight, "errors": dict(self.errors), "buckets": list(self.buckets)}


class InstrumentedStore(Wrapper):
    """Counts every call on its way to ``inner``."""

    def __init__(self, inner: ObjectStore, *, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._lock = threading.Lock()  # put_sync counts from worker threads
        self._operations = {name: OperationStats() for name in ("put", "get", "list", "delete")}
        self._inner_put_sync = inner.put_sync
        if inner.put_sync is not None:
            self.put_sync = self._put_sync
        self._inner_put_unsynced = inner.put_unsynced
        if inner.put_unsynced is not None:
            self.put_unsynced = self._put_unsynced

    @property
    def operations(self) -> Mapping[str, OperationStats]:
        """The counts of put, get, list and delete, which change as calls end."""
        return self._operations

    def snapshot(self) -> dict[str, object]:
        """Return a copy of all counts for /varz: ``{"url": …, "put": {…}, "get": {…}, "list": {…}, "delete": {…}}``."""
        with self._lock:
            return {"url": self.url, **{name: stats.as_dict() for name, stats in self._operations.items()}}

    @property
    def errors(self) -> int:
        """The number of calls that ended in an error other than NotFound and PreconditionFailed."""
        answers = (NotFound.__name__, PreconditionFailed.__name__)
        return sum(n for stats in self._operations.values() for name, n in stats.errors.items() if name not in answers)

    async def put(self, key: str, data: Buffers) -> None:
        with _Counted(self, "put") as counted:
            await self.inner.put(key, data)
            counted.size = size_of(data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with _Counted(self, "get") as counted:
            data = await self.inner.get(key, start, end)
            counted.size = len(data)
            return data

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        with _Counted(self, "list") as counted:
            found = await self.inner.list(prefix, after, limit)
            counted.size = len(found)
            return found

    async def delete(self, key: str) -> None:
        with _Counted(self, "delete"):
            await self.inner.delete(key)

    def _put_sync(self, key: str, data: Buffers) -> None:
        assert self._inner_put_sync is not None
        with _Counted(self, "put") as counted:
            self._inner_put_sync(key, data)
            counted.size = size_of(data)

    def _put_unsynced(self, key: str, data: Buffers, first_key: str) -> None:
        assert self._inner_put_unsynced is not None
        with _Counted(self, "put") as counted:
            self._inner_put_unsynced(key, data, first_key)
            counted.size = size_of(data)


class _Counted:
    """A context manager that counts one call when it ends, with or without success."""

    __slots__ = ("_began_ns", "_owner", "_stats", "size")

    def __init__(self, owner: InstrumentedStore, operation: str) -> None:
        self._owner = owner
        self._stats = owner._operations[operation]
        self.size = 0

    def __enter__(self) -> _Counted:
        self._began_ns = self._owner._clock.monotonic_ns()
        with self._owner._lock:
            self._stats.in_flight += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        took_ns = self._owner._clock.monotonic_ns() - self._began_ns
        stats = self._stats
        with self._owner._lock:
            stats.in_flight -= 1
            stats.count += 1
            stats.bytes += self.size
            stats.ns += took_ns
            stats.ns_max = max(stats.ns_max, took_ns)
            stats.buckets[bisect_left(SECONDS_BOUNDS, took_ns / 1e9)] += 1
            if kind is not None:
                stats.errors[kind.__name__] = stats.errors.get(kind.__name__, 0) + 1
