"""A subscription, the peers and handlers that receive through it, and the sources that publish to it.

Two kinds of subscription connect accounts (broker/server/sharing):

    relay     a service import: passes messages on to another account's router, at once, and returns their receivers
    shadow    a stream import: stands in the exporting account for a subscription of the importing account

Does not own: the choice of the messages that a subscription receives (route, router).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from broker.protocol.run import AnyRun, Msg, Run

__all__ = ["BatchHandler", "Hop", "Leaf", "Peer", "Relay", "Source", "Subjects", "Subscription",
           "report_no_responders"]


class Source(Protocol):
    """The publisher of messages: a connection, or a requester through an import. Sources are compared by identity."""

    wants_no_responders: bool

    @property
    def no_echo(self) -> bool:
        """Flag: ``peer`` does not receive its own messages."""

    @property
    def peer(self) -> Peer:
        """The connection that publishes."""

    @property
    def fan_outs(self) -> int:
        """Number of messages from this source that are not yet sent to all receivers; it may publish again at 0."""

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0 if unknown."""

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...

    def refuse_publish(self, subject: bytes) -> None: ...

    def identity(self) -> dict[str, Any]: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def fan_out_began(self) -> None:
        """Hold the publisher until ``fan_out_ended``: one of its messages is sent to receivers on later turns."""

    def fan_out_ended(self) -> None: ...


class Peer(Source, Protocol):
    """A connection that receives messages and encodes them in its own protocol."""

    @property
    def closed(self) -> bool:
        """Flag: the connection receives no more messages."""

    @property
    def pending_bytes(self) -> int:
        """Unsent bytes."""

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        """Encode and queue ``run`` for ``sub``."""

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        """Encode and queue messages, each for the subscription at the same place in ``subs``."""

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        """Encode and queue a run of one message, for each of ``subs``."""

    def expire(self, sub: Subscription) -> None:
        """Remove a subscription that received its last message."""


class Leaf(Peer, Protocol):
    """A connection to another server, behind which there are further subscriptions."""

    hub: bool
    """Flag: the other server opened the connection, so this server is its hub."""

    group: str
    """The cluster of the other server, or another text that is unique to the connection."""

    def deliver_routed(self, run: Run, queues: Sequence[bytes], to: bytes) -> None:
        """Encode and queue ``run`` once, for plain subscriptions and one member of each of ``queues``.

        Args: ``to`` is the subject that routes all messages; b"": each message's own subject routes it.
        """


BatchHandler = Callable[[Sequence[Msg], int, int, "Source | None", int], Collection[int] | None]
"""A handler of ops[start:end]. It returns the indexes of the messages that it declines; a declined message counts as
if the handler had no subscription to its subject. None: it accepts all."""


class Subjects(Protocol):
    """The part of an account's router that following a message through accounts needs."""

    @property
    def name(self) -> str: ...

    def audience(self, subject: bytes, source: Source,
                 routes: Any = None) -> list[tuple[Subscription, str]]:
        """Return the subscriptions that match a message from ``source``, with one random member of each queue group.

        The text beside a subscription is the reason why it does not receive the message; "" if it does.
        Args: ``routes``: those of ``Router.narrowed``, if not all queue groups receive the message.
        """

    def send_to_leafs(self, msgs: Sequence[Msg], source: Source, routes: Any = None) -> None:
        """Send messages to one subject to the other servers that have receivers, and to no receiver here.

        Args: ``msgs``: not a message alone, because compiled code would make a plain tuple of a ``TracedMsg``;
            ``routes``: see above.
        """

    def arrival(self, subject: bytes, hops: int) -> tuple[str, bytes] | None:
        """Return ``Route.destination`` of a message to the literal ``subject``, which is already mapped."""


class Hop(NamedTuple):
    """The next account of a message: its router, and the subject there. ``traceable``: a trace continues there."""

    router: Subjects
    to: bytes
    traceable: bool


