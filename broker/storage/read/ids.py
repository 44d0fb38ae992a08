"""Loads message ids that are in a page of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.state.ids import IdPart, decode_ids
from broker.storage.state.stream import StreamState

__all__ = ["load_ids"]


async def load_ids(stream: StreamState, part: IdPart, store: ObjectStore, paths: ShardPaths) -> None:
    """Load a page's ids into memory, so that the next checkpoint writes them; if they cannot be read, they are in the
    blocks only. Raises: StoreError."""
    ref = part.place
    assert ref is not None
    try:
        data = await store.get(paths.pages(ref.position), ref.offset, ref.offset + ref.size)
        loaded = replace(part, chunks=tuple(decode_ids(part, data)[0]), place=None)
    except (NotFound, FormatError):
        loaded = part.lost()
    stream.dirty = stream.ids.replace([part], loaded) or stream.dirty
