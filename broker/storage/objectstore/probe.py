"""The probe at start: a test that a store meets the requirements.

Some S3 clones accept ``If-None-Match: *`` and ignore it. Fencing depends on it: without it two brokers could
acknowledge the same sequence. The probe puts a key that exists, which must be refused; on the way it checks the bucket,
the credentials, free space, ranged reads and listing.

    the key is new:   race ──> put (perhaps another broker was faster) ──> read ──> put again: refused ──> good
    the key exists:   read ──> put the same bytes: refused ──> good

If the store does overwrite the object, its bytes stay the same. The race (``race``) is run only on stores where
requests cost money, and only once, while the key is new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.storage.objectstore.base import Buffers, NotFound, ObjectStore, PreconditionFailed, StoreRefused, Transient

__all__ = ["overwrites_error", "probe"]


async def probe(store: ObjectStore, key: str, fresh: Buffers, *, unfinished: str | None = None,
                race: Callable[[], Awaitable[None]] | None = None) -> bytes:
    """Test the store with ``key``, and put ``fresh`` there if there is no object yet.

    Args: unfinished is a key; an object there marks an unfinished copy of a store, which is refused. race is awaited
        before anything is put, if there is no object yet; it raises StoreRefused.
    Returns: the bytes stored at ``key``, so that the caller can check format and version.
    Raises: StoreRefused, which names the store, the fault and the remedy.
    Source: docs/STORES.md, "Requirements".
    """
    try:
        stored = await _read(store, key)
        if stored is None:
            if unfinished is not None and await _read(store, unfinished) is not None:
                raise StoreRefused(f"{store.url}: this is an unfinished copy of a store ({unfinished} exists, {key} "
                                   f"does not): run the same `jetblock copy` again to finish it")
            if race is not None:
                await race()
            try:
                await store.put(key, fresh)
            except PreconditionFailed:
                pass
            stored = await _read(store, key)
            if stored is None:
                raise StoreRefused(f"{store.url}: {key} was put but cannot be read back: reads must be strongly "
                                   f"consistent; use a store, or a setting of it, that has that")
        if await store.get(key, 1, 17) != stored[1:17]:
            raise StoreRefused(f"{store.url}: a ranged read of {key} returned other bytes than a whole one; "
                               f"use a store that has ranged reads, and no proxy that changes them")
        if (key, len(stored)) not in await store.list(key, limit=2):
            raise StoreRefused(f"{store.url}: {key} exists but is not listed: listing must be strongly "
                               f"consistent; use a store, or a setting of it, that has that")
        try:
            await store.put(key, [stored])
        except PreconditionFailed:
            return stored
    except Transient as e:
        raise StoreRefused(f"{e}: the store cannot be reached, or does not work: check that it is up, "
                           f"its address (AWS_ENDPOINT_URL) and the network") from e
    raise overwrites_error(store.url, key)


def overwrites_error(url: str, key: str) -> StoreRefused:
    """Return the error for a store that has overwritten ``key``."""
    return StoreRefused(f"{url}: the store overwrites objects: a conditional put (If-None-Match: *) of {key}, which "
                        f"exists, succeeded. Nothing would keep two brokers apart, so none runs on it. Use one that "
                        f"honours conditional puts: AWS S3, MinIO, SeaweedFS, or a directory (file://DIR)")


async def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except NotFound:
        return None
