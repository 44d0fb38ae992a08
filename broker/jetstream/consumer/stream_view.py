"""The interface through which a consumer uses its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.consumer.cursor.cursor import Readable
from broker.jetstream.filters import Filters
from broker.storage.log.owner import BlockOwner

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.storage.format.records.consumer_state import ConsumerDelta
    from broker.storage.log.stream_log import StreamLog

__all__ = ["StreamView"]


class Changed(Protocol):
    """A consumer whose state changed."""

    @property
    def name(self) -> str: ...
    def pop_delta(self) -> ConsumerDelta | None: ...


class References(Protocol):
    """References to the messages of a stream, for clients that read the store themselves."""

    @property
    def refusal(self) -> str:
        """Why there are none, or ""."""

    def lines(self, seq: int) -> bytes | None:
        """Return the header lines of a reference to a message; None: it is delivered whole."""


class StreamView(BlockOwner, Readable, Protocol):
    """A stream, as its consumers see it; the log identifies it by the same object."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> StreamConfig: ...
    @property
    def account(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def log(self) -> StreamLog: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def references(self) -> References: ...

    async def last_seqs(self, filters: Filters | None) -> list[int]:
        """Return the last sequence that matches, in a list, or an empty one."""

    async def last_seqs_by_subject(self, filters: Filters, up_to_seq: int) -> list[int]:
        """Return the last sequence at or below ``up_to_seq`` of each matching subject, ascending."""

    async def seq_at(self, time_ns: int) -> int:
        """Return the first sequence at or after a time; last_seq + 1 if there is none."""

    def acked(self, seqs: Sequence[int]) -> asyncio.Future[None] | None:
        """Remove ``seqs``, for which the calling consumer no longer waits, unless others wait for them.

        Returns: a future if that has to wait for the store. Until it is done, and all returned before it, the acks must
            not be answered.
        """

    def acked_from(self, seq: int) -> asyncio.Future[None] | None:
        """Do as ``acked`` for all messages from ``seq`` on: very many,
        some of which the consumer may not have acked."""

    def dirty(self, consumer: Changed) -> None:
        """Record the delta of ``consumer`` when the next segment closes, within a second."""
