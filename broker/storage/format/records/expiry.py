"""Record 12: the expiry times of messages in the same block that were published with ``Nats-TTL``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.column import pack_column
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.timed_rows import decode_timed_rows

__all__ = ["NEVER", "Expiry"]

NEVER: Final = (1 << 63) - 1
"""A special time: the message does not expire, whatever the stream's ``max_age``."""


@dataclass(slots=True, eq=False, repr=False)
class Expiry(RecordBody):
    """The message ``seqs[i]`` of the block expires at ``expires_at_ns[i]``, or ``NEVER``. Sequences ascend.

    Messages that the same block removes are omitted.
    """

    KIND: ClassVar = RecordKind.EXPIRY

    seqs: Sequence[int]
    expires_at_ns: Sequence[int]

    def encode(self) -> dict[str, Any]:
        return {"seqs": pack_column(self.seqs), "expires_at_ns": pack_column(self.expires_at_ns)}

    @classmethod
    def decode(cls, body: Any) -> Expiry:
        return cls(*decode_timed_rows(cls.KIND, body, "expires_at_ns"))
