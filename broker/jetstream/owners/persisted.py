"""The shards of a store as far as they are persisted, whoever owns them.

A shard of this broker is read from memory, in its applied state. A shard of another broker is read in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from broker.base.within import within
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.shard_streams import ShardStreams
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.state.applied import ShardState

__all__ = ["POLL_SECONDS", "PersistedShards", "Shard"]

POLL_SECONDS: Final = 1.0
"""The time after which the store is read again if no hint comes, while something is awaited."""


class Shard(Protocol):
    """A shard that another broker owns, as far as it is persisted."""

    async def read(self) -> ShardState:
        """Return the state that includes everything persisted when this call began."""


class PersistedShards:
    """The ``count`` shards of a store; ``shards`` are this broker's own.

    Args: ``read(number)`` returns another broker's shard, for shard 0 without its streams.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], count: int, read: Callable[[int], Shard]) -> None:
        self.count = count
        self.changed = asyncio.Event()
        """Set when a shard of another broker may have stored something that is awaited."""
        self._shards = shards
        self._read = read
        self._others = {number: read(number) for number in range(count)}
        self._read_to = Position(0, 0)
        """The position in shard 0's log up to which this broker has read the catalogue."""

    def forget(self, number: int) -> None:
        """Read a shard from its beginning the next time: this broker owned it, and did not read it meanwhile."""
        self._others[number] = self._read(number)

    async def state(self, number: int) -> ShardState:
        """Return the persisted state of a shard. Raises: StoreError, FormatError, CutOff."""
        own = self._shards.get(number)
        return own.log.state if own is not None else await self._others[number].read()

    async def until(self, number: int, holds: Callable[[ShardState], bool]) -> ShardState:
        """Return the persisted state of a shard once ``holds`` is true of it; the shard may have any owner, or none."""
        _, state = await self.until_one({number: holds})
        return state

    async def until_one(self, wanted: Mapping[int, Callable[[ShardState], bool]]) -> tuple[int, ShardState]:
        """Return the number and the persisted state of the first shard of which its function is true."""
        while True:
            self.changed.clear()
            for number, holds in wanted.items():
                with suppress(StoreError, FormatError, CutOff):
                    if holds(state := await self.state(number)):
                        return number, state
            await within(self.changed.wait(), POLL_SECONDS)

    async def catalogue(self) -> Mapping[int, CatalogueEntry]:
        """Return persisted entries, never older ones than before. Raises: StoreError, FormatError, CutOff."""
        own = self._shards.get(0)
        if own is not None and own.log.state.position >= self._read_to:
            self._read_to = own.log.state.position
            return own.log.state.catalogue
        return await self.catalogue_in_store()

    async def catalogue_in_store(self) -> Mapping[int, CatalogueEntry]:
        """Return the entries that were persisted when this call began. Raises: StoreError, FormatError, CutOff."""
        state = await self._others[0].read()
        self._read_to = max(self._read_to, state.position)
        return state.catalogue
