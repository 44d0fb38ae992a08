"""One account: creates, updates, deletes and restores its streams and consumers.

Owns: which streams and consumers exist, and their records in the log.
Does not own: the form of requests (api), what happens inside a stream or consumer, what they receive from the bus
(subscriptions), what the limits allow (quota).

Every decision is made at once, from the live state, and written into the stream's open block; the answer waits for the
log (``StreamLog.wait``). So a create that was answered is persisted, and one that was not may or may not be. Requests
of one stream arrive one after the other (the API's lanes); inactive consumers may be deleted at any time.

    Account "$G" ── Stream "ORDERS" ── Consumer "billing"
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker import JETSTREAM_API_LEVEL, NATS_SERVER_VERSION
from broker.base.clock import Clock
from broker.config.settings import AccountLimits, JetStreamSettings
from broker.jetstream.account.external import account_of
from broker.jetstream.account.incoming import Incoming, Parts
from broker.jetstream.account.long_work import LONG, Steps, aside, at_once, in_turns
from broker.jetstream.account.neighbours import Neighbours
from broker.jetstream.account.quota import Quota
from broker.jetstream.account.restore import OfflineStream, Openings, stored_config, stored_consumers
from broker.jetstream.account.subscriptions import Subscriptions
from broker.jetstream.account.sweeps import finished
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.account.work_queues import WorkQueues
from broker.jetstream.filters import filters_of
from broker.jetstream.stream.upstream.upstreams import Upstreams
from broker.jetstream.wire.advisories import AccountEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import unique_id
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_delete import ConsumerDelete
from broker.storage.format.records.consumer_update import ConsumerUpdate
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.state.consumer import ConsumerState

if TYPE_CHECKING:
    from broker.jetstream.account.host import Host
    from broker.jetstream.bus import Bus
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig, StreamSource
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.staging.answers import Answer
    from broker.storage.state.stream import StreamState

__all__ = ["Account"]

_log = logging.getLogger(__name__)

_CHECKS_MAX = 3
"""Checks of one configuration, if others change meanwhile what streams mirror or source."""

_FEW_FILTERS = 16
"""Filters that are looked up one by one among those of all consumers of a work queue."""

_CONSUMERS_AT_ONCE = 128
"""Consumers deleted in one turn of the loop: some 2 ms."""


class Account:
    """One account's streams, by name, and the operations on them. Methods decide at once and never wait.

    Attributes: ``streams`` live ones; ``offline`` those that cannot be used, by name, with the reason; ``openings`` the
        stored consumers that do not serve yet; ``incoming`` the streams that are being restored from an archive;
        ``upstreams`` mirrors and sources; ``log`` the shard's log.
    """

    def __init__(self, host: Host, name: str, bus: Bus, clock: Clock, rng: random.Random, settings: JetStreamSettings,
                 limits: AccountLimits) -> None:
        from broker.jetstream.stream.upstream.around import Around

        self.name = name
        self.bus = bus
        self.streams: dict[str, Stream] = {}
        self.offline: dict[str, OfflineStream] = {}
        self.openings = Openings()
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
        self._consumers: dict[Stream, dict[str, Consumer]] = {}
        self._work_queues = WorkQueues()
        self._claiming = asyncio.Lock()
        self._links = 0
        """Counts changes of what streams mirror or source."""
        self._quota = Quota(host, name, self.streams, limits, settings.server)
        self.upstreams = Upstreams(Around(self._origin, clock, bus, rng), host.external)
        incoming: dict[str, Stream] = {}
        self._neighbours = Neighbours(self.streams, incoming, self.offline)
        self.incoming = Incoming(self, incoming, Parts(self._neighbours, self._check_new, self._quota.check_consumer,
                                                       self._make_stream, self._forget_consumers, self._add_restored,
                                                       self._attach))
        self._quota.incoming = incoming
        overlaps = None
        if settings.overlapping_streams:
            from broker.jetstream.stream.overlaps import Overlaps

            overlaps = Overlaps()
        self._subscriptions = Subscriptions(bus, overlaps)

    @property
    def available(self) -> bool:
        """Whether requests may be served: streams are restored, and the proof of owning the shard is fresh."""
        return self._restored and self._host.available

    @property
    def log(self) -> StreamLog:
        return self._host.log

    @property
    def limits(self) -> AccountLimits:
        """The account's limits."""
        return self._quota.limits

    def change_limits(self, limits: AccountLimits) -> None:
        """Change the limits; what exists already stays, even if it exceeds them."""
        self._quota.change(limits)

    def stream(self, name: str) -> Stream:
        """The live stream of that name.

        Raises: ApiError 10059; 10194 when it is offline.
        """
        stream = self.streams.get(name)
        if stream is None:
            gone = self.offline.get(name)
            if gone is None:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone.reason)
        return stream

    async def carry_out(self, request_id: int, stream: Stream) -> Answer:
        """See ``Host``."""
        return await self._host.carry_out(request_id, stream)

    def consumers(self, stream: Stream) -> dict[str, Consumer]:
        """The consumers of a live stream by name; none for a deleted one."""
        return self._consumers.get(stream, {})

    def pulled_from(self, names: bytes) -> Consumer | None:
        """The consumer that ``<stream>.<consumer>`` names in a pull request's subject."""
        return self._subscriptions.pulled_from(names)

    def info(self) -> dict[str, Any]:
        """Members of account_info_response: usage, reservations and limits."""
        shown = self._quota.info(len(self.streams) + len(self.offline), sum(map(len, self._consumers.values())))
        if self.domain:
            shown["domain"] = self.domain
        shown["api"] = {"level": JETSTREAM_API_LEVEL, "total": self.api_total, "errors": self.api_errors}
        return shown

    # --- life ---------------------------------------------------------------------------------------------------------

    def restore(self, states: Iterable[StreamState]) -> list[asyncio.Task[None]]:
        """Restore the streams from their persisted state; from now on requests are served.

        Returns: the openings of their consumers, each done once its consumer serves.
        """
        tasks = [task for state in states for task in self._restore(state)]
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
        tasks = [self._attach(stream, consumer_config, state.consumers[name], restored=True)
                 for name, consumer_config in stored_consumers(state).items()]
        if len(tasks) < len(state.consumers):
            stream.interest.unknown()
        self._add_restored(stream)
        return tasks

    def prepare_shutdown(self) -> None:
        """Stop all consumers, notifying waiting pull requests, and have each stream write its last record."""
        self.upstreams.leave_all()
        for stream in self.streams.values():
            for consumer in self.consumers(stream).values():
                self._subscriptions.unsubscribe_acks(consumer)
                consumer.shutdown()
            stream.prepare_shutdown()
            # Write deferred changes too: a clean shutdown waits for all of them.
            stream.log.barrier(stream)

    def release(self) -> None:
        """Drop everything: subscriptions, timers, state. Nothing is written."""
        self._restored = False
        self.upstreams.leave_all()
        for stream in list(self.streams.values()):
            for consumer in self.consumers(stream).values():
                self._subscriptions.unsubscribe_acks(consumer)
                consumer.stop()
            stream.close()
        self._subscriptions.release()
        self.incoming.release()
        self.streams.clear()
        self._consumers.clear()
        self._work_queues = WorkQueues()
        self.offline.clear()

    # --- streams ------------------------------------------------------------------------------------------------------

    async def check(self, given: StreamConfig, *, pedantic: bool) -> None:
        """Check a configuration on its own. Raises: ApiError."""
        from broker.jetstream.config.stream_rules import check_stream

        await aside(given.elements, partial(check_stream, given, self._neighbours, self.limits, self.settings.server,
                                            pedantic=pedantic))

    async def create_stream(self, given: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Create a stream, or return the existing one with the same configuration.

        Raises: ApiError: 10058 when it differs, 10065, 10027, 10047, 10028, or the rule that the configuration breaks.
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
            if await aside(config.elements, partial(same_config, config, existing.config)):
                return existing
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        self._check_room(config)
        async with self._claimed(config, config.subjects):
            # The claim may have taken several turns of the loop.
            self._check_room(config)
            self._check_links(links, config)
            stream = self._make_stream(config)
            self._record(stream, stream.enforcement.create_record())
        await in_turns(self._add(stream))
        self.events.stream("create", stream.name, stream.log)
        return stream

    async def update_stream(self, stream: Stream, given: StreamConfig, *, pedantic: bool = False) -> None:
        """Update a stream's configuration; returns after removing what exceeds the new limits.

        Raises: ApiError, and nothing has changed; StoreError, FormatError: the configuration applies, and what exceeds
            it is removed later.
        """
        from broker.jetstream.config.stream_rules import check_update, required_level, with_static_metadata

        before = stream.config
        config, links = await self._checked(given, partial(
            check_update, before, given, self._neighbours, self.limits, self.settings.server, pedantic=pedantic))
        config.metadata = with_static_metadata(config.metadata, required_level(config))
        self._quota.check_update(stream, config)
        self._check_consumer_limits(stream, config)
        async with self._claimed(config, _beside(config.subjects, before.subjects)):
            # The claim may have taken several turns of the loop.
            if self.stream(stream.name) is not stream:
                raise ApiError(ApiErrors.STREAM_NOT_FOUND)
            self._quota.check_update(stream, config)
            self._check_links(links, config)
            self._record(stream, stream.enforcement.update_record(config))
        to_interest = config.retention == "interest" != before.retention
        limits_applied = stream.update(config)
        self._links += config.follows
        self.events.stream("modify", stream.name, stream.log)
        await in_turns(self._connect(stream))
        removed = [one.encode() for one in _beside(before.subjects, config.subjects)]
        await in_turns(self._subscriptions.give_back(config.name, removed))
        await limits_applied
        if to_interest and (sweep := stream.interest.sweep(1, acked=True)) is not None:
            await finished(sweep)

    @asynccontextmanager
    async def _claimed(self, config: StreamConfig, subjects: Iterable[str]) -> AsyncIterator[None]:
        """Claim ``subjects`` for the stream of that configuration. They are given back if a check, or the body, raises.

        One stream claims at a time: of two that want the same subjects, the second is refused only if the first exists.
        Raises: ApiError.
        """
        from broker.jetstream.config.stream_rules import check_supported
        from broker.jetstream.config.upstream_rules import check_filter_subjects

        claimed = [one.encode() for one in subjects]
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

        Publishers and consumers lose it step by step; it is deleted in one step, after that.
        Raises: ApiError 10059, 10194 if it has gone meanwhile.
        """
        name, subjects = stream.name, stream.config.subjects_bytes
        await in_turns(self._subscriptions.unsubscribe(stream))
        await in_turns(self.upstreams.leave(name))
        deleted = await self._delete_consumers(stream)
        if self.stream(name) is not stream:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        self._forget_consumers(stream)
        self._record(stream, StreamDelete())
        for consumer in deleted:
            self.events.consumer("delete", name, consumer, stream.log)
        self.events.stream("delete", name, stream.log)
        del self.streams[name]
        stream.close()
        stream.live.free_blocks()
        self.upstreams.changed(name)
        await in_turns(self._subscriptions.give_back(name, subjects))

    def delete_offline_stream(self, name: str) -> bool:
        """Delete a stream that this version cannot use; returns whether there was one of that name.

        Raises: ApiError 10194 for a stream of which nothing can be stored until the next start.
        """
        gone, shard = self.offline.get(name), self._host.shard_of(self.name, name)
        if gone is None:
            return False
        state = shard.log.state.stream(self.name, name)
        if state is None or state.stream_id in shard.failed_streams:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone.reason)
        UnusedStream(state).delete(shard.log)
        shard.log.urgent()
        del self.offline[name]
        self.events.stream("delete", name, shard.log)
        self.upstreams.changed(name)
        _log.info("stream %s is deleted; it was offline: %s", name, gone.reason)
        return True

    async def _delete_consumers(self, stream: Stream) -> list[str]:
        """Delete the consumers of a stream that is being deleted. Returns their names."""
        consumers, deleted = self.consumers(stream), []
        self._work_queues.forget(stream)
        while consumers:
            for name in list(islice(consumers, _CONSUMERS_AT_ONCE)):
                consumer = consumers.pop(name)
                deleted.append(name)
                self._subscriptions.unsubscribe_acks(consumer)
                consumer.delete()
            stream.interest.changed()
            if consumers:
                await asyncio.sleep(0)
        return deleted

    def _take_offline(self, stream: Stream) -> None:
        """The stream can no longer store anything: drop it until the next start, which restores what was stored."""
        reason = stream.offline or ""
        _log.error("stream %s is offline until the next start: %s", stream.name, reason)
        self._host.stream_failed(stream, reason)
        stream.close()
        if self.streams.get(stream.name) is not stream:
            return  # deleted meanwhile; a restart brings it back if the deletion could not be stored
        del self.streams[stream.name]
        self.offline[stream.name] = OfflineStream(reason, list(stream.config.subjects))
        for consumer in self.consumers(stream).values():
            self._subscriptions.unsubscribe_acks(consumer)
            consumer.shutdown()
        self._forget_consumers(stream)
        at_once(self._subscriptions.unsubscribe(stream))
        at_once(self._subscriptions.give_back(stream.name, stream.config.subjects_bytes))
        at_once(self.upstreams.leave(stream.name))
        self.upstreams.changed(stream.name)

    async def _checked(self, given: StreamConfig, check: Callable[[], StreamConfig]) -> tuple[StreamConfig, int]:
        """Return what ``check`` returns, and the links between streams that it has seen. Raises: ApiError."""
        for _ in range(_CHECKS_MAX):
            links = self._links
            config = await aside(given.elements, partial(_written, check))
            if links == self._links or not config.follows:
                return config, links
        raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _check_links(self, seen: int, config: StreamConfig) -> None:
        """Refuse a mirror or sources that might form a cycle with what changed since the check. Raises: ApiError 10008."""
        if config.follows and seen != self._links:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _check_new(self, config: StreamConfig) -> None:
        """Check a stream that is to be restored beside the others. Raises: ApiError."""
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
        """Check that the name of a new stream is free, and that the stream fits. Raises: ApiError."""
        if config.name in self.incoming.names or config.name in self.streams:
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        # A stream without a limit still needs room for something.
        self._quota.check_create(config, config.max_bytes if config.max_bytes >= 0 else 1)

    def _check_hidden(self, config: StreamConfig) -> None:
        """Check the subjects that a stream has claimed beside those of streams that do not serve. Raises: ApiError 10065."""
        if self.settings.overlapping_streams:
            return
        for name in self._neighbours.hidden():
            if self._subscriptions.claims_one_of(config.name, self._neighbours[name].subjects_bytes):
                raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)

    def _check_consumer_limits(self, stream: Stream, config: StreamConfig) -> None:
        """Refuse limits that existing consumers of the stream exceed."""
        old, new = stream.config.consumer_limits, config.consumer_limits
        if old == new:
            return
        over = [name for name, consumer in self.consumers(stream).items()
                if 0 < new.inactive_threshold < consumer.config.inactive_threshold
                or 0 < new.max_ack_pending < consumer.config.max_ack_pending]
        if over:
            raise ApiError(ApiErrors.STREAM_UPDATE, err=f"change to limits violates consumers: {', '.join(over)}")

    def _make_stream(self, config: StreamConfig, state: StreamState | None = None,
                     created_ns: int | None = None) -> Stream:
        """Make a live stream: see ``Host.make_stream``."""
        consumers: dict[str, Consumer] = {}
        stream = self._host.make_stream(self.name, self.bus, config, state, created_ns, listeners=consumers,
                                        usage=self._quota.usage(config.storage))
        self._consumers[stream] = consumers
        return stream

    def _forget_consumers(self, stream: Stream) -> None:
        """Clears the mapping in place: the stream reads the same one."""
        self._work_queues.forget(stream)
        self._consumers.pop(stream, {}).clear()

    def _add(self, stream: Stream) -> Steps:
        """Make a stream, whose subjects are claimed, one of the account's. The first step does it; the others connect it."""
        self.streams[stream.name] = stream
        stream.on_failed = self._take_offline
        self._links += stream.config.follows
        yield from self._connect(stream)
        self.upstreams.changed(stream.name)

    def _connect(self, stream: Stream) -> Steps:
        """Subscribe to the stream's subjects, and follow its mirror or sources."""
        yield from self._subscriptions.subscribe(stream)
        if self.streams.get(stream.name) is stream:
            yield from self.upstreams.configure(stream)

    def _add_restored(self, stream: Stream) -> None:
        """Make a stream one of the account's, whatever subjects it has in common with others."""
        self._subscriptions.claim_anyway(stream.name, stream.config.subjects_bytes)
        at_once(self._add(stream))

    def _origin(self, given: StreamSource, mirror: bool) -> Stream:
        """The stream that a mirror or source in this account names. Raises: ApiError."""
        if given.external is None or (self.domain and given.external.api == f"$JS.{self.domain}.API"):
            return self.stream(given.name)
        return self._host.stream(account_of(given, self.bus, mirror=mirror), given.name)

    @staticmethod
    def _record(stream: Stream, record: RecordBody) -> None:
        stream.log.block(stream).add(record)
        stream.log.urgent()

    # --- consumers ----------------------------------------------------------------------------------------------------

    async def create_consumer(self, stream: Stream, given: ConsumerConfig, action: str = "", *,
                              pedantic: bool = False) -> Consumer:
        """Create a consumer, or update the one of that name.

        Args: ``action`` "create" refuses to update one, "update" to create one.
        Raises: ApiError: 10148, 10149, 10026, 10012, or the rule that the configuration breaks.
        """
        from broker.jetstream.config.consumer_rules import (
            check_work_queue_filters,
            fill_inactive_threshold,
            fit_to_copy,
            same_consumer,
        )

        consumers = self.consumers(stream)
        existing = consumers.get(given.durable_name or given.name)
        if given.sourcing:
            given = fit_to_copy(given, stream.config, existing.config if existing is not None else None,
                                lambda: unique_id(self._rng, 8))
            existing = consumers.get(given.durable_name or given.name)
        if existing is not None:
            given = given.copy()
            given.pause_until = existing.config.pause_until
        config = await aside(len(given.filter_subjects),
                             partial(self._checked_consumer, given, stream.config, pedantic))
        others = [one.config for one in consumers.values() if one is not existing]
        work_queue, rivals, filters = stream.config.retention == "workqueue", others, len(config.filter_subjects)
        if work_queue and filters <= _FEW_FILTERS:
            rival = self._work_queues.rival(stream, config, consumers, existing)
            rivals = [] if rival is None else [rival]
        elif work_queue:
            filters += sum(max(len(one.filter_subjects), 1) for one in others)
        if existing is not None:
            if action == "create" and not same_consumer(config, existing.config):
                raise ApiError(ApiErrors.CONSUMER_ALREADY_EXISTS)
            if work_queue:
                await aside(filters, partial(check_work_queue_filters, config, rivals))
            if consumers.get(existing.name) is not existing:
                raise ApiError(ApiErrors.CONSUMER_NOT_FOUND)  # it was not used, and was deleted meanwhile
            if (sweep := self._update_consumer(stream, existing, config)) is not None:
                await finished(sweep)
            return existing
        if action == "update":
            raise ApiError(ApiErrors.CONSUMER_DOES_NOT_EXIST)
        await aside(filters, partial(self._quota.check_consumer, config, stream.config, others, rivals))
        name = config.durable_name or config.name
        fill_inactive_threshold(config, durable=config.durable)
        while not name or name in consumers:
            name = unique_id(self._rng, 8)
        return await self._make_consumer(stream, name, config)

    def _checked_consumer(self, given: ConsumerConfig, stream: StreamConfig, pedantic: bool) -> ConsumerConfig:
        """``check_consumer``, and the filters compiled, which may take as long."""
        from broker.jetstream.config.consumer_rules import check_consumer

        config = check_consumer(given, stream, self.limits, self.settings.server, pedantic=pedantic)
        filters_of(config.filters)
        return config

    async def _make_consumer(self, stream: Stream, name: str, config: ConsumerConfig) -> Consumer:
        """Create a consumer, open and in the log. A store error leaves nothing behind."""
        from broker.jetstream.consumer.start import starting_state

        start = await starting_state(stream, name, config)
        # A consumer in memory has no record, so nobody reads its configuration there.
        created = ConsumerCreate(name, config.to_json() if config.stored else {}, self.clock.now_ns(), start.record)
        consumer = self._consumer(stream, config, ConsumerState.created(created))
        # Register it before it counts what is pending, so that it is notified of removals meanwhile.
        consumers = self.consumers(stream)
        consumers[name] = consumer
        self._work_queues.added(stream, consumer)
        stream.interest.changed()
        # The answer to the request goes out first, as it nearly always does on nats-server.
        consumer.withhold()
        try:
            await consumer.open(start.listed)
        except BaseException:
            consumer.stop()
            self._work_queues.removing(stream, consumer)
            consumers.pop(name, None)
            stream.interest.consumer_left(consumer.waits_above_seq)
            raise
        self._subscriptions.subscribe_acks(consumer)
        self._consumer_record(stream, consumer, created)
        stream.log.wait(consumer.begin, of=stream)
        self.events.consumer("create", stream.name, name, stream.log)
        return consumer

    def _attach(self, stream: Stream, config: ConsumerConfig, state: ConsumerState, *,
                restored: bool = False) -> asyncio.Task[None]:
        """Add a consumer with its state; the task is done once it serves."""
        consumer = self._consumers[stream][state.name] = self._consumer(stream, config, state, restored=restored)
        self._work_queues.added(stream, consumer)
        self._subscriptions.subscribe_acks(consumer)
        return self.openings.start(consumer)

    def _consumer(self, stream: Stream, config: ConsumerConfig, state: ConsumerState, *,
                  restored: bool = False) -> Consumer:
        from broker.jetstream.consumer.consumer import Consumer

        consumer = Consumer(stream, config, state, self.bus, self.clock, self._rng, restored=restored,
                            long_reply_subjects=self.settings.js_ack_fc_v2)
        consumer.on_inactive = self._inactive
        return consumer

    def _inactive(self, consumer: Consumer) -> None:
        """The consumer was unused for its inactive_threshold."""
        _log.debug("consumer %s > %s is deleted: not used", consumer.stream.name, consumer.name)
        self.delete_consumer(consumer)

    def _consumer_record(self, stream: Stream, consumer: Consumer, record: RecordBody) -> None:
        if consumer.config.stored:
            self._record(stream, record)

    def _update_consumer(self, stream: Stream, consumer: Consumer,
                         config: ConsumerConfig) -> asyncio.Future[None] | None:
        """Returns: the running removal of what the consumer no longer waits for, or None."""
        from broker.jetstream.config.consumer_rules import check_consumer_update, fill_inactive_threshold

        check_consumer_update(consumer.config, config, lambda subject: self.bus.interest(subject.encode()))
        if config.inactive_threshold != consumer.config.inactive_threshold:
            fill_inactive_threshold(config, durable=consumer.config.durable)
        sweep = None
        if config != consumer.config:
            refiltered = config.filters != consumer.config.filters
            self._consumer_record(stream, consumer, ConsumerUpdate(consumer.name, config.to_json()))
            self._work_queues.removing(stream, consumer)
            consumer.update(config)
            self._work_queues.added(stream, consumer)
            if refiltered:
                sweep = stream.interest.consumer_left(consumer.waits_above_seq)
        if config.sourcing:
            # The stream that copies through it restarts at the last message it is sure to have.
            consumer.rewind()
        return sweep

    def pause_consumer(self, consumer: Consumer, until_ns: int | None) -> None:
        """Pause deliveries until ``until_ns`` (Unix UTC); None resumes them."""
        from broker.jetstream.config.consumer_rules import consumer_level
        from broker.jetstream.config.stream_rules import with_static_metadata

        config = consumer.config.copy()
        config.pause_until = until_ns
        config.metadata = with_static_metadata(config.metadata, consumer_level(config))
        self._update_consumer(self.stream(consumer.stream.name), consumer, config)

    def delete_consumer(self, consumer: Consumer) -> asyncio.Future[None] | None:
        """Delete a consumer; waiting pull requests are notified.

        Returns: the running removal of what only this consumer waited for, or None.
        """
        stream = self.streams.get(consumer.stream.name)
        if stream is None or self.consumers(stream).get(consumer.name) is not consumer:
            return None
        self._work_queues.removing(stream, consumer)
        del self._consumers[stream][consumer.name]
        # Record the sweep before the deletion: after a crash in between, the sweep finds nothing to remove.
        sweep = stream.interest.consumer_left(consumer.waits_above_seq)
        self._subscriptions.unsubscribe_acks(consumer)
        self._consumer_record(stream, consumer, ConsumerDelete(consumer.name))
        consumer.delete()
        self.events.consumer("delete", stream.name, consumer.name, stream.log)
        return sweep


def _written(check: Callable[[], StreamConfig]) -> StreamConfig:
    """The configuration that ``check`` returns, with the JSON of its long lists, which later answers need."""
    config = check()
    if config.elements >= LONG:
        config.to_json()
    return config


def _beside(subjects: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the subjects that are not among ``others``."""
    known = set(others)
    return [subject for subject in subjects if subject not in known]
