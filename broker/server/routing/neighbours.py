"""Interfaces of a router's neighbours: the parts of them that the router uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.protocol.run import Msg
from broker.server.routing.subscription import Subscription

__all__ = ["Columns", "Handle", "InterestObserver", "Mapper", "Shadows", "Tracing"]


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
    """An account's subject mappings. Clients' publishes are mapped before they are checked and routed."""

    def map(self, subject: bytes) -> bytes:
        """Return the subject to which a message to ``subject`` goes; b"" if it goes nowhere."""

    @property
    def sources(self) -> Sequence[bytes]:
        """The subjects, with wildcards, to which the mappings apply."""

    def applies(self, subject: bytes) -> bool:
        """Return whether ``subject`` is a source of a mapping, which may map the subject to itself."""

    def map_run(self, ops: Sequence[Msg], start: int, end: int) -> Sequence[Msg] | None:
        """Return ops[start:end] under their mapped subjects; None if no subject changes."""


class Tracing(Protocol):
    """An account's settings for messages that carry an outer trace (``traceparent``) marked as sampled."""

    @property
    def dest(self) -> bytes:
        """The subject that receives the trace events."""

    def sampled(self) -> bool:
        """Return whether to trace this message; a random choice."""


class InterestObserver(Protocol):
    """The leaf nodes of an account, which inform other servers about the account's subscriptions."""

    def added(self, sub: Subscription) -> None: ...

    def removed(self, sub: Subscription) -> None: ...


class Shadows(Protocol):
    """The stream imports of an account, which mirror changes of its subscriptions."""

    def added(self, sub: Subscription) -> None: ...

    def removed(self, sub: Subscription) -> None: ...

    def end(self, subs: Iterable[Subscription]) -> None:
        """Stop deliveries to these subscriptions, which will be removed."""

    def carries(self, account: str, subject: bytes) -> bool:
        """Return whether a subscription to the literal ``subject`` receives what ``account`` publishes to that
        subject."""
