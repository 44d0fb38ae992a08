"""Record 13: the next due times of scheduled messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.column import pack_column
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.timed_rows import decode_timed_rows

__all__ = ["Schedule"]


@dataclass(slots=True, eq=False, repr=False)
class Schedule(RecordBody):
    """The scheduled message ``seqs[i]``, of this block or an earlier one, is due at ``due_at_ns[i]``; 0: never again.

    Sequences ascend. Messages that the same block removes are omitted.
    """

    KIND: ClassVar = RecordKind.SCHEDULE

    seqs: Sequence[int]
    due_at_ns: Sequence[int]

    def encode(self) -> dict[str, Any]:
        return {"seqs": pack_column(self.seqs), "due_at_ns": pack_column(self.due_at_ns)}

    @classmethod
    def decode(cls, body: Any) -> Schedule:
        return cls(*decode_timed_rows(cls.KIND, body, "due_at_ns"))
