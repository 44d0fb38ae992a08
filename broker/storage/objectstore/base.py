"""The interface of an object store: four operations, and the errors they raise.

An object never changes once it exists: no overwrite, no rename, no append. Reads, listing and put-if-absent must be
strongly consistent.

Keys are relative to the store's own prefix and sort by their bytes. A key is one or more segments joined by ``/``; a
segment is 1 to 255 bytes of UTF-8 without control characters. Three rules keep a bucket and a directory alike:

    no segment begins with a dot                  (``..`` leaves a directory; names with a dot are the store's own)
    no segment is called ``lock``                 (lock files of a directory have that name)
    no key continues another: not ``a`` and ``a/b``   (a file cannot be a directory too; MinIO refuses it as well)

Errors are classified by what the caller does next:

    NotFound             the object does not exist: look it up again, or accept it
    PreconditionFailed   the key exists: read the object's header to learn its writer
    Transient            the outcome is unknown: the call may be tried again (a put may have landed, or may land yet)
    StoreRefused         trying again at once cannot help (credentials, bucket): tell the operator, who may solve it
                         while we run, so a log keeps trying, slowly
    StoreFull            a StoreRefused because there is no room; reads and deletes still work
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Buffers", "Listing", "NotFound", "ObjectInfo", "ObjectStore", "PreconditionFailed", "Reserve", "StoreError",
           "StoreFull", "StoreLock", "StoreRefused", "Transient", "can_begin_key", "check_key", "size_of"]

Buffers = Sequence[bytes]
"""An object's bytes in order, so that a segment is written without being joined first."""


class StoreError(Exception):
    """Why one call on one key failed; ``str()`` names the store, the key and the remedy, never a secret."""


class NotFound(StoreError):
    """No object has this key."""


class PreconditionFailed(StoreError):
    """An object already has this key, and it may be our own: see ``ObjectStore.put``."""


class Transient(StoreError):
    """The store did not answer, or asked for another try; a put may have landed, or may land later."""


class StoreRefused(StoreError):
    """The store refused, and will refuse again: wrong credentials, no bucket, no room, no such feature."""


class StoreFull(StoreRefused):
    """The store has no room for the object: the disk is full, or a quota is used up."""


class ObjectInfo(NamedTuple):
    """One row of a listing."""

    key: str
    size: int


Listing = list[ObjectInfo]


class StoreLock(Protocol):
    """A lock that this process holds."""

    def release(self) -> None:
        """Release the lock, as the end of the process does; may be called twice."""


class Reserve(Protocol):
    """Room in a store that is kept from other use, for what must be stored even if the store is full."""

    size: int
    """Bytes of the complete reserve."""

    async def fill(self) -> bool:
        """Reserve as much room as is missing; returns whether all is reserved, and enough is left beside it.

        Raises: StoreError if that is not known.
        """

    def release(self, size: int, leave: float) -> bool:
        """Free room for ``size`` bytes, for a thread that may wait. Keeps at least the share ``leave`` of the reserve.

        Returns: False if nothing could be freed.
        """

    async def release_soon(self, size: int, leave: float) -> bool:
        """``release`` for the loop."""

    def bytes_free(self) -> int | None:
        """The bytes that can be stored, the reserve among them; None if the store does not say."""

    def is_low(self, bytes_free: int) -> bool:
        """Whether there is so little room that only the reserve should be used up from now on."""


class ObjectStore(ABC):
    """A place for immutable objects. Safe for concurrent calls on one event loop."""

    url: str
    """The store as the operator named it, without secrets."""

    puts_cost: bool = False
    """Whether each put costs money (S3), which sets the default of ``commit_interval``."""

    put_sync: Callable[[str, Buffers], None] | None = None
    """``put`` for worker threads: one try, same errors; None if there is only the asynchronous one."""

    put_unsynced: Callable[[str, Buffers, str], None] | None = None
    """``put_unsynced(key, data, first_key)``: as ``put_sync``, but the object is durable only once it is synced, later; None if
    every put is durable at once. ``first_key`` says that all objects of the key's folder before it had been put already."""

    try_lock: Callable[[str], StoreLock | None] | None = None
    """``try_lock(folder)`` takes the one lock of a folder of keys, without waiting, for as long as this process lives.
    Returns None while another process holds it; raises StoreRefused if locks do not work here. None: there are no locks."""

    reserve: Callable[[int], Reserve] | None = None
    """``reserve(size)``: a reserve of so many bytes; None if this kind of store cannot be full."""

    @abstractmethod
    async def put(self, key: str, data: Buffers) -> None:
        """Create ``key`` with these bytes; the object is complete and durable when this returns.

        After Transient, or a cancelled call, the object may exist, or may appear later; put the same bytes again.
        PreconditionFailed says only that *some* complete, durable object has the key. Even after a first call it may be
        ours, since a wrapper, an HTTP client or a proxy may have sent the request twice. So before acting on it, read
        the object's header, which names the writer.
        Raises: PreconditionFailed if the key exists; Transient; StoreRefused.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (half open; None: to the object's end), fewer if the object is shorter.

        A range that begins at or past the object's end is b""; an empty range is b"" even if there is no object.
        Raises: NotFound; Transient; StoreRefused.
        """

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """Objects whose key begins with ``prefix`` and is greater than ``after``, in key order, at most ``limit``.

        ``prefix`` and ``after`` are any strings, keys or not; "" is all. Use ``after`` and ``limit`` only with prefixes
        whose keys are all in one folder: where folders and objects are mixed, SeaweedFS orders folders by bare name, so
        its pages differ from key order. A complete listing below a prefix is in order on every store.
        Raises: Transient; StoreRefused.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove ``key``; no error if it does not exist.

        Raises: Transient (it may be gone or not); StoreRefused.
        """

    async def replace(self, key: str, data: Buffers) -> None:
        """Put ``data`` at ``key`` whatever is there, in one step: a reader finds the old object or the new one.

        For repairs of a store that nobody owns, and for nothing else: an object that exists is what keeps brokers apart.
        Raises: Transient (either may be there); StoreRefused.
        """
        raise StoreRefused(f"{self.url}: objects cannot be replaced here")

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads. Calls in progress finish or raise Transient; later ones raise Transient."""

    @property
    def at_aws(self) -> bool:
        """Whether AWS serves the store, so that its list prices apply; known once a request was answered."""
        return False

    def now_ns(self) -> int | None:
        """The store's wall clock (Unix UTC), extrapolated from its last answer by a clock that does not leap; accurate to
        about a second. None if the store has no clock, or has not answered yet."""
        return None


def check_key(key: str) -> str:
    """Return ``key`` if it keeps the rules above. A ValueError is a bug of ours, since ``paths`` builds all keys."""
    for segment in key.split("/"):
        if not segment or segment[0] == "." or segment == "lock" or not segment.isprintable():
            raise ValueError(f"not a key of an object store: {key!r}")
        if len(segment) > 63 and len(segment.encode()) > 255:
            raise ValueError(f"a segment longer than 255 bytes: {key!r}")
    return key


def can_begin_key(prefix: str) -> bool:
    """Whether any key can have this prefix; stores treat other prefixes differently, so they are not asked."""
    *folders, last = prefix.split("/")
    return (all(s and s[0] != "." and s != "lock" and s.isprintable() for s in folders)
            and (not last or (last[0] != "." and last.isprintable())))


def size_of(data: Buffers) -> int:
    """The object's size in bytes."""
    return sum(map(len, data))
