"""The subscriptions of all clients: creates, resumes, closes and removes them.

    subscribe     a new position, unless a queue group or a durable subscription has one
    close         the client leaves; a durable position stays
    unsubscribe   the client leaves; the position goes with its last member

Owns: which subscriptions and groups exist, and their registrations in the store.
Does not own: clients, and the order of their requests (gateway); delivery (group); positions (JetStream consumers).

Requests of one client arrive one after the other. Each call changes the state at once, before it awaits the store, so
requests of different clients may overlap.

Source: nats-streaming-server, server/server.go: processSubscriptionRequest, processSub,
performUnsubOrCloseSubscription, subStore.Remove, setSubStartSequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.wire.ids import secret_id
from broker.jetstream.wire.numbers import INT64_MAX
from broker.streaming.errors import StanError, StanErrors
from broker.streaming.group import Group
from broker.streaming.names import is_inbox, is_literal_channel
from broker.streaming.stored import consumer_metadata
from broker.streaming.subscription import Subscription
from broker.streaming.wire.stan_pb2 import StartPosition, SubscriptionRequest

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import InterestWatch
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream
    from broker.streaming.channels import Channels
    from broker.streaming.registry import Registry
    from broker.streaming.traffic import Traffic

__all__ = ["Subscriptions", "check_request"]

log = logging.getLogger(__name__)

_SECOND = 1_000_000_000
_RECORD = "sub."
_CLOSED_AT_ONCE = 100
"""Subscriptions that are closed in one turn of the loop."""


def check_request(request: SubscriptionRequest) -> None:
    """Check the values of a request by themselves. Raises: StanError."""
    if not request.client_id:
        raise StanError(StanErrors.CLIENT_MISSING)
    if request.ack_wait_in_secs <= 0:
        raise StanError(StanErrors.ACK_WAIT)
    if request.max_in_flight <= 0:
        raise StanError(StanErrors.MAX_IN_FLIGHT)
    if request.start_position not in StartPosition.values():
        raise StanError(StanErrors.START_POSITION)
    if not is_literal_channel(request.subject):
        raise StanError(StanErrors.SUBJECT)
    if not is_inbox(request.inbox):
        raise StanError(StanErrors.SUBSCRIBE_REQUEST)


class Subscriptions:
    """The subscriptions of one gateway.

    Attributes: ``by_ack_id``: the subscriptions that are online, by their ``ack_id``.
    """

    def __init__(self, account: Account, registry: Registry, channels: Channels, groups: dict[str, Group],
                 traffic: Traffic) -> None:
        """Args: ``groups``: the groups of restored consumers, by the names of the consumers."""
        self.by_ack_id: dict[str, Subscription] = {}
        self._account = account
        self._registry = registry
        self._channels = channels
        self._groups = groups
        self._traffic = traffic
        self._by_key: dict[tuple[str, ...], Group] = {}
        """The groups that a later subscription may join or resume."""
        self._by_client: dict[str, list[Subscription]] = {}
        self._by_channel: dict[str, int] = {}
        self._groups_of_channel: dict[str, dict[str, Group]] = {}
        self._dropped: list[str] = []
        """The keys of stored registrations without a consumer."""
        self._expected: dict[Subscription, InterestWatch] = {}
        """Restored subscriptions whose clients have not subscribed to their inboxes again."""

    # --- views --------------------------------------------------------------------------------------------------------

    def group(self, sub: Subscription) -> Group:
        """Return the group of a subscription."""
        return self._groups[sub.consumer]

    def of_client(self, client_id: str) -> list[Subscription]:
        """Return the subscriptions of a client that are online."""
        return list(self._by_client.get(client_id, ()))

    def with_inbox(self, inbox: str, client_id: str) -> Subscription | None:
        """Return the subscription of a client whose messages go to ``inbox``."""
        return next((sub for sub in self._by_client.get(client_id, ()) if sub.inbox == inbox), None)

    def of_channel(self, channel: str) -> list[Subscription]:
        """Return the subscriptions of a channel, also durable ones that nobody uses."""
        return [sub for group in self._groups_of_channel.get(channel, {}).values()
                for sub in (*group.members, *([group.offline] if group.offline is not None else []))]

    @property
    def total(self) -> int:
        """The number of subscriptions of all channels, also durable ones that nobody uses."""
        return sum(self._by_channel.values())

    def count(self, channel: str) -> int:
        """Return the number of subscriptions of a channel, also durable ones that nobody uses."""
        return self._by_channel.get(channel, 0)

    def unacked(self, channel: str) -> int:
        """Return the number of messages that were delivered to the subscriptions of a channel and not acknowledged."""
        return sum(len(group.consumer.acks.pending) for group in self._groups_of_channel.get(channel, {}).values()
                   if group.consumer is not None)

    # --- restore ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[str, dict[str, Any]], clients: Iterable[str]) -> None:
        """Restore the subscriptions from their records; deliver nothing before ``start``."""
        known = set(clients)
        for key, record in records.items():
            if not key.startswith(_RECORD):
                continue
            try:
                sub = Subscription.stored(key.removeprefix(_RECORD), record)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("the registration %s of NATS Streaming is not valid (%r); it is ignored", key, error)
                continue
            group = self._groups.get(sub.consumer)
            if group is None:
                log.warning("channel %s: the consumer of a subscription of client %s is gone; the subscription is "
                            "dropped", sub.channel, sub.client_id)
                self._dropped.append(key)
                continue
            sub.online = sub.online and sub.client_id in known
            self._by_channel[sub.channel] = self.count(sub.channel) + 1
            self._index(group, sub)
            if sub.online:
                self._join(group, sub)
            else:
                group.offline = sub

    async def start(self) -> None:
        """Deliver to restored subscriptions, first what is unacknowledged, once their clients are connected again.

        Raises: ApiError; StoreError.
        """
        for group in self._groups.values():
            group.consumer = self._consumer(group)
            for member in group.members:
                self._expect(member)
        await asyncio.gather(*(self.accept(name) for name in list(self._groups)), *map(self._registry.delete,
                                                                                        self._dropped))

    async def accept(self, name: str) -> None:
        """Register the durable position of a consumer that has no registration; delete another such consumer.

        A stream that was moved or restored brings its consumers along. Also, a crash may come before a new subscription
        is registered. Its client has no answer then, and a durable one continues when the client repeats its request.
        Raises: ApiError; StoreError.
        """
        group = self._groups.get(name)
        if group is None:
            return
        consumer = group.consumer = self._consumer(group)
        if group.members or group.offline is not None:
            return
        sub = None if consumer is None else _moved(group, consumer.config)
        if sub is not None and (existing := self._by_key.get(sub.group_key)) is not None and existing.ended:
            await self._drop(existing)
        if sub is None or sub.group_key in self._by_key:
            if sub is not None:
                log.warning("channel %s: consumer %s is deleted: another one has the position of the durable "
                            "subscription %s", group.channel, name, sub.durable)
            self._groups.pop(name, None)
            if consumer is not None:
                self._account.consumers.delete(consumer)
            return
        group.offline = sub
        self._by_channel[sub.channel] = self.count(sub.channel) + 1
        self._index(group, sub)
        await self._registry.put(_RECORD + sub.id, sub.record())

    async def resume(self, stream: Stream, channel: str) -> None:
        """Let the subscriptions that are online go on in a channel that was deleted and is made again.

        Raises: ApiError; StoreError.
        """
        for group in list(self._groups_of_channel.get(channel, {}).values()):
            if group.ended and group.members:
                config = _config(group, group.members[0], {})
                await self._account.consumers.create(stream, config, "create")  # the gateway recognises it by its name

    def _consumer(self, group: Group) -> Consumer | None:
        stream = self._channels.existing(group.channel)
        return None if stream is None else self._account.consumers.of(stream).get(group.consumer_name)

    def _expect(self, sub: Subscription) -> None:
        """Deliver to a restored subscription once its client subscribes to the inbox."""
        sub.ready = False
        inbox = sub.inbox.encode()
        self._expected[sub] = self._account.bus.watch_interest(inbox, b"", lambda _: self.connected(sub))
        if self._account.bus.interest(inbox):
            self.connected(sub)

    def client_answers(self, client_id: str) -> None:
        """Deliver to the restored subscriptions of a client that answers heartbeats: it is connected."""
        if self._expected:
            for sub in self._by_client.get(client_id, ()):
                self.connected(sub)

    def connected(self, sub: Subscription) -> None:
        """Deliver to a restored subscription from now on."""
        if (watch := self._expected.pop(sub, None)) is not None:
            watch.cancel()
            self.begin(sub)

    def close_all(self) -> None:
        """Wait for no client any more: the gateway closes."""
        for watch in self._expected.values():
            watch.cancel()
        self._expected.clear()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def subscribe(self, request: SubscriptionRequest) -> Subscription:
        """Subscribe a client; call ``begin`` after the answer is sent. Raises: StanError; ApiError; StoreError."""
        sub = Subscription.requested(request, secret_id(), "")
        if (existing := self._by_key.get(sub.group_key)) is not None and existing.ended:
            await self._drop(existing)  # otherwise it would be resumed, and the request refused
        stream = await self._channels.stream(request.subject)
        if request.q_group and ":" in request.durable_name:
            raise StanError(StanErrors.DURABLE_NAME)
        while (existing := self._by_key.get(sub.group_key)) is not None:
            if existing.ended:
                await self._drop(existing)
            elif existing.making is not None:
                await existing.making.wait()
            else:
                break
        if existing is not None and existing.members and not sub.queue:
            if not self._channels.replaces_durables:
                raise StanError(StanErrors.DUPLICATE_DURABLE)
            await self.close(existing.members[0], remove=False)
        if existing is not None:
            return await self._join_existing(existing, sub, stream)
        self._channels.check_subscriptions(request.subject, self.count(request.subject))
        return await self._create(request, sub, stream)

    async def _create(self, request: SubscriptionRequest, sub: Subscription, stream: Stream) -> Subscription:
        """Create a subscription with a position of its own."""
        sub.consumer = f"stan-{sub.id}"
        group = self._groups[sub.consumer] = Group(sub.consumer, sub.channel, self._account.bus,
                                                   self._traffic)
        self._index(group, sub)
        self._by_channel[sub.channel] = self.count(sub.channel) + 1
        self._join(group, sub)
        config = _config(group, sub, _start(request, stream))
        group.making = asyncio.Event()
        try:
            group.consumer = await self._account.consumers.create(stream, config, "create")
            await self._registry.put(_RECORD + sub.id, sub.record())
        except BaseException:
            self._remove(sub)
            raise
        finally:
            group.making.set()
            group.making = None
        return sub

    async def _join_existing(self, group: Group, sub: Subscription, stream: Stream) -> Subscription:
        """Add a member to a queue group, or resume a durable position."""
        before = group.offline
        sub.consumer = group.consumer_name
        if before is None:
            self._channels.check_subscriptions(sub.channel, self.count(sub.channel))
            self._by_channel[sub.channel] = self.count(sub.channel) + 1
        else:
            sub.id = before.id
        self._join(group, sub)
        try:
            await self._configure(group, stream)
            await self._registry.put(_RECORD + sub.id, sub.record())
        except BaseException:
            if sub.durable and group.members == [sub]:
                self._leave(sub)
                sub.online = False
                group.offline = before or sub
            else:
                self._remove(sub)
            raise
        return sub

    def begin(self, sub: Subscription) -> None:
        """Deliver to a subscription from now on; the answer to its request is sent."""
        group = self._groups.get(sub.consumer)
        if group is not None and sub in group.members:
            sub.ready = True
            group.start(redeliver=not group.interested)

    async def close(self, sub: Subscription, *, remove: bool) -> None:
        """End a subscription; ``remove``: the client unsubscribes, so that its durable position goes, too."""
        if self.by_ack_id.get(sub.ack_id) is not sub:
            return  # its group was dropped meanwhile
        group = self._leave(sub)
        if group.members:
            self._by_channel[sub.channel] -= 1
            await self._registry.delete(_RECORD + sub.id)
            if stream := self._channels.existing(sub.channel):
                await self._configure(group, stream)
        elif sub.durable and not remove:
            sub.online = False
            group.offline = sub
            await self._registry.put(_RECORD + sub.id, sub.record())
        else:
            self._remove(sub)
            await self._registry.delete(_RECORD + sub.id)

    async def close_all_of(self, client_id: str) -> None:
        """Close the subscriptions of a client, many at once. Raises: ApiError; StoreError, after all are closed."""
        subs, errors = self.of_client(client_id), []
        for at in range(0, len(subs), _CLOSED_AT_ONCE):
            closing = (self.close(sub, remove=False) for sub in subs[at:at + _CLOSED_AT_ONCE])
            results = await asyncio.gather(*closing, return_exceptions=True)
            errors += [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    def in_use(self, channel: str) -> bool:
        """Return whether a channel has a subscription that is online."""
        return any(group.members for group in self._groups_of_channel.get(channel, {}).values())

    async def delete_channel(self, channel: str) -> None:
        """Delete a channel, with the durable positions that nobody uses. Raises: ApiError; StoreError."""
        groups = list(self._groups_of_channel.get(channel, {}).values())
        await self._channels.delete(channel)
        for group in groups:
            await self._drop(group)
        log.info("Channel %s has been deleted", channel)

    async def _drop(self, group: Group) -> None:
        """Remove the subscriptions of a group whose consumer is deleted; other requests find none of them."""
        subs = [*group.members, *([group.offline] if group.offline is not None else [])]
        for sub in subs:
            self._forget(sub)
        for sub in subs:
            await self._registry.delete(_RECORD + sub.id)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _index(self, group: Group, sub: Subscription) -> None:
        """Add a group to those of its channel, and to those that a later subscription finds by its key."""
        self._groups_of_channel.setdefault(sub.channel, {})[group.consumer_name] = group
        if sub.group_key:
            self._by_key[sub.group_key] = group

    def _join(self, group: Group, sub: Subscription) -> None:
        group.add(sub)
        self.by_ack_id[sub.ack_id] = sub
        self._by_client.setdefault(sub.client_id, []).append(sub)

    def _leave(self, sub: Subscription) -> Group:
        """Disconnect a subscription from its group and its client."""
        group = self._groups[sub.consumer]
        if sub in group.members:
            group.remove(sub)
        self.by_ack_id.pop(sub.ack_id, None)
        if (watch := self._expected.pop(sub, None)) is not None:
            watch.cancel()
        subs = self._by_client.get(sub.client_id, [])
        if sub in subs:
            subs.remove(sub)
        if not subs:
            self._by_client.pop(sub.client_id, None)
        return group

    def _remove(self, sub: Subscription) -> None:
        """Remove a subscription; with the last member of its group, the group and its position."""
        group = self._groups[sub.consumer]
        self._forget(sub)
        if not group.members and group.consumer is not None:
            self._account.consumers.delete(group.consumer)

    def _forget(self, sub: Subscription) -> None:
        """Remove a subscription; with the last member of its group, the group."""
        group = self._leave(sub)
        self._by_channel[sub.channel] -= 1
        if not group.members:
            self._groups.pop(sub.consumer, None)
            groups = self._groups_of_channel.get(sub.channel, {})
            groups.pop(sub.consumer, None)
            if not groups:
                self._groups_of_channel.pop(sub.channel, None)
            if self._by_key.get(sub.group_key) is group:
                del self._by_key[sub.group_key]

    async def _configure(self, group: Group, stream: Stream) -> None:
        """Give the consumer the limits of the group's present members.

        While the caller waited, all may have left, or the consumer may have been deleted.
        """
        if group.consumer is None or group.ended or not group.members:
            return
        config = group.consumer.config.copy()
        _limit(config, group)
        if config != group.consumer.config:
            await self._account.consumers.create(stream, config, "update")


def _moved(group: Group, config: ConsumerConfig) -> Subscription | None:
    """Return the durable subscription that nobody uses whose position a consumer has; None if it is not durable."""
    metadata = config.metadata
    if not metadata.get("durable"):
        return None
    return Subscription(secret_id(), group.channel, metadata.get("client_id", ""), "", max(config.max_ack_pending, 1),
                        max(config.ack_wait // _SECOND, 1), metadata["durable"], metadata.get("queue", ""),
                        group.consumer_name, online=False)


def _config(group: Group, sub: Subscription, start: dict[str, Any]) -> ConsumerConfig:
    """Return the configuration of the consumer of a group; ``start``: its members for the start position."""
    config = ConsumerConfig(durable_name=group.consumer_name, ack_policy="explicit", max_deliver=-1, **start,
                            metadata=consumer_metadata(sub.channel, sub.client_id, sub.durable, sub.queue))
    _limit(config, group)
    return config


def _limit(config: ConsumerConfig, group: Group) -> None:
    """Set the limits of a consumer to those of the members; the shortest ack wait applies to a whole queue group."""
    config.max_ack_pending = sum(member.max_in_flight for member in group.members)
    config.ack_wait = min(member.ack_wait_seconds for member in group.members) * _SECOND


def _start(request: SubscriptionRequest, stream: Stream) -> dict[str, Any]:
    """Return the members of a consumer's configuration for the start position. Raises: StanError."""
    match request.start_position:
        case StartPosition.NEW_ONLY:
            return {"deliver_policy": "new"}
        case StartPosition.LAST_RECEIVED:
            return {"deliver_policy": "last"}
        case StartPosition.TIME_DELTA_START:
            start_ns = stream.clock.now_ns() - request.start_time_delta
            if start_ns > INT64_MAX:
                start_ns = 1  # the real server's number wraps around
            return {"deliver_policy": "by_start_time", "opt_start_time": max(start_ns, 1)}
        case StartPosition.SEQUENCE_START if request.start_sequence > stream.last_seq:
            return {"deliver_policy": "new"}
        case StartPosition.SEQUENCE_START if request.start_sequence > max(stream.first_seq, 1):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": request.start_sequence}
        case _:
            return {"deliver_policy": "all"}
