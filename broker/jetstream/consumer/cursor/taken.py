"""Messages on their way to one consumer, as columns."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Taken"]


class Taken:
    """Consecutive messages for one consumer, as columns. ``end`` is the sequence to continue at when all are used."""

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

    def cut(self, n: int) -> Taken:
        """The first ``n`` of them."""
        if n == len(self.bodies):
            return self
        return Taken(self.seqs[:n], self.subjects[:n], None if self.hlens is None else self.hlens[:n],
                     self.bodies[:n], self.times[:n], self.seqs[n - 1] + 1)

    @classmethod
    def joined(cls, parts: Sequence[Taken], end: int) -> Taken:
        """All of ``parts``, at least one, in this order."""
        if len(parts) == 1:
            one = parts[0]
            return cls(one.seqs, one.subjects, one.hlens, one.bodies, one.times, end)
        hlens = None
        if any(part.hlens is not None for part in parts):
            hlens = [hlen for part in parts for hlen in part.hlens or (0,) * len(part)]
        return cls([seq for part in parts for seq in part.seqs], [subject for part in parts for subject in part.subjects], hlens,
                   [body for part in parts for body in part.bodies], [time for part in parts for time in part.times], end)
