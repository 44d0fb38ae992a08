"""One account: makes its parts, finds its streams by name, restores and releases them.

    Account "$G" ─┬─ served streams ── Stream "ORDERS" ── Consumer "billing"
                  ├─ changes ── admission ── quota, claims of subjects
                  └─ incoming: restored from archives

Does not own: changes of streams (changes) and of consumers (consumers), the form of requests (api), what happens inside
a stream, what streams receive from the bus (subscriptions), what the limits allow (quota).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker import JETSTREAM_API_LEVEL, NATS_SERVER_VERSION
from broker.access.accounts import AccountLimits
from broker.base.clock import Clock
from broker.config.settings import JetStreamSettings
from broker.jetstream.account.admission import Admission
from broker.jetstream.account.changes import StreamChanges
from broker.jetstream.account.consumers import Consumers
from broker.jetstream.account.double_storage import DoubleStorage
from broker.jetstream.account.elsewhere import Elsewhere
from broker.jetstream.account.external import locate
from broker.jetstream.account.held import HeldMessages
from broker.jetstream.account.incoming import Incoming, Parts
from broker.jetstream.account.long_work import at_once
from broker.jetstream.account.neighbours import Neighbours
from broker.jetstream.account.quota import Quota
from broker.jetstream.account.restore import OfflineStream, stored_config, stored_consumers
from broker.jetstream.account.served_streams import ServedStreams
from broker.jetstream.account.subscriptions import Subscriptions
from broker.jetstream.stream.upstream.link import Remote
from broker.jetstream.stream.upstream.upstreams import Upstreams
from broker.jetstream.wire.advisories import AccountEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.account.host import Host
    from broker.jetstream.account.other_brokers import OtherBrokers
    from broker.jetstream.bus import Bus, Msg
    from broker.jetstream.config.stream import StreamSource
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.format.request import Version
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.staging.answers import Answer
    from broker.storage.state.stream import StreamState

__all__ = ["Account"]

_log = logging.getLogger(__name__)

_OPENED_AT_ONCE = 32
"""Consumers of mirrors and sources that are reset or created at the same time."""


class Account:
    """One account: its streams by name, and its parts.

    Attributes:
        ``streams``: the live streams by name.
        ``offline``: the streams that cannot be used, by name, with the reason.
        ``elsewhere``: the streams in shards of other brokers, by name, if this broker owns shard 0.
        ``admission``: the checks of stream configurations.
        ``changes``: creates, updates and deletes streams.
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
        self._quota = quota = Quota(host, name, self.streams, limits, settings.server)
        self.upstreams = Upstreams(FollowerParts(
            self._origin, clock, bus, rng, asyncio.Semaphore(_OPENED_AT_ONCE)), host.external)
        overlaps = None
        if settings.overlapping_streams:
            from broker.jetstream.stream.overlaps import Overlaps

            overlaps = Overlaps()
        self._subscriptions = subscriptions = Subscriptions(bus, overlaps)
        self.elsewhere = Elsewhere(self.streams, subscriptions)
        self.consumers = Consumers(self.streams, bus, clock, rng, settings, quota, subscriptions, self.events,
                                   host.receiver_of)
        self._served = served = ServedStreams(host, name, bus, self.streams, quota, subscriptions, self.consumers,
                                              self.upstreams, self.elsewhere)
        self.offline = served.offline
        incoming: dict[str, Stream] = {}
        incoming_names: set[str] = set()
        quota.incoming, quota.elsewhere = incoming, self.elsewhere
        neighbours = Neighbours(self.streams, incoming, self.offline, self.elsewhere)
        self.admission = Admission(served, self.elsewhere, incoming_names, neighbours, quota, subscriptions, settings)
        self.incoming = Incoming(self, incoming, incoming_names, Parts(
            neighbours, self.admission.check_restored, quota.check_consumer, served.make, self.consumers.remove_stream,
            self._add_restored, self.consumers.attach))
        self._double_storage = DoubleStorage(name, bus, lambda: host.leafs)
        self.changes = StreamChanges(host, name, clock, self.stream, served, self.elsewhere, self.admission, quota,
                                     self.consumers, self.events, self._double_storage)

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

    def has(self, entry: CatalogueEntry) -> bool:
        """Return whether this broker serves the stream of an entry, or has it and cannot use it."""
        stream = self.streams.get(entry.name)
        return entry.name in self.offline if stream is None else stream.stream_id == entry.stream_id

    def stream(self, name: str) -> Stream:
        """Return the live stream of that name.

        Raises: ApiError 10059; 10194 if the stream is offline; 10008 if another broker has it, or may have it: only the
            owner of shard 0 knows which streams there are.
        """
        stream = self.streams.get(name)
        if stream is None:
            gone = self.offline.get(name)
            if gone is None:
                other = self.elsewhere.get(name)
                if (other is not None and not other.entry.deleting) or not self._host.leads:
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
        """Return the eraser of the shard of ``stream``. Raises: ApiError 10008 while there is none."""
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

    async def infos_elsewhere(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the infos of streams in other brokers' shards that come in time, by name."""
        wanted = [(name, self.elsewhere[name].entry.shard) for name in names if name in self.elsewhere]
        return await self._host.catalogue.infos(self.name, wanted) if wanted else {}

    async def shown_elsewhere(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""
        return await self._host.catalogue.shown(entry)

    def _info(self, shown: dict[str, Any]) -> dict[str, Any]:
        if self.domain:
            shown["domain"] = self.domain
        shown["api"] = {"level": JETSTREAM_API_LEVEL, "total": self.api_total, "errors": self.api_errors}
        return shown

    # --- life ---------------------------------------------------------------------------------------------------------

    def restore(self, states: Iterable[StreamState]) -> list[asyncio.Task[None]]:
        """Restore the streams from their persisted state, except those that have moved to other shards; requests are
        served from now on. More shards may follow.

        Returns: the openings of their consumers, each done once its consumer serves. After an error, nothing is left of
            the stream that could not be restored.
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
            self.elsewhere.forget(state.name, state.stream_id)
            return []
        stream = self._served.make(config, state)
        if state.restoring:
            self.incoming.discard(stream)
            return []
        tasks: list[asyncio.Task[None]] = []
        try:
            for name, consumer_config in stored_consumers(state).items():
                tasks.append(self.consumers.attach(stream, consumer_config, state.consumers[name], restored=True))
            if len(tasks) < len(state.consumers):
                stream.interest.keep_all()
            self._add_restored(stream)
        except BaseException:
            for task in tasks:
                task.cancel()
            self._served.drop(stream)
            raise
        return tasks

    def _add_restored(self, stream: Stream) -> None:
        at_once(self._served.add_anyway(stream))

    def prepare_shutdown(self, log: StreamLog | None = None) -> None:
        """Stop all consumers, notifying waiting pull requests, and let each stream write its last record.

        Args: ``log``: only for the streams with this log, which another broker takes over; None: for all streams.
        """
        for stream in list(self.streams.values()):
            if log is None or stream.log is log:
                self._served.shut_down(stream, moves=log is not None)

    async def hold(self, stream: Stream) -> HeldMessages:
        """Stop a stream that moves to another shard, and hold the messages to it; they do not reach it any more.

        Call it with the lock of its name (``StreamChanges.lock_of``). Its last records are sequenced when this returns,
        and it can only be restored.
        """
        held = HeldMessages(self.bus, stream, self.consumers.of(stream).values())
        held.add(stream.queue.take())
        self._served.shut_down(stream, moves=True)
        stream.log.urgent()
        await self.consumers.openings.cancel_of(list(self.consumers.of(stream).values()))
        self._served.release(stream)
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
            self._served.release(stream)
        self.incoming.release(log)

    def release_offline(self, names: Iterable[str]) -> None:
        """Forget streams that cannot be used: their shard is lost."""
        for name in names:
            self.offline.pop(name, None)

    # --- origins of mirrors and sources -------------------------------------------------------------------------------

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
