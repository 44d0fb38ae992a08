"""``checkpoint/<epoch>-<number>``: a root, which names the pages of one state of the shard."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.page import PageRef
from broker.storage.format.section import SECTIONS, SectionCodec

__all__ = ["Root"]


class Root(NamedTuple):
    """A checkpoint.

    Attributes: position is the last one that it includes, and its key's. replay_from is where replay begins, the lowest
        position of its pages; replay_from <= position. pages are the places of all pages that must be read first. extra
        has other values of the shard (such as releases with objects that are not deleted), as msgpack decodes them.
    """

    position: Position
    replay_from: Position
    pages: tuple[PageRef, ...]
    extra: dict[str, Any]

    def encode(self, nonce: bytes, codec: SectionCodec = SECTIONS) -> bytes:
        """Return the whole object."""
        if self.replay_from > self.position:
            raise ValueError(f"a checkpoint at {self.position} cannot be replayed from {self.replay_from}")
        body = {"replay_from": list(self.replay_from), "pages": [ref.pack() for ref in self.pages],
                "extra": self.extra}
        return encode_document(ObjectKind.ROOT, self.position, nonce, body, codec=codec)

    @classmethod
    def decode(cls, data: bytes, position: Position) -> Root:
        """Decode the root at ``position``. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.ROOT, position)
        replay_from = field(body, "replay_from", list, header.name)
        if len(replay_from) != 2 or not all(type(n) is int and n >= 0 for n in replay_from):
            raise Corrupt(header.name, "replay_from", 72, "not a position")
        pages = tuple(PageRef.unpack(packed) for packed in field(body, "pages", list, header.name))
        if Position(*replay_from) > position:
            raise Corrupt(header.name, "replay_from", 72, "it is after the root")
        return cls(position, Position(*replay_from), pages, field(body, "extra", dict, header.name))
