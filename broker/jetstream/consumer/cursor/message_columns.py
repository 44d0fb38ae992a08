"""Messages to deliver to one consumer, as columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain, pairwise

from broker.storage.format.frame import Chunk

__all__ = ["MessageColumns"]


class MessageColumns:
    """Consecutive messages for one consumer, as columns. ``end`` is the sequence after them,
    where the cursor continues."""

    __slots__ = ("bodies", "end", "hlens", "seqs", "subjects", "times")

    def __init__(self, seqs: Sequence[int], subjects: Sequence[bytes], hlens: Sequence[int] | None,
                 bodies: Sequence[bytes], times: Sequence[int], end: int) -> None:
        self.seqs = seqs
        self.subjects = subjects
        self.hlens = hlens
        self.bodies = bodies
        self.times = times
        self.end = end

    def __len__(self) -> int:
        return len(self.bodies)

    def cut(self, n: int) -> MessageColumns:
        """Return the first ``n`` messages."""
        if n == len(self.bodies):
            return self
        return MessageColumns(self.seqs[:n], self.subjects[:n], None if self.hlens is None else self.hlens[:n],
                     self.bodies[:n], self.times[:n], self.seqs[n - 1] + 1)

    @classmethod
    def picked(cls, chunk: Chunk, picks: Sequence[int], end: int) -> MessageColumns:
        """Return the messages at these indexes of a chunk."""
        subjects, bodies, hlens, times, first = chunk.subjects, chunk.bodies, chunk.hlens, chunk.times, chunk.first_seq
        seqs = [first + k for k in picks] if chunk.seqs is None else [chunk.seqs[k] for k in picks]
        return cls(seqs, [subjects[k] for k in picks], None if hlens is None else [hlens[k] for k in picks],
                   [bodies[k] for k in picks], [times[k] for k in picks], end)

    @classmethod
    def of(cls, chunk: Chunk, seqs: Sequence[int]) -> MessageColumns:
        """Return the messages ``seqs`` of one chunk, all of which it has."""
        if (there := chunk.seqs) is not None:
            return cls.picked(chunk, [bisect_left(there, seq) for seq in seqs], seqs[-1] + 1)
        first = chunk.first_seq
        start, stop = seqs[0] - first, seqs[-1] - first + 1
        if stop - start > len(seqs):
            return cls.picked(chunk, [seq - first for seq in seqs], seqs[-1] + 1)
        return cls.run(chunk, start, stop, first + stop)

    @classmethod
    def run(cls, chunk: Chunk, start: int, stop: int, end: int) -> MessageColumns:
        """Return the messages of a chunk from index ``start`` to ``stop`` (half-open)."""
        seqs, hlens, first = chunk.seqs, chunk.hlens, chunk.first_seq
        return cls(range(first + start, first + stop) if seqs is None else seqs[start:stop], chunk.subjects[start:stop],
                   None if hlens is None else hlens[start:stop], chunk.bodies[start:stop], chunk.times[start:stop], end)

    @classmethod
    def joined(cls, parts: Sequence[MessageColumns], end: int) -> MessageColumns:
        """Return the messages of all ``parts``, at least one, in this order."""
        if len(parts) == 1:
            one = parts[0]
            return cls(one.seqs, one.subjects, one.hlens, one.bodies, one.times, end)
        hlens = None
        if any(part.hlens is not None for part in parts):
            hlens = [hlen for part in parts for hlen in part.hlens or (0,) * len(part)]
        joined = chain.from_iterable
        return cls(_joined_seqs([part.seqs for part in parts]), list(joined([part.subjects for part in parts])), hlens,
                   list(joined([part.bodies for part in parts])), list(joined([part.times for part in parts])), end)


def _joined_seqs(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return all sequences: one range if the parts are ranges that continue each other, otherwise a list."""
    if (all(type(part) is range for part in parts)
            and all(before[-1] + 1 == after[0] for before, after in pairwise(parts))):
        return range(parts[0][0], parts[-1][-1] + 1)
    return list(chain.from_iterable(parts))
