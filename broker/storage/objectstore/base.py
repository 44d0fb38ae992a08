"""The object store that the broker asks of the world: four operations, and the errors they end in.

An object, once there, never changes: no overwrite, no rename, no append. Keys are relative to the store's
own prefix, use ``/`` and sort by their bytes. Reads, listing and put-if-absent must be strongly consistent.

Errors are sorted by what the caller does next:

    NotFound             the object is not there: resolve again, or believe it
    PreconditionFailed   the key is taken: read its header to learn by whom
    Transient            nothing is known: the same call may be tried again (a put may have landed)
    StoreRefused         trying again cannot help (credentials, bucket, disk full): say so to the operator
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Buffers", "NotFound", "ObjectInfo", "ObjectStore", "PreconditionFailed", "StoreError", "StoreRefused",
           "Transient"]

Buffers = Sequence[bytes]
"""An object's bytes in order, so that a segment is written without being joined first."""


class StoreError(Exception):
    """What went wrong with one call on one key; ``str()`` names the store, the key and the remedy."""


class NotFound(StoreError):
    """No object has this key."""


class PreconditionFailed(StoreError):
    """An object already has this key, so the put did nothing."""


class Transient(StoreError):
    """The store did not answer, or asked to be tried again; a put may or may not have landed."""


class StoreRefused(StoreError):
    """The store answered and will go on answering so: wrong credentials, no bucket, no room, no such feature."""


class ObjectInfo(NamedTuple):
    """One row of a listing."""

    key: str
    size: int


class ObjectStore(ABC):
    """A place for immutable objects. Safe for concurrent calls on one event loop."""

    url: str
    """The store as the operator named it, without secrets."""

    puts_cost: bool = False
    """Whether each put is paid for (S3), which sets the default of ``commit_interval``."""

    @abstractmethod
    async def put(self, key: str, data: Buffers) -> None:
        """Create ``key`` with these bytes, whole and durable when this returns.

        Raises: PreconditionFailed when the key exists; Transient; StoreRefused.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (half open; None: to the object's end), fewer where the object is shorter.

        Raises: NotFound; Transient; StoreRefused.
        """

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[ObjectInfo]:
        """Objects whose key begins with ``prefix`` and is greater than ``after``, in key order, at most ``limit``."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove ``key``; not an error when it is not there."""

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads. Calls under way end in Transient."""

    async def now_ns(self) -> int | None:
        """The store's own wall clock (Unix UTC), as of its last answer; None where it has none that differs from ours."""
        return None
