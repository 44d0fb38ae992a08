"""The consumers of one account's streams: creates, updates, deletes and restores them.

Owns: which consumers exist, and their records in the log.
Does not own: the form of requests (api), configuration rules (config.consumer_rules), where a new consumer starts
(consumer.start), what happens inside a consumer, opening restored consumers (restore).

As in ``changes``, a change is decided from the live state and written into the stream's open block; the answer waits
for the log. An inactive consumer may be deleted at any time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from broker.base.clock import Clock
from broker.config.settings import JetStreamSettings
from broker.jetstream.account.long_work import in_thread_if_long
from broker.jetstream.account.restore import Openings
from broker.jetstream.account.sweeps import finished
from broker.jetstream.account.work_queues import WorkQueues
from broker.jetstream.filters import filters_of
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import unique_id
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_delete import ConsumerDelete
from broker.storage.format.records.consumer_update import ConsumerUpdate
from broker.storage.state.consumer import ConsumerState

if TYPE_CHECKING:
    from broker.jetstream.account.quota import Quota
    from broker.jetstream.account.subscriptions import Subscriptions
    from broker.jetstream.bus import Bus
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.consumer.delivery.receiver import Receiver
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.wire.advisories import AccountEvents

__all__ = ["Consumers"]

_log = logging.getLogger(__name__)

_FEW_FILTERS = 16
"""The largest number of filters that are each compared with the collected filters of a work queue's consumers."""

_CONSUMERS_AT_ONCE = 128
"""Consumers deleted in one turn of the loop: some 2 ms."""


