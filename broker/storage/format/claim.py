"""``epochs/<epoch>`` and ``log/<epoch>-<number>``: the objects that take an epoch and end one.

A claim and a seal have the same facts about their writer. A seal's header has the epoch that it ends; its body has the
sealer's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, Position

__all__ = ["Claim", "Seal"]


class Claim(NamedTuple):
    """The object that takes an epoch.

    Attributes: owner is the configured server name, or one generated for the run. run_id differs for each process run.
        at_ns is UTC.
    """

    epoch: int
    owner: str
    run_id: bytes
    at_ns: int

    def encode(self) -> bytes:
        """Return the whole object; its header's nonce is ``run_id``."""
        body = {"owner": self.owner, "at_ns": self.at_ns}
        return encode_document(ObjectKind.CLAIM, Position(self.epoch, 0), self.run_id, body)

    @classmethod
    def decode(cls, data: bytes, epoch: int) -> Claim:
        """Decode the claim of ``epoch``. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.CLAIM, Position(epoch, 0))
        return cls(epoch, field(body, "owner", str, header.name), header.nonce,
                   field(body, "at_ns", int, header.name))


class Seal(NamedTuple):
    """The end of ``position.epoch``: its log has no entry at ``position`` or later.

    Attributes: sealer and sealer_epoch are its writer and the writer's epoch; an owner that stops ends its own epoch.
        landed is the number up to which all entries of the sealed epoch were stored by then; None: the seal has none.
    """

    position: Position
    sealer: str
    sealer_epoch: int
    nonce: bytes
    at_ns: int
    landed: int | None = None

    def encode(self) -> bytes:
        """Return the whole object."""
        body: dict[str, Any] = {"sealer": self.sealer, "epoch": self.sealer_epoch, "at_ns": self.at_ns}
        if self.landed is not None:
            body["landed"] = self.landed
        return encode_document(ObjectKind.SEAL, self.position, self.nonce, body)

    @classmethod
    def decode(cls, data: bytes, position: Position) -> Seal:
        """Decode the seal at ``position``. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.SEAL, position)
        landed = field(body, "landed", int, header.name) if "landed" in body else None
        if landed is not None and not 0 <= landed < position.number:
            raise Corrupt(header.name, "landed", 72, "it is not before the seal")
        return cls(position, field(body, "sealer", str, header.name), field(body, "epoch", int, header.name),
                   header.nonce, field(body, "at_ns", int, header.name), landed)
