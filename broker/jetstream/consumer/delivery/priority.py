"""The priority policies: which of the waiting pull requests may have the next messages.

    none            all of them take turns                                           Order
    prioritized     those of the lowest ``priority`` take turns                      Prioritized
    overflow        those whose min_pending or min_ack_pending is reached            Overflow
    pinned_client   those that carry the pin; if no client has it, the first         PinnedClient
                    one without a pin gets it

An order returns a ``Turn`` before messages are read, without changing state; ``requeue`` is called with the requests
served. Requests are checked on arrival in admission.py.

Source: nats-server consumer.go: nextWaiting, popAndRequeue, assignNewPinId, setPinnedTimer; ADR-42.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from broker.base.clock import Clock
from broker.jetstream.consumer.delivery import status
from broker.jetstream.consumer.delivery.request import WaitingRequest
from broker.jetstream.wire.advisories import ConsumerEvents
from broker.jetstream.wire.ids import unique_id

__all__ = ["Order", "Overflow", "PinnedClient", "Prioritized", "Supply", "Turn", "order_of"]

_ANY = 1 << 62
_PRIORITY = attrgetter("priority")


class Supply(NamedTuple):
    """The counts that overflow compares: messages to deliver, the next one included, and acks pending.

    ``first`` and ``acked`` determine how a delivery changes them: a message's first delivery lowers ``pending`` by one
    and, if it is to be acked, raises ``ack_pending`` by one.
    """

    pending: int
    ack_pending: int
    first: bool
    acked: bool


class Turn(NamedTuple):
    """The requests that take turns with the next ``messages``, in order; sharing out modifies ``requests``."""

    requests: deque[WaitingRequest]
    messages: int

    @property
    def wanted(self) -> int:
        """The number of messages that can be shared out among the requests."""
        return min(self.messages, sum(r.batch_left for r in self.requests))


class Order:
    """The order without priorities: requests take turns, in the order of their arrival.

    Attributes: ``pin``: the pin of the one client that is served, empty: none; ``pinned_at_ns``: since when (Unix UTC);
        ``due_ns``: when it expires unless a request renews it (monotonic); ``timeout_ns``: the time from the last
        request to the expiry.
    """

    policy = "none"

    def __init__(self) -> None:
        self.pin = ""
        self.pinned_at_ns = 0
        self.due_ns: int | None = None
        self.timeout_ns = 0

    def place(self, requests: deque[WaitingRequest], request: WaitingRequest) -> None:
        """Put a new request into the queue."""
        requests.append(request)

    def turn(self, requests: deque[WaitingRequest], supply: Supply) -> Turn | None:
        """Return the requests that take turns now; None: none may have the next message."""
        return Turn(requests, _ANY) if requests else None

    def refusal(self, request: WaitingRequest) -> bytes | None:
        """Return why a request whose turn has come ends without a message; None: it does not."""
        return None

    def requeue(self, requests: deque[WaitingRequest], turn: Turn, last: WaitingRequest | None) -> None:
        """Update the queue after sharing out; ``last`` got the last message, None: no request got any."""

    def headers(self) -> bytes:
        """Return the extra headers of every message to the requests served."""
        return b""

    def expire(self, mono_ns: int) -> bool:
        """Remove the pin if it has expired; returns whether it had."""
        return False

    def unpin(self) -> None:
        """Remove the pin from the client that has it."""


class Prioritized(Order):
    """A queue sorted by priority; requests of equal priority take turns."""

    policy = "prioritized"

    def place(self, requests: deque[WaitingRequest], request: WaitingRequest) -> None:
        requests.insert(bisect_right(requests, request.priority, key=_PRIORITY), request)

    def turn(self, requests: deque[WaitingRequest], supply: Supply) -> Turn | None:
        if not requests:
            return None
        first = requests[0].priority
        return Turn(deque(takewhile(lambda request: request.priority == first, requests)), _ANY)

    def requeue(self, requests: deque[WaitingRequest], turn: Turn, last: WaitingRequest | None) -> None:
        first = requests[0].priority
        while requests and requests[0].priority == first:
            requests.popleft()
        requests.extendleft(reversed(turn.requests))


class _Selective(Order):
    """A queue in which any request may be passed over; it keeps its place in the rotation."""

    def requeue(self, requests: deque[WaitingRequest], turn: Turn, last: WaitingRequest | None) -> None:
        if last is not None:
            requests.rotate(-requests.index(last) - 1)
        for r in [r for r in requests if not r.batch_left]:
            requests.remove(r)


class Overflow(_Selective):
    """A request with limits is served once one of them is reached; one without limits always is."""

    policy = "overflow"

    def turn(self, requests: deque[WaitingRequest], supply: Supply) -> Turn | None:
        may: deque[WaitingRequest] = deque()
        count = _ANY
        for r in requests:
            min_pending, min_acks = r.request.min_pending, r.request.min_ack_pending
            if (min_pending <= 0 and min_acks <= 0) or 0 < min_acks <= supply.ack_pending:
                may.append(r)
                continue
            if 0 < min_pending <= supply.pending:
                may.append(r)
                if supply.first:
                    count = min(count, supply.pending - min_pending + 1)
            elif min_acks > 0 and supply.first and supply.acked:
                count = min(count, min_acks - supply.ack_pending)
        return Turn(may, count) if may else None


class PinnedClient(_Selective):
    """An order that serves one client at a time: its requests carry the pin, the others wait."""

    policy = "pinned_client"

    def __init__(self, events: ConsumerEvents, clock: Clock, rng: random.Random) -> None:
        super().__init__()
        self._group = ""
        self._events = events
        self._clock = clock
        self._rng = rng

    def turn(self, requests: deque[WaitingRequest], supply: Supply) -> Turn | None:
        """Return the requests with the pin.

        A request with another pin has its turn too, alone, so that ``refusal`` ends it when it is reached.
        """
        may: deque[WaitingRequest] = deque()
        for r in requests:
            if self.refusal(r) is not None:
                return Turn(may or deque([r]), 1)
            if r.pin == self.pin:
                may.append(r)
                if not self.pin:
                    # It gets the pin, after which others have no turn. A request that names no group gets only this
                    # message and no pin.
                    return Turn(may, _ANY if r.request.group else 1)
        return Turn(may, _ANY) if may else None

    def refusal(self, request: WaitingRequest) -> bytes | None:
        if request.pin and request.pin != self.pin:
            return request.pending_status(status.WRONG_PIN)
        return None

    def requeue(self, requests: deque[WaitingRequest], turn: Turn, last: WaitingRequest | None) -> None:
        if last is not None and not self.pin and last.request.group:
            self.pin = last.pin = unique_id(self._rng)
            self._group = last.request.group
            self.pinned_at_ns = self._clock.now_ns()
            self.touch()
            self._events.pinned(self._group, self.pin)
        super().requeue(requests, turn, last)

    def headers(self) -> bytes:
        return b"Nats-Pin-Id: %b\r\n" % self.pin.encode()

    def touch(self) -> None:
        """Renew the pin for another ``timeout_ns``: the pinned client sent a request."""
        self.due_ns = self._clock.monotonic_ns() + self.timeout_ns

    def expire(self, mono_ns: int) -> bool:
        if self.due_ns is None or self.due_ns > mono_ns:
            return False
        self.unpin()
        self._events.unpinned(self._group, "timeout")
        return True

    def unpin(self) -> None:
        self.pin, self.pinned_at_ns, self.due_ns = "", 0, None


def order_of(policy: str, events: ConsumerEvents, clock: Clock, rng: random.Random) -> Order:
    """Return the order for a priority policy."""
    match policy:
        case "prioritized":
            return Prioritized()
        case "overflow":
            return Overflow()
        case "pinned_client":
            return PinnedClient(events, clock, rng)
    return Order()
