"""Pull requests: reading them, keeping them in order, sharing messages out among them.

Owns the queue of waiting requests of one consumer and the exact texts of their ends. It sends nothing: methods return
the status messages to send, and ``share`` says which request gets which of the messages at hand.

A request ends when its batch or its bytes are used up, at ``expires``, when its inbox has no subscriber any more, or as
a one-shot (``no_wait``) at the end of the stream. One message goes to the request at the head, which then moves to the
tail: with one request waiting it gets the whole run, with several they take turns message by message.

Source: nats-server consumer.go: nextReqFromMsg, processNextMsgRequest, nextWaiting, processWaiting, waitQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.jetstream.consumer.delivery import status
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import signed_decimal

__all__ = ["BadRequest", "PullRequest", "Share", "Waiting", "WaitingRequest", "parse_request"]

_NEVER = 1 << 63
_REMEMBERED_MAX = 256


class BadRequest(Exception):
    """A pull request that is refused; ``text`` follows ``400 Bad Request - ``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(slots=True)
class PullRequest:
    """The body of a pull request. Durations are nanoseconds; 0 = not given."""

    expires: int = wire.duration()
    batch: int = wire.integer()
    max_bytes: int = wire.integer()
    no_wait: bool = wire.boolean()
    idle_heartbeat: int = wire.duration()
    group: str = wire.text()
    min_pending: int = wire.int64()
    min_ack_pending: int = wire.int64()
    id: str = wire.text()
    priority: int = wire.integer()


_remembered: dict[bytes, PullRequest] = {}


def parse_request(body: bytes) -> PullRequest:
    """Read the body of a pull request: empty, a number, or JSON; anything else asks for one message.

    The value is shared between calls: don't change it.
    Raises: BadRequest for JSON that cannot be read and for a heartbeat that ``expires`` leaves no room for.
    """
    found = _remembered.get(body)
    if found is None:
        found = _parse(body.strip())
        if len(body) <= 256:
            if len(_remembered) >= _REMEMBERED_MAX:
                _remembered.clear()
            _remembered[body] = found
    return found


def _parse(body: bytes) -> PullRequest:
    if body[:1] == b"{":
        try:
            request = wire.read(PullRequest, wire.load_one(body), lenient=True)
        except ApiError as error:
            # nats-server decodes into a pointer to a pointer here, and Go then leaves out the type's name.
            text = error.description.removeprefix("invalid JSON: ")
            raise BadRequest(text.replace(" PullRequest.", " .", 1)) from None
        if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
            raise BadRequest("heartbeat value too large")
        return request
    batch = signed_decimal(body)
    return PullRequest(batch=1 if batch is None else batch)


class WaitingRequest:
    """One request as it waits: what is left of it."""

    __slots__ = ("batch_left", "bytes_left", "delivered", "expires_ns", "heartbeat_at_ns", "heartbeat_ns", "no_wait",
                 "reply", "request")

    def __init__(self, reply: bytes, request: PullRequest, mono_ns: int) -> None:
        self.reply = reply
        self.request = request
        # A batch of 0 or less is served once: the count is looked at after a message has gone out.
        self.batch_left = max(request.batch, 1)
        self.bytes_left = max(request.max_bytes, 0)
        self.delivered = 0
        self.no_wait = request.no_wait
        self.expires_ns = mono_ns + request.expires if request.expires else _NEVER
        self.heartbeat_ns = max(request.idle_heartbeat, 0)
        self.heartbeat_at_ns = mono_ns + self.heartbeat_ns if self.heartbeat_ns else _NEVER

    def pending_status(self, text: bytes) -> bytes:
        return status.with_pending(text, self.batch_left, self.bytes_left)


class Share(NamedTuple):
    """A request and the messages it gets: ``[start:stop:step]`` of those at hand. ``after``: a status that follows."""

    to: WaitingRequest
    start: int
    stop: int
    step: int
    after: bytes | None


