"""``format``: the object with the version of a store's format and its id, written once."""

from __future__ import annotations

from typing import NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import VersionUnknown
from broker.storage.format.header import FORMAT_VERSION, NONCE_BYTES, ObjectKind, Position

__all__ = ["JOURNAL_VERSION", "StoreFormat"]

JOURNAL_VERSION = 5
"""The version of a store that may have a journal (``journal``). All of its objects have ``FORMAT_VERSION``, so the
version of the store alone lets earlier releases refuse it."""


class StoreFormat(NamedTuple):
    """The format of a whole store.

    Attributes: version is the newest version of its objects, or ``JOURNAL_VERSION``; store_id are 16 random
        bytes; made_at_ns is UTC.
    """

    version: int
    store_id: bytes
    made_at_ns: int

    @classmethod
    def make(cls, store_id: bytes, made_at_ns: int) -> StoreFormat:
        """Return the format of a new store."""
        if len(store_id) != NONCE_BYTES:
            raise ValueError(f"a store's id has {NONCE_BYTES} bytes")
        return cls(FORMAT_VERSION, store_id, made_at_ns)

    def encode(self) -> bytes:
        """Return the whole object. It names no writer, so that each put has the same bytes."""
        body = {"version": self.version, "store_id": self.store_id, "made_at_ns": self.made_at_ns}
        return encode_document(ObjectKind.FORMAT, Position(0, 0), self.store_id, body)

    @classmethod
    def decode(cls, data: bytes) -> StoreFormat:
        """Decode the object. Raises: Corrupt; VersionUnknown if the store belongs to a newer broker."""
        header, body = decode_document(data, ObjectKind.FORMAT)
        version = field(body, "version", int, header.name)
        if version > JOURNAL_VERSION:
            raise VersionUnknown(header.name, "version", 72,
                                 f"the store has format {version}, this reader knows {JOURNAL_VERSION}")
        return cls(version, field(body, "store_id", bytes, header.name), field(body, "made_at_ns", int, header.name))
