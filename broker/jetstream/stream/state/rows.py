"""The messages of one block as rows, without their bodies: from the open block, or from a stored block's head.

Limits, deletes and subject state need only the sequence, subject, time and size of a message. ``Head`` has the same
methods for stored blocks. This module gives them to a block that is still open, and sums sizes in C for both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker.storage.format.index import Head
from broker.storage.format.message_size import message_size, messages_size

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.storage.log.writer import OpenBlock

__all__ = ["NotLoaded", "OpenRows", "Rows", "size_between", "sizes"]


class Rows(Protocol):
    """The messages of one block by ordinal, 0 to count - 1."""

    def ordinal_of(self, seq: int) -> int:
        """Return the ordinal of the first message at or after ``seq``; ``count`` if there is none."""

    def seq_of(self, ordinal: int) -> int: ...

    def ordinal_at(self, time_ns: int) -> int:
        """Return the ordinal of the first message at or after ``time_ns``; ``count`` if there is none."""

    def time_of(self, ordinal: int) -> int: ...

    def subject_of(self, ordinal: int) -> bytes: ...

    def size_of(self, ordinal: int) -> int: ...


class NotLoaded(Exception):
    """Raised by a decision that needs data that is not in memory; nothing has been changed.

    The caller loads the data with ``Decision.load_missing`` and takes the decision again.

    Attributes:
        what: names the data, for errors.
        blocks: the few blocks whose heads are needed at once.
        work: loads data that takes more than a few heads: it streams through them, and leaves behind what the decision
            needs (an index, a place, a plan). It runs once for the same ``what`` and ``mark`` while the stream is
            unchanged.
        mark: distinguishes successive requests for the same ``what``.
    """

    def __init__(self, what: str, blocks: Sequence[LiveBlock] = (), *,
                 work: Callable[[], Awaitable[object]] | None = None, mark: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.mark = mark
        self.blocks = blocks
        self.work = work


class OpenRows:
    """The rows of an open block, or of a sealed block that is not persisted yet. It grows with its block."""

    __slots__ = ("block",)

    def __init__(self, block: OpenBlock[Any]) -> None:
        self.block = block

    @property
    def count(self) -> int:
        return self.block.count

    def ordinal_of(self, seq: int) -> int:
        block = self.block
        if block.last_seq - block.first_seq + 1 == block.count:
            return min(max(seq - block.first_seq, 0), block.count)
        return bisect_left(range(block.count), seq, key=self.seq_of)

    def ordinals_of(self, seqs: Sequence[int]) -> list[int]:
        """Return ``ordinal_of`` for each of ``seqs``, rising sequences of this block; there may be tens of
        thousands."""
        block = self.block
        first_seq = block.first_seq
        if block.last_seq - first_seq + 1 == block.count:
            return [seq - first_seq for seq in seqs]
        ordinals: list[int] = []
        at = before = 0
        for run_seq, count, _ in block.runs:
            end = bisect_left(seqs, run_seq + count, at)
            ordinals += [before + seq - run_seq for seq in seqs[at:end]]
            at, before = end, before + count
        return ordinals

    def seq_of(self, ordinal: int) -> int:
        block = self.block
        if block.last_seq - block.first_seq + 1 == block.count:
            return block.first_seq + ordinal
        start, first_seq, _ = block.run_of(ordinal)
        return first_seq + ordinal - start

    def ordinal_at(self, time_ns: int) -> int:
        return bisect_left(range(self.block.count), time_ns, key=self.time_of)

    def time_of(self, ordinal: int) -> int:
        return self.block.run_of(ordinal)[2]

    def subject_of(self, ordinal: int) -> bytes:
        return self.block.subjects[ordinal]

    def size_of(self, ordinal: int) -> int:
        block = self.block
        hlen = block.hlens[ordinal] if block.hlens is not None else 0
        return message_size(block.subjects[ordinal], hlen, block.bodies[ordinal])


def sizes(rows: Rows, start: int, end: int) -> Sequence[int]:
    """Return the sizes of the messages ``start`` to ``end`` (half open)."""
    return list(map(rows.size_of, range(start, end)))


def size_between(rows: Rows, start: int, end: int) -> int:
    """Return the total size of the messages ``start`` to ``end`` (half open)."""
    count = end - start
    hlens: Sequence[int] | None
    if isinstance(rows, OpenRows):
        block = rows.block
        hlens = None if block.hlens is None else block.hlens[start:end]
        with_headers = 0
        body_bytes = sum(map(len, block.bodies[start:end]))
        subject_bytes = sum(map(len, block.subjects[start:end]))
    elif isinstance(rows, Head):
        hlens = None if rows.hlens is None else rows.hlens[start:end]
        with_headers = count if rows.hlen else 0
        body_bytes = rows.body_len * count if rows.body_lens is None else sum(rows.body_lens[start:end])
        subjects = rows.subjects
        subject_bytes = (len(subjects[0]) * count if rows.subject_ids is None
                         else sum(map(len, map(subjects.__getitem__, rows.subject_ids[start:end]))))
    else:
        return sum(sizes(rows, start, end))
    if hlens is not None:
        with_headers = count - hlens.count(0)
    return messages_size(count, with_headers, subject_bytes, body_bytes)
