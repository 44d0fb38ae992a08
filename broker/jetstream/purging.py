"""Deleting all streams of an account, for the system account: live ones, and stored ones that are not served here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.catalogue import Catalogue
    from broker.jetstream.owners.shared_catalogue import SharedCatalogue
    from broker.jetstream.shard_streams import ShardStreams

__all__ = ["purge_account"]

_log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Streams that are deleted in one turn of the loop."""


async def purge_account(name: str, account: Account | None, shards: Mapping[int, ShardStreams],
                        catalogue: Catalogue, shared: SharedCatalogue | None) -> None:
    """Delete all streams of an account, and return once the deletions are stored.

    Streams that are being restored from an archive stay, and so do streams that cannot store anything.
    Args: ``account`` is None if the account has no JetStream here; ``shards`` are those of this broker by number;
        ``shared`` is the catalogue if other brokers own shards, too.
    Raises: ApiError 10008 if a shard is lost, or a stream cannot be deleted now; StoreError, FormatError.
    """
    owned = list(shards.values())
    if not owned or not all(shard.available for shard in owned):
        raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
    live = list(account.streams.values()) if account is not None else []
    kept = {stream.stream_id for stream in live}.union(*(shard.failed_streams for shard in owned))
    if account is not None:
        kept.update(stream.stream_id for stream in account.incoming.streams.values())
    unused = [(state, shard) for shard in owned for state in shard.log.state.streams.values()
              if state.account == name and state.stream_id not in kept and state.departed is None]

    async def turn(number: int) -> None:
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if any(shards.get(shard.number) is not shard or shard.log.failure is not None for shard in owned):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    for number, stream in enumerate(live):
        await turn(number)
        if account is not None and account.streams.get(stream.name) is stream:
            with suppress(ApiError):  # another request has deleted it meanwhile
                await account.changes.delete(stream)
            if account.streams.get(stream.name) is stream:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
    for number, (state, shard) in enumerate(unused, len(live)):
        await turn(number)
        catalogue.delete(state.stream_id, shard.log, partial(UnusedStream(state).delete, shard.log))
        if account is not None:
            account.offline.pop(state.name, None)
    if shared is not None:
        await shared.purge(name)
    for shard in owned:
        shard.log.urgent()
    _log.info("Purge of account %s: %d streams, and %d that were not in use", name, len(live), len(unused))
    for shard in owned:
        await shard.log.persisted()
