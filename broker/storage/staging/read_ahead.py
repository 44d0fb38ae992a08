"""Reads the runs of a request in order: small runs whole, several of them at once; large ones in the pieces asked for.

A request of thousands of small runs would otherwise wait for the store three times for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from broker.storage.format.request import StagedRun
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import StreamPaths

__all__ = ["ReadAhead", "RunSource"]

_SMALL_BYTES: Final = 4 << 20
_BYTES_AHEAD: Final = 32 << 20
_RUNS_AHEAD: Final = 16


class RunSource(Protocol):
    """The bytes of one run; ``store`` has them, too."""

    store: ObjectStore

    async def get(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to ``end``, fewer if the object ends before. Raises: StoreError."""


class _Small:
    def __init__(self, store: ObjectStore, data: bytes) -> None:
        self.store = store
        self._data = data

    async def get(self, start: int, end: int) -> bytes:
        return self._data[start:end]


class _Large:
    def __init__(self, store: ObjectStore, key: str) -> None:
        self.store = store
        self._key = key

    async def get(self, start: int, end: int) -> bytes:
        return await self.store.get(self._key, start, end)


class ReadAhead:
    """The runs of a request. Call ``open`` for each of them in order, and ``close`` at the end."""

    def __init__(self, store: ObjectStore, paths: StreamPaths, runs: Sequence[StagedRun]) -> None:
        self._store = store
        self._paths = paths
        self._runs = runs
        self._gets: dict[int, asyncio.Task[bytes]] = {}
        self._next = 0
        self._bytes_ahead = 0

    def key(self, number: int) -> str:
        """Return the key of a run."""
        run = self._runs[number]
        return self._paths.run(run.position, run.run_id)

    async def open(self, number: int) -> RunSource:
        """Return the bytes of run ``number``, and begin to read the next ones. Raises: StoreError."""
        while self._next < len(self._runs) and (self._next <= number or (
                self._next - number <= _RUNS_AHEAD and self._bytes_ahead < _BYTES_AHEAD)):
            size = self._runs[self._next].size
            if size <= _SMALL_BYTES:
                # One byte more shows that an object is longer than its entry says.
                self._gets[self._next] = asyncio.ensure_future(self._store.get(self.key(self._next), 0, size + 1))
                self._bytes_ahead += size
            self._next += 1
        task = self._gets.get(number)
        if task is None:
            return _Large(self._store, self.key(number))
        data = await task
        del self._gets[number]
        self._bytes_ahead -= self._runs[number].size
        return _Small(self._store, data)

    async def close(self) -> None:
        """Cancel what is being read."""
        for task in self._gets.values():
            task.cancel()
        await asyncio.gather(*self._gets.values(), return_exceptions=True)
