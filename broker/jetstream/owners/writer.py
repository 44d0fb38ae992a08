"""The writer of the catalogue: the owner of shard 0 takes the steps of streams in all other shards.

It knows which names, subjects and bytes the streams of other brokers have (``Account.elsewhere``). It learns that when
it takes shard 0, and makes no change before (``ready``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.jetstream.owners.follower import STEP_SECONDS
from broker.jetstream.owners.persisted import PersistedShards
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.format.records.catalogue import Catalogue as CatalogueRecord
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.shard_streams import ShardStreams
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.state.applied import ShardState

__all__ = ["Writer"]

_log = logging.getLogger(__name__)


class Writer:
    """Changes ``entries``, the catalogue as decided, while this broker owns shard 0; ``shards`` are its shards.

    Args: ``changed`` is called once a change is persisted; ``spawn(work, name)`` runs a task.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], accounts: Mapping[str, Account],
                 entries: dict[int, CatalogueEntry], persisted: PersistedShards, changed: Callable[[], object],
                 spawn: Callable[[Coroutine[Any, Any, Any], str], object]) -> None:
        self._shards = shards
        self._accounts = accounts
        self._entries = entries
        self._persisted = persisted
        self._changed = changed
        self._spawn = spawn
        self._finishing: dict[int, asyncio.Task[None]] = {}
        """The deletions that wait for their shards, by stream."""
        self._learned = False
        """True once this broker knows which streams the other brokers' shards have, while it owns shard 0."""

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if this broker owns shard 0 and knows the streams of all others."""
        return self._learned and 0 in self._shards

    async def stop(self) -> None:
        """Stop finishing deletions."""
        tasks = list(self._finishing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def opened(self, number: int) -> None:
        """Begin to serve a shard of this broker."""
        for account in self._accounts.values():
            for name in [name for name, one in account.elsewhere.items() if one.entry.shard == number]:
                account.elsewhere.forget(name)
        if not number:
            for account in self._accounts.values():
                account.elsewhere.forget_all()
            self._learned = False
            self._spawn(self._learn(self._shards[0]), "learn the streams of other brokers")
        elif 0 in self._shards:
            self._finish_all()

    def released(self, account: Account, number: int) -> None:
        """Keep the names and subjects of the streams of an account in a shard, which it has just released."""
        if number and 0 in self._shards:
            for entry in self._entries.values():
                if entry.shard == number and entry.account == account.name:
                    account.elsewhere.keep(entry)

    def closed(self, number: int) -> None:
        """Forget a shard that this broker no longer owns."""
        if not number:
            self._learned = False
            for task in self._finishing.values():
                task.cancel()
            for account in self._accounts.values():
                account.elsewhere.forget_all()
            self._entries.clear()
        elif 0 in self._shards:
            for entry in list(self._entries.values()):
                if entry.shard == number:
                    self.keep_elsewhere(entry)
            self._finish_all()

    def account_added(self, account: Account) -> None:
        """Take the names and subjects that an account's streams in other shards have."""
        for entry in self._entries.values() if self._learned else ():
            if entry.account == account.name and entry.shard not in self._shards:
                account.elsewhere.keep(entry)

    async def _learn(self, first: ShardStreams) -> None:
        """Take the names and subjects of the streams of other brokers, including subjects that a broker serves yet."""
        waiting = []
        for number in range(1, self._persisted.count):
            if number in self._shards or not any(entry.shard == number for entry in self._entries.values()):
                continue
            state = await self._persisted.until(number, lambda _: True)
            if self._shards.get(0) is not first:
                return
            for entry in list(self._entries.values()):
                if entry.shard != number or number in self._shards:
                    continue
                self.keep_elsewhere(entry)
                had = state.streams.get(entry.stream_id)
                if had is not None and had.config != entry.config and not entry.deleting:
                    waiting.append((entry, had.config))
        for entry, config in waiting:
            if (account := self._accounts.get(entry.account)) is not None:
                account.elsewhere.keep_given_up(entry.name, config.get("subjects") or ())
                self._spawn(self._free_subjects(entry, account), "free subjects")
        self._learned = True
        self._finish_all()

    # --- entries ------------------------------------------------------------------------------------------------------

    def entry(self, stream_id: int) -> CatalogueEntry:
        """Return the entry of a stream that is not being deleted. Raises: ApiError 10059."""
        entry = self._entries.get(stream_id)
        if entry is None or entry.deleting:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        return entry

    def is_newest(self, entry: CatalogueEntry) -> bool:
        """Return whether no later step of the stream is decided here, as far as this broker decides them."""
        if 0 not in self._shards:
            return True
        newest = self._entries.get(entry.stream_id)
        return newest is not None and newest.deleting == entry.deleting and newest.config == entry.config

    def keep_elsewhere(self, entry: CatalogueEntry) -> None:
        """Take the name and the subjects of a stream in another broker's shard."""
        if (account := self._accounts.get(entry.account)) is not None:
            account.elsewhere.keep(entry)

    async def commit(self, entries: Sequence[CatalogueEntry] = (), gone: Sequence[int] = ()) -> None:
        """Store changed entries, and return once they are persisted. Raises: ApiError 10008 if shard 0 is lost."""
        first = self._shards.get(0)
        if first is None or first.log.failure is not None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        first.log.block(first.log.shard).add(CatalogueRecord(entries, gone))
        first.log.urgent()
        await first.log.persisted()
        self._changed()

    # --- updates ------------------------------------------------------------------------------------------------------

    async def update_elsewhere(self, stream_id: int, config: dict[str, Any]) -> None:
        """Announce the update of a stream of another broker, which updates it. Raises: ApiError."""
        entry = self.entry(stream_id)
        account = self._accounts.get(entry.account)
        if account is None:
            raise ApiError(ApiErrors.NOT_ENABLED_FOR_ACCOUNT)
        await self._stored(entry)
        new = replace(entry, config=config)
        async with account.updating_elsewhere(new):
            if self.entry(stream_id) is not entry:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # another update, or a deletion, came before this one
            self._entries[stream_id] = new
            await self.commit([new])
        self._spawn(self._free_subjects(new, account), "free subjects")

    async def _free_subjects(self, entry: CatalogueEntry, account: Account) -> None:
        """Free the subjects that updates gave up, once the stream's owner no longer serves them."""
        def stored(state: ShardState) -> bool:
            newest, one = self._entries.get(entry.stream_id), state.streams.get(entry.stream_id)
            return newest is None or newest.deleting or (one is not None and one.config == newest.config)

        await self._persisted.until(entry.shard, stored)
        newest = self._entries.get(entry.stream_id)
        if newest is not None and not newest.deleting:
            account.elsewhere.free_given_up(entry.name)

    async def _stored(self, entry: CatalogueEntry) -> None:
        """Rule 3: return once the stream's shard has, in the store, what the entry says."""
        await self._persisted.until(
            entry.shard, lambda state: (one := state.streams.get(entry.stream_id)) is not None
            and (one.config == entry.config or one.offline is not None))

    # --- deletions ----------------------------------------------------------------------------------------------------

    async def delete_elsewhere(self, stream_id: int) -> None:
        """Announce the deletion of a stream of another broker, which deletes it. Raises: ApiError."""
        if (known := self._entries.get(stream_id)) is not None and known.deleting:
            return
        entry = self.entry(stream_id)
        await self._stored(entry)
        if self.entry(stream_id) is not entry:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        self.keep_elsewhere(await self.announce_deletion(entry))

    async def announce_deletion(self, entry: CatalogueEntry) -> CatalogueEntry:
        """Store that a stream is to be deleted; its shard may delete it then. Returns: the new entry."""
        deleting = replace(entry, deleting=True)
        self._entries[entry.stream_id] = deleting
        await self.commit([deleting])
        self._finish(deleting)
        return deleting

    async def until_gone(self, stream_id: int) -> None:
        """Return once the name and the subjects of a deleted stream are free. Raises: ApiError 10008."""
        if (task := self._finishing.get(stream_id)) is not None:
            await asyncio.wait((task,))
            if stream_id in self._entries:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    async def purge(self, account: str) -> None:
        """Delete all streams of an account that other brokers have. Raises: ApiError 10008 if one cannot be deleted."""
        streams = [entry.stream_id for entry in self._entries.values()
                   if entry.account == account and entry.shard not in self._shards]
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await asyncio.gather(*map(self.delete_elsewhere, streams))
                await asyncio.gather(*map(self.until_gone, streams))
        except (TimeoutError, Fenced, StoreError, FormatError):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    def _finish_all(self) -> None:
        for entry in list(self._entries.values()):
            if entry.deleting:
                self._finish(entry)

    def _finish(self, entry: CatalogueEntry) -> None:
        """Remove the entry of a deleted stream once its shard has stored the deletion; the name is free then."""
        if entry.stream_id not in self._finishing:
            task = asyncio.get_running_loop().create_task(self._until_deleted(entry), name="finish a deletion")
            self._finishing[entry.stream_id] = task
            task.add_done_callback(lambda _: self._finished(entry.stream_id, task))

    def _finished(self, stream_id: int, task: asyncio.Task[None]) -> None:
        if self._finishing.get(stream_id) is task:
            del self._finishing[stream_id]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(
                error, ApiError | Fenced):
            _log.error("a deletion could not be finished", exc_info=error)

    async def _until_deleted(self, entry: CatalogueEntry) -> None:
        await self._persisted.until(entry.shard, lambda state: entry.stream_id not in state.streams)
        await self.commit(gone=[entry.stream_id])
        self._entries.pop(entry.stream_id, None)
        account = self._accounts.get(entry.account)
        if account is not None and (one := account.elsewhere.get(entry.name)) is not None \
                and one.entry.stream_id == entry.stream_id:
            account.elsewhere.forget(entry.name)
