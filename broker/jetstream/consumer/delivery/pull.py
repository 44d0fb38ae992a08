"""The waiting pull requests of one consumer, and how messages are shared out among them.

Owns the queue and the exact status texts that end requests. It sends nothing: methods return the status messages to
send, and ``share`` returns which request gets which messages.

A request ends

- when its batch or its bytes are used up,
- at ``expires``,
- when its inbox has no subscriber any more,
- at the end of the stream, if it is a one-shot (``no_wait``).

One message goes to the request at the head, which then moves to the tail: a single waiting request gets the whole run,
several take turns message by message. The order (priority.py) decides which of them take part.

Source: nats-server consumer.go: nextWaiting, processWaiting, waitQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from broker.jetstream.consumer.delivery import status
from broker.jetstream.consumer.delivery.priority import Order, Supply, Turn
from broker.jetstream.consumer.delivery.request import NEVER_NS, WaitingRequest

__all__ = ["Share", "Waiting"]


class Share(NamedTuple):
    """A request and the messages it gets: ``[start:stop:step]`` of those given. ``after``: a status that follows."""

    to: WaitingRequest
    start: int
    stop: int
    step: int
    after: bytes | None


class Waiting:
    """The waiting requests of one consumer, in turn order."""

    def __init__(self, max_waiting: int, order: Order) -> None:
        self.max_waiting = max_waiting
        self.order = order
        self.requests: deque[WaitingRequest] = deque()
        self._wanted: int | None = 0
        """The value of ``wanted``; None: it has to be counted."""

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def full(self) -> bool:
        return 0 < self.max_waiting <= len(self.requests)

    @property
    def wanted(self) -> int:
        """The number of messages that all requests together ask for."""
        if self._wanted is None:
            self._wanted = sum(r.batch_left for r in self.requests)
        return self._wanted

    @property
    def next_due_ns(self) -> int | None:
        """The monotonic time of the next expiry or heartbeat, of a request or of the order."""
        due = min((min(r.expires_ns, r.heartbeat_at_ns) for r in self.requests), default=NEVER_NS)
        if self.order.due_ns is not None:
            due = min(due, self.order.due_ns)
        return None if due == NEVER_NS else due

    def add(self, request: WaitingRequest) -> None:
        self.order.place(self.requests, request)
        if self._wanted is not None:
            self._wanted += request.batch_left

    def reorder(self, order: Order) -> None:
        """Change the order."""
        self.order = order
        waiting, self.requests = self.requests, deque()
        for request in waiting:
            order.place(self.requests, request)

    def turn(self, supply: Supply) -> Turn | None:
        """Return the requests that take turns with the next messages; None: none may have the next one."""
        return self.order.turn(self.requests, supply)

    def sweep(self, mono_ns: int, interested: Callable[[bytes], bool], *, at_end: bool,
              safe_seq: int, heartbeat: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Remove requests that have ended, and send heartbeats to the others.

        Args: at_end: no message up to ``safe_seq`` is left to deliver. This ends one-shots that have no
                ``expires`` or got a message, unless a message published before their arrival may be delivered later.
            heartbeat: the status to send if one is due; None leaves them for later.
        Returns: (inbox, status) to send, in order. Requests whose inbox has no subscriber are dropped silently.
        """
        out: list[tuple[bytes, bytes]] = []
        kept: deque[WaitingRequest] = deque()
        for r in self.requests:
            if r.expires_ns <= mono_ns:
                out.append((r.reply, r.pending_status(status.REQUEST_TIMEOUT)))
                continue
            if at_end and r.no_wait and r.until_seq <= safe_seq and (r.expires_ns == NEVER_NS or r.delivered):
                out.append((r.reply, status.NO_MESSAGES))
                continue
            if not interested(r.reply):
                continue
            if heartbeat is not None and r.heartbeat_at_ns <= mono_ns:
                out.append((r.reply, heartbeat))
                r.heartbeat_at_ns = mono_ns + r.heartbeat_ns
            kept.append(r)
        self.requests, self._wanted = kept, None
        return out

    def ready(self, turn: Turn, count: int, mono_ns: int,
              interested: Callable[[bytes], bool]) -> tuple[bool, list[tuple[bytes, bytes]]]:
        """Make sure that the next ``count`` requests in turn can be served.

        Returns: whether they can, and the end statuses of those that cannot; call ``turn`` again then.
        """
        gone: list[WaitingRequest] = []
        out: list[tuple[bytes, bytes]] = []
        for r in islice(turn.requests, count):
            if r.expires_ns <= mono_ns:
                out.append((r.reply, r.pending_status(status.REQUEST_TIMEOUT)))
            elif (text := self.order.refusal(r)) is not None:
                out.append((r.reply, text))
            elif interested(r.reply):
                continue
            gone.append(r)
        for r in gone:
            self.requests.remove(r)
            self._wanted = None
        return not gone, out

    def drop(self, request: WaitingRequest) -> None:
        """Remove a request whose inbox has no subscriber any more."""
        if request in self.requests:
            self.requests.remove(request)
            self._wanted = None

    def drain(self, text: bytes, *, pending: bool = False) -> list[tuple[bytes, bytes]]:
        """End every request with the same status; ``pending`` adds what is left of each."""
        out = [(r.reply, r.pending_status(text) if pending else text + b"\r\n\r\n") for r in self.requests]
        self.requests.clear()
        self._wanted = 0
        return out

    def share(self, turn: Turn, count: int, sizes: Callable[[], Sequence[int]],
              mono_ns: int) -> tuple[list[Share], list[tuple[bytes, bytes]]]:
        """Share out the next ``count`` messages among the requests that take turns.

        Args: sizes returns the size of each message as max_bytes counts it; called only if a request has max_bytes.
        Returns: the shares, which together cover the first messages without a gap, and statuses for requests that
            ended without another message. If fewer than ``count`` are covered, ask for the next turn with the rest.
        """
        requests = turn.requests
        self._wanted = None
        count = min(count, turn.messages)
        shares: list[Share] = []
        ended: list[tuple[bytes, bytes]] = []
        if any(r.bytes_left for r in requests):
            ended = self._share_by_size(requests, count, sizes(), shares, mono_ns)
        elif count < len(requests):
            for i in range(count):
                shares.append(self._serve(requests[0], i, i + 1, 1, 1, mono_ns))
                _rotate(requests)
        else:
            several = len(requests)
            rounds = min(count // several, min(r.batch_left for r in requests))
            for i in range(several):
                shares.append(self._serve(requests[0], i, rounds * several, several, rounds, mono_ns))
                _rotate(requests)
        self.order.requeue(self.requests, turn, shares[-1].to if shares else None)
        return shares, ended

    def _serve(self, r: WaitingRequest, start: int, stop: int, step: int, n: int, mono_ns: int) -> Share:
        r.batch_left -= n
        r.delivered += n
        if r.heartbeat_ns:
            r.heartbeat_at_ns = mono_ns + r.heartbeat_ns
        return Share(r, start, stop, step, None)

    def _share_by_size(self, requests: deque[WaitingRequest], count: int, sizes: Sequence[int], shares: list[Share],
                       mono_ns: int) -> list[tuple[bytes, bytes]]:
        """Share out one message at a time, because any may not fit; runs to one request are joined."""
        out: list[tuple[bytes, bytes]] = []
        i = 0
        while i < count and requests:
            r = requests[0]
            if r.bytes_left and sizes[i] > r.bytes_left:
                # Messages shared out before are sent first; otherwise the client would see the end before its messages.
                if shares:
                    break
                out.append((r.reply, r.pending_status(status.MESSAGE_SIZE)))
                r.batch_left = 0
                requests.popleft()
                continue
            if r.bytes_left:
                r.bytes_left -= sizes[i]
                if not r.bytes_left:
                    r.batch_left = 1
            share = self._serve(r, i, i + 1, 1, 1, mono_ns)
            if not r.batch_left and r.bytes_left:
                share = share._replace(after=r.pending_status(status.BATCH_COMPLETED))
            _rotate(requests)
            if shares and shares[-1].to is r and shares[-1].after is None:
                share = share._replace(start=shares.pop().start)
            shares.append(share)
            i += 1
        return out


def _rotate(requests: deque[WaitingRequest]) -> None:
    """Move the request at the head, which was served, to the tail, or remove it if it wants no more."""
    served = requests.popleft()
    if served.batch_left:
        requests.append(served)