class Consumers:
    """The consumers of one account, by stream and name; ``streams`` is the account's own mapping.

    Args: ``receiver_of`` returns the receiver of a consumer that serves another protocol than JetStream's.
    Attributes: ``openings``: the restored consumers that do not serve yet.
    """

    def __init__(self, streams: Mapping[str, Stream], bus: Bus, clock: Clock, rng: random.Random,
                 settings: JetStreamSettings, quota: Quota, subscriptions: Subscriptions,
                 events: AccountEvents, receiver_of: Callable[[Stream, ConsumerConfig], Receiver | None]) -> None:
        self.openings = Openings()
        self._receiver_of = receiver_of
        self._streams = streams
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._quota = quota
        self._subscriptions = subscriptions
        self._events = events
        self._by_stream: dict[Stream, dict[str, Consumer]] = {}
        self._work_queues = WorkQueues()

    def of(self, stream: Stream) -> dict[str, Consumer]:
        """Return the consumers of a live stream by name; none for a deleted one."""
        return self._by_stream.get(stream, {})

    @property
    def count(self) -> int:
        """The number of consumers of all streams."""
        return sum(map(len, self._by_stream.values()))

    # --- streams ------------------------------------------------------------------------------------------------------

    def add_stream(self, stream: Stream, consumers: dict[str, Consumer]) -> None:
        """Keep the stream's consumers in the empty mapping ``consumers``, which the stream reads as its listeners."""
        self._by_stream[stream] = consumers

    def remove_stream(self, stream: Stream) -> None:
        """Remove all consumers of a stream. Clears the mapping in place, because the stream reads the same one."""
        self._work_queues.remove_stream(stream)
        self._by_stream.pop(stream, {}).clear()

    async def delete_all(self, stream: Stream) -> list[str]:
        """Delete the consumers of a stream that is being deleted, without records of their own. Returns their names."""
        consumers, deleted = self.of(stream), []
        self._work_queues.remove_stream(stream)
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

    def shutdown(self, stream: Stream, *, moves: bool = False) -> None:
        """Stop the stream's consumers, notifying waiting pull requests; ``moves``: another broker goes on."""
        for consumer in self.of(stream).values():
            self._subscriptions.unsubscribe_acks(consumer)
            consumer.shutdown(moves=moves)

    def stop(self, stream: Stream) -> None:
        """Stop the stream's consumers without notifying clients."""
        for consumer in self.of(stream).values():
            self._subscriptions.unsubscribe_acks(consumer)
            consumer.stop()

    def clear(self) -> None:
        """Remove all consumers, which are stopped."""
        self._by_stream.clear()
        self._work_queues = WorkQueues()

    def check_limits(self, stream: Stream, config: StreamConfig) -> None:
        """Refuse a stream's new limits if its consumers exceed them. Raises: ApiError 10069."""
        old, new = stream.config.consumer_limits, config.consumer_limits
        if old == new:
            return
        over = [name for name, consumer in self.of(stream).items()
                if 0 < new.inactive_threshold < consumer.config.inactive_threshold
                or 0 < new.max_ack_pending < consumer.config.max_ack_pending]
        if over:
            raise ApiError(ApiErrors.STREAM_UPDATE, err=f"change to limits violates consumers: {', '.join(over)}")

    # --- one consumer -------------------------------------------------------------------------------------------------

    async def create(self, stream: Stream, given: ConsumerConfig, action: str = "", *,
                     pedantic: bool = False) -> Consumer:
        """Create a consumer, or update the one of that name.

        Args: ``action`` "create" refuses to update a consumer, "update" refuses to create one.
        Raises: ApiError: 10148, 10149, 10026, 10012, or the rule that the configuration breaks.
        """
        from broker.jetstream.config.consumer_rules import (
            check_work_queue_filters,
            fill_inactive_threshold,
            fit_to_copy,
            same_consumer,
        )

        consumers = self.of(stream)
        existing = consumers.get(given.durable_name or given.name)
        if given.sourcing:
            given = fit_to_copy(given, stream.config, existing.config if existing is not None else None,
                                lambda: unique_id(self._rng, 8))
            existing = consumers.get(given.durable_name or given.name)
        if existing is not None:
            given = given.copy()
            given.pause_until = existing.config.pause_until
        config = await in_thread_if_long(len(given.filter_subjects),
                                         partial(self._checked, given, stream.config, pedantic))
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
                await in_thread_if_long(filters, partial(check_work_queue_filters, config, rivals))
            if consumers.get(existing.name) is not existing:
                raise ApiError(ApiErrors.CONSUMER_NOT_FOUND)  # it was inactive, and was deleted meanwhile
            if (sweep := self._update(stream, existing, config)) is not None:
                await finished(sweep)
            return existing
        if action == "update":
            raise ApiError(ApiErrors.CONSUMER_DOES_NOT_EXIST)
        await in_thread_if_long(filters, partial(self._quota.check_consumer, config, stream.config, others, rivals))
        name = config.durable_name or config.name
        fill_inactive_threshold(config, durable=config.durable)
        while not name or name in consumers:
            name = unique_id(self._rng, 8)
        return await self._create(stream, name, config)

    def _checked(self, given: ConsumerConfig, stream: StreamConfig, pedantic: bool) -> ConsumerConfig:
        """Return the configuration with its defaults, checked. Compiles its filters, too, which may take as long."""
        from broker.jetstream.config.consumer_rules import check_consumer

        config = check_consumer(given, stream, self._quota.limits, self._settings.server, pedantic=pedantic)
        filters_of(config.filters)
        return config

    async def _create(self, stream: Stream, name: str, config: ConsumerConfig) -> Consumer:
        """Create a consumer, open it and record it. After a store error no part of it is left."""
        from broker.jetstream.consumer.start import starting_state

        start = await starting_state(stream, name, config)
        # A consumer in memory has no record, so nobody reads its configuration there.
        created = ConsumerCreate(name, config.to_json() if config.stored else {}, self._clock.now_ns(), start.record)
        consumer = self._make(stream, config, ConsumerState.created(created))
        # Register the consumer before it counts what is pending, so that it is notified of removals meanwhile.
        consumers = self.of(stream)
        consumers[name] = consumer
        self._work_queues.add(stream, consumer)
        stream.interest.changed()
        # The answer to the request is sent before the first delivery, as nearly always on nats-server.
        consumer.withhold()
        try:
            await consumer.open(start.listed)
        except BaseException:
            consumer.stop()
            self._work_queues.remove(stream, consumer)
            consumers.pop(name, None)
            stream.interest.consumer_left(consumer.waits_above_seq)
            raise
        self._subscriptions.subscribe_acks(consumer)
        self._record(stream, consumer, created)
        stream.log.wait(consumer.begin, of=stream)
        self._events.consumer("create", stream.name, name, stream.log)
        return consumer

    def attach(self, stream: Stream, config: ConsumerConfig, state: ConsumerState, *,
               restored: bool = False) -> asyncio.Task[None]:
        """Add a consumer with its state, without a record. Returns: a task that is done once the consumer serves."""
        consumer = self._by_stream[stream][state.name] = self._make(stream, config, state, restored=restored)
        self._work_queues.add(stream, consumer)
        self._subscriptions.subscribe_acks(consumer)
        return self.openings.start(consumer)

    def _make(self, stream: Stream, config: ConsumerConfig, state: ConsumerState, *,
              restored: bool = False) -> Consumer:
        from broker.jetstream.consumer.consumer import Consumer

        consumer = Consumer(stream, config, state, self._bus, self._clock, self._rng, restored=restored,
                            long_reply_subjects=self._settings.js_ack_fc_v2,
                            receiver=self._receiver_of(stream, config) if config.metadata else None)
        consumer.on_inactive = self._delete_inactive
        return consumer

    def _delete_inactive(self, consumer: Consumer) -> None:
        """Delete a consumer that was not used for its inactive_threshold."""
        _log.debug("consumer %s > %s is deleted: not used", consumer.stream.name, consumer.name)
        self.delete(consumer)

    def _record(self, stream: Stream, consumer: Consumer, record: RecordBody) -> None:
        """Add a record to the stream's open block, unless the consumer is kept in memory."""
        if consumer.config.stored:
            stream.log.block(stream).add(record)
            stream.log.urgent()

    def _update(self, stream: Stream, consumer: Consumer, config: ConsumerConfig) -> asyncio.Future[None] | None:
        """Apply a checked configuration.

        Returns: the running removal of messages that no consumer waits for any more, or None.
        """
        from broker.jetstream.config.consumer_rules import check_consumer_update, fill_inactive_threshold

        check_consumer_update(consumer.config, config, lambda subject: self._bus.interest(subject.encode()))
        if config.inactive_threshold != consumer.config.inactive_threshold:
            fill_inactive_threshold(config, durable=consumer.config.durable)
        sweep = None
        if config != consumer.config:
            refiltered = config.filters != consumer.config.filters
            self._record(stream, consumer, ConsumerUpdate(consumer.name, config.to_json()))
            self._work_queues.remove(stream, consumer)
            consumer.update(config)
            self._work_queues.add(stream, consumer)
            if refiltered:
                sweep = stream.interest.consumer_left(consumer.waits_above_seq)
        if config.sourcing:
            # The stream that copies through it restarts at the last message that it certainly has.
            consumer.rewind()
        return sweep

    def pause(self, consumer: Consumer, until_ns: int | None) -> None:
        """Pause deliveries until ``until_ns`` (Unix UTC); None resumes them."""
        from broker.jetstream.config.consumer_rules import consumer_level
        from broker.jetstream.config.stream_rules import with_static_metadata

        config = consumer.config.copy()
        config.pause_until = until_ns
        config.metadata = with_static_metadata(config.metadata, consumer_level(config))
        self._update(self._streams[consumer.stream.name], consumer, config)

    def delete(self, consumer: Consumer) -> asyncio.Future[None] | None:
        """Delete a consumer; waiting pull requests are notified.

        Returns: the running removal of messages that only this consumer waited for, or None.
        """
        stream = self._streams.get(consumer.stream.name)
        if stream is None or self.of(stream).get(consumer.name) is not consumer:
            return None
        self._work_queues.remove(stream, consumer)
        del self._by_stream[stream][consumer.name]
        # Record the sweep before the deletion: after a crash in between, the sweep finds nothing to remove.
        sweep = stream.interest.consumer_left(consumer.waits_above_seq)
        self._subscriptions.unsubscribe_acks(consumer)
        self._record(stream, consumer, ConsumerDelete(consumer.name))
        consumer.delete()
        self._events.consumer("delete", stream.name, consumer.name, stream.log)
        return sweep
