"""Record 18: a stream leaves its shard for another one. The last record of the stream in this shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Departure"]


@dataclass(slots=True, eq=False, repr=False)
class Departure(RecordBody):
    """``to`` is the other shard. The stream stays in the state of this shard as it is now, and nobody serves it."""

    KIND: ClassVar = RecordKind.DEPARTURE

    to: int

    def encode(self) -> dict[str, Any]:
        return {"to": self.to}

    @classmethod
    def decode(cls, body: Any) -> Departure:
        return cls(required(cls.KIND, as_map(cls.KIND, body), "to", int))
