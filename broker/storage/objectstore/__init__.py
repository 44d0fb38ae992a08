"""The object store: its interface, the backends, the wrappers around them, and the probe at start-up."""

from broker.storage.objectstore.base import (
    Buffers,
    Listing,
    NotFound,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreFull,
    StoreLock,
    StoreRefused,
    Transient,
)
from broker.storage.objectstore.url import open_store

__all__ = ["Buffers", "Listing", "NotFound", "ObjectInfo", "ObjectStore", "PreconditionFailed", "StoreError",
           "StoreFull", "StoreLock", "StoreRefused", "Transient", "open_store"]
