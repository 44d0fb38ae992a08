"""Forwards the requests in a shard's inbox that name a stream which has moved to another shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.format.errors import FormatError
from broker.storage.format.request import Request
from broker.storage.objectstore.base import NotFound, PreconditionFailed
from broker.storage.paths import ShardPaths, parse

if TYPE_CHECKING:
    from broker.storage.objectstore.base import ObjectStore

__all__ = ["forward"]


async def forward(store: ObjectStore, paths: ShardPaths, stream_id: int, to: int) -> None:
    """Put the requests for a stream into the inbox of shard ``to``, the earlier versions of a writer first.

    The stream knows which requests it has granted, wherever it is, so a request may be forwarded twice.
    Raises: StoreError; then some are forwarded.
    """
    found: list[tuple[int, int, bytes]] = []
    for info in await store.list(paths.requests):
        if (key := parse(info.key)) is None:
            continue
        try:
            data = await store.get(info.key)
            request = Request.decode(data, key.object_id)
        except (NotFound, FormatError):
            continue
        if request.stream_id == stream_id:
            found.append((request.version.number if request.version is not None else 0, key.object_id, data))
    for _, request_id, data in sorted(found):
        try:
            await store.put(ShardPaths(to).inbox(request_id), [data])
        except PreconditionFailed:
            pass  # an earlier attempt has put it
        await store.delete(paths.inbox(request_id))
