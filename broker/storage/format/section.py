"""Sections: the parts of stored objects with users' data, and the codec that seals and opens them.

    raw bytes  ── compress ──>  Compressed  ── seal ──>  section header + stored bytes
    raw bytes  <── decompress ──  Compressed  <── unseal ──  section header + stored bytes

A section is the body of a core, of an index, of a page or of a document, a frame, or a part of a block table inline in
a page. Its header has the way in which the stored bytes were made. The header precedes them; the header of a frame is
in the index:

    section header, 16 bytes
         0     4  bytes before compression
         4     4  bytes as stored
         8     4  crc32 of the bytes as stored
        12     1  compression: 0 none, 1 zstd    \\
        13     1  cipher: see ``keyring``          > the form
        14     2  0                              /

The position of a section (``SectionPosition``) is its place in an object. A reader knows it from the key of the object
and from the place in the object, so it is not stored. A cipher must authenticate it: then a section that was moved
cannot be opened. docs/adr/0016-section-codec.md has the reasons; ``keyring`` has the form of an encrypted section, and
``sealing`` the codec that encrypts.

Objects of earlier releases have no section headers: ``header_of_version_1`` makes one from their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final
from zlib import crc32

from broker.storage.format.codec import (
    SECTION_BYTES_MAX,
    Compression,
    Stored,
    Undecodable,
    checksum,
    compress,
    compress_all,
    decompress,
    decompress_into,
    has_content_size,
)
from broker.storage.format.header import FORMAT_VERSION, UNFLAGGED_VERSION, Position
from broker.storage.format.keyring import KEYS, OVERHEAD, Cipher, cipher_of

__all__ = ["NO_POSITION", "SECTIONS", "SECTION_HEADER_BYTES", "UNCOMPRESSED", "Compressed", "SectionCodec",
           "SectionHeader", "SectionKind", "SectionPosition", "check_compressed_flag", "fixed_layout",
           "fixed_part_header", "header_of_version_1", "is_known", "pack_header", "stored_bytes_max",
           "unpack_header"]

_VERSION: Final = bytes((FORMAT_VERSION,))
_VERSION_1: Final = bytes((UNFLAGGED_VERSION,))
_LAYOUT: Final = struct.Struct("<IIII")
SECTION_HEADER_BYTES: Final = _LAYOUT.size
_ZSTD: Final = int(Compression.ZSTD)
_COMPRESSED: Final = 1
"""The flag of a compressed section, in version 1 only."""

_FORMS: Final = frozenset(compression | cipher << 8 for compression in (0, _ZSTD) for cipher in Cipher)
"""The forms that this release can open."""

_PLAIN: Final = "it is not encrypted, and everything of its stream is"

_SIZE_BYTES: Final = 18
"""The most bytes of a zstd frame that are needed to know its content size."""

NO_POSITION: Final = Position(0, 0)


class SectionKind(IntEnum):
    """The part of an object that a section is. Numbers are permanent and never reused."""

    CORE = 1
    """removed ranges, records, and subject summary or filter of a block"""
    INDEX = 2
    """the message index of a block"""
    FRAME = 3
    """bodies of messages of a block; ``number`` counts the frames of the block"""
    PAGE = 4
    """the body of a checkpoint page; ``number`` is the page's kind"""
    TABLE = 5
    """a part of a block table inline in a directory page; it moves between pages, so its position is its stream"""
    DOCUMENT = 6
    """the map of a small object; ``number`` is the object's kind"""
    JOURNAL = 7
    """a commit in a journal; ``number`` counts the commits of a segment"""


SectionPosition = tuple[Position, int, int, SectionKind, int]
"""The place of a section: position and id in the key of its object; incarnation of the stream that it belongs to, 0:
none; kind, and number among the sections of this kind (of a page and a small object: its own kind)."""

SectionHeader = tuple[int, int, int, int]
"""Bytes before compression, bytes as stored, crc32, form. The form is compression, cipher and key as one number."""

Compressed = tuple[bytes, int, int]
"""A section before it is sealed: its bytes, perhaps compressed; their number before that; the compression."""

# All three are plain tuples: a segment of a thousand small blocks has three thousand sections, and a NamedTuple costs
# as much to make as a checksum.


def pack_header(header: SectionHeader) -> bytes:
    """Return the bytes of ``header``."""
    return _LAYOUT.pack(*header)


