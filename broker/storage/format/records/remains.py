"""Record 20: a shard removes the bytes of a stream that has moved to another shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, as_map, required
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Remains"]


@dataclass(slots=True, eq=False, repr=False)
class Remains(RecordBody):
    """The first such record empties the state that the stream left behind. ``erasure`` is that of all its messages, as
    ``state.erasures`` packs it: the objects of the shard that had such messages, and whether these are deleted."""

    KIND: ClassVar = RecordKind.REMAINS

    erasure: Sequence[Any]

    def encode(self) -> dict[str, Any]:
        return {"erasure": self.erasure}

    @classmethod
    def decode(cls, body: Any) -> Remains:
        return cls(required(cls.KIND, as_map(cls.KIND, body), "erasure", list))
