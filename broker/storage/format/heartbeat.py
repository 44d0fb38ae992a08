"""``heartbeats/<run>-<number>``: the objects by which a process that owns several shards shows that it is alive."""

from __future__ import annotations

from typing import NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.header import ObjectKind, Position

__all__ = ["Heartbeat"]


class Heartbeat(NamedTuple):
    """A sign of life of one process run.

    Attributes: number counts the heartbeats of the run from 1. last: the run owns no shard any more. at_ns is UTC.
    """

    run_id: bytes
    number: int
    owner: str
    at_ns: int
    last: bool = False

    def encode(self) -> bytes:
        """Return the whole object; its header's nonce is ``run_id``."""
        body = {"owner": self.owner, "at_ns": self.at_ns} | ({"last": True} if self.last else {})
        return encode_document(ObjectKind.HEARTBEAT, Position(0, self.number), self.run_id, body)

    @classmethod
    def decode(cls, data: bytes, number: int) -> Heartbeat:
        """Decode the heartbeat with this number. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.HEARTBEAT, Position(0, number))
        return cls(header.nonce, number, field(body, "owner", str, header.name), field(body, "at_ns", int, header.name),
                   body.get("last") is True)