def unpack_header(data: bytes, at: int = 0) -> SectionHeader:
    """Return the header that ``pack_header`` packed. Raises: Undecodable if ``data`` is too short."""
    if len(data) < at + SECTION_HEADER_BYTES:
        raise Undecodable("a section is cut short")
    header: SectionHeader = _LAYOUT.unpack_from(data, at)
    return header


def header_of_version_1(raw_bytes: int, stored_bytes: int, crc: int) -> SectionHeader:
    """Return the header of a section that an earlier release wrote: equal lengths mean uncompressed."""
    return raw_bytes, stored_bytes, crc, _ZSTD if raw_bytes != stored_bytes else 0


def is_known(form: int) -> bool:
    """Return whether this release can open sections of ``form``: a newer one may use another compression."""
    return form in _FORMS


def stored_bytes_max(raw_bytes: int, form: int) -> int:
    """Return the most bytes that a section of ``form`` is stored as."""
    return raw_bytes if form <= _ZSTD else raw_bytes + OVERHEAD


def fixed_layout(data: bytes, old: struct.Struct, new: struct.Struct, at: int = 0) -> struct.Struct:
    """Find the layout of a core's, index's or page's fixed part that begins ``at``: ``old`` of version 1, or ``new``.

    The version is in byte 4, and a checksum is last. For an unknown version, the checksum decides.
    """
    version = data[at + 4:at + 5]
    if version == _VERSION or len(data) < at + old.size:
        return new
    end = at + old.size - 4
    if version == _VERSION_1 or crc32(data[at:end]) == int.from_bytes(data[end:end + 4], "little"):
        return old
    return new


def fixed_part_header(version: int, flags: int, fields: Any, flags_known: int) -> tuple[SectionHeader, bool]:
    """Return the section header in a core's, index's or page's fixed part, and whether this release can read that part.

    Args: ``fields`` are those of the fixed part, with its checksum last; ``flags_known`` are the flags of version 4
        that this release knows.
    """
    if version == UNFLAGGED_VERSION:
        return header_of_version_1(*fields[-4:-1]), not flags & ~(flags_known | _COMPRESSED)
    header: SectionHeader = fields[-5:-1]
    return header, version == FORMAT_VERSION and not flags & ~flags_known and is_known(header[-1])


def check_compressed_flag(version: int, flags: int, header: SectionHeader) -> None:
    """Check that the flag of version 1 agrees with the lengths of the section. Raises: Undecodable."""
    if version == UNFLAGGED_VERSION and bool(header[-1]) != bool(flags & _COMPRESSED):
        raise Undecodable("the flag and the lengths disagree")


