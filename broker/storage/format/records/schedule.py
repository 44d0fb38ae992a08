"""Record 13: when scheduled messages are due next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, damaged
from broker.storage.format.records.column import pack_column, unpack_column
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Schedule"]


@dataclass(slots=True)
class Schedule(RecordBody):
    """The scheduled message ``seqs[i]``, of this block or an earlier one, is due at ``due_at_ns[i]``; 0: never again.

    Sequences rise. Messages that the same block removes are left out.
    """

    KIND: ClassVar = RecordKind.SCHEDULE

    seqs: Sequence[int]
    due_at_ns: Sequence[int]

    def encode(self) -> dict[str, Any]:
        return {"seqs": pack_column(self.seqs), "due_at_ns": pack_column(self.due_at_ns)}

    @classmethod
    def decode(cls, body: Any) -> Schedule:
        kind, body = cls.KIND, as_map(cls.KIND, body)
        columns: list[list[int]] = []
        for key in ("seqs", "due_at_ns"):
            try:
                columns.append(unpack_column(body[key]))
            except KeyError:
                raise damaged(kind, key, "missing") from None
            except (TypeError, ValueError):
                raise damaged(kind, key, "not a column") from None
        seqs, due_at_ns = columns
        if len(seqs) != len(due_at_ns):
            raise damaged(kind, "due_at_ns", "not as long as seqs")
        return cls(seqs, due_at_ns)
