"""Streams that are being restored from an archive, from the request until they are complete or dropped.

    reserve ── the name ──> begin ── hidden, in the log ──┬── complete: one block makes it a stream, with its consumers
                                                          └── drop, or found at a start: deleted

Such a stream is hidden until it is complete: it is not among the account's streams, its subjects are not subscribed to,
and its record in the log is marked as being restored (``RESTORING``). A single block removes the mark and adds the
consumers, so a crash leaves the whole stream or none.

Does not own: reading archives and the transfer (backup), the messages (stream.refill).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.stream_create import RESTORING
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.state.consumer import ConsumerState

if TYPE_CHECKING:
    from broker.access.accounts import AccountLimits
    from broker.config.settings import JetStreamSettings
    from broker.jetstream.account.restore import OfflineStream
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.wire.advisories import AccountEvents
    from broker.storage.log.stream_log import StreamLog

__all__ = ["Incoming", "NewConsumer", "Parts"]


class NewConsumer(NamedTuple):
    """A consumer to be added, with its initial state."""

    config: ConsumerConfig
    record: ConsumerCreate


class Owner(Protocol):
    """The parts of the account that this module uses."""

    settings: JetStreamSettings
    events: AccountEvents

    @property
    def streams(self) -> Mapping[str, Stream]: ...
    @property
    def offline(self) -> Mapping[str, OfflineStream]: ...
    @property
    def limits(self) -> AccountLimits: ...


class Parts(NamedTuple):
    """Operations of the account on its streams."""

    neighbours: Mapping[str, StreamConfig]
    check_new: Callable[[StreamConfig], None]
    check_consumer: Callable[[ConsumerConfig, StreamConfig, Collection[ConsumerConfig]], None]
    make: Callable[[StreamConfig, None, int | None], Stream]
    forget: Callable[[Stream], None]
    add: Callable[[Stream], None]
    attach: Callable[[Stream, ConsumerConfig, ConsumerState], asyncio.Task[None]]


class Provenance(NamedTuple):
    """Facts about a restored stream that its archive does not have.

    ``created_ns``: when the original stream was created, by which streams that source from it recognise it; None: now.
    ``origins_restored``: the streams that it sources from are restored, too, with new times of creation. It continues
    where it was, whatever streams have their names now.
    """

    created_ns: int | None = None
    origins_restored: bool = False


class Incoming:
    """The streams of one account that are being restored.

    Attributes: ``names``: the names that they take; ``streams``: the streams that have begun, by name.
    """

    def __init__(self, account: Owner, streams: dict[str, Stream], names: set[str], parts: Parts) -> None:
        self._account = account
        self._parts = parts
        self.names = names
        self.streams = streams

    def reserve(self, given: StreamConfig) -> StreamConfig:
        """Check a configuration and take its name until ``drop`` or ``complete``.

        Returns: the configuration with its defaults. Raises: ApiError 10130, or the rule that it breaks.
        """
        from broker.jetstream.config.stream_rules import check_stream, required_level, with_static_metadata

        account = self._account
        config = check_stream(given, self._parts.neighbours, account.limits, account.settings.server, pedantic=False)
        config.metadata = with_static_metadata(config.metadata, required_level(config))
        if config.name in account.offline:
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=account.offline[config.name].reason)
        if config.name in account.streams or config.name in self.names:
            raise ApiError(ApiErrors.STREAM_NAME_EXIST_RESTORE_FAILED)
        self.names.add(config.name)
        return config

    def begin(self, config: StreamConfig, created_ns: int | None = None) -> Stream:
        """Make the stream, to be filled, created at ``created_ns`` or now. Raises: ApiError.

        Args: ``config`` as ``reserve`` returned it.
        """
        name = config.name
        if config.num_replicas > 1:
            raise ApiError(ApiErrors.STREAM_REPLICAS_NOT_SUPPORTED)
        self.names.discard(name)
        try:
            self._parts.check_new(config)
        finally:
            self.names.add(name)
        stream = self.streams[name] = self._parts.make(config, None, created_ns)
        stream.enforcement.suspend()
        record = stream.enforcement.create_record()
        record.extra[RESTORING] = True
        stream.log.block(stream).add(record)
        return stream

    def check_consumer(self, given: ConsumerConfig, stream: Stream,
                       others: Collection[ConsumerConfig]) -> ConsumerConfig:
        """Check a consumer of ``stream``, which is to have the consumers ``others``, too.

        Returns: the configuration with its defaults. Raises: ApiError.
        """
        from broker.jetstream.config.consumer_rules import check_consumer, fill_inactive_threshold

        account = self._account
        config = check_consumer(given, stream.config, account.limits, account.settings.server)
        self._parts.check_consumer(config, stream.config, others)
        fill_inactive_threshold(config, durable=config.durable)
        return config

    def complete(self, stream: Stream, consumers: Collection[NewConsumer]) -> list[asyncio.Task[None]]:
        """Make the stream one of the account's. Returns: the openings of its consumers, each done once it serves."""
        block = stream.log.block(stream)
        block.add(StreamUpdate(stream.config.to_json(), {RESTORING: None}))
        for consumer in consumers:
            if consumer.config.stored:
                block.add(consumer.record)
        del self.streams[stream.name]
        self.names.discard(stream.name)
        openings = [self._parts.attach(stream, consumer.config, ConsumerState.created(consumer.record))
                    for consumer in consumers]
        stream.interest.changed()
        self._parts.add(stream)
        stream.log.urgent()
        events = self._account.events
        events.stream("create", stream.name, stream.log)
        for consumer in consumers:
            events.consumer("create", stream.name, consumer.record.name, stream.log)
        return openings

    def drop(self, name: str) -> None:
        """Give the name back, and delete everything that has been stored of the stream."""
        self.names.discard(name)
        if (stream := self.streams.pop(name, None)) is not None:
            self.discard(stream)

    def discard(self, stream: Stream) -> None:
        """Delete a stream that is not among the account's streams."""
        if stream.offline is None:
            stream.log.block(stream).add(StreamDelete())
            stream.log.urgent()
        self._parts.forget(stream)
        stream.close()
        stream.live.free_blocks()

    def release(self, log: StreamLog | None = None) -> None:
        """Drop the streams with this log, or all of them, and write nothing: the next start deletes those that have
        begun."""
        for name, stream in list(self.streams.items()):
            if log is None or stream.log is log:
                del self.streams[name]
                self.names.discard(name)
                self._parts.forget(stream)
                stream.close()
        if log is None:
            self.names.clear()
