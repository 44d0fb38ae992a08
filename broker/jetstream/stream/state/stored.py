"""Stored messages as values: a single message, or several messages as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.jetstream.stream.state.rows import OpenRows

if TYPE_CHECKING:
    from broker.storage.format.frame import Chunk
    from broker.storage.log.open_block import OpenBlock

__all__ = ["NO_MSGS", "Gathering", "StoredMsg", "StoredMsgs", "columns_of", "from_chunk", "from_open"]


class StoredMsg(NamedTuple):
    """A stored message; ``body`` is headers (its first ``hlen`` bytes) and payload as published."""

    seq: int
    subject: bytes
    hlen: int
    body: bytes
    time_ns: int

    @property
    def headers(self) -> bytes:
        return self.body[:self.hlen]

    @property
    def payload(self) -> bytes:
        return self.body[self.hlen:]


class StoredMsgs(NamedTuple):
    """Stored messages as columns of one length, in sequence order; ``hlens`` None: none has headers."""

    seqs: Sequence[int]
    subjects: Sequence[bytes]
    hlens: Sequence[int] | None
    bodies: Sequence[bytes]
    times_ns: Sequence[int]

    @classmethod
    def of(cls, msgs: Sequence[StoredMsg]) -> StoredMsgs:
        return cls(*zip(*msgs, strict=True)) if msgs else NO_MSGS

    def first(self, n: int) -> StoredMsgs:
        """Return the first ``n`` messages."""
        seqs, subjects, hlens, bodies, times_ns = self
        return StoredMsgs(seqs[:n], subjects[:n], None if hlens is None else hlens[:n], bodies[:n], times_ns[:n])


NO_MSGS = StoredMsgs((), (), None, (), ())


class Gathering:
    """A builder that puts stored messages of several chunks together, in sequence order.

    Attributes: ``body_bytes``: total length of the bodies.
    """

    __slots__ = ("_bodies", "_headers", "_hlens", "_seqs", "_subjects", "_times", "body_bytes")

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._subjects: list[bytes] = []
        self._hlens: list[int] = []
        self._bodies: list[bytes] = []
        self._times: list[int] = []
        self._headers = False
        self.body_bytes = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, msg: StoredMsg) -> None:
        seq, subject, hlen, body, time_ns = msg
        self._seqs.append(seq)
        self._subjects.append(subject)
        self._hlens.append(hlen)
        self._bodies.append(body)
        self._times.append(time_ns)
        self._headers |= hlen > 0
        self.body_bytes += len(body)

    def extend(self, chunk: Chunk, seqs: Sequence[int], places: Sequence[int]) -> None:
        """Add the messages ``seqs``, which are at ``places`` of ``chunk``."""
        subjects, hlens, times = chunk.subjects, chunk.hlens, chunk.times
        bodies = [chunk.bodies[i] for i in places]
        self._seqs += seqs
        self._subjects += [subjects[i] for i in places]
        self._hlens += (0,) * len(places) if hlens is None else [hlens[i] for i in places]
        self._bodies += bodies
        self._times += [times[i] for i in places]
        self._headers |= hlens is not None
        self.body_bytes += sum(map(len, bodies))

    def msgs(self) -> StoredMsgs:
        return StoredMsgs(self._seqs, self._subjects, self._hlens if self._headers else None, self._bodies, self._times)


def from_open(block: OpenBlock[Any], seq: int) -> StoredMsg | None:
    """Return message ``seq`` of a block that is not stored yet; None if the block has no such message."""
    rows = OpenRows(block)
    at = rows.ordinal_of(seq)
    if at >= rows.count or rows.seq_of(at) != seq:
        return None
    hlen = 0 if block.hlens is None else block.hlens[at]
    return StoredMsg(seq, block.subjects[at], hlen, block.bodies[at], rows.time_of(at))


def columns_of(chunk: Chunk, ordinals: Sequence[int]) -> StoredMsgs:
    """Return messages of one chunk as columns; ``ordinals`` has at least one, in order."""
    start, subjects, hlens, bodies, times = chunk.start, chunk.subjects, chunk.hlens, chunk.bodies, chunk.times
    first, last = ordinals[0] - start, ordinals[-1] - start
    if last - first + 1 == len(ordinals):
        cut = slice(first, last + 1)
        seqs = range(chunk.first_seq + first, chunk.first_seq + last + 1) if chunk.seqs is None else chunk.seqs[cut]
        return StoredMsgs(seqs, subjects[cut], None if hlens is None else hlens[cut], bodies[cut], times[cut])
    places = [ordinal - start for ordinal in ordinals]
    return StoredMsgs([chunk.seq(i) for i in places], [subjects[i] for i in places],
                      None if hlens is None else [hlens[i] for i in places], [bodies[i] for i in places],
                      [times[i] for i in places])


def from_chunk(chunk: Chunk, ordinal: int) -> StoredMsg:
    """Return the message with this ordinal in the chunk's block."""
    i = ordinal - chunk.start
    return StoredMsg(chunk.seq(i), chunk.subjects[i], 0 if chunk.hlens is None else chunk.hlens[i], chunk.bodies[i],
                     chunk.times[i])
