"""A store over another one that is never changed: puts and deletes stay in memory.

A repair is tried here first, by the code that carries it out afterwards, so that its outcome is known before any
change.
"""

from __future__ import annotations

from broker.storage.objectstore import Buffers, Listing, NotFound, ObjectInfo, ObjectStore, PreconditionFailed
from broker.storage.objectstore.base import check_key

__all__ = ["Overlay"]


class Overlay(ObjectStore):
    """A view of ``base`` with changes in memory. Closing it leaves ``base`` open."""

    def __init__(self, base: ObjectStore) -> None:
        self.url = base.url
        self.puts_cost = base.puts_cost
        self._base = base
        self._changed: dict[str, bytes | None] = {}
        """The changed objects by key; None: the object is deleted."""

    async def put(self, key: str, data: Buffers) -> None:
        check_key(key)
        there = self._changed.get(key)
        if there is not None or (key not in self._changed and await self._has(key)):
            raise PreconditionFailed(f"{self.url}: {key} exists")
        self._changed[key] = b"".join(data)

    async def replace(self, key: str, data: Buffers) -> None:
        self._changed[check_key(key)] = b"".join(data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key not in self._changed:
            return await self._base.get(key, start, end)
        data = self._changed[key]
        if data is None:
            raise NotFound(f"{self.url}: {key} does not exist")
        return data[start:end]

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        mine = {key: data for key, data in self._changed.items() if key.startswith(prefix) and key > after}
        # Up to len(mine) rows may be deleted here, so as many more are listed: the page must not end early.
        base = await self._base.list(prefix, after, None if limit is None else limit + len(mine))
        found = {info.key: info for info in base if info.key not in mine}
        found.update({key: ObjectInfo(key, len(data)) for key, data in mine.items() if data is not None})
        rows = [found[key] for key in sorted(found)]
        return rows if limit is None else rows[:limit]

    async def delete(self, key: str) -> None:
        self._changed[key] = None

    async def close(self) -> None:
        pass

    def now_ns(self) -> int | None:
        return self._base.now_ns()

    async def _has(self, key: str) -> bool:
        try:
            await self._base.get(key, 0, 1)
        except NotFound:
            return False
        return True
