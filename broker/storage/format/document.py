"""The small objects: a header and one msgpack map. Each kind's map is described with its class.

    0   64  header
   64    4  bytes of the map
   68    4  crc32 of bytes 64 to 68, then the map
   72       the map
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

from broker.storage.format.codec import Unpackable, pack_value, unpack_value
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position, object_name

__all__ = ["decode_document", "encode_document", "field"]

_LAYOUT: Final = struct.Struct("<II")
_BODY_AT: Final = HEADER_BYTES + _LAYOUT.size


def encode_document(kind: ObjectKind, position: Position, nonce: bytes, body: dict[str, Any],
                    object_id: int = 0) -> bytes:
    """The whole object; the same arguments always give the same bytes."""
    packed = pack_value(body)
    length = len(packed).to_bytes(4, "little")
    header = ObjectHeader(kind, position, nonce, _BODY_AT + len(packed), object_id).pack()
    return b"".join((header, length, crc32(packed, crc32(length)).to_bytes(4, "little"), packed))


def decode_document(data: bytes, kind: ObjectKind, position: Position | None = None,
                    object_id: int = 0) -> tuple[ObjectHeader, dict[str, Any]]:
    """Decode a whole object of ``kind``, read from the key with ``position`` (None: the key has none).

    Raises: Corrupt; VersionUnknown.
    """
    name = object_name(kind, position or Position(0, 0), object_id)
    header = ObjectHeader.unpack(data, name)
    header.expect(kind, position, object_id)
    if len(data) != header.size or len(data) < _BODY_AT:
        raise Corrupt(name, "header", 40, f"the object has {len(data)} bytes, not {header.size}")
    length, crc = _LAYOUT.unpack_from(data, HEADER_BYTES)
    packed = data[_BODY_AT:]
    if length != len(packed) or crc32(packed, crc32(data[HEADER_BYTES:HEADER_BYTES + 4])) != crc:
        raise Corrupt(name, "body", HEADER_BYTES, "the checksum or length does not match")
    try:
        body = unpack_value(packed)
    except Unpackable as error:
        raise Corrupt(name, "body", _BODY_AT, str(error)) from None
    if not isinstance(body, dict):
        raise Corrupt(name, "body", _BODY_AT, "not a map")
    return header, body


def field(body: Any, key: str, kind: type | tuple[type, ...], name: str) -> Any:
    """``body[key]``, which must be there and of ``kind``. Raises: Corrupt, naming the object ``name`` and the key."""
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Corrupt(name, key, _BODY_AT, "missing, or not what it should be")
    return value
