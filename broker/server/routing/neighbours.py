"""The parts around a router, as far as it knows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.protocol.run import Msg
from broker.server.routing.subscription import Subscription

__all__ = ["Columns", "Handle", "Mapper", "Shadows", "Tracing"]


class Handle(Protocol):
    """The result of ``subscribe``, as JetStream knows it (``broker.jetstream.bus.Subscription``)."""

    subject: bytes


class Columns(Protocol):
    """A batch of JetStream deliveries (``broker.jetstream.bus.Deliveries``)."""

    reply_prefix: bytes
    subjects: Sequence[bytes]
    hlens: Sequence[int] | None
    bodies: Sequence[bytes]
    delivered: Sequence[int]
    stream_seqs: Sequence[int]
    consumer_seqs: Sequence[int]
    times_ns: Sequence[int]
    pendings: Sequence[int]

    def __len__(self) -> int: ...


class Mapper(Protocol):
    """An account's subject mappings; clients' publishes are mapped before they are checked and routed."""

    def map(self, subject: bytes) -> bytes:
        """Where a message to ``subject`` goes; b"": nowhere."""

    def applies(self, subject: bytes) -> bool:
        """Whether a mapping has ``subject`` among its sources; it may map the subject to itself."""

    def map_run(self, ops: Sequence[Msg], start: int, end: int) -> Sequence[Msg] | None:
        """ops[start:end] under their mapped subjects; None: all of them stay as they are."""


class Tracing(Protocol):
    """What an account does about messages that an outer trace (``traceparent``) samples."""

    @property
    def dest(self) -> bytes:
        """Where their trace events go."""

    def sampled(self) -> bool:
        """Whether this one is traced."""


class Shadows(Protocol):
    """The stream imports of an account, which follow its subscriptions."""

    def added(self, sub: Subscription) -> None: ...

    def removed(self, sub: Subscription) -> None: ...

    def end(self, subs: Iterable[Subscription]) -> None:
        """These subscriptions receive nothing more, and will be removed."""

    def carries(self, account: str, subject: bytes) -> bool:
        """Whether a subscription to the literal ``subject`` gets what ``account`` publishes to that same subject."""
