"""Record 14, in the shard's own block: blocks of runs replace successive blocks of the same stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from broker.storage.format.records.body import RecordBody, as_map, damaged, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Adopted", "Adoption"]

_FIELDS: Final = [int, int, list]


class Adopted(NamedTuple):
    """A block of a run, which replaces all blocks that its stream had within ``first_seq`` to ``last_seq``.

    It has every message that was live in them when they were read. ``ref`` is a packed BlockRef.
    """

    first_seq: int
    last_seq: int
    ref: Sequence[Any]


@dataclass(slots=True, eq=False, repr=False)
class Adoption(RecordBody):
    """Replacements by ``blocks``, which take effect together."""

    KIND: ClassVar = RecordKind.ADOPTION

    blocks: Sequence[Adopted]

    def encode(self) -> dict[str, Any]:
        return {"blocks": list(map(tuple, self.blocks))}

    @classmethod
    def decode(cls, body: Any) -> Adoption:
        rows = required(cls.KIND, as_map(cls.KIND, body), "blocks", list)
        if not all(type(row) is list and [*map(type, row)] == _FIELDS for row in rows):
            raise damaged(cls.KIND, "blocks", "not a list of blocks and what they replace")
        return cls([Adopted(*row) for row in rows])
