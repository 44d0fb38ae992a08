"""The interface of an object store: four operations, and the errors they raise.

An object never changes once it exists: no overwrite, no rename, no append. Reads, listing and put-if-absent must be
strongly consistent.

Keys are relative to the store's own prefix and sort by their bytes. A key is one or more segments joined by ``/``; a
segment is 1 to 255 bytes of UTF-8 without control characters. Three rules keep a bucket and a directory alike:

    no segment begins with a dot                  (``..`` leaves a directory; names with a dot are the store's own)
    no segment is called ``lock``                 (lock files of a directory have that name)
    no key continues another: not ``a`` and ``a/b``   (a file cannot be a directory too; MinIO refuses it as well)

Errors are classified by what the caller does next:

    NotFound             the object does not exist: find the newer object, or accept the loss
    PreconditionFailed   the key exists: read the object's header to learn its writer
    Transient            the outcome is unknown: retry if you like (a put may have taken effect, or may do so later)
    StoreRefused         an immediate retry cannot help (credentials, bucket): report it to the operator, who may solve
                         it while the broker runs; so a log retries slowly
    StoreFull            a StoreRefused because there is no room; reads and deletes still work
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Buffers", "Listing", "NotFound", "ObjectInfo", "ObjectStore", "OldVersion", "PreconditionFailed", "Reserve",
           "StoreError", "StoreFull", "StoreLock", "StoreRefused", "Transient", "can_begin_key", "check_key", "size_of"]

Buffers = Sequence[bytes]
"""An object's bytes in order, so that a segment is written without being joined first."""


class StoreError(Exception):
    """The failure of one call on one key; ``str()`` names the store, the key and the remedy, never a secret.

    Attributes: ``remedy`` is what a command adds for its user, after the retries.
    """

    remedy = ""


class NotFound(StoreError):
    """No object has this key."""


class PreconditionFailed(StoreError):
    """An object already has this key, and it may be our own: see ``ObjectStore.put``."""


class Transient(StoreError):
    """The store did not answer, or asked for a retry; a put may have taken effect, or may do so later."""

    remedy = "; the store does not answer: check that it is up, its address (AWS_ENDPOINT_URL) and the network"


class StoreRefused(StoreError):
    """The store refused, and will refuse again: wrong credentials, no bucket, no room, no such feature."""


class StoreFull(StoreRefused):
    """The store has no room for the object: the disk is full, or a quota is used up."""


class ObjectInfo(NamedTuple):
    """A row of a listing."""

    key: str
    size: int


Listing = list[ObjectInfo]


class StoreLock(Protocol):
    """A lock that this process holds."""

    def release(self) -> None:
        """Release the lock, as the end of the process does. A second call does nothing."""


class Reserve(Protocol):
    """Room in a store that is kept from other use, for what must be stored even if the store is full."""

    size: int
    """Bytes of the complete reserve."""

    async def fill(self) -> bool:
        """Reserve the room that is missing.

        Returns: True if the reserve is complete and enough room is left beside it.
        Raises: StoreError if the store failed to answer.
        """

    def release(self, size: int, leave: float) -> bool:
        """Free room for ``size`` bytes; blocks, so only worker threads may call this.

        Args: leave is the share of the reserve (0 to 1) that must remain.
        Returns: False if nothing could be freed.
        """

    async def release_soon(self, size: int, leave: float) -> bool:
        """Do the same as ``release`` without blocking the event loop."""

    def bytes_free(self) -> int | None:
        """Return how many bytes can be stored, the reserve included; None if the store does not report it."""

    def is_low(self, bytes_free: int) -> bool:
        """Return True if so little room is left that all but essential writes should stop."""


class OldVersion(NamedTuple):
    """A version of an object that a versioned bucket keeps although it was deleted; or a mark of the deletion."""

    key: str
    version: str
    marks: bool


