"""Records: the changes of streams and consumers, stored beside the messages that they concern.

A record is data only: outcomes in msgpack, which ``storage.state`` replays without policy or clock. This module has the
framing of records; ``records`` has their bodies.

    record   1 B kind | 1 B version and must-understand bit (0x80) | 4 B body length | 8 B after_seq | body, msgpack

``after_seq`` is the sequence of the last message of this block before the record; 0: there is none. A reader skips an
unknown record, unless the bit is set: then the block's stream is offline for that reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from broker.storage.format.codec import Unpackable, pack_value, unpack_value
from broker.storage.format.errors import Corrupt, RecordUnknown
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.table import BODIES

__all__ = ["Record", "decode_records", "encode_records"]

MUST_UNDERSTAND: Final = 0x80
_LAYOUT: Final = struct.Struct("<BBIQ")


class Record:
    """A record. The body is decoded on demand: a replay skips most ids and old consumer state.

    ``body`` is what msgpack decodes (lists for tuples), also on the side that wrote it. So a live broker applies
    exactly what a recovery would, and shares no value with the code that added the record.
    """

    __slots__ = ("_body", "after_seq", "kind", "must_understand", "packed", "version")

    def __init__(self, kind: int, after_seq: int, packed: bytes, version: int = 1,
                 must_understand: bool = True) -> None:
        self.kind = kind
        self.after_seq = after_seq
        self.packed = packed
        self.version = version
        self.must_understand = must_understand
        self._body: object = _UNREAD

    @classmethod
    def of(cls, kind: int, after_seq: int, body: object, must_understand: bool = True) -> Record:
        """Return a record of ``kind`` in this writer's version, with a copy of ``body``, packed now."""
        known = BODIES.get(kind)
        return cls(kind, after_seq, pack_value(body), 1 if known is None else known.VERSION, must_understand)

    @classmethod
    def pack(cls, body: RecordBody, after_seq: int) -> Record:
        """Return a record of ``body``, whose class determines kind, version and must-understand bit."""
        return cls(body.KIND, after_seq, pack_value(body.encode()), body.VERSION, body.MUST_UNDERSTAND)

    @property
    def body(self) -> object:
        """The body as plain values. Raises: Corrupt if the packed bytes are not msgpack."""
        if self._body is _UNREAD:
            try:
                self._body = unpack_value(self.packed)
            except Unpackable as error:
                raise Corrupt("record", f"record {self.kind}", 0, str(error)) from None
        return self._body

    @property
    def known(self) -> bool:
        """True if this reader understands the record's kind and version."""
        body = BODIES.get(self.kind)
        return body is not None and 1 <= self.version <= body.VERSION

    def decode(self) -> RecordBody:
        """Return the body of a known record. Raises: Corrupt."""
        return BODIES[self.kind].decode(self.body)

    @property
    def size(self) -> int:
        """Bytes of the record in its block, before compression."""
        return _LAYOUT.size + len(self.packed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.kind, self.version, self.must_understand, self.after_seq, self.packed) == (
            other.kind, other.version, other.must_understand, other.after_seq, other.packed)

    __hash__ = None  # type: ignore[assignment]  # equal by content, and its body may be changed

    def __repr__(self) -> str:
        kind = BODIES[self.kind].KIND.name if self.kind in BODIES else f"kind {self.kind}"
        return f"<Record {kind} v{self.version} after {self.after_seq}: {len(self.packed)} B>"


_UNREAD: Final = object()


def encode_records(records: Iterable[Record]) -> bytes:
    """Return the records section of a block, in order."""
    parts: list[bytes] = []
    for record in records:
        bits = record.version | (MUST_UNDERSTAND if record.must_understand else 0)
        parts.append(_LAYOUT.pack(record.kind, bits, len(record.packed), record.after_seq))
        parts.append(record.packed)
    return b"".join(parts)


def decode_records(data: bytes, *, stream_id: int, name: str, offset: int, everything: bool = False) -> list[Record]:
    """Decode a records section.

    Args: name and offset are the object and the section's place in it, for errors; everything keeps records that this
        reader does not know, for ``inspect``.
    Returns: the records that this reader knows, in order.
    Raises: Corrupt if the framing is inconsistent; RecordUnknown for an unknown record that must be understood.
    """
    records: list[Record] = []
    at, end = 0, len(data)
    while at < end:
        if at + _LAYOUT.size > end:
            raise Corrupt(name, "records", offset + at, "a record is cut short")
        kind, bits, length, after_seq = _LAYOUT.unpack_from(data, at)
        body_at = at + _LAYOUT.size
        if length > end - body_at:
            raise Corrupt(name, "records", offset + at, "a record is longer than its section")
        record = Record(kind, after_seq, data[body_at:body_at + length], bits & ~MUST_UNDERSTAND,
                        bool(bits & MUST_UNDERSTAND))
        if record.known or everything:
            records.append(record)
        elif record.must_understand:
            raise RecordUnknown(name, "records", offset + at,
                                f"record kind {kind} version {record.version} must be understood and is not",
                                stream_id, kind, record.version)
        at = body_at + length
    return records
