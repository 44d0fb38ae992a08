"""The gateway: NATS Streaming clients on the streams of one account.

    client ── requests on _STAN.… ──> Gateway ──> Clients (Heartbeats), Subscriptions (Group), Publishing
                                                        │                      │                  │
                                                   Registry (stream STAN)   consumers      streams STAN_<channel>

Owns: the subjects, the registered clients, and the order in which requests of one client are handled. It exists as long
as the process; ``open`` and ``close`` follow JetStream's, when this broker gets and loses the store.
Does not own: subscriptions, channels, messages.

Everything that must survive a crash is in the same log as the messages: positions and unacknowledged messages in
consumers, registrations in the registry. An answer to a client is sent once that is stored.

Source: nats-streaming-server, server/server.go: connectCB, processCloseRequest, processSubscriptionRequest,
processUnsubscribeRequest, processClientPings, processAckMsg.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError, Message

from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import secret_id
from broker.storage.objectstore.base import StoreError
from broker.streaming.channels import Channels
from broker.streaming.client import PROTOCOL, Client
from broker.streaming.errors import StanError, StanErrors
from broker.streaming.group import Group
from broker.streaming.heartbeats import Heartbeats
from broker.streaming.inactivity import Inactivity
from broker.streaming.names import is_client_id, is_inbox, stream_of
from broker.streaming.partitions import Partition
from broker.streaming.publishing import Publishing
from broker.streaming.registry import Registry
from broker.streaming.stored import CONSUMER_KEY
from broker.streaming.subjects import Subjects
from broker.streaming.subscriptions import Subscriptions, check_request
from broker.streaming.traffic import Traffic
from broker.streaming.wire import stan_pb2 as wire
from broker.streaming.wire.encoding import ack_seqs, by_subject

if TYPE_CHECKING:
    from broker.config.streaming import StreamingSettings
    from broker.jetstream.bus import BatchHandler, Msg, Source
    from broker.jetstream.bus import Subscription as BusSubscription
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.engine import JetStream
    from broker.jetstream.stream.stream import Stream
    from broker.streaming.subscription import Subscription

__all__ = ["Gateway"]

log = logging.getLogger(__name__)

_DUPLICATE_TIMEOUT_NS = 500_000_000
"""How long the client that has an ID may take to answer before another one gets the ID."""
_REGISTRATION_SECONDS = 1.0
_PARTITION_CHECK_SECONDS = 5.0


class Gateway:
    """The gateway of one broker. Args: ``account`` has the streams of the channels."""

    def __init__(self, jetstream: JetStream, settings: StreamingSettings, account: str = "$G") -> None:
        self.settings = settings
        self.clients: dict[str, Client] = {}
        self.server_id = ""
        self.serving = False
        self.traffic = Traffic()
        self.clock = jetstream.clock
        self._conn_ids: dict[bytes, Client] = {}
        self._connecting: set[str] = set()
        """The IDs that a second client asks for; meanwhile, a third one is refused."""
        self._jetstream = jetstream
        self._account_name = account
        self._groups: dict[str, Group] = {}
        self._handlers: list[BusSubscription] = []
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._partition: Partition | None = None
        self._joined = asyncio.Event()
        """Set when a client is registered; then replaced by another one."""
        jetstream.receivers = self._receiver_of

    # --- life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Restore the registrations, and serve clients. Raises: ValueError, if the store is another cluster's,
        or if the account has no JetStream; ApiError; StoreError."""
        account = self._jetstream.accounts.get(self._account_name)
        if account is None:
            raise ValueError(f"account {self._account_name}, which is to have the channels, has no JetStream")
        self._bus = bus = account.bus
        self._registry = await Registry.open(account)
        records = await self._registry.load()
        server = records.get("server")
        if server is None:
            server = {"server_id": secret_id(), "cluster_id": self.settings.cluster_id}
            await self._registry.put("server", server)
        if server["cluster_id"] != self.settings.cluster_id:
            raise ValueError(f"Cluster ID {self.settings.cluster_id!r} does not match recovered value of "
                             f"{server['cluster_id']!r}")
        self.server_id = server["server_id"]
        self.subjects = subjects = Subjects.of(self.settings.discover_prefix, self.settings.cluster_id, self.server_id)
        self.channels = Channels(account, self.settings,
                                 lambda stream, channel: self.subscriptions.resume(stream, channel))
        self._heartbeats = Heartbeats(bus, account.clock, self.settings, subjects.heartbeat,
                                      lambda client: self.subscriptions.client_answers(client.id), self._lost)
        for key, record in records.items():
            if key.startswith("client."):
                try:
                    self._add(Client.stored(key.removeprefix("client."), record))
                except (KeyError, TypeError, ValueError) as error:
                    log.warning("the registration %s of NATS Streaming is not valid (%r); it is ignored", key, error)
        self.subscriptions = Subscriptions(account, self._registry, self.channels, self._groups, self.traffic)
        self.subscriptions.restore(records, self.clients)
        publish_subjects = [subjects.pub + ".>"]
        if self.settings.partitioning:
            self._partition = Partition(bus, self.settings.cluster_id, self.server_id,
                                        [channel for channel, _ in self.settings.channels], self._start)
            publish_subjects = [f"{subjects.pub}.{channel}" for channel in self._partition.widest()]
        self._publishing = Publishing(bus, self.channels, self._registered, self._start, self.traffic,
                                      None if self._partition is None else self._registration)
        for subject, handler in (
                (subjects.discover, self._each(wire.ConnectRequest, self._on_connect)),
                *((subject, self._publishing.on_msgs) for subject in publish_subjects),
                (subjects.subscribe, self._each(wire.SubscriptionRequest, self._on_subscribe)),
                (subjects.unsubscribe, self._each(wire.UnsubscribeRequest, self._on_unsubscribe)),
                (subjects.sub_close, self._each(wire.UnsubscribeRequest, self._on_sub_close)),
                (subjects.close, self._each(wire.CloseRequest, self._on_close)),
                (subjects.ping, self._each(wire.Ping, self._on_ping)),
                (subjects.ack + ".*", self._on_acks)):
            self._handlers.append(bus.subscribe(subject.encode(), handler))
        await self.subscriptions.start()
        inactivity = Inactivity(account.clock, self.settings, self.channels, self.subscriptions.in_use,
                                self.subscriptions.delete_channel)
        if inactivity.pause_ns:
            self._start(inactivity.run(), "deletion of inactive channels")
        self.serving = True
        log.info("NATS Streaming: cluster ID %s, %d channels, %d clients", self.settings.cluster_id,
                 len(self.channels.names()), len(self.clients))

    async def check_partition(self, failed: Callable[[str], object]) -> None:
        """Check that no other server of the cluster ID has a channel of this one; repeat that from now on.

        ``failed`` is called if a later check fails. Raises: ValueError, if the first one fails.
        """
        assert self._partition is not None
        if conflict := await self._partition.conflict():
            raise ValueError(conflict)
        self._start(self._check_partition_again(self._partition, failed), "check of partitions")

    @staticmethod
    async def _check_partition_again(partition: Partition, failed: Callable[[str], object]) -> None:
        """Check repeatedly, because servers may be joined later. The failure counts if it comes twice in a row: a
        server that fails at its start ends by itself."""
        before = ""
        while True:
            await asyncio.sleep(_PARTITION_CHECK_SECONDS)
            found = await partition.conflict()
            if found and before:
                failed(f"Partitioning error: {found}")
                return
            before = found

    async def close(self) -> None:
        """Serve no more; the registrations stay in the store."""
        self.serving = False
        for handler in self._handlers:
            self._bus.unsubscribe(handler)
        if self._handlers:
            self._heartbeats.close()
            self.subscriptions.close_all()
            self.channels.close()
        if self._partition is not None:
            self._partition.close()
            self._partition = None
        self._handlers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.clients.clear()
        self._conn_ids.clear()
        self._connecting.clear()
        self._groups.clear()
        self._lanes.clear()

    def _receiver_of(self, stream: Stream, config: ConsumerConfig) -> Group | None:
        """Return the receiver of a consumer of the gateway: the group that is being made, or one to restore.

        While the gateway serves, other consumers of a channel come with a stream that is restored. If that stream
        replaces one that was deleted, the group continues with the consumer of the same name.
        """
        channel = config.metadata.get(CONSUMER_KEY)
        name = config.durable_name
        if channel is None or not name or stream.account != self._account_name or stream.name != stream_of(channel):
            return None
        group = self._groups.get(name)
        if group is None or group.ended:
            if group is None:
                group = self._groups[name] = Group(name, channel, stream.bus, self.traffic)
            group.ended = False
            if self.serving:
                self._start(self.subscriptions.accept(name), f"consumer {name}")
        return group

    def _registered(self, client_id: str, conn_id: bytes) -> bool:
        """Return whether a client may publish; its connection counts, if the message names that, and not its ID."""
        return conn_id in self._conn_ids if conn_id else client_id in self.clients

    async def _registration(self, client_id: str, conn_id: bytes) -> bool:
        """Wait a moment for a client that another server of the cluster ID may have answered before this one.

        Returns: whether the client is registered.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_REGISTRATION_SECONDS):
                while not self._registered(client_id, conn_id):
                    await self._joined.wait()
        return self._registered(client_id, conn_id)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _each(self, kind: type[Message], handle: Callable[[Any, bytes], None]) -> BatchHandler:
        """Return a handler that decodes each request. One that cannot be decoded becomes None."""
        def on_requests(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            for _, reply, hlen, body in ops[start:end]:
                try:
                    request = kind.FromString(body[hlen:])
                except DecodeError:
                    request = None
                handle(request, reply)
        return on_requests

    def _answer(self, reply: bytes, answer: Message) -> None:
        if reply:
            self._bus.send(reply, b"", 0, answer.SerializeToString())

    # --- connections

    def _on_connect(self, request: wire.ConnectRequest | None, reply: bytes) -> None:
        if request is None or not is_inbox(request.heartbeat_inbox):
            self._answer(reply, wire.ConnectResponse(error=StanErrors.CONNECT_REQUEST))
        elif not is_client_id(request.client_id):
            self._answer(reply, wire.ConnectResponse(error=StanErrors.CLIENT_ID))
        elif request.client_id in self._connecting:
            self._answer(reply, wire.ConnectResponse(error=StanErrors.CLIENT_IN_USE))
        else:
            if request.client_id in self.clients:
                self._connecting.add(request.client_id)
            self._queue(request.client_id, self._connect(request, reply))

    async def _connect(self, request: wire.ConnectRequest, reply: bytes) -> None:
        try:
            old = self.clients.get(request.client_id)
            if old is not None:
                if await self._heartbeats.answers(old, _DUPLICATE_TIMEOUT_NS):
                    self._answer(reply, wire.ConnectResponse(error=StanErrors.CLIENT_IN_USE))
                    return
                await self._close_client(old)
            await self._register(request, reply)
        finally:
            self._connecting.discard(request.client_id)

    async def _register(self, request: wire.ConnectRequest, reply: bytes) -> None:
        client = Client.requested(request)
        try:
            await self._registry.put(f"client.{client.id}", client.record())
        except ApiError as error:
            self._answer(reply, wire.ConnectResponse(error=str(error)))
            return
        self._add(client)
        subjects = self.subjects
        answer = wire.ConnectResponse(
            pub_prefix=subjects.pub, sub_requests=subjects.subscribe, unsub_requests=subjects.unsubscribe,
            close_requests=subjects.close, sub_close_requests=subjects.sub_close, protocol=PROTOCOL)
        if client.protocol >= PROTOCOL:
            answer.ping_requests = subjects.ping
            answer.ping_interval = request.ping_interval
            answer.ping_max_out = request.ping_max_out
        self._answer(reply, answer)

    def _on_close(self, request: wire.CloseRequest | None, reply: bytes) -> None:
        if request is None:
            self._answer(reply, wire.CloseResponse(error=StanErrors.CLOSE_REQUEST))
        else:
            self._queue(request.client_id, self._close(request, reply))

    async def _close(self, request: wire.CloseRequest, reply: bytes) -> None:
        client = self.clients.get(request.client_id)
        if client is None:
            self._answer(reply, wire.CloseResponse(error=StanErrors.CLIENT_UNKNOWN))
            return
        error = ""
        try:
            await self._close_client(client)
        except (ApiError, StoreError) as failed:
            error = str(failed)
        self._answer(reply, wire.CloseResponse(error=error))

    def _add(self, client: Client) -> None:
        self.clients[client.id] = client
        if client.conn_id:
            self._conn_ids[client.conn_id] = client
        self._heartbeats.add(client)
        self._joined.set()
        self._joined = asyncio.Event()

    async def _close_client(self, client: Client) -> None:
        """End a client and its subscriptions."""
        if self.clients.get(client.id) is client:
            del self.clients[client.id]
        self._conn_ids.pop(client.conn_id, None)
        self._heartbeats.remove(client)
        try:
            await self.subscriptions.close_all_of(client.id)
        finally:
            await self._registry.delete(f"client.{client.id}")

    def _lost(self, client: Client) -> None:
        log.info("NATS Streaming: client %s does not answer heartbeats; it is closed", client.id)
        self._queue(client.id, self._close_lost(client))

    async def _close_lost(self, client: Client) -> None:
        if self.clients.get(client.id) is client:
            await self._close_client(client)

    def _on_ping(self, request: wire.Ping | None, reply: bytes) -> None:
        if request is None:
            return
        client = self._conn_ids.get(request.conn_id)
        if client is not None and client.failed_heartbeats:
            self._heartbeats.hasten(client)
        error = StanErrors.CLIENT_REPLACED if client is None else ""
        self._answer(reply, wire.PingResponse(error=error))

    # --- subscriptions

    def _on_subscribe(self, request: wire.SubscriptionRequest | None, reply: bytes) -> None:
        try:
            if request is None:
                raise StanError(StanErrors.SUBSCRIBE_REQUEST)
            check_request(request)
        except StanError as error:
            self._answer(reply, wire.SubscriptionResponse(error=str(error)))
            return
        if self._partition is None or request.client_id in self.clients:
            if self._serves(request.subject):
                self._queue(request.client_id, self._subscribe(request, reply))
        elif self._serves(request.subject):
            self._start(self._subscribe_early(request, reply), f"first subscription of {request.client_id}")

    async def _subscribe_early(self, request: wire.SubscriptionRequest, reply: bytes) -> None:
        """Subscribe a client that this server may be about to register."""
        if await self._registration(request.client_id, b""):
            self._queue(request.client_id, self._subscribe(request, reply))
        else:
            self._answer(reply, wire.SubscriptionResponse(error=StanErrors.SUBSCRIBE_REQUEST))

    def _serves(self, channel: str) -> bool:
        """Return whether this server has the channel; with partitioning, another one answers otherwise."""
        return self._partition is None or self._partition.serves(channel)

    async def _subscribe(self, request: wire.SubscriptionRequest, reply: bytes) -> None:
        if request.client_id not in self.clients:
            self._answer(reply, wire.SubscriptionResponse(error=StanErrors.CLIENT_UNKNOWN))
            return
        try:
            sub = await self.subscriptions.subscribe(request)
        except (StanError, ApiError, StoreError) as error:
            self._answer(reply, wire.SubscriptionResponse(error=str(error)))
            return
        self._answer(reply, wire.SubscriptionResponse(ack_inbox=f"{self.subjects.ack}.{sub.ack_id}"))
        self.subscriptions.begin(sub)

    def _on_unsubscribe(self, request: wire.UnsubscribeRequest | None, reply: bytes) -> None:
        self._end(request, reply, remove=True)

    def _on_sub_close(self, request: wire.UnsubscribeRequest | None, reply: bytes) -> None:
        self._end(request, reply, remove=False)

    def _end(self, request: wire.UnsubscribeRequest | None, reply: bytes, *, remove: bool) -> None:
        if request is None:
            self._answer(reply, wire.SubscriptionResponse(error=StanErrors.UNSUBSCRIBE_REQUEST))
        elif self._serves(request.subject):
            self._queue(request.client_id, self._end_subscription(request, reply, remove=remove))

    async def _end_subscription(self, request: wire.UnsubscribeRequest, reply: bytes, *, remove: bool) -> None:
        sub = self._named(request.inbox) or self.subscriptions.with_inbox(request.inbox, request.client_id)
        if sub is None or sub.channel != request.subject:
            unknown = self.channels.existing(request.subject) is None
            error = StanErrors.CHANNEL_UNKNOWN if unknown else StanErrors.SUBSCRIPTION
        elif sub.client_id != request.client_id:
            error = StanErrors.CLIENT_UNKNOWN
        else:
            error = ""
            try:
                await self.subscriptions.close(sub, remove=remove)
            except (ApiError, StoreError) as failed:
                error = str(failed)
        self._answer(reply, wire.SubscriptionResponse(error=error))

    def _on_acks(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        acked: dict[Group, list[int]] = {}
        for inbox, acks in by_subject(ops, start, end).items():
            if (sub := self._named(inbox.decode(errors="replace"))) is not None:
                group = self.subscriptions.group(sub)
                acked.setdefault(group, []).extend(_acked(group, acks))
        for group, seqs in acked.items():
            if seqs:
                group.acked(seqs)

    def _named(self, ack_inbox: str) -> Subscription | None:
        """Return the subscription with an ack inbox."""
        prefix, _, ack_id = ack_inbox.rpartition(".")
        return self.subscriptions.by_ack_id.get(ack_id) if prefix == self.subjects.ack else None

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _queue(self, client_id: str, request: Coroutine[Any, Any, None]) -> None:
        """Handle a request after the earlier requests of this client."""
        lane = self._lanes.get(client_id)
        if lane is None:
            lane = self._lanes[client_id] = _Lane()
            self._start(self._handle_all(client_id, lane), f"requests of {client_id}")
        lane.requests.append(request)

    async def _handle_all(self, client_id: str, lane: _Lane) -> None:
        try:
            while lane.requests:
                try:
                    await lane.requests.popleft()
                except Exception:
                    log.exception("NATS Streaming: a request of client %s failed", client_id)
        finally:
            for request in lane.requests:
                request.close()
            if self._lanes.get(client_id) is lane:
                del self._lanes[client_id]

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("NATS Streaming: %s failed", task.get_name(), exc_info=error)


def _acked(group: Group, acks: Sequence[bytes]) -> list[int]:
    """Return the sequences of acks of a group's channel."""
    seqs = ack_seqs(acks, group.ack_start)
    if 0 not in seqs:
        return seqs
    return [found for seq, ack in zip(seqs, acks, strict=True) if (found := seq or _ack_seq(group, ack))]


def _ack_seq(group: Group, body: bytes) -> int:
    """Decode an ack by protobuf; 0, if it is not one of the group's channel."""
    with suppress(DecodeError):
        ack = wire.Ack.FromString(body)
        if ack.subject == group.channel:
            return int(ack.sequence)
    return 0


class _Lane:
    """The requests of one client that wait."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: deque[Coroutine[Any, Any, None]] = deque()
