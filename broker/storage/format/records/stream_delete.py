"""Record 3: a stream was deleted, with its messages and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map
from broker.storage.format.records.kinds import RecordKind

__all__ = ["StreamDelete"]


@dataclass(slots=True, eq=False, repr=False)
class StreamDelete(RecordBody):
    """The deleted stream is that of the block."""

    KIND: ClassVar = RecordKind.STREAM_DELETE

    def encode(self) -> dict[str, Any]:
        return {}

    @classmethod
    def decode(cls, body: Any) -> StreamDelete:
        as_map(cls.KIND, body)
        return cls()
