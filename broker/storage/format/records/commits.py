"""Record 16: the commits in which the messages of a merged block joined their stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, ClassVar, Final

from broker.storage.format.header import Position
from broker.storage.format.records.body import RecordBody, as_map, damaged, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["UNKNOWN", "Commits"]

UNKNOWN: Final = Position(0, 0)
"""The position of messages of which only the order is known: they were staged, or an earlier release merged them."""


@dataclass(slots=True, eq=False, repr=False)
class Commits(RecordBody):
    """After the commit at ``positions[i]``, the stream's last sequence was ``last_seqs[i]``; both ascend, but for
    positions that are ``UNKNOWN``.

    In the stored bytes the entries of one epoch are together, and numbers are differences: most take one byte.
    """

    KIND: ClassVar = RecordKind.COMMITS
    MUST_UNDERSTAND: ClassVar = False  # only a reader that asks for an earlier position needs them

    positions: Sequence[Position]
    last_seqs: Sequence[int]

    def encode(self) -> dict[str, Any]:
        of_epochs = []
        rows = zip(self.positions, self.last_seqs, strict=True)
        for epoch, some in groupby(rows, lambda row: row[0].epoch):
            positions, last_seqs = zip(*some, strict=True)
            of_epochs.append([epoch, _differences(number for _, number in positions), _differences(last_seqs)])
        return {"epochs": of_epochs}

    @classmethod
    def decode(cls, body: Any) -> Commits:
        positions: list[Position] = []
        last_seqs: list[int] = []
        for row in required(cls.KIND, as_map(cls.KIND, body), "epochs", list):
            try:
                epoch, numbers, seqs = row
                if {int}.issuperset({type(epoch), *map(type, numbers), *map(type, seqs)}) and len(numbers) == len(seqs):
                    positions += [Position(epoch, number) for number in accumulate(numbers)]
                    last_seqs += accumulate(seqs)
                    continue
            except (TypeError, ValueError):
                pass
            raise damaged(cls.KIND, "epochs", "not a list of epochs with numbers and sequences")
        return cls(positions, last_seqs)


def _differences(values: Iterable[int]) -> list[int]:
    """Return each value as its difference from the one before; the first one as it is."""
    return [after - before for before, after in pairwise((0, *values))]
