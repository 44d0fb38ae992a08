"""Pull requests as they arrive, and as they wait.

A body may be any bytes. admission.py checks requests; pull.py decides which are served.

Source: nats-server consumer.go: nextReqFromMsg, waitingRequest.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.jetstream.consumer.delivery import status
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import signed_decimal

__all__ = ["NEVER_NS", "BadRequest", "PullRequest", "WaitingRequest", "parse_request"]

NEVER_NS = 1 << 63
_REMEMBERED_MAX = 256
_BODY_BYTES_MAX = 16 * 1024
"""The largest pull request: it has a dozen short members, and is decoded in the same turn as many others."""

_LAST_PRIORITY = 1 << 31


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

    @property
    def grouped(self) -> bool:
        """True if the rules of priority groups apply: JSON can name a group, a plain number cannot."""
        return True


class _Plain(PullRequest):
    """A body that is only a number of messages. It cannot name a group, so it need not."""

    __slots__ = ()

    @property
    def grouped(self) -> bool:
        return False


_remembered: dict[bytes, PullRequest] = {}


def parse_request(body: bytes) -> PullRequest:
    """Read the body of a pull request: empty, a number, or JSON; anything else asks for one message.

    The value is shared between calls: do not modify it.
    Raises: BadRequest for invalid JSON and for a heartbeat too long for ``expires``.
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
        if len(body) > _BODY_BYTES_MAX:
            raise BadRequest(f"request is longer than {_BODY_BYTES_MAX} bytes")
        try:
            request = wire.read(PullRequest, wire.load_one(body), lenient=True)
        except ApiError as error:
            # nats-server decodes into a pointer to a pointer here, for which Go omits the type's name.
            text = error.description.removeprefix("invalid JSON: ")
            raise BadRequest(text.replace(" PullRequest.", " .", 1)) from None
        if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
            raise BadRequest("heartbeat value too large")
        return request
    batch = signed_decimal(body)
    return _Plain(batch=1 if batch is None else batch)


class WaitingRequest:
    """A waiting request: what is left of it."""

    __slots__ = ("batch_left", "by_reference", "bytes_left", "delivered", "expires_ns", "heartbeat_at_ns",
                 "heartbeat_ns", "no_wait", "pin", "priority", "reply", "request", "until_seq")

    def __init__(self, reply: bytes, request: PullRequest, mono_ns: int, until_seq: int = 0, *,
                 by_reference: bool = False) -> None:
        self.reply = reply
        self.by_reference = by_reference
        self.request = request
        self.until_seq = until_seq
        """The sequence that must be persisted before a one-shot request ends."""
        # A batch of 0 or less is served once: the count is checked after a message has been sent.
        self.batch_left = max(request.batch, 1)
        self.bytes_left = max(request.max_bytes, 0)
        self.delivered = 0
        self.no_wait = request.no_wait
        self.pin = request.id
        self.priority = request.priority if request.grouped else _LAST_PRIORITY
        self.expires_ns = mono_ns + request.expires if request.expires else NEVER_NS
        self.heartbeat_ns = max(request.idle_heartbeat, 0)
        self.heartbeat_at_ns = mono_ns + self.heartbeat_ns if self.heartbeat_ns else NEVER_NS

    def pending_status(self, text: bytes) -> bytes:
        # nats-server counts down from the requested batch, also from 0 or less.
        return status.with_pending(text, self.batch_left - 1 + min(self.request.batch, 1), self.bytes_left)
