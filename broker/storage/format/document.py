"""The small objects: a header and one msgpack map. Each kind's map is described with its class.

    0   64  header
   64   16  header of the map (``section``): it is never compressed
   80    4  crc32 of bytes 64 to 80
   84       the map

Objects of version 1, which earlier releases wrote:

   64    4  bytes of the map
   68    4  crc32 of bytes 64 to 68, then the map
   72       the map
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

from broker.storage.format.codec import Undecodable, Unpackable, pack_value, unpack_value
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import (
    HEADER_BYTES,
    UNFLAGGED_VERSION,
    ObjectHeader,
    ObjectKind,
    Position,
    object_name,
)
from broker.storage.format.section import (
    SECTION_HEADER_BYTES,
    SECTIONS,
    SectionCodec,
    SectionKind,
    SectionPosition,
    is_known,
    pack_header,
    unpack_header,
)

__all__ = ["body_offset", "decode_document", "document_size", "encode_document", "field"]

_LAYOUT_V1: Final = struct.Struct("<II")
_BODY_AT_V1: Final = HEADER_BYTES + _LAYOUT_V1.size
_CRC_AT: Final = HEADER_BYTES + SECTION_HEADER_BYTES
_BODY_AT: Final = _CRC_AT + 4


def encode_document(kind: ObjectKind, position: Position, nonce: bytes, body: dict[str, Any],
                    object_id: int = 0, codec: SectionCodec = SECTIONS) -> bytes:
    """Return the whole object; the same arguments always give the same bytes, unless ``codec`` encrypts."""
    packed = pack_value(body)
    section, stored = codec.seal((packed, len(packed), 0), _position(kind, position, object_id))
    section_header = pack_header(section)
    header = ObjectHeader(kind, position, nonce, _BODY_AT + len(stored), object_id).pack()
    return b"".join((header, section_header, crc32(section_header).to_bytes(4, "little"), stored))


def _position(kind: ObjectKind, position: Position, object_id: int) -> SectionPosition:
    return position, object_id, 0, SectionKind.DOCUMENT, kind


def body_offset(version: int) -> int:
    """Return the offset of the map in a small object of this version."""
    return _BODY_AT_V1 if version == UNFLAGGED_VERSION else _BODY_AT


def document_size(data: bytes, version: int) -> int:
    """Return the length of a small object of this version by its own length field, for repair."""
    at = HEADER_BYTES if version == UNFLAGGED_VERSION else HEADER_BYTES + 4
    return body_offset(version) + int.from_bytes(data[at:at + 4], "little")


def decode_document(data: bytes, kind: ObjectKind, position: Position | None = None,
                    object_id: int = 0) -> tuple[ObjectHeader, dict[str, Any]]:
    """Decode a whole object of ``kind``, whose key has ``position`` (None: the key has none).

    Raises: Corrupt; VersionUnknown.
    """
    name = object_name(kind, position or Position(0, 0), object_id)
    header = ObjectHeader.unpack(data, name)
    header.expect(kind, position, object_id)
    body_at = body_offset(header.version)
    if len(data) != header.size or len(data) < body_at:
        raise Corrupt(name, "header", 40, f"the object has {len(data)} bytes, not {header.size}")
    packed = data[body_at:]
    if header.version == UNFLAGGED_VERSION:
        length, crc = _LAYOUT_V1.unpack_from(data, HEADER_BYTES)
        if length != len(packed) or crc32(packed, crc32(data[HEADER_BYTES:HEADER_BYTES + 4])) != crc:
            raise Corrupt(name, "body", HEADER_BYTES, "the checksum or length does not match")
    else:
        if crc32(data[HEADER_BYTES:_CRC_AT]) != int.from_bytes(data[_CRC_AT:body_at], "little"):
            raise Corrupt(name, "body", HEADER_BYTES, "the checksum of its section header does not match")
        section = unpack_header(data, HEADER_BYTES)
        if not is_known(section[-1]):
            raise VersionUnknown(name, "body", HEADER_BYTES + 12, f"form {section[-1]}: not this reader's")
        try:
            packed = SECTIONS.open(section, packed, _position(kind, header.position, object_id))
        except Undecodable as error:
            raise Corrupt(name, "body", HEADER_BYTES, str(error)) from None
    try:
        body = unpack_value(packed)
    except Unpackable as error:
        raise Corrupt(name, "body", body_at, str(error)) from None
    if not isinstance(body, dict):
        raise Corrupt(name, "body", body_at, "not a map")
    return header, body


def field(body: Any, key: str, kind: type | tuple[type, ...], name: str) -> Any:
    """Return ``body[key]``, which must exist and be of ``kind``.

    Raises: Corrupt, with the object ``name`` and the key; the offset is always that of the map in version 1.
    """
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Corrupt(name, key, _BODY_AT_V1, "missing, or of another type")
    return value