class Waiting:
    """The waiting requests of one consumer, the next to be served first."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.requests: deque[WaitingRequest] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def full(self) -> bool:
        return 0 < self.max_waiting <= len(self.requests)

    @property
    def wanted(self) -> int:
        """Messages that all requests together still ask for."""
        return sum(r.batch_left for r in self.requests)

    @property
    def next_due_ns(self) -> int | None:
        """Monotonic time of the next expiry or heartbeat."""
        due = min((min(r.expires_ns, r.heartbeat_at_ns) for r in self.requests), default=_NEVER)
        return None if due == _NEVER else due

    def add(self, request: WaitingRequest) -> None:
        self.requests.append(request)

    def sweep(self, mono_ns: int, interested: Callable[[bytes], bool], *, at_end: bool,
              heartbeat: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Let go of what has ended, and beat for what goes on.

        Args: at_end: no message is left to deliver, which ends one-shots without ``expires`` or that had something.
            heartbeat: the status to send where one is due; None leaves them for later.
        Returns: (inbox, status) to send, in order. Requests whose inbox nobody hears go silently.
        """
        out: list[tuple[bytes, bytes]] = []
        kept: deque[WaitingRequest] = deque()
        for r in self.requests:
            if r.expires_ns <= mono_ns:
                out.append((r.reply, r.pending_status(status.REQUEST_TIMEOUT)))
                continue
            if at_end and r.no_wait and (r.expires_ns == _NEVER or r.delivered):
                out.append((r.reply, status.NO_MESSAGES))
                continue
            if not interested(r.reply):
                continue
            if heartbeat is not None and r.heartbeat_at_ns <= mono_ns:
                out.append((r.reply, heartbeat))
                r.heartbeat_at_ns = mono_ns + r.heartbeat_ns
            kept.append(r)
        self.requests = kept
        return out

    def ready(self, count: int, mono_ns: int, interested: Callable[[bytes], bool]) -> list[tuple[bytes, bytes]]:
        """Make sure that the next ``count`` requests in turn can be served; returns the ends of those that cannot."""
        requests = self.requests
        out: list[tuple[bytes, bytes]] = []
        i = 0
        while i < count and i < len(requests):
            r = requests[i]
            if r.expires_ns <= mono_ns:
                out.append((r.reply, r.pending_status(status.REQUEST_TIMEOUT)))
            elif interested(r.reply):
                i += 1
                continue
            del requests[i]
        return out

    def drop(self, request: WaitingRequest) -> None:
        """Nobody hears this request's inbox any more."""
        if request in self.requests:
            self.requests.remove(request)

    def drain(self, text: bytes, *, pending: bool = False) -> list[tuple[bytes, bytes]]:
        """End every request with the same status; ``pending`` adds what was left of each."""
        out = [(r.reply, r.pending_status(text) if pending else text + b"\r\n\r\n") for r in self.requests]
        self.requests.clear()
        return out

    def share(self, count: int, sizes: Callable[[], Sequence[int]],
              mono_ns: int) -> tuple[list[Share], list[tuple[bytes, bytes]]]:
        """Share out the next ``count`` messages.

        Args: sizes gives the size of each message as max_bytes counts it, and is asked only where one is in force.
        Returns: the shares, which together cover the first messages without a gap, and statuses for requests that
            ended without getting one more. Fewer than ``count`` may be covered: call again with the rest.
        """
        requests = self.requests
        if any(r.bytes_left for r in requests):
            return self._share_by_size(count, sizes(), mono_ns)
        several = len(requests)
        shares: list[Share] = []
        if several == 1:
            r = requests[0]
            n = min(count, r.batch_left)
            shares.append(self._serve(r, 0, n, 1, n, mono_ns))
            if not r.batch_left:
                requests.popleft()
        elif several and count < several:
            for i in range(count):
                r = requests.popleft()
                shares.append(self._serve(r, i, i + 1, 1, 1, mono_ns))
                if r.batch_left:
                    requests.append(r)
        elif several:
            rounds = min(count // several, min(r.batch_left for r in requests))
            for i, r in enumerate(requests):
                shares.append(self._serve(r, i, rounds * several, several, rounds, mono_ns))
            self.requests = deque(r for r in requests if r.batch_left)
        return shares, []

    def _serve(self, r: WaitingRequest, start: int, stop: int, step: int, n: int, mono_ns: int) -> Share:
        r.batch_left -= n
        r.delivered += n
        if r.heartbeat_ns:
            r.heartbeat_at_ns = mono_ns + r.heartbeat_ns
        return Share(r, start, stop, step, None)

    def _share_by_size(self, count: int, sizes: Sequence[int],
                       mono_ns: int) -> tuple[list[Share], list[tuple[bytes, bytes]]]:
        """One message at a time, since any may be the one that does not fit; runs to one request are joined."""
        requests = self.requests
        shares: list[Share] = []
        out: list[tuple[bytes, bytes]] = []
        i = 0
        while i < count and requests:
            r = requests[0]
            if r.bytes_left and sizes[i] > r.bytes_left:
                # What was shared out before goes first, else the client would see the end before its messages.
                if shares:
                    break
                out.append((r.reply, r.pending_status(status.MESSAGE_SIZE)))
                requests.popleft()
                continue
            limited = r.bytes_left > 0
            if limited:
                r.bytes_left -= sizes[i]
                if not r.bytes_left:
                    r.batch_left = 1
            share = self._serve(r, i, i + 1, 1, 1, mono_ns)
            if not r.batch_left:
                requests.popleft()
                if r.bytes_left:
                    share = share._replace(after=r.pending_status(status.BATCH_COMPLETED))
            elif len(requests) > 1:
                requests.rotate(-1)
            if shares and shares[-1].to is r and shares[-1].after is None:
                share = share._replace(start=shares.pop().start)
            shares.append(share)
            i += 1
        return shares, out