class Relay(Protocol):
    """Passes messages on to another account's router."""

    def pass_on(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes) -> Sequence[int]:
        """Deliver messages in the other account.

        Args: ``to`` is the subject that routes all messages; b"": each message's own subject.
        Returns: the number of receivers of each message.
        """

    def interested(self, subject: bytes) -> bool:
        """Return whether a message to the literal ``subject`` would be received."""

    def pending_bytes(self, subject: bytes) -> int:
        """Return the unsent bytes to the receiver of the literal ``subject`` that is furthest behind."""

    def hop(self, subject: bytes) -> Hop | None:
        """Return the next account of a message to the literal ``subject``; None if nothing receives it."""


class Subscription:
    """A subscription of a peer (``peer``, and a client's ``sid``), or of the broker itself (``handler`` or ``relay``).

    ``max`` bounds ``delivered``; 0: no bound. ``ended``: the subscription was removed from the router.
    """

    __slots__ = ("account", "allow_trace", "alone", "delivered", "denies", "ended", "handler", "hides", "leaf",
                 "max", "on_delivery", "original", "peer", "queue", "relay", "rename", "sid", "stream", "subject",
                 "weight")

    def __init__(self, subject: bytes, queue: bytes, *, peer: Peer | None = None, sid: bytes = b"",
                 handler: BatchHandler | None = None, stream: str = "", relay: Relay | None = None) -> None:
        self.subject = subject
        self.queue = queue
        self.peer = peer
        self.sid = sid
        self.handler = handler
        self.stream = stream
        """The stream that receives through it, for message traces."""
        self.denies: Callable[[bytes], bool] | None = None
        """Predicate that is true for a subject that the peer may not receive; None: it may receive all subjects."""

        self.hides: Callable[[bytes], bool] | None = None
        """Predicate like ``denies`` for messages of consumers, which another subject than their own routes."""

        self.on_delivery: Callable[[Sequence[Msg]], None] | None = None
        """Observer of the messages that the peer receives through this subscription."""

        self.relay = relay
        self.leaf: Leaf | None = None
        """``peer``, if it is another server."""

        self.weight = 1
        """The number of subscriptions that this one stands for; another server sends it for a queue group."""

        self.original: Subscription | None = None
        """The subscription that receives and counts messages, if this one is a shadow."""

        self.rename: Callable[[bytes], bytes] | None = None
        """Function of a shadow from a subject to the importing account's name of it; b"" if that name is too long."""

        self.account = ""
        """The importing account's name, if this is a shadow."""

        self.allow_trace = False
        """Flag of a shadow: a message's trace follows it into the importing account."""

        self.alone: ref[Any] | None = None
        """The cached ``Route`` whose only receiver is this subscription, if there is one."""

        self.max = 0
        self.delivered = 0
        self.ended = False

    def room(self, count: int) -> int:
        """Return how many of ``count`` messages the subscription may still receive."""
        sub = self.original or self
        return max(min(count, sub.max - sub.delivered), 0) if sub.max else count

    def deliver(self, run: AnyRun) -> None:
        """Count ``run`` and hand it to the peer."""
        assert self.peer is not None
        self.delivered += run.count
        self.peer.deliver(self, run)

    def shadow(self, subject: bytes, rename: Callable[[bytes], bytes]) -> Subscription:
        """Return a shadow of this subscription, for another account's router."""
        shadow = Subscription(subject, self.queue, peer=self.peer, sid=self.sid)
        shadow.original, shadow.rename, shadow.stream = self, rename, self.stream
        shadow.leaf, shadow.weight = self.leaf, self.weight
        if (denies := self.denies) is not None:
            shadow.denies = lambda subject: denies(rename(subject))
        return shadow


def report_no_responders(msgs: Sequence[Msg], source: Source) -> None:
    """Notify ``source`` that nobody received ``msgs``, which it published."""
    for subject, reply, _, _ in msgs:
        if reply:
            source.no_responders(subject, reply)
