"""The first thing a broker asks of its store: whether it can be one.

Some S3 clones take ``If-None-Match: *`` and ignore it; fencing stands on it, so on those two brokers could both be
acknowledged for one sequence. The probe puts a key that is there, which must be refused, and on the way learns whether
the bucket, the credentials, the room, ranged reads and listing are as they must be.

    nothing there:   put (ours, or another broker's that starts with us) ──> read back ──> put again: refused ──> fine
    something there:                                           read      ──> put the same bytes: refused ──> fine

When the store does overwrite, it does so with the bytes that were there.
"""

from __future__ import annotations

from broker.storage.objectstore.base import Buffers, NotFound, ObjectStore, PreconditionFailed, StoreRefused, Transient

__all__ = ["probe"]


async def probe(store: ObjectStore, key: str, fresh: Buffers) -> bytes:
    """Try the store on ``key``, which holds ``fresh`` from now on when nothing was there.

    Returns: the bytes that lie at ``key``, for the caller to check format and version.
    Raises: StoreRefused, naming the store, what is wrong and the remedy.
    Source: docs/STORES.md, "Requirements".
    """
    try:
        lies_there = await _read(store, key)
        if lies_there is None:
            try:
                await store.put(key, fresh)
            except PreconditionFailed:
                pass
            lies_there = await _read(store, key)
            if lies_there is None:
                raise StoreRefused(f"{store.url}: {key} was put and is not there: reads must be strongly consistent; "
                                   f"use a store, or a setting of it, that has that")
        if await store.get(key, 1, 17) != lies_there[1:17]:
            raise StoreRefused(f"{store.url}: a ranged read of {key} gave other bytes than a whole one; "
                               f"use a store that has ranged reads, and no proxy that changes them")
        if (key, len(lies_there)) not in await store.list(key, limit=2):
            raise StoreRefused(f"{store.url}: {key} is there but not in the listing: listing must be strongly "
                               f"consistent; use a store, or a setting of it, that has that")
        try:
            await store.put(key, [lies_there])
        except PreconditionFailed:
            return lies_there
    except Transient as e:
        raise StoreRefused(f"{e}: the store cannot be reached, or does not work: check that it is up, "
                           f"its address (AWS_ENDPOINT_URL) and the network") from e
    raise StoreRefused(f"{store.url}: the store overwrites objects: a put of {key}, which is there, went through "
                       f"though asked not to (If-None-Match: *). Nothing would keep two brokers apart, so none runs on "
                       f"it. Use one that honours conditional puts: AWS S3, MinIO, SeaweedFS, or a directory (file://DIR)")


async def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except NotFound:
        return None