class ObjectStore(ABC):
    """A place for immutable objects. Safe for concurrent calls on one event loop."""

    url: str
    """The store as the operator named it, without secrets."""

    puts_cost: bool = False
    """True if each put costs money (S3). It sets the default of ``commit_interval``."""

    put_sync: Callable[[str, Buffers], None] | None = None
    """A ``put`` for worker threads: one try, the same errors. None if the store has only the asynchronous ``put``."""

    put_unsynced: Callable[[str, Buffers, str], None] | None = None
    """``put_unsynced(key, data, first_key)``: a ``put_sync`` whose object becomes durable only at a later sync.

    None if every put is durable at once. The caller guarantees that all objects of the key's folder with keys before
    ``first_key`` had been put already.
    """

    try_lock: Callable[[str], StoreLock | None] | None = None
    """``try_lock(folder)`` acquires the one lock of a folder of keys, without waiting, until this process ends.

    It returns None while another process holds the lock, and raises StoreRefused if locks do not work here. None if
    this kind of store has no locks.
    """

    reserve: Callable[[int, Callable[[], int]], Reserve] | None = None
    """``reserve(size, burst)`` makes a reserve of ``size`` bytes. ``burst()`` returns the most bytes that are accepted
    between two measurements of the free room. None if this kind of store cannot be full."""

    @abstractmethod
    async def put(self, key: str, data: Buffers) -> None:
        """Create ``key`` with these bytes; the object is complete and durable when this returns.

        After Transient, or a cancelled call, the object may exist, or may appear later; put the same bytes again.
        PreconditionFailed means only that *some* complete, durable object has the key. Even after a first call that
        object may be ours, since a wrapper, an HTTP client or a proxy may have sent the request twice. So before acting
        on the error, read the object's header, which names the writer.
        Raises: PreconditionFailed if the key exists; Transient; StoreRefused.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``start`` to ``end`` (half open; None: to the object's end), fewer if the object is shorter.

        The result is b"" for a range that begins at or past the object's end. An empty range gives b"" even if there is
        no object.
        Raises: NotFound; Transient; StoreRefused.
        """

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """List at most ``limit`` objects whose key begins with ``prefix`` and is greater than ``after``, in key order.

        ``prefix`` and ``after`` are any strings, keys or not; "" means all keys. Use ``after`` and ``limit`` only with
        prefixes whose keys are all in one folder: where folders and objects are mixed, SeaweedFS orders folders by bare
        name, so its pages differ from key order. A complete listing below a prefix is in order on every store.
        Raises: Transient; StoreRefused.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove ``key``; no error if it does not exist.

        Raises: Transient (the object may or may not exist afterwards); StoreRefused.
        """

    async def replace(self, key: str, data: Buffers) -> None:
        """Put ``data`` at ``key``, over an existing object or not, in one step: a reader finds the old or the new
        object.

        Use this only to repair a store that no broker owns: brokers are kept apart by objects that nobody overwrites.
        Raises: Transient (the old or the new object may be there); StoreRefused.
        """
        raise StoreRefused(f"{self.url}: objects cannot be replaced here")

    @property
    def has_urls(self) -> bool:
        """True if others can read an object by a URL that this process signs."""
        return False

    def url_of(self, key: str, byte_range: str) -> str | None:
        """Return a URL that reads ``key`` for a quarter of an hour, with exactly this ``Range`` header: the object may
        have other streams' and accounts' messages. None: there is none now."""
        return None

    async def old_versions(self, until: float) -> Sequence[OldVersion]:
        """Return the versions in a versioned bucket that were deleted or replaced until a Unix time, and their marks of
        deletion.

        Raises: Transient; StoreRefused.
        """
        return []

    async def delete_version(self, key: str, version: str) -> None:
        """Remove one version of ``key`` for good. Raises: Transient; StoreRefused."""
        raise StoreRefused(f"{self.url}: this store has no versions")

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads. Calls in progress finish or raise Transient; later ones raise Transient."""

    @property
    def at_aws(self) -> bool:
        """True if AWS serves the store, so that its list prices apply; known only after an answered request."""
        return False

    def now_ns(self) -> int | None:
        """Return the store's wall clock (Unix UTC, ns), accurate to about a second.

        It is extrapolated from the store's last answer by the monotonic clock. None if the store has no clock, or has
        not answered yet.
        """
        return None


def check_key(key: str) -> str:
    """Return ``key`` if it keeps the rules above.

    Raises: ValueError otherwise, which is a bug of ours, since ``storage.paths`` builds all keys.
    """
    for segment in key.split("/"):
        if not segment or segment[0] == "." or segment == "lock" or not segment.isprintable():
            raise ValueError(f"not a key of an object store: {key!r}")
        if len(segment) > 63 and len(segment.encode()) > 255:
            raise ValueError(f"a segment longer than 255 bytes: {key!r}")
    return key


def can_begin_key(prefix: str) -> bool:
    """Return True if any key can have this prefix. Stores disagree about other prefixes, so those are never sent."""
    *folders, last = prefix.split("/")
    return (all(s and s[0] != "." and s != "lock" and s.isprintable() for s in folders)
            and (not last or (last[0] != "." and last.isprintable())))


def size_of(data: Buffers) -> int:
    """Return the object's size in bytes."""
    return sum(map(len, data))
