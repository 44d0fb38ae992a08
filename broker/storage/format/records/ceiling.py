"""Record 9: the bound on the sequences of a stream whose publishers are answered before a commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Ceiling"]


@dataclass(slots=True, eq=False, repr=False)
class Ceiling(RecordBody):
    """A stream with ``persist_mode: async`` uses only sequences below ``seq``, and after a crash begins there."""

    KIND: ClassVar = RecordKind.CEILING

    seq: int

    def encode(self) -> dict[str, Any]:
        return {"seq": self.seq}

    @classmethod
    def decode(cls, body: Any) -> Ceiling:
        return cls(required(cls.KIND, as_map(cls.KIND, body), "seq", int))
