"""Creating, updating and deleting the streams of one account.

    check ──> claim the subjects ──> the record, through the catalogue ──> serve it, and publish an advisory

Every decision is made at once, from the live state, and written into the stream's open block; the answer waits for the
log (``StreamLog.wait``). So a create that was answered is persisted, and one that was not answered may or may not be.
Requests of one stream arrive one after the other (the API's lanes).

Does not own: restoring streams from archives (incoming), which configurations are allowed (admission).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from broker.base.clock import Clock
from broker.base.turns import in_turns
from broker.jetstream.account.elsewhere import config_of
from broker.jetstream.account.long_work import in_thread_if_long
from broker.jetstream.account.sweeps import finished
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.records.stream_delete import StreamDelete

if TYPE_CHECKING:
    from broker.jetstream.account.admission import Admission
    from broker.jetstream.account.consumers import Consumers
    from broker.jetstream.account.double_storage import DoubleStorage
    from broker.jetstream.account.elsewhere import Elsewhere
    from broker.jetstream.account.host import Host
    from broker.jetstream.account.quota import Quota
    from broker.jetstream.account.served_streams import ServedStreams
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.wire.advisories import AccountEvents

__all__ = ["StreamChanges"]

_log = logging.getLogger(__name__)


class StreamChanges:
    """The changes of the streams of ``account``. ``find`` returns the live stream of a name, or raises ApiError."""

    def __init__(self, host: Host, account: str, clock: Clock, find: Callable[[str], Stream], served: ServedStreams,
                 elsewhere: Elsewhere, admission: Admission, quota: Quota, consumers: Consumers, events: AccountEvents,
                 double_storage: DoubleStorage) -> None:
        self._host = host
        self._account = account
        self._clock = clock
        self._find = find
        self._served = served
        self._elsewhere = elsewhere
        self._admission = admission
        self._quota = quota
        self._consumers = consumers
        self._events = events
        self._double_storage = double_storage
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock_of(self, name: str) -> asyncio.Lock:
        """Return the lock of a stream's name: a creation, update or deletion holds it until it is stored."""
        return self._locks.setdefault(name, asyncio.Lock())

    # --- creation -----------------------------------------------------------------------------------------------------

    async def create(self, given: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Create a stream in this broker, or return the existing one with the same configuration.

        Raises: as ``create_anywhere``; ApiError 10008 if it is in another broker's shard.
        """
        made = await self.create_anywhere(given, pedantic=pedantic)
        if isinstance(made, CatalogueEntry):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        return made

    async def create_anywhere(self, given: StreamConfig, *, pedantic: bool = False) -> Stream | CatalogueEntry:
        """Create a stream, or return the existing one with the same configuration.

        Returns: the stream; its entry if it is in another broker's shard, whether it serves yet or not.
        Raises: ApiError: 10058 if the existing one differs, 10065, 10027, 10047, 10028, or the rule that the
            configuration breaks.
        """
        from broker.jetstream.config.stream_rules import same_config

        admission, served = self._admission, self._served
        self._quota.check_create(given, max(given.max_bytes, 0))
        config, links = await admission.checked(given, pedantic=pedantic)
        if config.num_replicas > 1:
            raise ApiError(ApiErrors.STREAM_REPLICAS_NOT_SUPPORTED)
        if config.name in served.offline:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=served.offline[config.name].reason)
        existing = served.by_name.get(config.name)
        if existing is not None:
            if await in_thread_if_long(config.elements, partial(same_config, config, existing.config)):
                return existing
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        if (elsewhere := self._elsewhere.get(config.name)) is not None:
            if elsewhere.entry.deleting:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            if await in_thread_if_long(config.elements, partial(same_config, config, elsewhere.config)):
                return elsewhere.entry
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        admission.check_room(config)
        catalogue = self._host.catalogue
        async with self.lock_of(config.name):
            with ExitStack() as counted:
                async with admission.claimed(config, config.subjects):
                    # The claim may have taken several turns of the loop.
                    admission.check_room(config)
                    admission.check_links(links, config)
                    made: Stream | CatalogueEntry
                    shard = catalogue.place(config)
                    change: asyncio.Future[None] | None
                    if catalogue.is_elsewhere(shard):
                        made, change = catalogue.create_elsewhere(self._account, config, shard, self._clock.now_ns())
                    else:
                        made = served.make(config, shard=shard)
                        change = catalogue.create(made, made.enforcement.create_record())
                    counted.enter_context(self._quota.coming(config))
                    if config.follows:  # the next check of links must find it
                        await _done(change)
                await _done(change)
            if isinstance(made, CatalogueEntry):
                self._elsewhere.keep(made)
                served.links += config.follows
                return made
            stream = made
            await in_turns(served.add(stream))
        self._events.stream("create", stream.name, stream.log)
        self._double_storage.check(stream.name, config.subjects)
        return stream

    # --- update -------------------------------------------------------------------------------------------------------

    async def update(self, stream: Stream, given: StreamConfig, *, pedantic: bool = False) -> None:
        """Update a stream's configuration; return after removing the messages that exceed the new limits.

        Raises: ApiError, and nothing has changed; StoreError, FormatError: the configuration applies, and the messages
            that exceed it are removed later.
        """
        before = stream.config
        config, links = await self._admission.checked(given, before=before, pedantic=pedantic)
        self._quota.check_update(stream, config)
        self._consumers.check_limits(stream, config)
        self._host.catalogue.check_update(stream, config)
        added = _without(config.subjects, before.subjects)
        async with self.lock_of(stream.name), self._admission.claimed(config, added):
            # The claim may have taken several turns of the loop.
            self._check_served(stream)
            self._quota.check_update(stream, config)
            self._admission.check_links(links, config)
            with self._quota.coming(config, before):
                await _done(self._host.catalogue.update(stream, config))
            self._check_served(stream)
        await self._apply_update(stream, config)
        await self._host.catalogue.move_updated(stream, before)

    async def _apply_update(self, stream: Stream, config: StreamConfig) -> None:
        """Let a stream have a configuration whose record is sequenced. Raises: as ``update``."""
        before = stream.config
        added = _without(config.subjects, before.subjects)
        to_interest = config.retention == "interest" != before.retention
        limits_applied = stream.update(config)
        self._served.links += config.follows
        self._events.stream("modify", stream.name, stream.log)
        self._double_storage.check(stream.name, added)
        await in_turns(self._served.connect(stream))
        removed = [one.encode() for one in _without(before.subjects, config.subjects)]
        await self._admission.give_back(config.name, removed)
        await limits_applied
        if to_interest and (sweep := stream.interest.sweep(1, acked=True)) is not None:
            await finished(sweep)

    def _check_served(self, stream: Stream) -> None:
        """Raises: ApiError 10059 if a stream was deleted meanwhile; 10008 if it was released, even if this broker has
        restored it since."""
        now = self._find(stream.name)
        if now is not stream:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL if now.stream_id == stream.stream_id
                           else ApiErrors.STREAM_NOT_FOUND)

    # --- deletion -----------------------------------------------------------------------------------------------------

    async def delete(self, stream: Stream) -> None:
        """Delete a stream with its consumers; waiting pull requests are notified.

        The stream is first disconnected from publishers and consumers, in several steps, and then deleted in one step.
        Raises: ApiError 10059, 10194 if the stream was deleted or went offline meanwhile; 10008 if messages of it are
            to be erased, which is forgotten with the stream, and cannot be rewritten now.
        """
        async with self._host.catalogue.deleting(stream):
            await self._disconnect_and_delete(stream)

    async def _disconnect_and_delete(self, stream: Stream) -> None:
        name, subjects = stream.name, stream.config.subjects_bytes
        deleted = await self._disconnect(stream)
        async with self.lock_of(name):
            if self._find(name) is not stream:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            await _done(self._host.catalogue.delete(stream.stream_id, stream.log,
                                                    partial(self._delete, stream, deleted)))
            await self._admission.give_back(name, subjects)

    async def _disconnect(self, stream: Stream) -> list[str]:
        """Disconnect a stream from publishers and consumers; return the names of its consumers.

        Raises: ApiError 10008 if messages of it cannot be erased now.
        """
        eraser = self._host.shard_of(stream.account, stream.name).eraser
        if eraser is not None and stream.erasures.unfinished and not await eraser.rewrite(
                stream.stream_id, lambda: stream.erasures.unfinished):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        return await self._served.disconnect_to_delete(stream)

    def _delete(self, stream: Stream, consumers: Iterable[str]) -> bool:
        """Delete a disconnected stream, whose ``consumers`` are deleted; return False if it can store nothing more."""
        name = stream.name
        if self._served.by_name.get(name) is not stream:
            # The account was removed, or the stream can store nothing any more.
            state = stream.log.state.streams.get(stream.stream_id)
            if state is not None and stream.offline is None:
                UnusedStream(state).delete(stream.log)
            return stream.offline is None
        self._consumers.remove_stream(stream)
        stream.log.block(stream).add(StreamDelete())
        stream.log.urgent()
        for consumer in consumers:
            self._events.consumer("delete", name, consumer, stream.log)
        self._events.stream("delete", name, stream.log)
        self._served.remove(stream)
        return True

    def delete_offline(self, name: str) -> bool:
        """Delete a stream that this version cannot use; return whether there was one of that name.

        Raises: ApiError 10194 if no record of the stream can be stored until the next start.
        """
        gone, shard = self._served.offline.get(name), self._host.shard_of(self._account, name)
        if gone is None:
            return False
        state = shard.log.state.stream(self._account, name)
        if state is None or state.stream_id in shard.failed_streams:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone.reason)
        self._host.catalogue.delete(state.stream_id, shard.log, partial(UnusedStream(state).delete, shard.log))
        shard.log.urgent()
        self._served.remove_offline(name)
        self._events.stream("delete", name, shard.log)
        _log.info("stream %s is deleted; it was offline: %s", name, gone.reason)
        return True

    # --- changes that the owner of shard 0 has announced in the catalogue ---------------------------------------------

    @asynccontextmanager
    async def updating_elsewhere(self, entry: CatalogueEntry) -> AsyncIterator[None]:
        """Check an update of another broker's stream to the configuration in ``entry``, and take its new subjects.

        The body stores it. Subjects that it gives up stay taken. Raises: ApiError.
        """
        if entry.name not in self._elsewhere:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # this broker has just taken the stream's shard
        before, config = self._elsewhere[entry.name].config, config_of(entry)
        added = _without(config.subjects, before.subjects)
        async with self.lock_of(entry.name), self._admission.claimed(config, added):
            self._quota.check_update_elsewhere(before, config)
            with self._quota.coming(config, before):
                yield
            self._elsewhere.change(entry, _without(before.subjects, config.subjects))

    async def create_for_catalogue(self, entry: CatalogueEntry) -> None:
        """Create a stream that the owner of shard 0 has placed in a shard of this broker."""
        async with self.lock_of(entry.name):
            if entry.name in self._served.by_name:
                return
            stream = self._served.make(config_of(entry), None, entry.created_ns, entry.shard, entry.stream_id)
            stream.log.block(stream).add(stream.enforcement.create_record())
            stream.log.barrier()
            stream.log.urgent()
            await in_turns(self._served.add_anyway(stream))
        self._events.stream("create", stream.name, stream.log)

    async def update_for_catalogue(self, stream: Stream, entry: CatalogueEntry) -> None:
        """Apply an update whose request was given up before it reached this broker's shard."""
        async with self.lock_of(entry.name):
            if self._served.by_name.get(entry.name) is not stream:
                return
            config = config_of(entry)
            if stream.config.to_json() == entry.config:
                return
            stream.log.block(stream).add(stream.enforcement.update_record(config))
            stream.log.barrier()
            stream.log.urgent()
            await self._apply_update(stream, config)

    async def delete_for_catalogue(self, stream: Stream) -> None:
        """Delete a stream of this broker; the request for that was given up before it reached its shard."""
        deleted = await self._disconnect(stream)
        async with self.lock_of(stream.name):
            self._delete(stream, deleted)
            stream.log.barrier()
            await self._admission.give_back(stream.name, stream.config.subjects_bytes)


async def _done(change: asyncio.Future[None] | None) -> None:
    if change is not None:
        await change


def _without(subjects: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the subjects that are not among ``others``."""
    known = set(others)
    return [subject for subject in subjects if subject not in known]
