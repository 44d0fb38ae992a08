"""Open a store by its URL; ``broker.base.store_url`` lists the forms of such URLs."""

from __future__ import annotations

from broker.base.store_url import parse_store_url
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore

__all__ = ["open_store"]


def open_store(url: str, *, read_only: bool = False, endpoint: str | None = None,
               region: str | None = None, keys: tuple[str, str, str | None] | None = None,
               put_timeout_ns: int = 5_000_000_000, get_timeout_ns: int = 30_000_000_000, connections_max: int = 32,
               sync_interval_ns: int | None = None) -> ObjectStore:
    """Open the store at ``url``, without wrappers; an S3 endpoint is not contacted before the first call.

    Args: ``read_only`` creates nothing, for inspection. ``sync_interval_ns`` is for a directory; None: every put is
        synced. The others are for S3; ``endpoint``, ``region`` and ``keys`` (access key, secret, session token) take
        precedence over the environment.
    Raises: ValueError for a URL of no known form; StoreRefused for a directory that cannot be used.
    """
    scheme, where, prefix = parse_store_url(url)
    if scheme == "file":
        return FileStore(where, read_only=read_only, sync_interval_ns=sync_interval_ns)
    if scheme == "memory":
        return MemoryStore()
    # This import costs some 200 ms and 35 MB, so it is made for S3 only.
    from broker.storage.objectstore.credentials import S3Keys
    from broker.storage.objectstore.s3 import S3Store

    return S3Store(where, prefix, endpoint=endpoint, region=region, keys=S3Keys(*keys) if keys is not None else None,
                   put_timeout_ns=put_timeout_ns, get_timeout_ns=get_timeout_ns, connections_max=connections_max)
