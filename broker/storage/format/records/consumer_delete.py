"""Record 6: a consumer was deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["ConsumerDelete"]


@dataclass(slots=True, eq=False, repr=False)
class ConsumerDelete(RecordBody):
    """``name`` is that of the deleted consumer."""

    KIND: ClassVar = RecordKind.CONSUMER_DELETE

    name: str

    def encode(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def decode(cls, body: Any) -> ConsumerDelete:
        return cls(required(cls.KIND, as_map(cls.KIND, body), "name", str))
