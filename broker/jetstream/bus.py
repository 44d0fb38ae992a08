"""What JetStream needs from the server around it: to subscribe, to publish, and to know about interest.

The in-process router provides it; JetStream never imports the server. Everything here is synchronous and runs on the
event loop: a handler takes a whole run of messages and returns, it never awaits.

JetStream may publish to a subject that one of its own streams stores. So no call of the bus calls a handler before it
returns: what is published here reaches clients at once, and handlers, in order, in a later iteration of the loop. A
stream never receives a message while it is processing another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

__all__ = ["BatchHandler", "Bus", "Deliveries", "InterestWatch", "Msg", "OwnSource", "Source", "Subscription"]

Msg = tuple[bytes, bytes, int, bytes]
"""(subject, reply or b"", header length, headers + payload)."""


class Source(Protocol):
    """The client connection that published a message. Compared by identity; may be closed by the time it is used."""

    def identity(self) -> dict[str, Any]:
        """The client, as advisories show it: members of nats-server's ClientInfo, without empty ones."""

    def hold(self) -> None:
        """Stop reading from this client until ``release``: back-pressure. Holds nest; never on leafs or routes."""

    def release(self) -> None:
        """Undo one ``hold``."""


class OwnSource:
    """A part of a stream that publishes to the stream itself: by this, checks know its messages."""

    def identity(self) -> dict[str, Any]:
        return {}

    def hold(self) -> None:
        """Its messages wait in the queue like any other."""

    def release(self) -> None:
        """See ``hold``."""


BatchHandler = Callable[[Sequence[Msg], int, int, "Source | None", int], Collection[int] | None]
"""handler(ops, start, end, source, now_ns): ops[start:end] are publishes with one route, in order, read at now_ns.

Returns: the indexes of those for which it does not count as a responder; None: it counts for all.
``source`` is None for messages that the broker itself published."""


class Subscription(Protocol):
    """An in-process subscription."""

    subject: bytes


class InterestWatch(Protocol):
    """A watch on whether anybody subscribes to a subject."""

    interested: bool

    def cancel(self) -> None: ...


class Deliveries:
    """A batch of JetStream messages for one subscriber, as columns, so that the router formats all in one call.

    The reply subject of message i is ``reply_prefix`` followed by the five numbers of an ack subject,
    ``<delivered>.<stream_seq>.<consumer_seq>.<time_ns>.<pending>``; ``reply_prefix`` is b"" for deliveries without one.
    """

    __slots__ = ("bodies", "consumer_seqs", "delivered", "hlens", "pendings", "reply_prefix", "stream_seqs", "subjects",
                 "times_ns")

    def __init__(self, reply_prefix: bytes, subjects: Sequence[bytes], hlens: Sequence[int] | None,
                 bodies: Sequence[bytes], delivered: Sequence[int], stream_seqs: Sequence[int],
                 consumer_seqs: Sequence[int], times_ns: Sequence[int], pendings: Sequence[int]) -> None:
        self.reply_prefix = reply_prefix
        self.subjects = subjects
        self.hlens = hlens
        self.bodies = bodies
        self.delivered = delivered
        self.stream_seqs = stream_seqs
        self.consumer_seqs = consumer_seqs
        self.times_ns = times_ns
        self.pendings = pendings

    def __len__(self) -> int:
        return len(self.subjects)


class Bus(Protocol):
    """One account's subject space."""

    def subscribe(self, subject: bytes, handler: BatchHandler, *, queue: bytes = b"", stream: str = "") -> Subscription:
        """Subscribe to ``subject`` (wildcards allowed). In-process subscribers count as responders. ``stream``: for
        traces."""

    def unsubscribe(self, subscription: Subscription) -> None: ...

    def count_work(self, amount: int) -> None:
        """Add to the work of the current turn of the loop, in deliveries (about a microsecond each). A client that has
        caused too much of it continues on a later turn."""

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Route one message to all subscribers (clients and in-process); returns how many receive it."""

    def respond(self, reply: bytes, hlen: int, body: bytes) -> None:
        """Publish the response to a client's API request, under the mappings of the account."""

    def publish_all(self, msgs: Sequence[Msg]) -> None:
        """``publish`` each of ``msgs``."""

    def deliver(self, to: bytes, batch: Deliveries, *, queue: bytes = b"") -> int:
        """Send each message to the subscribers of ``to``, shown to them under its own subject.

        Returns how many of the batch had a receiver, counted from its front (fewer than ``len(batch)``: there is no
        subscriber left, the caller takes the rest back). ``queue`` not empty: one member of that queue group gets each
        message.
        """

    def pub_acks(self, source: Source | None, replies: Sequence[bytes], prefix: bytes, first_seq: int,
                 suffix: bytes) -> None:
        """Publish ``prefix + str(first_seq + i) + suffix`` to ``replies[i]`` for each i with a reply (b"" has none)."""

    def pub_acks_each(self, acks: Sequence[bytes | int]) -> None:
        """Publish ``prefix + str(seq) + b"}"`` to ``reply`` for each of ``acks``: reply, prefix, seq, reply, prefix, …"""

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Whether anybody subscribes to the literal ``subject`` (in that queue group, when given)."""

    def has_client_interest(self, subject: bytes) -> bool:
        """Whether a client subscribes to the literal ``subject``."""

    def destination(self, subject: bytes) -> tuple[str, bytes] | None:
        """The account, and the subject there, where the broker receives a request to the literal ``subject``: through the
        account's mappings and the services that it imports. None: no handler of the broker receives it."""

    def receives(self, account: str, subject: bytes) -> bool:
        """Whether a subscription here to the literal ``subject`` gets what ``account`` publishes to that same subject."""

    def watch_interest(self, subject: bytes, queue: bytes, changed: Callable[[bool], None]) -> InterestWatch:
        """Call ``changed(now_interested)`` on each change from now on; its ``interested`` is the current state.

        Interest is a subscription with just this subject and queue group; those with wildcards do not count.
        """

    def pending_bytes(self, subject: bytes) -> int:
        """Unsent bytes queued for the subscribers of ``subject``, so that delivery slows down before they become slow
        consumers."""
