"""The reserve of a bucket with a quota: objects that take room, and are deleted when something must be stored beyond it.

Not on AWS, where buckets have no quotas. A server does not say how much room is left, so a complete reserve is put once
more, in part, to see whether it takes that. Where it counts late what was put and deleted, as MinIO's quota does, a put
that needs the reserve waits until then (``reserving``).
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["RESERVE", "OwnObjects", "S3Reserve"]

RESERVE: Final = ".reserve/"
"""The beginning of the objects' names, below the store's prefix. No key can begin with a dot."""

_OBJECTS: Final = 4


class OwnObjects(Protocol):
    """A store's objects that have no keys. All calls raise StoreError."""

    async def has_quota(self) -> bool: ...

    async def list_own(self, prefix: str) -> dict[str, int]:
        """Names and sizes."""

    async def put_own(self, name: str, data: bytes) -> None: ...

    async def delete_own(self, name: str) -> None: ...


class S3Reserve:
    """See ``base.Reserve``."""

    def __init__(self, objects: OwnObjects, size: int) -> None:
        """Args: ``size`` in bytes; 0: none."""
        self._objects = objects
        self.size = size
        self._piece = size // _OBJECTS
        self._held: set[str] | None = None
        """The objects that exist; None: that is not known yet."""

    async def fill(self) -> bool:
        if not await self._objects.has_quota():
            return True
        held = await self._known()
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
        held = await self._known()
        released = 0
        while released < max(size, 1) and len(held) > leave * _OBJECTS:
            name = max(held)
            await self._objects.delete_own(name)
            held.discard(name)
            released += self._piece
        return released > 0

    def release(self, size: int, leave: float) -> bool:
        return False  # no thread puts into a bucket

    def bytes_free(self) -> int | None:
        return None

    def is_low(self, bytes_free: int) -> bool:
        return False

    async def _known(self) -> set[str]:
        if self._held is None:
            # Objects of another size are as good until they are released.
            self._held = set(await self._objects.list_own(RESERVE))
        return self._held
