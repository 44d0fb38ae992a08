"""The base class of wrappers: a wrapper overrides some calls, and the base class passes on all others."""

from __future__ import annotations

from collections.abc import Sequence

from broker.storage.objectstore.base import Buffers, Listing, ObjectStore, OldVersion

__all__ = ["Wrapper"]


class Wrapper(ObjectStore):
    """A store that passes every call on to ``inner``."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.puts_cost = inner.puts_cost
        self.put_sync = inner.put_sync
        self.put_unsynced = inner.put_unsynced
        self.try_lock = inner.try_lock
        self.reserve = inner.reserve

    async def put(self, key: str, data: Buffers) -> None:
        await self.inner.put(key, data)

    async def replace(self, key: str, data: Buffers) -> None:
        await self.inner.replace(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self.inner.get(key, start, end)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self.inner.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self.inner.delete(key)

    @property
    def has_urls(self) -> bool:
        return self.inner.has_urls

    def url_of(self, key: str, byte_range: str) -> str | None:
        return self.inner.url_of(key, byte_range)

    async def old_versions(self, until: float) -> Sequence[OldVersion]:
        return await self.inner.old_versions(until)

    async def delete_version(self, key: str, version: str) -> None:
        await self.inner.delete_version(key, version)

    async def close(self) -> None:
        await self.inner.close()

    def now_ns(self) -> int | None:
        return self.inner.now_ns()

    @property
    def at_aws(self) -> bool:
        return self.inner.at_aws
