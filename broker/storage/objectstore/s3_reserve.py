"""The reserve of a bucket with a quota: objects that take room, and are deleted to make room in a full bucket.

On AWS, buckets have no quotas, so there is no reserve. A server does not report how much room is left, so ``fill``
puts one object of a complete reserve again, to see whether the server accepts it. Some servers count puts and
deletes late, as MinIO's quota does. There a put that needs the reserve waits until the server has counted the delete
(``reserving``).
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["RESERVE", "OwnObjects", "S3Reserve"]

RESERVE: Final = ".reserve/"
"""The beginning of the objects' names, below the store's prefix. No key can begin with a dot."""

_OBJECTS: Final = 4
"""The number of objects that make up the reserve."""


class OwnObjects(Protocol):
    """The store's own objects, whose names are no keys. All calls raise StoreError."""

    async def has_quota(self) -> bool: ...

    async def list_own(self, prefix: str) -> dict[str, int]:
        """Return names and sizes in bytes."""

    async def put_own(self, name: str, data: bytes) -> None: ...

    async def delete_own(self, name: str) -> None: ...


class S3Reserve:
    """The reserve of a bucket; its contract is ``base.Reserve``."""

    def __init__(self, objects: OwnObjects, size: int) -> None:
        """Make a reserve of ``size`` bytes; 0: ``fill`` deletes an existing reserve."""
        self._objects = objects
        self.size = size
        self._piece = size // _OBJECTS
        self._held: set[str] | None = None
        """The names of the objects that exist; None before the first listing."""

    async def fill(self) -> bool:
        if not await self._objects.has_quota():
            return True
        held = await self._existing()
        for name in [*held] if not self._piece else []:
            await self._objects.delete_own(name)
            held.discard(name)
        if not self._piece:
            return True
        names = [f"{RESERVE}{number}" for number in range(_OBJECTS)]
        for name in [name for name in names if name not in held] or names[:1]:
            await self._objects.put_own(name, bytes(self._piece))
            held.add(name)
        return True

    async def release_soon(self, size: int, leave: float) -> bool:
        held = await self._existing()
        released = 0
        while released < max(size, 1) and len(held) > leave * _OBJECTS:
            name = max(held)
            await self._objects.delete_own(name)
            held.discard(name)
            released += self._piece
        return released > 0

    def release(self, size: int, leave: float) -> bool:
        return False  # nothing frees room: no worker thread puts into a bucket

    def bytes_free(self) -> int | None:
        return None

    def is_low(self, bytes_free: int) -> bool:
        return False

    async def _existing(self) -> set[str]:
        if self._held is None:
            # Objects of another size, from an earlier setting, serve as well until they are released.
            self._held = set(await self._objects.list_own(RESERVE))
        return self._held
