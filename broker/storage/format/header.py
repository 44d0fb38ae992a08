"""The 64 bytes that every object begins with: its kind, its writer, and the key that it was written under.

    offset  size
         0     8  magic "JETBLOCK"
         8     1  kind (ObjectKind)
         9     1  flags, 0
        10     2  format version, 4. Earlier releases wrote 1, and 2 for segments with ``landed`` (see ``segment``)
        12     4  epoch  \\ as in the key; 0 where the key has none
        16     8  number /
        24    16  nonce of the writer, drawn once for each process run
        40     8  size of the whole object in bytes, this header included
        48     8  id of a run or inbox request, as in the key; 0 for the others
        56     4  0
        60     4  crc32 of bytes 0 to 60

After a refused or unanswered put, this header decides: ``nonce`` shows whether the object is ours, ``kind`` whether it
is a seal. Magic, version and CRC keep their places in all future versions.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from broker.storage.format.errors import Corrupt, VersionUnknown

__all__ = ["EPOCH_MAX", "FORMAT_VERSION", "HEADER_BYTES", "KIND_AT", "NONCE_BYTES", "NUMBER_BITS", "NUMBER_MAX",
           "UNFLAGGED_VERSION", "ObjectHeader", "ObjectKind", "Position", "key_position", "object_name", "position_key"]

FORMAT_VERSION: Final = 4
"""The version of objects, cores, indexes and pages whose sections have headers (``section``). No release wrote version
3, and version 2 only in segments."""

UNFLAGGED_VERSION: Final = 1
"""The version that earlier releases wrote: equal lengths of a section mean that it is not compressed."""

_SEGMENT_VERSION: Final = 2
"""In earlier releases, the version of a segment with ``landed``."""
HEADER_BYTES: Final = 64
KIND_AT: Final = 8
"""The offset of the kind."""
NONCE_BYTES: Final = 16
EPOCH_MAX: Final = (1 << 32) - 1
"""Eight hexadecimal digits."""
NUMBER_BITS: Final = 48
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
"""Twelve hexadecimal digits."""

_VERSIONS: Final = (FORMAT_VERSION, UNFLAGGED_VERSION)
_MAGIC: Final = b"JETBLOCK"
_LAYOUT: Final = struct.Struct("<8sBBHIQ16sQQII")
assert _LAYOUT.size == HEADER_BYTES


class Position(NamedTuple):
    """A place in a shard's log. Positions compare in log order."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch:08x}-{self.number:012x}"


def position_key(position: Position) -> int:
    """Return a position as one int in the same order: the key in large tables."""
    return position[0] << NUMBER_BITS | position[1]


def key_position(key: int) -> Position:
    """Return the position with this ``position_key``."""
    return Position(key >> NUMBER_BITS, key & NUMBER_MAX)


class ObjectKind(IntEnum):
    """The kind of an object. Numbers are permanent and never reused."""

    FORMAT = 1
    CLAIM = 2
    SEGMENT = 3
    SEAL = 4
    ROOT = 5
    PAGES = 6
    RUN = 7
    INBOX = 8
    KEYS = 9
    HEARTBEAT = 10


def object_name(kind: ObjectKind, position: Position, object_id: int = 0) -> str:
    """Return the name of an object in errors: its kind and the last part of its key."""
    tail = f"-{object_id:016x}" if object_id else ""
    return f"{kind.name.lower()} {position}{tail}"


class ObjectHeader(NamedTuple):
    """The common header, decoded. ``size`` is the whole object's, in bytes."""

    kind: ObjectKind
    position: Position
    nonce: bytes
    size: int
    object_id: int = 0
    version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        return object_name(self.kind, self.position, self.object_id)

    def pack(self) -> bytes:
        """Return the 64 bytes. Raises: ValueError for numbers that do not fit into a key."""
        epoch, number = self.position
        if not (0 <= epoch <= EPOCH_MAX and 0 <= number <= NUMBER_MAX) or len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"no key has this position, or no process this nonce: {self!r}")
        body = _LAYOUT.pack(_MAGIC, self.kind, 0, self.version, epoch, number, self.nonce, self.size, self.object_id,
                            0, 0)[:-4]
        return body + crc32(body).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes, name: str = "object") -> ObjectHeader:
        """Decode the first 64 bytes of ``data``; the caller compares kind and position with its expectation.

        Args: name is the object's, for errors.
        Raises: Corrupt unless it is a whole, intact header; VersionUnknown for an intact one of a newer broker.
        """
        if len(data) < HEADER_BYTES:
            raise Corrupt(name, "header", len(data), f"cut short: {len(data)} of {HEADER_BYTES} bytes")
        magic, kind, flags, version, epoch, number, nonce, size, object_id, spare, crc = _LAYOUT.unpack_from(data)
        if magic != _MAGIC:
            raise Corrupt(name, "header", 0, "the magic bytes are not those of a jetblock object")
        if crc32(data[:HEADER_BYTES - 4]) != crc:
            raise Corrupt(name, "header", HEADER_BYTES - 4, "the checksum does not match")
        if version and version not in _VERSIONS and not (version == _SEGMENT_VERSION and kind == ObjectKind.SEGMENT):
            raise VersionUnknown(name, "header", 10, f"format version {version}; this reader knows {FORMAT_VERSION}")
        if flags or spare or version < 1 or number > NUMBER_MAX or size < HEADER_BYTES:
            raise Corrupt(name, "header", 9, "a field is out of its range")
        try:
            known = ObjectKind(kind)
        except ValueError:
            raise Corrupt(name, "header", 8, f"kind {kind} is not a kind of object") from None
        return cls(known, Position(epoch, number), nonce, size, object_id, version)

    def expect(self, kind: ObjectKind, position: Position | None, object_id: int = 0) -> None:
        """Check that this header belongs to the key it was read from.

        Args: position None means that the key has none.
        Raises: Corrupt if the object was moved, or is of another kind.
        """
        wanted = position or Position(0, 0)
        if (self.kind, self.position, self.object_id) != (kind, wanted, object_id):
            raise Corrupt(object_name(kind, wanted, object_id), "header", 8, f"it holds the bytes of {self.name}")
