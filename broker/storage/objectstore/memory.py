"""A store of objects in a dictionary, for tests and for the simulation; the objects end with the process.

It uses no threads and no time: every call finishes without giving the loop a turn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from broker.storage.objectstore.base import (
    Buffers,
    Listing,
    NotFound,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    Transient,
    check_key,
)

__all__ = ["MemoryStore"]


class MemoryStore(ObjectStore):
    """A store that several simulated brokers may share."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        """The stored objects, for tests to read; only the store's methods change them, since ``_keys`` has their
        order."""
        self._keys: list[str] = []
        self._closed = False

    async def put(self, key: str, data: Buffers) -> None:
        self._open()
        if check_key(key) in self.objects:
            raise PreconditionFailed(f"{self.url}: {key} exists")
        self.objects[key] = b"".join(data)
        insort(self._keys, key)

    async def replace(self, key: str, data: Buffers) -> None:
        await self.delete(key)
        await self.put(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._open()
        if start < 0:
            raise ValueError("a read begins at byte 0 or later")
        if end is not None and end <= start:
            return b""
        data = self.objects.get(check_key(key))
        if data is None:
            raise NotFound(f"{self.url}: {key} does not exist")
        return data[start:end]

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self._open()
        keys = self._keys
        at = max(bisect_left(keys, prefix), bisect_right(keys, after))
        found: Listing = []
        while at < len(keys) and keys[at].startswith(prefix) and (limit is None or len(found) < limit):
            found.append(ObjectInfo(keys[at], len(self.objects[keys[at]])))
            at += 1
        return found

    async def delete(self, key: str) -> None:
        self._open()
        if self.objects.pop(check_key(key), None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise Transient(f"{self.url}: the store is closed")
