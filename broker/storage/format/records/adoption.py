"""Record 14, in the shard's own block: blocks of runs take the places of neighbouring blocks of the same stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from broker.storage.format.records.body import RecordBody, as_map, damaged, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Adopted", "Adoption"]

_FIELDS: Final = 5


class Adopted(NamedTuple):
    """One block of a run, and what it was made of: as many blocks as ``inputs`` says, all that its stream had within
    ``first_seq`` to ``last_seq``; 0: some of its messages were removed already.

    It holds every message that was live when they were read. ``marks``: how many sequences of the block that begins at a
    sequence were marked removed by then; a block without any is not listed. Where the table still has as many blocks there,
    with as many marks, nothing was removed meanwhile. ``ref`` is a packed BlockRef.
    """

    first_seq: int
    last_seq: int
    inputs: int
    marks: Mapping[int, int]
    ref: Sequence[Any]


@dataclass(slots=True)
class Adoption(RecordBody):
    """Each of ``blocks`` takes its place; all at once."""

    KIND: ClassVar = RecordKind.ADOPTION

    blocks: Sequence[Adopted]

    def encode(self) -> dict[str, Any]:
        return {"blocks": [(one.first_seq, one.last_seq, one.inputs, list(one.marks.items()), one.ref)
                           for one in self.blocks]}

    @classmethod
    def decode(cls, body: Any) -> Adoption:
        rows = required(cls.KIND, as_map(cls.KIND, body), "blocks", list)
        return cls([_decode(row) for row in rows])


def _decode(row: Any) -> Adopted:
    if type(row) is not list or len(row) != _FIELDS or [*map(type, row)] != [int, int, int, list, list]:
        raise damaged(RecordKind.ADOPTION, "blocks", "not a list of blocks and what they replace")
    first_seq, last_seq, inputs, marks, ref = row
    if not all(type(pair) is list and [*map(type, pair)] == [int, int] for pair in marks):
        raise damaged(RecordKind.ADOPTION, "blocks", "marks are not pairs of numbers")
    return Adopted(first_seq, last_seq, inputs, dict(marks), ref)
