"""A subscription, the peers and handlers that receive through it, and the sources that publish to it.

Two kinds of subscription connect accounts (broker/server/sharing):

    relay     passes messages on to another account's router, at once, and says who received them: a service import
    shadow    stands in an exporting account for a subscription of an importing one: a stream import

Does not own: which messages a subscription receives (route, router).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from broker.protocol.run import AnyRun, Msg, Run

__all__ = ["BatchHandler", "Hop", "Peer", "Relay", "Source", "Subjects", "Subscription"]


class Source(Protocol):
    """The publisher of messages: a connection, or a requester through an import. Compared by identity."""

    wants_no_responders: bool

    @property
    def no_echo(self) -> bool:
        """Whether ``peer`` does not receive what it publishes itself."""

    @property
    def peer(self) -> Peer:
        """The connection that publishes."""

    @property
    def fan_outs(self) -> int:
        """How many of its messages are still on their way to their receivers; it must not publish meanwhile."""

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0: unknown."""

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...

    def refuse_publish(self, subject: bytes) -> None: ...

    def identity(self) -> dict[str, Any]: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def fan_out_began(self) -> None:
        """A message that it published is sent to its receivers on later turns: hold it until ``fan_out_ended``."""

    def fan_out_ended(self) -> None: ...


class Peer(Source, Protocol):
    """A connection that receives messages, and makes its own protocol's bytes of them."""

    @property
    def closed(self) -> bool:
        """Whether it receives no more messages."""

    @property
    def pending_bytes(self) -> int:
        """Unsent bytes."""

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        """Encode and queue ``run``."""

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        """Encode and queue messages, each for the subscription at the same place in ``subs``."""

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        """Encode and queue a run of one message, for each of ``subs``."""

    def expire(self, sub: Subscription) -> None:
        """Remove a subscription that received its last message."""


BatchHandler = Callable[[Sequence[Msg], int, int, "Source | None", int], Collection[int] | None]
"""Takes ops[start:end]. Returns: the indexes of the messages that it does not answer for, as if it had no subscription to
their subjects; None: it takes all."""


class Subjects(Protocol):
    """An account's router, as a part sees it that follows a message through accounts."""

    @property
    def name(self) -> str: ...

    def audience(self, subject: bytes, source: Source) -> list[tuple[Subscription, str]]:
        """The subscriptions that a message from ``source`` is meant for, each with the reason why it does not get it, or "";
        one of each queue group, at random."""

    def arrival(self, subject: bytes, hops: int) -> tuple[str, bytes] | None:
        """``Route.destination`` of a message to the literal ``subject``, which is mapped already."""


class Hop(NamedTuple):
    """How a message goes on into another account: where, and under which subject; ``traceable``: its trace does, too."""

    router: Subjects
    to: bytes
    traceable: bool


class Relay(Protocol):
    """Passes messages on to another account's router."""

    def pass_on(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes) -> Sequence[int]:
        """Returns: the number of receivers of each message. ``to``: where all are routed to; b"": each to its subject."""

    def interested(self, subject: bytes) -> bool:
        """Whether a message to the literal ``subject`` would be received."""

    def pending_bytes(self, subject: bytes) -> int:
        """Unsent bytes to the receiver of the literal ``subject`` that is furthest behind."""

    def hop(self, subject: bytes) -> Hop | None:
        """Where a message to the literal ``subject`` would go; None: nowhere."""


class Subscription:
    """A peer's (``peer``, and a client's ``sid``) or an in-process one (``handler`` or ``relay``).

    ``max`` 0: no limit on ``delivered``. ``ended``: it was removed from the router.
    """

    __slots__ = ("account", "allow_trace", "alone", "delivered", "denies", "ended", "handler", "hides", "max", "on_delivery",
                 "original", "peer", "queue", "relay", "rename", "sid", "stream", "subject")

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
        """Which of its subjects the peer may not receive; None: it may receive all."""

        self.hides: Callable[[bytes], bool] | None = None
        """The same for consumers' deliveries, which are shown under another subject than the one they are routed by."""

        self.on_delivery: Callable[[Sequence[Msg]], None] | None = None
        """Called with the messages that its peer receives through it."""

        self.relay = relay
        self.original: Subscription | None = None
        """Of a shadow: the subscription that receives, and counts."""

        self.rename: Callable[[bytes], bytes] | None = None
        """Of a shadow: the subject as the importing account knows it; b"": too long."""

        self.account = ""
        """Of a shadow: the importing account's name."""

        self.allow_trace = False
        """Of a shadow: whether a message's trace goes on into the importing account."""

        self.alone: ref[Any] | None = None
        """The ``Route`` of which it is the only receiver, while there is one."""

        self.max = 0
        self.delivered = 0
        self.ended = False

    def room(self, count: int) -> int:
        """How many of ``count`` messages it may still receive."""
        sub = self.original or self
        return max(min(count, sub.max - sub.delivered), 0) if sub.max else count

    def deliver(self, run: AnyRun) -> None:
        """Count ``run`` and hand it to the peer."""
        assert self.peer is not None
        self.delivered += run.count
        self.peer.deliver(self, run)

    def shadow(self, subject: bytes, rename: Callable[[bytes], bytes]) -> Subscription:
        """A shadow of this subscription, for another account's router."""
        shadow = Subscription(subject, self.queue, peer=self.peer, sid=self.sid)
        shadow.original, shadow.rename, shadow.stream = self, rename, self.stream
        if (denies := self.denies) is not None:
            shadow.denies = lambda subject: denies(rename(subject))
        return shadow
