"""The subscriptions that share one position: a queue group, or a single subscription as a group of one.

The position and the unacknowledged messages are the state of a JetStream consumer; a ``Group`` is its ``Receiver``.

    Consumer ── Deliveries ──> Group ──> MsgProto to the inboxes of its members
        ^                        │
        └────── ack(seqs) ───────┘ <── acks to the ack inboxes of its members

Owns: which member gets which message. Does not own: the registrations (subscriptions).

``max_ack_pending`` of the consumer is the sum of its members' ``max_in_flight``. So whenever the consumer may deliver a
new message, some member may receive it. Redeliveries ignore the limit, as in nats-streaming-server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice, repeat
from typing import TYPE_CHECKING

from broker.protocol import headers
from broker.streaming.stored import REPLY_HEADER
from broker.streaming.turns import Turns
from broker.streaming.wire.encoding import MsgEncoder, ack_start

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Deliveries
    from broker.jetstream.consumer.consumer import Consumer
    from broker.streaming.subscription import Subscription
    from broker.streaming.traffic import Traffic

__all__ = ["Group"]

_ACKS_SECONDS = 0.005
"""Acks are stored within this time. A commit for the acks of each turn of the loop took a quarter of the time of a
subscription; nats-streaming-server syncs acks once a minute."""

_STALE_OWNERS = 1000
"""Owners of messages that have left the stream, which are kept at most, besides those of pending messages."""


class Group:
    """The members of one position.

    Attributes: ``members``: the subscriptions that get messages now; ``offline``: the registration of a durable
        position that has no members; ``making``: set once the consumer is made, or cannot be; None before and
        after; ``ended``: True once the consumer is deleted or stopped.
    """

    def __init__(self, consumer_name: str, channel: str, bus: Bus, traffic: Traffic) -> None:
        self._traffic = traffic
        self.consumer_name = consumer_name
        self.channel = channel
        self.members: list[Subscription] = []
        self.offline: Subscription | None = None
        self.consumer: Consumer | None = None
        self.interested = False
        self.making: asyncio.Event | None = None
        self.ended = False
        self.ack_start = ack_start(channel)
        self._encoder = MsgEncoder(channel)
        self._bus = bus
        self._changed: Callable[[bool], None] | None = None
        self._commit: asyncio.TimerHandle | None = None
        self._owners: dict[int, Subscription] = {}
        """The member that has each unacknowledged message, as far as known; for queue groups only."""
        self._turns: list[Subscription] = []
        """The members that have the answer to their request, in the order in which they are chosen."""

    # --- members ------------------------------------------------------------------------------------------------------

    def start(self, *, redeliver: bool) -> None:
        """Deliver from now on to the members that are ready; ``redeliver``: first all unacknowledged messages."""
        known = set(self._turns)
        self._turns += [member for member in self.members if member.ready and member not in known]
        if redeliver and self.consumer is not None:
            self._owners.clear()
            for member in self.members:
                member.held = 0
            self.consumer.redeliver()
        self._set_interested(bool(self._turns))

    def add(self, member: Subscription) -> None:
        """Add a member; it gets messages once ``start`` is called."""
        self.offline = None
        self.members.append(member)

    def remove(self, member: Subscription) -> None:
        """Remove a member; its unacknowledged messages go to the other members at once."""
        self.members.remove(member)
        if member in self._turns:
            self._turns.remove(member)
        member.held = 0
        if not self._turns:
            self._owners.clear()
            self._set_interested(False)
        elif lost := [seq for seq, owner in self._owners.items() if owner is member]:
            for seq in lost:
                del self._owners[seq]
            if self.consumer is not None and not self.ended:
                self.consumer.redeliver(sorted(lost))

    def acked(self, seqs: list[int]) -> None:
        """Ack messages. Each member may ack those of the others: they may have been redelivered to another one."""
        if self.consumer is None:
            return
        if self._owners:
            for owner in map(self._owners.pop, seqs, repeat(None)):
                if owner is not None:
                    owner.held -= 1
        self.consumer.ack(seqs)  # a crash redelivers none of those that are stored
        if self._commit is None:
            self._commit = asyncio.get_running_loop().call_later(_ACKS_SECONDS, self._commit_acks)

    def _commit_acks(self) -> None:
        self._commit = None
        if self.consumer is not None:
            self.consumer.commit_acks()

    def progress(self, member: Subscription) -> tuple[int, int]:
        """Return the last sequence that was delivered to a member, and the number of its unacknowledged messages.

        After a restart, the last sequence of a member of a queue group is that of the group until it gets a message.
        """
        if self.consumer is None:
            return 0, 0
        acks = self.consumer.acks
        if member.queue and member.online:
            return member.last_sent or acks.delivered_sseq, member.held
        return acks.delivered_sseq, len(acks.pending)

    def _set_interested(self, interested: bool) -> None:
        if interested != self.interested:
            self.interested = interested
            if self._changed is not None:
                self._changed(interested)

    # --- Receiver -----------------------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[bool], None]) -> Group:
        self._changed = changed
        return self

    def cancel(self) -> None:
        """End the watch: the consumer delivers nothing more."""
        self._changed = None
        self.ended = True

    def pending_bytes(self) -> int:
        return max((self._bus.pending_bytes(member.inbox.encode()) for member in self.members), default=0)

    def control(self, reply: bytes, text: bytes) -> None:
        """Do nothing: these consumers have neither heartbeats nor flow control."""

    def deliver(self, batch: Deliveries) -> int:
        if not self._turns:
            return 0
        first = self._turns[0]
        members = self._shared_out(batch) if first.queue else None
        bodies = self._encoded(batch, len(batch) if members is None else len(members))
        self._traffic.sent(bodies)
        runs = {first.inbox: bodies}
        if members is not None:
            runs.clear()
            for member, body in zip(members, bodies, strict=True):
                runs.setdefault(member.inbox, []).append(body)
        for inbox, run in runs.items():
            self._bus.send_run(inbox.encode(), run)
        return len(bodies)

    def _shared_out(self, batch: Deliveries) -> list[Subscription]:
        """Return the member for each message from the front, in turn, until all members have enough."""
        owners, members = self._owners, self._turns
        if self.consumer is not None and (len(owners) - len(self.consumer.acks.pending) > _STALE_OWNERS
                                          or not any(member.held < member.max_in_flight for member in members)):
            self._forget_gone(self.consumer)
        turns, seqs = Turns(members), batch.stream_seqs
        if max(batch.delivered, default=0) <= 1 and owners.keys().isdisjoint(seqs):
            chosen = turns.take_new(len(seqs))
            owners.update(zip(seqs, chosen, strict=False))
            for member, last in dict(zip(chosen, seqs, strict=False)).items():
                member.last_sent = last
            return chosen
        chosen = []
        for seq, delivered in zip(seqs, batch.delivered, strict=True):
            one = [turns.take_any()] if delivered > 1 else turns.take_new(1)
            if not one:
                break
            if (before := owners.get(seq)) is not None:
                turns.count(before, -1)
            owners[seq] = one[0]
            one[0].last_sent = max(one[0].last_sent, seq)
            chosen += one
        return chosen

    def _forget_gone(self, consumer: Consumer) -> None:
        """Forget the owners of messages that are no longer pending, because they left the stream."""
        pending = consumer.acks.pending
        for seq in [seq for seq in self._owners if seq not in pending]:
            self._owners.pop(seq).held -= 1

    def _encoded(self, batch: Deliveries, count: int) -> list[bytes]:
        if batch.hlens is None and count == len(batch):
            return self._encoder.encode_run(batch.stream_seqs, batch.times_ns, batch.bodies, batch.delivered)
        hlens = batch.hlens or (0,) * len(batch)
        encode = self._encoder.encode
        return [encode(seq, time_ns, body[hlen:], delivered, _reply(body[:hlen])) if hlen
                else encode(seq, time_ns, body, delivered) for seq, time_ns, hlen, body, delivered
                in islice(zip(batch.stream_seqs, batch.times_ns, hlens, batch.bodies, batch.delivered, strict=True),
                          count)]


def _reply(header: bytes) -> bytes:
    """Return the reply subject of a message; b"" for none. Any client of JetStream may have set it, to any bytes."""
    return (headers.get(header, REPLY_HEADER) or b"").decode(errors="replace").encode()
