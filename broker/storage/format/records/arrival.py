"""Record 19: a stream arrives from another shard. The first record of the stream in this shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Arrival"]


@dataclass(slots=True, eq=False, repr=False)
class Arrival(RecordBody):
    """``entry`` is the stream's entry as in a directory page, with all parts inline; ``source`` is the other shard."""

    KIND: ClassVar = RecordKind.ARRIVAL

    source: int
    entry: Sequence[Any]

    def encode(self) -> dict[str, Any]:
        return {"source": self.source, "entry": self.entry}

    @classmethod
    def decode(cls, body: Any) -> Arrival:
        body = as_map(cls.KIND, body)
        return cls(required(cls.KIND, body, "source", int), required(cls.KIND, body, "entry", list))
