"""Checks pull requests as they arrive, and queues those that may wait.

Owns the order of the checks, which a client sees in the first that fails, and the sweep that ends requests.
Does not own: the queue, how it shares out messages and its status texts (pull), what the requests get (loop).

Source: nats-server consumer.go: processNextMsgRequest, processWaiting.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from broker.base.clock import Clock
from broker.base.gotime import format_duration
from broker.jetstream.bus import Bus, Msg
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.consumer.delivery import status
from broker.jetstream.consumer.delivery.priority import Order, PinnedClient, order_of
from broker.jetstream.consumer.delivery.pull import Waiting
from broker.jetstream.consumer.delivery.request import BadRequest, PullRequest, WaitingRequest, parse_request
from broker.jetstream.settings import level_refused
from broker.jetstream.wire.advisories import ConsumerEvents
from broker.protocol import headers

__all__ = ["PullAdmission", "pulls", "send_statuses"]

_DELIVER, _REFERENCE = b"Jetblock-Deliver", b"reference"
"""The header of a request for references, an addition of jetblock."""
_SWEEP_NS = 1_000_000_000
"""The shortest interval between two sweeps of a full queue."""


def send_statuses(bus: Bus, statuses: Iterable[tuple[bytes, bytes]]) -> None:
    """Send header-only messages: (subject, header block)."""
    for to, text in statuses:
        bus.publish(to, b"", len(text), text)


def pulls(bus: Bus, ops: Sequence[Msg], start: int, end: int) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield the pull requests among ``ops`` as (inbox, body, whether references are wanted).

    Refuse each request that needs a newer server.
    """
    for _, reply, hlen, body in ops[start:end]:
        if hlen and reply and level_refused(body[:hlen]):
            send_statuses(bus, [(reply, status.line("412 Required Api Level"))])
        elif reply:
            yield reply, body[hlen:] if hlen else body, bool(hlen) and headers.get(body[:hlen], _DELIVER) == _REFERENCE


class PullAdmission:
    """The entrance to one consumer's queue of requests."""

    def __init__(self, bus: Bus, acks: AckState, cursor: Cursor, max_waiting: int) -> None:
        self.waiting = Waiting(max_waiting, Order())
        self._bus = bus
        self._acks = acks
        self._cursor = cursor
        self._swept_ns = 0

    def configure(self, config: ConsumerConfig, events: ConsumerEvents, clock: Clock, rng: random.Random) -> None:
        """Apply a configuration: its priority policy also applies to requests already waiting."""
        if self.waiting.order.policy != config.priority_policy:
            self.waiting.reorder(order_of(config.priority_policy, events, clock, rng))
        self.waiting.order.timeout_ns = config.priority_timeout

    def dismiss(self, text: bytes, *, pending: bool) -> None:
        """End every waiting request with ``text``; ``pending``: also report what is left of it."""
        send_statuses(self._bus, self.waiting.drain(text, pending=pending))

    def admit(self, reply: bytes, body: bytes, config: ConsumerConfig, mono_ns: int, *, by_reference: bool = False
              ) -> WaitingRequest | None:
        """Check a request and queue it; None: it was refused or dropped.

        ``by_reference``: it wants the places of messages in the store instead of the messages.
        """
        waiting = self.waiting
        try:
            request = parse_request(body)
        except BadRequest as error:
            self._refuse(reply, f"400 Bad Request - {error.text}")
            return None
        if refusal := _refusal(request, config) or self._pinned_elsewhere(request):
            self._refuse(reply, refusal)
            return None
        if waiting.full and mono_ns - self._swept_ns > _SWEEP_NS:
            self.sweep(mono_ns, at_end=False)
        until_seq = 0
        if request.no_wait:
            until_seq = self._cursor.last_to_come()
            if refusal := self._one_shot(request, mono_ns, until_seq):
                self._refuse(reply, refusal)
                return None
        if waiting.full:
            # A client with heartbeats would ask again at once; it notices their absence instead.
            if not request.idle_heartbeat:
                self._refuse(reply, "409 Exceeded MaxWaiting")
            return None
        entry = WaitingRequest(reply, request, mono_ns, until_seq, by_reference=by_reference)
        waiting.add(entry)
        return entry

    def sweep(self, mono_ns: int, *, at_end: bool, heartbeats: bool = False) -> None:
        """Drop requests that have ended; ``at_end``: there is nothing to deliver; ``heartbeats``: send those due."""
        if not self.waiting:
            return
        self._swept_ns = mono_ns
        beat = status.idle_heartbeat(self._acks.delivered_cseq, self._cursor.next_seq - 1) if heartbeats else None
        send_statuses(self._bus, self.waiting.sweep(mono_ns, self._bus.interest, at_end=at_end,
                                                    safe_seq=self._cursor.stream.safe_seq, heartbeat=beat))

    def _pinned_elsewhere(self, request: PullRequest) -> str:
        """Return why a request that names a pin ends at once, or ""; the right pin renews its client's hold on it."""
        order = self.waiting.order
        if not isinstance(order, PinnedClient) or not order.pin or not request.id:
            return ""
        if request.id != order.pin:
            return "423 Nats-Pin-Id mismatch"
        order.touch()
        return ""

    def _one_shot(self, request: PullRequest, mono_ns: int, until_seq: int) -> str:
        """Return why a no_wait request ends at once, or "": no message is there, or earlier requests want them all.

        ``until_seq``: a message that was published before the request, and is deliverable once it is persisted; 0:
            none.
        """
        if not self._cursor.known or self._cursor.count() is not None:
            return ""  # not known yet: the delivery loop counts, and then ends the request
        pending = max(0, self._cursor.pending) + len(self._acks.queue)
        if not pending:
            return "" if request.expires or until_seq else "404 No Messages"
        if until_seq or pending >= self.waiting.wanted:
            return ""
        if mono_ns != self._swept_ns:  # once for a run of requests
            self.sweep(mono_ns, at_end=False)
        return "408 Requests Pending" if pending < self.waiting.wanted else ""

    def _refuse(self, reply: bytes, text: str) -> None:
        send_statuses(self._bus, [(reply, status.line(text))])


def _refusal(request: PullRequest, config: ConsumerConfig) -> str:
    """Return the status of a request that this consumer's configuration does not allow, or ""."""
    if 0 < config.max_batch < request.batch:
        return f"409 Exceeded MaxRequestBatch of {config.max_batch}"
    if 0 < config.max_expires < request.expires:
        return f"409 Exceeded MaxRequestExpires of {format_duration(config.max_expires)}"
    if 0 < config.max_bytes < request.max_bytes:
        return f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}"
    if request.grouped:
        return _group_refusal(request, config)
    return ""


def _group_refusal(request: PullRequest, config: ConsumerConfig) -> str:
    policy = config.priority_policy
    if (request.min_pending or request.min_ack_pending) and policy != "overflow":
        return "400 Bad Request - Not a Overflow Priority consumer"
    if request.id and policy != "pinned_client":
        return "400 Bad Request - Not a Pinned Client Priority consumer"
    if not 0 <= request.priority <= 9:
        return "400 Bad Request - Priority must be between 0 and 9"
    if policy != "none":
        if not request.group:
            return "400 Bad Request - Priority Group missing"
        if request.group not in config.priority_groups:
            return "400 Bad Request - Invalid Priority Group"
    return ""
