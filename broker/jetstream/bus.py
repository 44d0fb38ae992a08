"""The interface through which JetStream uses the server around it: subscribing, publishing, and interest.

The in-process router implements it; JetStream never imports the server. Every call is synchronous and runs on the
event loop. A handler takes a whole run of messages and never awaits.

JetStream may publish to a subject that one of its own streams stores. Therefore no call of the bus calls a handler
before it returns. Clients receive a published message at once; handlers receive it, in order, in a later turn of the
loop. So a stream never receives a message while it is processing another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

__all__ = ["BatchHandler", "Bus", "Deliveries", "InterestWatch", "MessageTracer", "Msg", "OwnSource", "Source",
           "Subscription"]

Msg = tuple[bytes, bytes, int, bytes]
"""(subject, reply or b"", header length, headers + payload)."""


class Source(Protocol):
    """The client connection that published a message. Compared by identity; it may be closed by the time it is used."""

    def identity(self) -> dict[str, Any]:
        """Return the client as advisories show it: members of nats-server's ClientInfo, without empty ones."""

    def hold(self) -> None:
        """Stop reading from this client until ``release``: back-pressure. Holds nest;
        leafs and routes are never held."""

    def release(self) -> None:
        """Undo one ``hold``."""


class OwnSource:
    """The source of messages that a part of a stream publishes to the stream itself; checks recognise them by it."""

    def identity(self) -> dict[str, Any]:
        return {}

    def hold(self) -> None:
        """Do nothing: these messages wait in the queue like any other."""

    def release(self) -> None:
        """See ``hold``."""


BatchHandler = Callable[[Sequence[Msg], int, int, "Source | None", int], Collection[int] | None]
"""handler(ops, start, end, source, now_ns): ops[start:end] are publishes with one route, in order, read at now_ns.

Returns: the indexes of the messages for which the handler does not count as a responder; None: it counts for all.
``source`` is None for messages that the broker itself published.
"""


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


class MessageTracer(Protocol):
    """The receiver of what happens to messages, for traces of other programs (OpenTelemetry)."""

    def published(self, account: str, stream: Any, name: str, log: Any, first_seq: int,
                  subjects: Sequence[bytes], hlens: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Record that messages were appended to the stream ``name`` from ``first_seq`` on; some have headers."""

    def delivered(self, account: str, stream: str, consumer: str, began_ns: int, seqs: Sequence[int],
                  subjects: Sequence[bytes], hlens: Sequence[int], bodies: Sequence[bytes],
                  counts: Sequence[int] | None) -> None:
        """Record that a consumer sent messages, some of which have headers.

        Args: ``began_ns``: the time at which it began to; ``counts``: how often each was delivered, None for once.
        """


class Bus(Protocol):
    """The subject space of one account."""

    tracer: MessageTracer | None
    """None if no messages are traced."""

    def subscribe(self, subject: bytes, handler: BatchHandler, *, queue: bytes = b"", stream: str = "") -> Subscription:
        """Subscribe to ``subject`` (wildcards allowed). In-process subscribers count as responders.

        ``stream`` is the name of the stream that message traces show.
        """

    def unsubscribe(self, subscription: Subscription) -> None: ...

    def count_work(self, amount: int) -> None:
        """Add to the work of the current turn of the loop, in deliveries (about a microsecond each).

        A client that has caused too much work in one turn continues on a later turn.
        """

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Route one message to all subscribers (clients and in-process); returns how many receive it."""

    def respond(self, reply: bytes, hlen: int, body: bytes) -> None:
        """Publish the response to a client's API request, under the mappings of the account."""

    def publish_all(self, msgs: Sequence[Msg]) -> None:
        """``publish`` each of ``msgs``."""

    def send(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """``publish`` to connections only: no handler of the broker receives it.

        So a client may name the subject without permission to publish there: neither an API of the broker nor a stream
        takes the message for a request.
        """

    def send_run(self, subject: bytes, bodies: Sequence[bytes]) -> None:
        """``send`` messages to one subject, without reply subjects and headers."""

    def deliver(self, to: bytes, batch: Deliveries, *, queue: bytes = b"") -> int:
        """Send each message to the subscribers of ``to``, shown to them under its own subject.

        Return how many messages at the front of the batch had a receiver. If that is fewer than ``len(batch)``, no
        subscriber is left, and the caller takes the rest back. If ``queue`` is not empty, one member of that queue
        group gets each message.
        """

    def pub_acks(self, source: Source | None, replies: Sequence[bytes], prefix: bytes, first_seq: int,
                 suffix: bytes) -> None:
        """Publish ``prefix + str(first_seq + i) + suffix`` to ``replies[i]`` for each i with a reply (b"" has none)."""

    def pub_acks_each(self, acks: Sequence[bytes | int]) -> None:
        """Publish ``prefix + str(seq) + b"}"`` to ``reply`` for each ack in ``acks``: reply, prefix, seq, reply, …"""

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return whether anybody subscribes to the literal ``subject`` (in that queue group, when given)."""

    def has_client_interest(self, subject: bytes) -> bool:
        """Return whether a client subscribes to the literal ``subject``."""

    def destination(self, subject: bytes) -> tuple[str, bytes] | None:
        """Return the account, and the subject there, where the broker receives a request to the literal ``subject``.

        The request passes the account's mappings and the services that it imports. None: no handler of the broker
        receives it.
        """

    def receives(self, account: str, subject: bytes) -> bool:
        """Return whether a subscription here to the literal ``subject`` gets what ``account`` publishes to it."""

    def watch_interest(self, subject: bytes, queue: bytes, changed: Callable[[bool], None]) -> InterestWatch:
        """Call ``changed(now_interested)`` on each change from now on; the watch's ``interested`` is the current state.

        Interest is a subscription with exactly this subject and queue group; subscriptions with wildcards do not count.
        """

    def pending_bytes(self, subject: bytes) -> int:
        """Return the unsent bytes queued for the subscribers of ``subject``.

        Delivery slows down by them before the subscribers become slow consumers.
        """
