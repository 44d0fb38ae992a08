"""Reads the stream that a mirror or source copies from, as a sequence of batches.

Owns: reading the persisted messages of the origin from a sequence on, through filters. Does not own: the choice of the
origin (``Find``, provided by the account), the first sequence to read, and storing the messages (mirror, source).

An origin in this process is read directly: no consumer is created, nothing is acked, and a slow reader costs the origin
nothing. Streams of other servers are read by deliveries (``remote``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.base.gotime import format_time
from broker.jetstream.config.stream import StreamSource
from broker.jetstream.filters import Filters
from broker.jetstream.wire.ids import short_hash
from broker.storage.format.frame import Chunk

if TYPE_CHECKING:
    from broker.jetstream.stream.shared.chunks import Loading
    from broker.jetstream.stream.shared.listeners import Listeners
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.upstream.link import Remote

__all__ = ["Batch", "Find", "Origin", "OriginReader", "identity_at", "identity_of"]

MSGS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
"""Limits of one batch, which takes a few milliseconds to read and store. A larger message is a batch of its own."""

_EXPECTATIONS = re.compile(rb"\r\nNats-(?:Expected|Batch)-[^\r\n]*")
"""Headers that are meant only for the origin."""

_EMPTY_BLOCK = b"NATS/1.0\r\n\r\n"


class Origin(Protocol):
    """A stream that is copied from."""

    name: str
    created_ns: int

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def safe_seq(self) -> int: ...
    @property
    def listeners(self) -> Listeners: ...
    async def load_blocks(self) -> None: ...
    async def seq_at(self, time_ns: int) -> int: ...
    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, LiveBlock, int] | Loading | None: ...


def identity_of(origin: Origin) -> str:
    """Return an identity that differs for any later stream of the same name.

    The API also returns it to creators of consumers for sources.
    """
    return identity_at(origin.created_ns)


def identity_at(created_ns: int) -> str:
    """Return the identity of a stream that was created at this time."""
    return short_hash(format_time(created_ns))


Find = Callable[[StreamSource, bool], "Origin | Remote"]
"""Returns the stream that a mirror (True) or source names, or the way to it if another server has it.

Raises: ApiError, the same as the origin's API, if none exists.
"""


class Batch:
    """Messages of one origin in order, as columns. ``end_seq``: the sequence at which reading continues."""

    __slots__ = ("bodies", "end_seq", "hlens", "seqs", "subjects", "times_ns")

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.subjects: list[bytes] = []
        self.hlens: list[int] = []
        self.bodies: list[bytes] = []
        self.times_ns: list[int] = []
        self.end_seq = 0

    def add(self, seq: int, subject: bytes, hlen: int, body: bytes, time_ns: int, *, keep: bool = False) -> int:
        """Add a message; return its size. Headers that are meant only for its origin are removed, unless ``keep``."""
        if hlen and not keep and _EXPECTATIONS.search(body, 0, hlen):
            hlen, body = _without_expectations(hlen, body)
        self.seqs.append(seq)
        self.subjects.append(subject)
        self.hlens.append(hlen)
        self.bodies.append(body)
        self.times_ns.append(time_ns)
        return len(body)


class OriginReader:
    """Reads one origin from ``next_seq`` on.

    ``read`` advances ``next_seq`` past messages that do not match; the caller advances it past messages that it stored.
    """

    def __init__(self, origin: Origin, filters: Sequence[str], next_seq: int) -> None:
        self.origin = origin
        self.next_seq = next_seq
        made = Filters(one.encode() or b">" for one in filters)
        self._filters = None if made.all else made
        self._held: Loading | None = None

    @property
    def lag(self) -> int:
        """Number of the origin's sequences that are left to read; with filters, an upper bound of messages."""
        return max(self.origin.last_seq + 1 - max(self.next_seq, self.origin.first_seq), 0)

    def read(self) -> Batch | Loading | None:
        """Return the next messages; or a Loading that must end first; or None if nothing is new."""
        while True:
            found = self.origin.next_chunk(self.next_seq, self._filters)
            if found is None:
                self._held = None
                self.next_seq = max(self.next_seq, self.origin.safe_seq + 1)
                return None
            if not isinstance(found, tuple):
                self._held = found  # keeps what it loads in memory until it is read
                self.next_seq = max(self.next_seq, found.seq)
                return found
            self._held = None
            batch = self._batch(*found)
            if batch.seqs:
                return batch
            self.next_seq = batch.end_seq

    def _batch(self, chunk: Chunk, block: LiveBlock, place: int) -> Batch:
        batch, size = Batch(), 0
        first_seq, last_seq = self.origin.first_seq, self.origin.safe_seq
        dead, filters, hlens = block.dead, self._filters, chunk.hlens
        batch.end_seq = min(chunk.last_seq, last_seq) + 1
        for at in range(place, len(chunk)):
            seq = chunk.seq(at)
            if seq > last_seq:
                break
            subject = chunk.subjects[at]
            if (seq < first_seq or (dead is not None and seq in dead)
                    or (filters is not None and not filters.match(subject))):
                continue
            hlen, body = hlens[at] if hlens is not None else 0, chunk.bodies[at]
            if batch.seqs and (len(batch.seqs) >= MSGS_AT_ONCE or size + len(body) > BYTES_AT_ONCE):
                batch.end_seq = seq
                break
            size += batch.add(seq, subject, hlen, body, chunk.times[at])
        return batch


def _without_expectations(hlen: int, body: bytes) -> tuple[int, bytes]:
    block = _EXPECTATIONS.sub(b"", body[:hlen])
    if block == _EMPTY_BLOCK:
        block = b""
    return len(block), block + body[hlen:]
