"""The quota of one account: the bytes that its streams use and reserve, and the limits of the account and the server.

    used        bytes of live messages: bounds publishes (``Usage``)
    reserved    ``max_bytes`` of all streams that have one: bounds the creation and update of streams

Source: nats-server, server/jetstream.go checkBytesLimits, server/stream.go configUpdateCheck.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from broker.access.accounts import TIER, AccountLimits
from broker.config.settings import ServerLimits
from broker.jetstream.usage import AccountUsage
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.account.elsewhere import ElsewhereStream
    from broker.jetstream.account.host import Host
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.usage import Usage

__all__ = ["Quota", "reserved"]

STORAGES = ("memory", "file")

NO_ROOM = {"memory": ApiErrors.MEMORY_RESOURCES_EXCEEDED, "file": ApiErrors.STORAGE_RESOURCES_EXCEEDED}
"""The error for each storage kind when reservations would exceed the limit."""


def reserved(streams: Mapping[str, Stream], storage: str, *, except_stream: Stream | None = None) -> int:
    """Return the total ``max_bytes`` of all streams of a storage kind, except one stream."""
    return sum(stream.config.max_bytes for stream in streams.values()
               if stream.config.storage == storage and stream.config.max_bytes > 0 and stream is not except_stream)


class Quota:
    """The limits and usage of the account ``name``.

    ``streams`` is the account's own mapping, ``incoming`` the mapping of streams that are being restored.
    """

    def __init__(self, host: Host, name: str, streams: Mapping[str, Stream], limits: AccountLimits,
                 server: ServerLimits) -> None:
        self._host = host
        self._name = name
        self._streams = streams
        self._server = server
        self._usages: dict[str, Usage] = {}
        self.incoming: Mapping[str, Stream] = {}
        self.elsewhere: Mapping[str, ElsewhereStream] = {}
        self._coming_streams = 0
        self.coming_bytes = dict.fromkeys(STORAGES, 0)
        """The reservations of streams that are being created or updated, by storage kind."""
        self.limits = limits
        self.change(limits)

    def change(self, limits: AccountLimits) -> None:
        """Change the limits; existing streams stay, even if they exceed them."""
        self.limits = limits
        for storage in STORAGES:
            self._usages[storage] = self._usage(storage)
        for stream in (*self._streams.values(), *self.incoming.values()):
            stream.live.count_in(self._usages[stream.config.storage])

    def _usage(self, storage: str) -> Usage:
        server = self._host.server_usage(storage)
        limit = self.limits.bytes_max(storage)
        return server if limit < 0 else AccountUsage(self._name, storage, limit, server)

    def usage(self, storage: str) -> Usage:
        """Return the ``Usage`` in which streams of that storage kind count their bytes."""
        return self._usages[storage]

    def info(self, streams: int, consumers: int, more_bytes: int = 0) -> dict[str, Any]:
        """Return usage and limits as members of account info. Source: nats-server, server/jetstream.go
        JetStreamUsage.

        Args: ``more_bytes``: the bytes of other brokers' streams."""
        used = {**self.figures(), "streams": streams, "consumers": consumers}
        used["storage"] += more_bytes
        if not self.limits.tiers:
            return {**used, "limits": self.limits.to_json()}
        unused, unset = dict.fromkeys(used, 0), {name: type(value)(0) for name, value in self.limits.to_json().items()}
        return {**used, "limits": unset, "tiers": {
            name: {**(used if name == TIER else unused), "limits": limits.to_json()}
            for name, limits in self.limits.tiers}}

    def figures(self) -> dict[str, int]:
        """Return the bytes used and reserved, under their names in account info."""
        shown = {"memory": 0, "storage": 0}
        for stream in self._streams.values():
            shown["memory" if stream.config.storage == "memory" else "storage"] += stream.size_bytes
        return {**shown, "reserved_memory": reserved(self._streams, "memory"),
                "reserved_storage": reserved(self._streams, "file") + self.reserved_elsewhere("file")}

    @contextmanager
    def coming(self, config: StreamConfig, before: StreamConfig | None = None) -> Iterator[None]:
        """Count a stream, or its larger reservation, while the change is being stored; ``before``: of an update."""
        had = max(before.max_bytes, 0) if before is not None else 0
        more, made = max(max(config.max_bytes, 0) - had, 0), before is None
        self.coming_bytes[config.storage] += more
        self._coming_streams += made
        try:
            yield
        finally:
            self.coming_bytes[config.storage] -= more
            self._coming_streams -= made

    def check_create(self, config: StreamConfig, add_bytes: int) -> None:
        """Check that a stream and its reservation of ``add_bytes`` fit. An existing one of that name does not count.

        Raises: ApiError 10027, 10026, 10028, 10047.
        """
        existing = self._streams.get(config.name)
        streams = (len(self._streams) + len(self.incoming) + len(self.elsewhere) + self._coming_streams
                   - (existing is not None))
        if 0 < self.limits.max_streams <= streams:
            raise ApiError(ApiErrors.MAXIMUM_STREAMS_LIMIT)
        self._check_max_consumers(config)
        storage = config.storage
        self._check_bytes(storage, lambda: self._reserved(storage, existing) + add_bytes,
                          lambda: self._host.reserved(storage, except_stream=existing) + add_bytes)

    def check_update(self, stream: Stream, config: StreamConfig) -> None:
        """Check that the stream's new configuration fits. Lowering ``max_bytes`` always fits the server.

        Raises: ApiError 10026, 10028, 10047.
        """
        self._check_max_consumers(config)
        storage, wanted = config.storage, max(config.max_bytes, 0)
        more = max(wanted - max(stream.config.max_bytes, 0), 0)
        self._check_bytes(storage, lambda: self._reserved(storage, stream) + wanted,
                          lambda: self._host.reserved(storage) + more)

    def check_update_elsewhere(self, before: StreamConfig, config: StreamConfig) -> None:
        """Do as ``check_update`` for a stream of another broker."""
        self._check_max_consumers(config)
        storage = config.storage
        more = max(max(config.max_bytes, 0) - max(before.max_bytes, 0), 0)
        self._check_bytes(storage, lambda: self._reserved(storage, None) + more,
                          lambda: self._host.reserved(storage) + more)

    def _reserved(self, storage: str, except_stream: Stream | None) -> int:
        return (reserved(self._streams, storage, except_stream=except_stream) + reserved(self.incoming, storage)
                + self.coming_bytes[storage] + self.reserved_elsewhere(storage))

    def reserved_elsewhere(self, storage: str) -> int:
        """Return the total ``max_bytes`` of the streams of other brokers."""
        return sum(one.config.max_bytes for one in self.elsewhere.values()
                   if one.config.storage == storage and one.config.max_bytes > 0)

    def _check_max_consumers(self, config: StreamConfig) -> None:
        if config.max_consumers > 0 and 0 < self.limits.max_consumers < config.max_consumers:
            raise ApiError(ApiErrors.MAXIMUM_CONSUMERS_LIMIT)

    def _check_bytes(self, storage: str, account_bytes: Callable[[], int], server_bytes: Callable[[], int]) -> None:
        """Check reservations against the limits. Only those with a limit are added up: there may be very many streams.

        Raises: ApiError 10028 or 10047 if the account or the server would exceed its reservation limit.
        """
        account_max, server_max = self.limits.bytes_max(storage), self._server.bytes_max(storage)
        if 0 <= account_max < account_bytes() or 0 <= server_max < server_bytes():
            raise ApiError(NO_ROOM[storage])

    def check_consumer(self, config: ConsumerConfig, stream: StreamConfig, others: Collection[ConsumerConfig],
                       rivals: Collection[ConsumerConfig] | None = None) -> None:
        """Check that a stream with the consumers ``others`` may have one more.

        Args: ``rivals``: the consumers that may get the same messages, if they are known.
        Raises: ApiError 10026, 10102, or 10099, 10100, 10101 of a work queue.
        """
        from broker.jetstream.config.consumer_rules import check_work_queue
        from broker.jetstream.config.stream_rules import NAME_MAX

        if 0 < self.consumers_max(stream) <= sum(not one.copies for one in others):
            raise ApiError(ApiErrors.MAXIMUM_CONSUMERS_LIMIT)
        if stream.retention == "workqueue":
            check_work_queue(config, others if rivals is None else rivals)
        if len((config.durable_name or config.name).encode()) > NAME_MAX:
            raise ApiError(ApiErrors.CONSUMER_NAME_TOO_LONG, max=NAME_MAX)

    def consumers_max(self, config: StreamConfig) -> int:
        """Return the number of consumers that a stream may have; 0: any number."""
        caps = [cap for cap in (config.max_consumers, self.limits.max_consumers) if cap > 0]
        return min(caps, default=max(self._server.default_max_consumers, 0))
