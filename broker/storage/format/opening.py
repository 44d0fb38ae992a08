"""The opening: the OPENING record in the shard's own block at number 0 of an epoch's log.

    {"owner": str, "reader_version": int, "at_ns": int, "ends": [[epoch, number], …], …}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.storage.format.block import BlockCore, Outcome, encode_core
from broker.storage.format.document import field
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import FORMAT_VERSION, ObjectKind, Position
from broker.storage.format.record import Record, RecordKind
from broker.storage.format.segment import encode_segment_front

__all__ = ["Opening"]


class Opening(NamedTuple):
    """Who owns the epoch, and where the log before it ended.

    reader_version: the lowest format version that may read on. at_ns: UTC.
    ends: one position for each epoch since the last opening, the first that no longer belongs to it (its seal's), in
    order of epoch; so what a reader finds beyond them never existed.
    """

    owner: str
    ends: tuple[Position, ...]
    at_ns: int
    reader_version: int = FORMAT_VERSION

    def encode(self, position: Position, nonce: bytes) -> bytes:
        """The whole segment at ``position``, which holds this record and nothing else."""
        record = Record.of(RecordKind.OPENING, 0, self.to_body())
        core = encode_core(BlockCore(0, position, outcome=Outcome(), records=[record]))
        front, _ = encode_segment_front(ObjectKind.SEGMENT, position, 0, nonce, [(0, 0, 0, 0, len(core), 0, 0, 0)])
        return front + core

    def to_body(self) -> dict[str, Any]:
        """The record's body."""
        return {"owner": self.owner, "reader_version": self.reader_version, "at_ns": self.at_ns,
                "ends": [list(end) for end in self.ends]}

    @classmethod
    def from_body(cls, body: Any, name: str = "opening") -> Opening:
        """Raises: Corrupt; VersionUnknown where this reader may not read on."""
        reader_version = field(body, "reader_version", int, name)
        if reader_version > FORMAT_VERSION:
            raise VersionUnknown(name, "opening", 0, f"readers need format version {reader_version}")
        ends = []
        for end in field(body, "ends", list, name):
            if not isinstance(end, list) or len(end) != 2 or not all(type(n) is int and n >= 0 for n in end):
                raise Corrupt(name, "opening", 0, "an end of an epoch is not a position")
            ends.append(Position(*end))
        return cls(field(body, "owner", str, name), tuple(ends), field(body, "at_ns", int, name), reader_version)
