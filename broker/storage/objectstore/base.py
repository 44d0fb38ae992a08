"""The object store that the broker asks of the world: four operations, and the errors they end in.

An object, once there, never changes: no overwrite, no rename, no append. Reads, listing and put-if-absent must be
strongly consistent.

Keys are relative to the store's own prefix and sort by their bytes. A key is one or more segments joined by ``/``; a
segment is 1 to 255 bytes of UTF-8 without control characters. Three rules keep a bucket and a directory alike:

    no segment begins with a dot                  (``..`` leaves a directory; names with a dot are the store's own)
    no segment is called ``lock``                 (a directory keeps its lock files under that name)
    no key continues another: not ``a`` and ``a/b``   (a directory cannot be a file too; MinIO refuses it as well)

Errors are sorted by what the caller does next:

    NotFound             the object is not there: resolve again, or believe it
    PreconditionFailed   the key is taken: read its header to learn by whom
    Transient            nothing is known: the same call may be tried again (a put may have landed, or may land yet)
    StoreRefused         trying again at once cannot help (credentials, bucket, disk full): say so to the operator, who
                         may remedy it while we run, so a log goes on trying, slowly
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Buffers", "Listing", "NotFound", "ObjectInfo", "ObjectStore", "PreconditionFailed", "StoreError",
           "StoreLock", "StoreRefused", "Transient", "can_begin_key",
           "check_key", "size_of"]

Buffers = Sequence[bytes]
"""An object's bytes in order, so that a segment is written without being joined first."""


class StoreError(Exception):
    """What went wrong with one call on one key; ``str()`` names the store, the key and the remedy, never a secret."""


class NotFound(StoreError):
    """No object has this key."""


class PreconditionFailed(StoreError):
    """An object already has this key, and it may be our own: see ``ObjectStore.put``."""


class Transient(StoreError):
    """The store did not answer, or asked to be tried again; a put may have landed, or may land later."""


class StoreRefused(StoreError):
    """The store answered and will go on answering so: wrong credentials, no bucket, no room, no such feature."""


class ObjectInfo(NamedTuple):
    """One row of a listing."""

    key: str
    size: int


Listing = list[ObjectInfo]


class StoreLock(Protocol):
    """A lock that this process holds."""

    def release(self) -> None:
        """Let go; harmless when done twice. The end of the process does the same."""


class ObjectStore(ABC):
    """A place for immutable objects. Safe for concurrent calls on one event loop."""

    url: str
    """The store as the operator named it, without secrets."""

    puts_cost: bool = False
    """Whether each put is paid for (S3), which sets the default of ``commit_interval``."""

    put_sync: Callable[[str, Buffers], None] | None = None
    """``put`` for a worker thread to call, one try, same errors; None where there is only the asynchronous one."""

    try_lock: Callable[[str], StoreLock | None] | None = None
    """``try_lock(folder)`` takes the one lock of a folder of keys, without waiting, for as long as this process lives;
    returns None while somebody else holds it, raises StoreRefused where locks don't work. None where there are none."""

    @abstractmethod
    async def put(self, key: str, data: Buffers) -> None:
        """Create ``key`` with these bytes, whole and durable when this returns.

        After Transient, or when the call was cancelled, the object may be there, or may yet come. Putting the same
        bytes again is right. PreconditionFailed says only that *something* is there, whole and durable: also on a
        first call it may be what we put, since a wrapper, an HTTP client or a proxy may have sent the request twice.
        So whoever acts on it reads the object's header first, to learn whose it is.
        Raises: PreconditionFailed when the key exists; Transient; StoreRefused.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (half open; None: to the object's end), fewer where the object is shorter.

        A range that begins at or past the object's end is b""; an empty range is b"" without a look at the object.
        Raises: NotFound; Transient; StoreRefused.
        """

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """Objects whose key begins with ``prefix`` and is greater than ``after``, in key order, at most ``limit``.

        ``prefix`` and ``after`` are any strings, keys or not; "" is all. ``after`` and ``limit`` are for prefixes whose
        keys all lie in one folder: where folders lie beside objects, SeaweedFS goes through them by bare name, so that
        a page is not where the order says. A listing of everything below a prefix is whole and in order on all.
        Raises: Transient; StoreRefused.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove ``key``; not an error when it is not there.

        Raises: Transient (it may be gone or not); StoreRefused.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads. Calls under way end as they would, or in Transient; later ones do."""

    async def now_ns(self) -> int | None:
        """A second opinion on the wall clock (Unix UTC), carried on from the store's last answer by a clock that does
        not leap; good to about a second. None where there is none, or no answer yet."""
        return None


def check_key(key: str) -> str:
    """Return ``key`` when it keeps the rules above; ValueError is our own mistake, keys are built by ``paths``."""
    for segment in key.split("/"):
        if not segment or segment[0] == "." or segment == "lock" or not segment.isprintable():
            raise ValueError(f"not a key of an object store: {key!r}")
        if len(segment) > 63 and len(segment.encode()) > 255:
            raise ValueError(f"a segment longer than 255 bytes: {key!r}")
    return key


def can_begin_key(prefix: str) -> bool:
    """Whether any key can have this prefix; stores differ in what they make of the others, so they are not asked."""
    *folders, last = prefix.split("/")
    return (all(s and s[0] != "." and s != "lock" and s.isprintable() for s in folders)
            and (not last or (last[0] != "." and last.isprintable())))


def size_of(data: Buffers) -> int:
    """The object's size in bytes."""
    return sum(map(len, data))
