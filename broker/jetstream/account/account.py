"""The streams of one account: creates, updates, deletes and restores them.

Owns: which streams exist, and their records in the log.
Does not own: the streams' consumers (consumers), the form of requests (api), what happens inside a stream, what streams
receive from the bus (subscriptions), what the limits allow (quota).

Every decision is made at once, from the live state, and written into the stream's open block; the answer waits for the
log (``StreamLog.wait``). So a create that was answered is persisted, and one that was not answered may or may not be.
Requests of one stream arrive one after the other (the API's lanes).

    Account "$G" ── Stream "ORDERS" ── Consumer "billing"
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from broker import JETSTREAM_API_LEVEL, NATS_SERVER_VERSION
from broker.access.accounts import AccountLimits
from broker.base.clock import Clock
from broker.base.turns import in_turns
from broker.config.settings import JetStreamSettings
from broker.jetstream.account.consumers import Consumers
from broker.jetstream.account.double_storage import DoubleStorage
from broker.jetstream.account.elsewhere import Elsewhere, config_of
from broker.jetstream.account.external import locate
from broker.jetstream.account.held import HeldMessages
from broker.jetstream.account.incoming import Incoming, Parts
from broker.jetstream.account.long_work import LONG, Steps, at_once, in_thread_if_long
from broker.jetstream.account.neighbours import Neighbours
from broker.jetstream.account.quota import Quota
from broker.jetstream.account.restore import OfflineStream, stored_config, stored_consumers
from broker.jetstream.account.subscriptions import Subscriptions
from broker.jetstream.account.sweeps import finished
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.stream.upstream.link import Remote
from broker.jetstream.stream.upstream.upstreams import Upstreams
from broker.jetstream.wire.advisories import AccountEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.records.stream_delete import StreamDelete

if TYPE_CHECKING:
    from broker.jetstream.account.host import Host
    from broker.jetstream.account.other_brokers import OtherBrokers
    from broker.jetstream.bus import Bus, Msg
    from broker.jetstream.config.stream import StreamConfig, StreamSource
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.format.request import Version
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.staging.answers import Answer
    from broker.storage.state.stream import StreamState

__all__ = ["Account"]

_log = logging.getLogger(__name__)

_CHECKS_MAX = 3
"""The largest number of checks of one configuration, if other requests meanwhile change mirrors or sources."""

_OPENED_AT_ONCE = 32
"""Consumers of mirrors and sources that are reset or created at the same time."""


class Account:
    """The streams of one account, by name, and the operations on them.

    Attributes:
        ``streams``: the live streams by name.
        ``offline``: the streams that cannot be used, by name, with the reason.
        ``elsewhere``: the streams in shards of other brokers, by name, if this broker owns shard 0.
        ``consumers``: the consumers of the live streams.
        ``incoming``: the streams that are being restored from an archive.
        ``upstreams``: the mirrors and sources.
        ``log``: the log of the first shard.
    """

    def __init__(self, host: Host, name: str, bus: Bus, clock: Clock, rng: random.Random, settings: JetStreamSettings,
                 limits: AccountLimits) -> None:
        from broker.jetstream.stream.upstream.follower_parts import FollowerParts

        self.name = name
        self.bus = bus
        self.streams: dict[str, Stream] = {}
        self.offline: dict[str, OfflineStream] = {}
        self.api_total = 0
        self.api_errors = 0
        self.settings = settings
        self.server_name = host.server_name
        self.version = NATS_SERVER_VERSION
        self.domain = settings.domain
        self.direct_bytes_max = host.direct_bytes_max
        self.clock = clock
        self.events = AccountEvents(bus, clock, rng, self.domain, self.server_name)
        self._host = host
        self._rng = rng
        self._restored = False
        self._claiming = asyncio.Lock()
        self._changes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._links = 0
        """The number of changes, so far, of mirrors and sources."""
        self._quota = Quota(host, name, self.streams, limits, settings.server)
        self.upstreams = Upstreams(FollowerParts(
            self._origin, clock, bus, rng, asyncio.Semaphore(_OPENED_AT_ONCE)), host.external)
        overlaps = None
        if settings.overlapping_streams:
            from broker.jetstream.stream.overlaps import Overlaps

            overlaps = Overlaps()
        self._subscriptions = Subscriptions(bus, overlaps)
        self.elsewhere = Elsewhere(self.streams, self._subscriptions)
        self.consumers = Consumers(self.streams, bus, clock, rng, settings, self._quota, self._subscriptions,
                                   self.events, host.receiver_of)
        incoming: dict[str, Stream] = {}
        self._neighbours = Neighbours(self.streams, incoming, self.offline, self.elsewhere)
        self.incoming = Incoming(self, incoming, Parts(self._neighbours, self._check_new, self._quota.check_consumer,
                                                       self._make_stream, self.consumers.remove_stream,
                                                       self._add_restored, self.consumers.attach))
        self._quota.incoming = incoming
        self._quota.elsewhere = self.elsewhere
        self._double_storage = DoubleStorage(name, bus, lambda: host.leafs)

    @property
    def available(self) -> bool:
        """True if the streams of this broker are restored, and the proof of owning all its shards is fresh."""
        return self._restored and self._host.available

    def serves(self, name: str) -> bool:
        """Return whether requests about a stream may be answered, or, if there is none of that name, about the
        account: the streams are restored, and the proof of owning the shard is fresh."""
        return self._restored and self._host.serves(self.streams.get(name))

    @property
    def stuck(self) -> bool:
        """True if no answer can be given, because too many wait for a log."""
        return self._host.stuck

    @property
    def log(self) -> StreamLog:
        return self._host.log

    def wait(self, fn: Callable[..., object], *args: Any) -> None:
        """Call ``fn(*args)`` once everything sequenced so far in all shards is persisted."""
        self._host.wait(fn, *args)

    @property
    def coming_bytes(self) -> Mapping[str, int]:
        """The reservations of streams that are being created or updated, by storage kind."""
        return self._quota.coming_bytes

    def reserved_elsewhere(self, storage: str) -> int:
        """Return the reservations of streams of other brokers."""
        return self._quota.reserved_elsewhere(storage)

    @property
    def limits(self) -> AccountLimits:
        """The account's limits."""
        return self._quota.limits

    def change_limits(self, limits: AccountLimits) -> None:
        """Change the limits; existing streams and consumers stay, even if they exceed them."""
        self._quota.change(limits)

    def stream(self, name: str) -> Stream:
        """Return the live stream of that name.

        Raises: ApiError 10059; 10194 if the stream is offline.
        """
        stream = self.streams.get(name)
        if stream is None:
            gone = self.offline.get(name)
            if gone is None:
                if (other := self.elsewhere.get(name)) is not None and not other.entry.deleting:
                    raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone.reason)
        return stream

    async def carry_out(self, request_id: int, stream: Stream, version: Version | None) -> Answer:
        """Answer a request in the shard's inbox now: see ``Host.carry_out``."""
        return await self._host.carry_out(request_id, stream, version)

    def new_erasure_id(self) -> str:
        """Return a random id for an erasure."""
        return f"{self._rng.getrandbits(64):016x}"

    def eraser_of(self, stream: Stream) -> Eraser:
        """Return the eraser of the shard of ``stream``.

        Raises: ApiError 10008 while there is none; 10051 if the stream has been in another shard.
        """
        if (state := stream.applied()) is not None and state.moves:
            raise ApiError(ApiErrors.STREAM_GENERAL, err=f"messages of stream {stream.name} cannot be erased: it has "
                                                         f"moved, and objects of its earlier shard may have them")
        eraser = self._host.shard_of(stream.account, stream.name).eraser
        if eraser is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        return eraser

    @property
    def other_brokers(self) -> OtherBrokers | None:
        """The other brokers of the store; None if this one owns all shards."""
        if self._host.subscribe_api is None:
            return None
        from broker.jetstream.account.other_brokers import OtherBrokers

        return OtherBrokers(self.bus, self._api, self.domain)

    def pulled_from(self, names: bytes) -> Consumer | None:
        """Return the consumer that ``<stream>.<consumer>`` names in a pull request's subject."""
        return self._subscriptions.pulled_from(names)

    def info(self) -> dict[str, Any]:
        """Return the members of account_info_response: usage, reservations and limits."""
        return self._info(self._quota.info(len(self.streams) + len(self.offline), self.consumers.count))

    async def whole_info(self) -> dict[str, Any]:
        """Return the same, with the streams of other brokers, as far as these answer in time."""
        if not self.elsewhere:
            return self.info()
        others = await self._host.catalogue.usages(self.name)
        return self._info(self._quota.info(
            len(self.streams) + len(self.offline) + len(self.elsewhere),
            self.consumers.count + sum(one["consumers"] for one in others), sum(one["storage"] for one in others)))

    def usage_of(self, log: StreamLog) -> dict[str, int]:
        """Return the bytes and the number of consumers of the streams with this log."""
        streams = [stream for stream in self.streams.values() if stream.log is log]
        return {"storage": sum(stream.size_bytes for stream in streams),
                "consumers": sum(len(self.consumers.of(stream)) for stream in streams)}

    def _info(self, shown: dict[str, Any]) -> dict[str, Any]:
        if self.domain:
            shown["domain"] = self.domain
        shown["api"] = {"level": JETSTREAM_API_LEVEL, "total": self.api_total, "errors": self.api_errors}
        return shown

    # --- life ---------------------------------------------------------------------------------------------------------

    def restore(self, states: Iterable[StreamState]) -> list[asyncio.Task[None]]:
        """Restore the streams from their persisted state, except those that have moved to other shards; requests are
        served from now on. More shards may follow.

        Returns: the openings of their consumers, each done once its consumer serves.
        """
        tasks = [task for state in states if state.departed is None for task in self._restore(state)]
        self._restored = True
        return tasks

    def _restore(self, state: StreamState) -> list[asyncio.Task[None]]:
        config = stored_config(state)
        failed = self._host.shard_of(self.name, state.name).failed_streams
        reason = state.offline or failed.get(state.stream_id)
        if config is None or reason is not None:
            _log.error("stream %s is offline: %s", state.name, reason)
            self.offline[state.name] = OfflineStream(reason or "", list(state.config.get("subjects", ())))
            return []
        stream = self._make_stream(config, state)
        if state.restoring:
            self.incoming.discard(stream)
            return []
        tasks = [self.consumers.attach(stream, consumer_config, state.consumers[name], restored=True)
                 for name, consumer_config in stored_consumers(state).items()]
        if len(tasks) < len(state.consumers):
            stream.interest.keep_all()
        self._add_restored(stream)
        return tasks

    def prepare_shutdown(self, log: StreamLog | None = None) -> None:
        """Stop all consumers, notifying waiting pull requests, and let each stream write its last record.

        Args: ``log``: only for the streams with this log, which another broker takes over; None: for all streams.
        """
        for stream in list(self.streams.values()):
            if log is None or stream.log is log:
                self._shut_down(stream, moves=log is not None)

    def _shut_down(self, stream: Stream, *, moves: bool) -> None:
        if moves:
            self._subscriptions.unsubscribe_api(stream)
            at_once(self._subscriptions.unsubscribe(stream))
        at_once(self.upstreams.stop(stream.name))
        self.consumers.shutdown(stream, moves=moves)
        stream.prepare_shutdown()
        # Write deferred changes too: a clean shutdown waits for all of them.
        stream.log.barrier(stream)

    async def hold(self, stream: Stream) -> HeldMessages:
        """Stop a stream that moves to another shard, and hold the messages to it; they do not reach it any more.

        Call it with ``changing``. Its last records are sequenced when this returns, and it can only be restored.
        """
        held = HeldMessages(self.bus, stream, self.consumers.of(stream).values())
        held.add(stream.queue.take())
        self._shut_down(stream, moves=True)
        stream.log.urgent()
        await self.consumers.openings.cancel_of(list(self.consumers.of(stream).values()))
        self._release_stream(stream)
        return held

    def release(self) -> None:
        """Drop everything (subscriptions, timers, state) and write nothing."""
        self._restored = False
        self._double_storage.stop()
        self.upstreams.stop_all()
        for stream in list(self.streams.values()):
            self.consumers.stop(stream)
            stream.close()
        self._subscriptions.release()
        self.incoming.release()
        self.streams.clear()
        self.consumers.clear()
        self.offline.clear()
        self.elsewhere.forget_all()

    def deliver(self, name: str, msgs: Sequence[Msg], acks: Iterable[Msg]) -> None:
        """Handle messages to a stream, and acks to its consumers, that were held while the stream moved."""
        if msgs and (stream := self.streams.get(name)) is not None:
            stream.publish(msgs, 0, len(msgs), None, self.clock.now_ns())
        for subject, reply, hlen, body in acks:
            self.bus.publish(subject, reply, hlen, body)

    async def release_streams(self, log: StreamLog) -> None:
        """Drop the streams with this log and write nothing more: their shard is another broker's, or will be."""
        gone = [stream for stream in self.streams.values() if stream.log is log]
        await self.consumers.openings.cancel_of([one for stream in gone for one in self.consumers.of(stream).values()])
        for stream in gone:
            self._release_stream(stream)
        for name, stream in list(self.incoming.streams.items()):
            if stream.log is log:
                del self.incoming.streams[name]
                self.incoming.names.discard(name)
                self.consumers.remove_stream(stream)
                stream.close()

    def _release_stream(self, stream: Stream) -> None:
        if self.streams.get(stream.name) is stream:
            self._disconnect(stream)
            self.consumers.stop(stream)
            self.consumers.remove_stream(stream)
            stream.close()
            stream.live.leave()
            del self.streams[stream.name]
            self.upstreams.changed(stream.name)

    def release_offline(self, names: Iterable[str]) -> None:
        """Forget streams that cannot be used: their shard is lost."""
        for name in names:
            self.offline.pop(name, None)

    def _disconnect(self, stream: Stream) -> None:
        """Stop routing anything to a stream, at once, and free its subjects."""
        self._subscriptions.unsubscribe_api(stream)
        at_once(self._subscriptions.unsubscribe(stream))
        at_once(self._subscriptions.give_back(stream.name, stream.config.subjects_bytes))
        at_once(self.upstreams.stop(stream.name))

    # --- streams of other brokers, for the owner of shard 0 -----------------------------------------------------------

    @asynccontextmanager
    async def updating_elsewhere(self, entry: CatalogueEntry) -> AsyncIterator[None]:
        """Check an update of another broker's stream to the configuration in ``entry``, and take its new subjects.

        The body stores it. Subjects that it gives up stay taken. Raises: ApiError.
        """
        before, config = self.elsewhere[entry.name].config, config_of(entry)
        added = _without(config.subjects, before.subjects)
        async with self.changing(entry.name), self._claimed(config, added):
            self._quota.check_update_elsewhere(before, config)
            with self._quota.coming(config, before):
                yield
            self.elsewhere.change(entry, _without(before.subjects, config.subjects))

    # --- streams of this broker, for the catalogue --------------------------------------------------------------------

    async def create_for_catalogue(self, entry: CatalogueEntry) -> None:
        """Create a stream that the owner of shard 0 has placed in a shard of this broker."""
        async with self.changing(entry.name):
            if entry.name in self.streams:
                return
            stream = self._make_stream(config_of(entry), None, entry.created_ns, entry.shard, entry.stream_id)
            self._subscriptions.claim_anyway(stream.name, stream.config.subjects_bytes)
            stream.log.block(stream).add(stream.enforcement.create_record())
            stream.log.barrier()
            stream.log.urgent()
            await in_turns(self._add(stream))
        self.events.stream("create", stream.name, stream.log)

    async def update_for_catalogue(self, stream: Stream, entry: CatalogueEntry) -> None:
        """Apply an update whose request was given up before it reached this broker's shard."""
        async with self.changing(entry.name):
            if self.streams.get(entry.name) is not stream:
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
        deleted = await self._disconnect_to_delete(stream)
        async with self.changing(stream.name):
            self._delete(stream, deleted)
            stream.log.barrier()
            await in_turns(self._subscriptions.give_back(stream.name, stream.config.subjects_bytes))

    # --- streams ------------------------------------------------------------------------------------------------------

    async def check(self, given: StreamConfig, *, pedantic: bool) -> None:
        """Check a stream's configuration by itself. Raises: ApiError."""
        from broker.jetstream.config.stream_rules import check_stream

        await in_thread_if_long(given.elements, partial(check_stream, given, self._neighbours, self.limits,
                                                        self.settings.server, pedantic=pedantic))

    async def create_stream(self, given: StreamConfig, *, pedantic: bool = False) -> Stream:
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
        from broker.jetstream.config.stream_rules import (
            check_stream,
            required_level,
            same_config,
            with_static_metadata,
        )

        self._quota.check_create(given, max(given.max_bytes, 0))
        config, links = await self._checked(given, partial(
            check_stream, given, self._neighbours, self.limits, self.settings.server, pedantic=pedantic))
        config.metadata = with_static_metadata(config.metadata, required_level(config))
        if config.num_replicas > 1:
            raise ApiError(ApiErrors.STREAM_REPLICAS_NOT_SUPPORTED)
        if config.name in self.offline:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=self.offline[config.name].reason)
        existing = self.streams.get(config.name)
        if existing is not None:
            if await in_thread_if_long(config.elements, partial(same_config, config, existing.config)):
                return existing
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        if (elsewhere := self.elsewhere.get(config.name)) is not None:
            if await in_thread_if_long(config.elements, partial(same_config, config, elsewhere.config)):
                return elsewhere.entry
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        self._check_room(config)
        catalogue = self._host.catalogue
        async with self.changing(config.name):
            with ExitStack() as counted:
                async with self._claimed(config, config.subjects):
                    # The claim may have taken several turns of the loop.
                    self._check_room(config)
                    self._check_links(links, config)
                    made: Stream | CatalogueEntry
                    shard = catalogue.place(config)
                    change: asyncio.Future[None] | None
                    if catalogue.is_elsewhere(shard):
                        made, change = catalogue.create_elsewhere(self.name, config, shard, self.clock.now_ns())
                    else:
                        made = self._make_stream(config, shard=shard)
                        change = catalogue.create(made, made.enforcement.create_record())
                    counted.enter_context(self._quota.coming(config))
                    if config.follows:  # the next check of links must find it
                        await _done(change)
                await _done(change)
            if isinstance(made, CatalogueEntry):
                self.elsewhere.keep(made)
                self._links += config.follows
                return made
            stream = made
            await in_turns(self._add(stream))
        self.events.stream("create", stream.name, stream.log)
        self._double_storage.check(stream.name, config.subjects)
        return stream

    async def infos_elsewhere(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the infos of streams in other brokers' shards that come in time, by name."""
        wanted = [(name, self.elsewhere[name].entry.shard) for name in names if name in self.elsewhere]
        return await self._host.catalogue.infos(self.name, wanted) if wanted else {}

    async def shown_elsewhere(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""
        return await self._host.catalogue.shown(entry)

    async def update_stream(self, stream: Stream, given: StreamConfig, *, pedantic: bool = False) -> None:
        """Update a stream's configuration; return after removing the messages that exceed the new limits.

        Raises: ApiError, and nothing has changed; StoreError, FormatError: the configuration applies, and the messages
            that exceed it are removed later.
        """
        from broker.jetstream.config.stream_rules import check_update, required_level, with_static_metadata

        before = stream.config
        config, links = await self._checked(given, partial(
            check_update, before, given, self._neighbours, self.limits, self.settings.server, pedantic=pedantic))
        config.metadata = with_static_metadata(config.metadata, required_level(config))
        self._quota.check_update(stream, config)
        self.consumers.check_limits(stream, config)
        self._host.catalogue.check_update(stream, config)
        added = _without(config.subjects, before.subjects)
        async with self.changing(stream.name), self._claimed(config, added):
            # The claim may have taken several turns of the loop.
            if self.stream(stream.name) is not stream:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            self._quota.check_update(stream, config)
            self._check_links(links, config)
            with self._quota.coming(config, before):
                await _done(self._host.catalogue.update(stream, config))
            if self.stream(stream.name) is not stream:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        await self._apply_update(stream, config)
        await self._host.catalogue.move_updated(stream, before)

    async def _apply_update(self, stream: Stream, config: StreamConfig) -> None:
        """Let a stream have a configuration whose record is sequenced. Raises: as ``update_stream``."""
        before = stream.config
        added = _without(config.subjects, before.subjects)
        to_interest = config.retention == "interest" != before.retention
        limits_applied = stream.update(config)
        self._links += config.follows
        self.events.stream("modify", stream.name, stream.log)
        self._double_storage.check(stream.name, added)
        await in_turns(self._connect(stream))
        removed = [one.encode() for one in _without(before.subjects, config.subjects)]
        await in_turns(self._subscriptions.give_back(config.name, removed))
        await limits_applied
        if to_interest and (sweep := stream.interest.sweep(1, acked=True)) is not None:
            await finished(sweep)

    def changing(self, name: str) -> asyncio.Lock:
        """Return the lock of a stream's name: a creation, update or deletion holds it until it is stored."""
        return self._changes.setdefault(name, asyncio.Lock())

    @asynccontextmanager
    async def _claimed(self, config: StreamConfig, subjects: Iterable[str]) -> AsyncIterator[None]:
        """Claim ``subjects`` for the stream of that configuration; give them back if a check, or the body, raises.

        One stream claims at a time. If two streams want the same subjects, the second is refused only if the first
        comes into existence. Raises: ApiError.
        """
        from broker.jetstream.config.stream_rules import check_supported
        from broker.jetstream.config.upstream_rules import check_filter_subjects

        claimed = [one.encode() for one in subjects]
        await self.elsewhere.until_given_up(claimed)
        async with self._claiming:
            await in_turns(self._subscriptions.claim(config.name, claimed))
            try:
                self._check_hidden(config)
                check_filter_subjects(config)
                check_supported(config)
                yield
            except ApiError:
                await in_turns(self._subscriptions.give_back(config.name, claimed))
                raise
            except BaseException:
                at_once(self._subscriptions.give_back(config.name, claimed))
                raise

    async def delete_stream(self, stream: Stream) -> None:
        """Delete a stream with its consumers; waiting pull requests are notified.

        The stream is first disconnected from publishers and consumers, in several steps, and then deleted in one step.
        Raises: ApiError 10059, 10194 if the stream was deleted or went offline meanwhile; 10008 if messages of it are
            to be erased, which is forgotten with the stream, and cannot be rewritten now.
        """
        async with self._host.catalogue.deleting(stream):
            await self._disconnect_and_delete(stream)

    async def _disconnect_and_delete(self, stream: Stream) -> None:
        name, subjects = stream.name, stream.config.subjects_bytes
        deleted = await self._disconnect_to_delete(stream)
        async with self.changing(name):
            if self.stream(name) is not stream:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            await _done(self._host.catalogue.delete(stream.stream_id, stream.log,
                                                    partial(self._delete, stream, deleted)))
            await in_turns(self._subscriptions.give_back(name, subjects))

    async def _disconnect_to_delete(self, stream: Stream) -> list[str]:
        """Disconnect a stream from publishers and consumers; return the names of its consumers.

        Raises: ApiError 10008 if messages of it cannot be erased now.
        """
        eraser = self._host.shard_of(stream.account, stream.name).eraser
        if eraser is not None and stream.erasures.unfinished and not await eraser.rewrite(
                stream.stream_id, lambda: stream.erasures.unfinished):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        await in_turns(self._subscriptions.unsubscribe(stream))
        await in_turns(self.upstreams.stop(stream.name))
        return await self.consumers.delete_all(stream)

    def _delete(self, stream: Stream, consumers: Iterable[str]) -> bool:
        """Delete a disconnected stream, whose ``consumers`` are deleted; return False if it can store nothing more."""
        name = stream.name
        if self.streams.get(name) is not stream:  # the account was removed, or the stream can store nothing any more
            state = stream.log.state.streams.get(stream.stream_id)
            if state is not None and stream.offline is None:
                UnusedStream(state).delete(stream.log)
            return stream.offline is None
        self.consumers.remove_stream(stream)
        stream.log.block(stream).add(StreamDelete())
        stream.log.urgent()
        for consumer in consumers:
            self.events.consumer("delete", name, consumer, stream.log)
        self.events.stream("delete", name, stream.log)
        del self.streams[name]
        self._subscriptions.unsubscribe_api(stream)
        stream.close()
        stream.live.free_blocks()
        self.upstreams.changed(name)
        return True

    def delete_offline_stream(self, name: str) -> bool:
        """Delete a stream that this version cannot use; return whether there was one of that name.

        Raises: ApiError 10194 if no record of the stream can be stored until the next start.
        """
        gone, shard = self.offline.get(name), self._host.shard_of(self.name, name)
        if gone is None:
            return False
        state = shard.log.state.stream(self.name, name)
        if state is None or state.stream_id in shard.failed_streams:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone.reason)
        self._host.catalogue.delete(state.stream_id, shard.log, partial(UnusedStream(state).delete, shard.log))
        shard.log.urgent()
        del self.offline[name]
        self.events.stream("delete", name, shard.log)
        self.upstreams.changed(name)
        _log.info("stream %s is deleted; it was offline: %s", name, gone.reason)
        return True

    def _drop_failed(self, stream: Stream) -> None:
        """Drop a stream that can no longer store anything, until the next start, which restores what was stored."""
        reason = stream.offline or ""
        _log.error("stream %s is offline until the next start: %s", stream.name, reason)
        self._host.stream_failed(stream, reason)
        stream.close()
        if self.streams.get(stream.name) is not stream:
            return  # deleted meanwhile; the next start restores it if the deletion could not be stored
        del self.streams[stream.name]
        self.offline[stream.name] = OfflineStream(reason, list(stream.config.subjects))
        self.consumers.shutdown(stream)
        self.consumers.remove_stream(stream)
        self._disconnect(stream)
        self.upstreams.changed(stream.name)

    async def _checked(self, given: StreamConfig, check: Callable[[], StreamConfig]) -> tuple[StreamConfig, int]:
        """Return the result of ``check``, and the value of ``_links`` that it was made with. Raises: ApiError."""
        for _ in range(_CHECKS_MAX):
            links = self._links
            config = await in_thread_if_long(given.elements, partial(_with_json, check))
            if links == self._links or not config.follows:
                return config, links
        raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _check_links(self, seen: int, config: StreamConfig) -> None:
        """Refuse a mirror or sources if ``_links`` has changed since the check: they might form a cycle.

        Raises: ApiError 10008.
        """
        if config.follows and seen != self._links:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _check_new(self, config: StreamConfig) -> None:
        """Check a stream that is to be restored, against the other streams. Raises: ApiError."""
        from broker.jetstream.config.stream_rules import check_supported, subjects_overlap
        from broker.jetstream.config.upstream_rules import check_filter_subjects

        self._check_room(config)
        if not self.settings.overlapping_streams:
            hidden = (self._neighbours[name] for name in self._neighbours.hidden())
            if self._subscriptions.overlap(config.subjects_bytes) or subjects_overlap(config.subjects, hidden):
                raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)
        check_filter_subjects(config)
        check_supported(config)

    def _check_room(self, config: StreamConfig) -> None:
        """Check that the name of a new stream is free, and that the limits allow it. Raises: ApiError."""
        if config.name in self.incoming.names or config.name in self.streams or config.name in self.elsewhere:
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        # A stream without a limit still needs room for something.
        self._quota.check_create(config, config.max_bytes if config.max_bytes >= 0 else 1)

    def _check_hidden(self, config: StreamConfig) -> None:
        """Refuse claimed subjects that overlap those of streams that do not serve: offline or being restored.

        Raises: ApiError 10065.
        """
        if self.settings.overlapping_streams:
            return
        for name in self._neighbours.hidden():
            if self._subscriptions.claims_one_of(config.name, self._neighbours[name].subjects_bytes):
                raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)

    def _make_stream(self, config: StreamConfig, state: StreamState | None = None,
                     created_ns: int | None = None, shard: int = 0, stream_id: int | None = None) -> Stream:
        """Make a live stream (see ``Host.make_stream``) with room for its consumers."""
        consumers: dict[str, Consumer] = {}
        stream = self._host.make_stream(self.name, self.bus, config, state, created_ns, listeners=consumers,
                                        usage=self._quota.usage(config.storage), shard=shard, stream_id=stream_id)
        self.consumers.add_stream(stream, consumers)
        return stream

    def _add(self, stream: Stream) -> Steps:
        """Add a stream, whose subjects are claimed, to the account. The first step adds it; the others connect it."""
        self.streams[stream.name] = stream
        if (subscribe_api := self._host.subscribe_api) is not None:
            self._subscriptions.subscribe_api(stream, subscribe_api(self.name))
        stream.on_failed = self._drop_failed
        self._links += stream.config.follows
        yield from self._connect(stream)
        self.upstreams.changed(stream.name)

    def _connect(self, stream: Stream) -> Steps:
        """Subscribe to the stream's subjects, and start its mirror or sources."""
        yield from self._subscriptions.subscribe(stream)
        if self.streams.get(stream.name) is stream:
            yield from self.upstreams.configure(stream)

    def _add_restored(self, stream: Stream) -> None:
        """Add a restored stream to the account, even if its subjects overlap those of other streams."""
        self._subscriptions.claim_anyway(stream.name, stream.config.subjects_bytes)
        at_once(self._add(stream))

    def _origin(self, given: StreamSource, mirror: bool) -> Stream | Remote:
        """Return the stream that a mirror or source in this account names, or the way to it. Raises: ApiError."""
        if given.external is None or (self.domain and given.external.api == f"$JS.{self.domain}.API"):
            if given.name not in self.streams and self._host.subscribe_api is not None:
                return self._origin_elsewhere(given.name, mirror=mirror)
            return self.stream(given.name)
        found = locate(given, self.name, self.bus, self._host.upstream, self._host.leafs, mirror=mirror)
        return found if isinstance(found, Remote) else self._host.stream(found, given.name)


    def _origin_elsewhere(self, name: str, *, mirror: bool) -> Remote:
        """Return the way to a stream that another broker may have. Raises: ApiError 10059."""
        if not self.bus.interest(f"{self._api}.STREAM.INFO.{name}".encode()):
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        return Remote(self.bus, self._api, "$JS.M" if mirror else "$JS.S")

    @property
    def _api(self) -> str:
        """The prefix of the API that all brokers of the store answer."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


async def _done(change: asyncio.Future[None] | None) -> None:
    if change is not None:
        await change


def _with_json(check: Callable[[], StreamConfig]) -> StreamConfig:
    """Return the result of ``check``, after building the JSON of its long lists, which later answers need."""
    config = check()
    if config.elements >= LONG:
        config.to_json()
    return config


def _without(subjects: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the subjects that are not among ``others``."""
    known = set(others)
    return [subject for subject in subjects if subject not in known]