class SectionCodec:
    """Seals and opens sections. Immutable, and used by several threads at once.

    Args: ``compression`` is for frames. All other sections are compressed if that saves something.
    """

    __slots__ = ("compression",)

    sealing = False
    """True if ``seal`` encrypts."""

    def __init__(self, compression: Compression = Compression.ZSTD) -> None:
        self.compression = compression

    def expect(self, owner: int) -> None:
        """Refuse plain sections of a new stream from now on, if this codec encrypts."""

    def adopt(self, owner: int) -> None:
        """Seal the sections of a stream that comes from another shard under the key that it has there.

        Raises: KeyMissing: this process does not know that key.
        """

    def plain_before(self, owner: int) -> int:
        """Return the epoch before which parts of a stream in this shard may be plain although this codec encrypts; 0:
        none are."""
        return 0

    def compress(self, raw: bytes, *, dense: bool = False) -> Compressed:
        """Compress ``raw``, if that saves at least a sixteenth. ``dense``: it takes longer and saves more."""
        packed = compress(raw, dense=dense)
        return (raw, len(raw), 0) if packed is None else (packed, len(raw), _ZSTD)

    def compress_frames(self, frames: Sequence[bytes]) -> list[Compressed]:
        """Compress all of ``frames``, which are large, at once."""
        if self.compression is Compression.NONE:
            return [(raw, len(raw), 0) for raw in frames]
        return [(raw, len(raw), 0) if packed is None else (packed, len(raw), _ZSTD)
                for raw, packed in zip(frames, compress_all(frames), strict=True)]

    def decompress(self, section: Compressed) -> bytes:
        """Return the bytes that were compressed. Raises: Undecodable."""
        data, raw_bytes, compression = section
        return decompress(data, raw_bytes) if compression else data

    def seal(self, section: Compressed, at: SectionPosition, fixed: bytes = b"", crc: int | None = None
             ) -> tuple[SectionHeader, bytes]:
        """Return header and bytes of ``section``, to be stored ``at`` this position.

        Args: ``fixed`` are the bytes in front of the header, which a cipher authenticates. ``crc`` is the checksum of
            the bytes before compression; None: it is not known.
        """
        data, raw_bytes, compression = section
        if crc is None or compression:
            crc = checksum(data)
        return (raw_bytes, len(data), crc, compression), data

    def open(self, header: SectionHeader, stored: Stored, at: SectionPosition, fixed: bytes = b"") -> bytes | Stored:
        """Return the raw bytes of the section that was read from position ``at``.

        Args: stored is exactly the section. Uncompressed bytes are returned unchanged, so a memoryview saves a copy.
            ``fixed``: see ``seal``.
        Raises: Undecodable if they are damaged, or do not match the header; KeyMissing.
        """
        raw_bytes, stored_bytes, _, form = header
        _check_stored(header, stored)
        if form > _ZSTD:
            opened = _opened(header, stored, at, fixed)
            return self.decompress((opened, raw_bytes, form & 0xFF))
        if KEYS.refuses_plain(at):
            raise Undecodable(_PLAIN)
        if form == _ZSTD:
            return decompress(stored, raw_bytes)
        if form or raw_bytes != stored_bytes:
            raise Undecodable(f"of form {form}, {stored_bytes} bytes do not give {raw_bytes}")
        return stored

    def open_into(self, out: memoryview, header: SectionHeader, stored: Stored, at: SectionPosition) -> None:
        """Fill ``out``, which is as long as the header says, with the result of ``open``. Raises: as ``open``."""
        if header[3] == _ZSTD:
            _check_stored(header, stored)
            if KEYS.refuses_plain(at):
                raise Undecodable(_PLAIN)
            decompress_into(stored, out)
        else:
            out[:] = self.open(header, stored, at)

    def unseal(self, header: SectionHeader, stored: bytes, at: SectionPosition, fixed: bytes = b"") -> Compressed:
        """Return the section as it was before ``seal``, without decompressing it. Raises: Undecodable; KeyMissing."""
        self.check(header, stored, at)
        raw_bytes, _, _, form = header
        if form > _ZSTD:
            data, form = _opened(header, stored, at, fixed), form & 0xFF
            _check_raw(data, raw_bytes, form)
            return data, raw_bytes, form
        if KEYS.refuses_plain(at):
            raise Undecodable(_PLAIN)
        return stored, raw_bytes, form

    def check(self, header: SectionHeader, stored: Stored, at: SectionPosition) -> None:
        """Check that ``open`` would return as many bytes as the header has, without decompressing.

        Of an encrypted section, only the checksum is checked: no key is needed. Raises: Undecodable.
        """
        raw_bytes, stored_bytes, _, form = header
        _check_stored(header, stored)
        if form > _ZSTD and form in _FORMS:
            if not OVERHEAD <= stored_bytes <= raw_bytes + OVERHEAD:
                raise Undecodable(f"of form {form}, {stored_bytes} bytes do not give {raw_bytes}")
            return
        _check_raw(stored, raw_bytes, form)


def _check_stored(header: SectionHeader, stored: Stored) -> None:
    """Check the length and the checksum of the stored bytes. Raises: Undecodable."""
    if len(stored) != header[1] or checksum(stored) != header[2]:
        raise Undecodable("its checksum or length does not match")


def _check_raw(data: Stored, raw_bytes: int, form: int) -> None:
    """Check that a section without cipher gives ``raw_bytes`` bytes. Raises: Undecodable."""
    if form == _ZSTD:
        if raw_bytes > SECTION_BYTES_MAX or not has_content_size(data[:_SIZE_BYTES], raw_bytes):
            raise Undecodable("its zstd content size does not match its header")
    elif form or raw_bytes != len(data):
        raise Undecodable(f"of form {form}, {len(data)} bytes do not give {raw_bytes}")


def _opened(header: SectionHeader, stored: Stored, at: SectionPosition, fixed: bytes) -> bytes:
    """Return the bytes of an encrypted section as they were before ``seal``. Raises: Undecodable; KeyMissing."""
    raw_bytes, _, _, form = header
    if form not in _FORMS or cipher_of(form) == Cipher.NONE:
        raise Undecodable(f"it has form {form}: not this reader's")
    return KEYS.open(form, stored, at, raw_bytes, fixed)


SECTIONS: Final = SectionCodec()
"""The codec of readers, and of writers that compress frames."""

UNCOMPRESSED: Final = SectionCodec(Compression.NONE)
"""The codec of writers that leave frames uncompressed."""
