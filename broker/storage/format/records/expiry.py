"""Record 12: when the messages of the same block that were published with ``Nats-TTL`` expire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, damaged
from broker.storage.format.records.column import pack_column, unpack_column
from broker.storage.format.records.kinds import RecordKind

__all__ = ["NEVER", "Expiry"]

NEVER: Final = (1 << 63) - 1
"""In place of a time: the message does not expire, whatever the stream's ``max_age``."""


@dataclass(slots=True)
class Expiry(RecordBody):
    """The message ``seqs[i]`` of the block expires at ``expires_at_ns[i]``, or ``NEVER``. Sequences rise.

    Messages that the same block removes are left out.
    """

    KIND: ClassVar = RecordKind.EXPIRY

    seqs: Sequence[int]
    expires_at_ns: Sequence[int]

    def encode(self) -> dict[str, Any]:
        return {"seqs": pack_column(self.seqs), "expires_at_ns": pack_column(self.expires_at_ns)}

    @classmethod
    def decode(cls, body: Any) -> Expiry:
        kind, body = cls.KIND, as_map(cls.KIND, body)
        columns: list[list[int]] = []
        for key in ("seqs", "expires_at_ns"):
            try:
                columns.append(unpack_column(body[key]))
            except KeyError:
                raise damaged(kind, key, "missing") from None
            except (TypeError, ValueError):
                raise damaged(kind, key, "not a column") from None
        seqs, expires_at_ns = columns
        if len(seqs) != len(expires_at_ns):
            raise damaged(kind, "expires_at_ns", "not as long as seqs")
        return cls(seqs, expires_at_ns)
