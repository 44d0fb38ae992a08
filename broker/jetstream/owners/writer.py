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
from broker.jetstream.owners.stream_tasks import StreamTasks
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

__all__ = ["Writer", "check_stays"]

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
        self._finishing = StreamTasks("finish a deletion or a move")
        """The deletions and moves that wait for their shards, by stream."""
        self._learned = asyncio.Event()
        """Set once this broker knows which streams the other brokers' shards have, while it owns shard 0."""

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if this broker owns shard 0 and knows the streams of all others."""
        return self._learned.is_set() and 0 in self._shards

    async def until_ready(self) -> None:
        """Return once ``ready`` is true, however long that takes."""
        await self._learned.wait()

    async def stop(self) -> None:
        """Stop finishing deletions and moves."""
        await self._finishing.stop()

    def opened(self, number: int) -> None:
        """Begin to serve a shard of this broker, whose streams are restored."""
        if not number:
            for account in self._accounts.values():
                account.elsewhere.forget_all()
            self._learned.clear()
            self._spawn(self._learn(self._shards[0]), "learn the streams of other brokers")
        elif 0 in self._shards:
            self._finish_all()

    def released(self, account: Account, number: int) -> None:
        """Keep the names and subjects of the streams of an account in a shard, which it has just released."""
        if number and 0 in self._shards:
            for entry in self._entries.values():
                if number in (entry.shard, entry.to) and entry.account == account.name:
                    self.keep_elsewhere(entry)

    def closed(self, number: int) -> None:
        """Forget a shard that this broker no longer owns."""
        if not number:
            self._learned.clear()
            self._finishing.cancel_all()
            for account in self._accounts.values():
                account.elsewhere.forget_all()
            self._entries.clear()
        elif 0 in self._shards:
            for entry in list(self._entries.values()):
                if number in (entry.shard, entry.to):
                    self.keep_elsewhere(entry)
            self._finish_all()

    def account_added(self, account: Account) -> None:
        """Take the names and subjects that an account's streams in other shards have."""
        for entry in self._entries.values() if self.ready else ():
            if entry.account == account.name:
                self.keep_elsewhere(entry)

    async def _learn(self, first: ShardStreams) -> None:
        """Take the names and subjects of the streams of other brokers, including subjects that a broker serves yet."""
        waiting = []
        others = sorted({entry.shard for entry in self._entries.values()} - self._shards.keys())
        # One after the other: a log may have hundreds of segments, and this broker may be taking other shards.
        state_of = {number: await self._persisted.until(number, lambda _: True) for number in others}
        if self._shards.get(0) is not first:
            return
        for entry in self._entries.values():
            self.keep_elsewhere(entry)  # even if its shard is ours by now: it may have left, or be on its way
            state = state_of.get(entry.shard) if entry.shard not in self._shards else None
            had = state.streams.get(entry.stream_id) if state is not None else None
            if had is not None and had.config != entry.config and not entry.deleting:
                waiting.append((entry, had.config))
        for entry, config in waiting:
            if (account := self._accounts.get(entry.account)) is not None:
                account.elsewhere.keep_given_up(entry.name, config.get("subjects") or ())
                self._spawn(self._free_subjects(entry, account), "free subjects")
        self._learned.set()
        self._finish_all()

    # --- entries ------------------------------------------------------------------------------------------------------

    def entry(self, stream_id: int) -> CatalogueEntry:
        """Return the entry of a stream that is not being deleted.

        Raises: ApiError 10059; 10008 while it moves, or if this broker has lost shard 0: then it has no entries.
        """
        if 0 not in self._shards:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        entry = self._entries.get(stream_id)
        if entry is None or entry.deleting:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        check_stays(entry)
        return entry

    def find(self, account: str, name: str) -> CatalogueEntry | None:
        """Return the entry of the stream of that name, if it has one and is not being deleted."""
        return next((entry for entry in self._entries.values()
                     if (entry.account, entry.name) == (account, name) and not entry.deleting), None)

    def is_newest(self, entry: CatalogueEntry) -> bool:
        """Return whether no later step of the stream is decided here, as far as this broker decides them."""
        if 0 not in self._shards:
            return True
        newest = self._entries.get(entry.stream_id)
        return newest is not None and (newest.deleting, newest.to) == (entry.deleting, entry.to) and (
            newest.config == entry.config)

    def keep_elsewhere(self, entry: CatalogueEntry) -> None:
        """Take the name and the subjects of a stream, unless this broker serves it."""
        if (account := self._accounts.get(entry.account)) is not None and not account.has(entry):
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
        async with account.changes.updating_elsewhere(new):
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
        """Rule 3: return once the stream's shard has, in the store, what the entry says, or the entry was replaced."""
        def holds(state: ShardState) -> bool:
            one = state.streams.get(entry.stream_id)
            return self._entries.get(entry.stream_id) is not entry or (
                one is not None and (one.config == entry.config or one.offline is not None))

        await self._persisted.until(entry.shard, holds)

    # --- moves --------------------------------------------------------------------------------------------------------

    async def announce_move(self, entry: CatalogueEntry, to: int) -> None:
        """Store that a stream moves to another shard; its shard may let it go then. Raises: ApiError; Fenced."""
        known = self._entries.get(entry.stream_id)
        if known is not None:
            await self._stored(known)
        if self._entries.get(entry.stream_id) is not known:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        moving = replace(entry, to=to)
        self._entries[entry.stream_id] = moving
        await self.commit([moving])
        self._finish(moving)

    async def until_moved(self, stream_id: int) -> None:
        """Return once a stream is in the shard to which it moves, or stays in the one where it was."""
        await self._finishing.wait(stream_id)

    async def _until_arrived(self, entry: CatalogueEntry) -> None:
        assert entry.to is not None

        def is_there(state: ShardState) -> bool:
            return (one := state.streams.get(entry.stream_id)) is not None and one.departed is None

        shard, _ = await self._persisted.until_one({
            entry.to: is_there,
            entry.shard: lambda state: is_there(state) and state.streams[entry.stream_id].moves > entry.moves})
        # A stream of shard 0 keeps its entry then: it tells readers which of its states is the newest.
        done = replace(entry, shard=shard, to=None, moves=entry.moves + 1)
        self._entries[entry.stream_id] = done
        await self.commit([done])
        account = self._accounts.get(entry.account)
        if account is not None:
            account.elsewhere.change(done, ())

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
        await self._finishing.wait(stream_id)
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
            if entry.deleting or entry.to is not None:
                self._finish(entry)

    def _finish(self, entry: CatalogueEntry) -> None:
        """Remove the entry of a deleted stream once its shard has stored the deletion, so that the name is free; or
        store that a stream has moved once the other shard has it, or that it stays."""
        self._finishing.begin(entry.stream_id, lambda: self._until_finished(entry.stream_id))

    async def _until_finished(self, stream_id: int) -> None:
        """Return once a stream is neither being deleted nor moved. A deletion may begin while the end of a move is
        being stored."""
        while (entry := self._entries.get(stream_id)) is not None and (entry.deleting or entry.to is not None):
            await (self._until_deleted(entry) if entry.deleting else self._until_arrived(entry))

    async def _until_deleted(self, entry: CatalogueEntry) -> None:
        await self._persisted.until(entry.shard, lambda state: entry.stream_id not in state.streams)
        await self.commit(gone=[entry.stream_id])
        self._entries.pop(entry.stream_id, None)
        account = self._accounts.get(entry.account)
        if account is not None:
            account.elsewhere.forget(entry.name, entry.stream_id)


def check_stays(entry: CatalogueEntry | None) -> None:
    """Refuse a change of a stream that moves to another shard. Raises: ApiError 10008."""
    if entry is not None and entry.to is not None:
        raise ApiError.of(ApiErrors.CLUSTER_NOT_AVAIL,
                          f"stream {entry.name} is being moved to shard {entry.to}: try again")
