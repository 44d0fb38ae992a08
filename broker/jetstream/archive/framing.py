"""The framing of S2 and Snappy streams: blocks with their checksums.

    chunk   kind (1 byte), length (3 bytes, little-endian), then as many bytes
      ff    the format's name: first of all, and wherever two streams were put together
      00    checksum (4 bytes), a compressed block
      01    checksum (4 bytes), raw bytes
      80…fe padding, an index, and other chunks that readers skip; all other kinds are errors

Source: framing_format.txt of google/snappy; github.com/klauspost/compress, s2/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.s2 import BLOCK_BYTES_MAX, compress, decompress

__all__ = ["FrameReader", "FrameWriter"]

_NAME, _COMPRESSED, _RAW, _SKIPPABLE = 0xFF, 0x00, 0x01, 0x80
_S2: Final = b"S2sTwO"
_SNAPPY: Final = b"sNaPpY"
_CHUNK_BYTES_MAX: Final = 4 + BLOCK_BYTES_MAX + BLOCK_BYTES_MAX // 6 + 32
"""The largest chunk of data: incompressible bytes grow by a sixth at worst."""

_BLOCK_BYTES: Final = 256 << 10
"""The raw bytes of the blocks written here: a millisecond's work."""


def _checksum(raw: bytes) -> bytes:
    import google_crc32c  # not at the start, which needs neither this nor cramjam

    crc: int = google_crc32c.value(raw)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


class FrameWriter:
    """A writer of an S2 stream."""

    def __init__(self) -> None:
        self._begun = False

    def write(self, raw: bytes) -> bytes:
        """Return the chunks of ``raw``, complete: readers get all of it without waiting for more."""
        out = []
        if not self._begun:
            self._begun = True
            out.append(_chunk(_NAME, _S2))
        for at in range(0, len(raw), _BLOCK_BYTES):
            block = raw[at:at + _BLOCK_BYTES]
            packed = compress(block)
            smaller = len(packed) < len(block)
            out.append(_chunk(_COMPRESSED if smaller else _RAW, _checksum(block) + (packed if smaller else block)))
        return b"".join(out)


def _chunk(kind: int, data: bytes) -> bytes:
    return bytes((kind,)) + len(data).to_bytes(3, "little") + data


class FrameReader:
    """A reader of an S2 or Snappy stream, in pieces of any size."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 4
        self._skip = 0
        self._named = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the raw blocks that ``data`` completes, decoded one by one: the caller must take all of them.

        Raises: ArchiveError.
        """
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        if skipped:
            data = data[skipped:]
        if not data:
            return
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        at, end = 0, len(data)
        while end - at >= 4:
            kind, length = data[at], int.from_bytes(data[at + 1:at + 4], "little")
            if kind >= _SKIPPABLE and kind != _NAME:
                if not self._named:
                    raise ArchiveError("no S2 or Snappy stream")
                at += 4 + length
                if at > end:
                    self._skip, at = at - end, end
                continue
            self._check(kind, length)
            if end - at < 4 + length:
                break
            chunk = data[at + 4:at + 4 + length]
            at += 4 + length
            if kind == _NAME:
                if chunk not in (_S2, _SNAPPY):
                    raise ArchiveError("no S2 or Snappy stream")
                self._named = True
            else:
                raw = decompress(chunk[4:]) if kind == _COMPRESSED else chunk[4:]
                if _checksum(raw) != chunk[:4]:
                    raise ArchiveError("a block whose checksum is wrong")
                yield raw
        rest = data[at:]
        self._have = len(rest)
        self._need = 4 if len(rest) < 4 else 4 + int.from_bytes(rest[1:4], "little")
        if rest:
            self._parts.append(rest)

    def _check(self, kind: int, length: int) -> None:
        """Check the head of a chunk, before the rest of it is awaited."""
        if not self._named and kind != _NAME:
            raise ArchiveError("no S2 or Snappy stream")
        if kind == _NAME:
            fits = length == len(_S2)
        elif kind == _COMPRESSED:
            fits = 5 <= length <= _CHUNK_BYTES_MAX
        elif kind == _RAW:
            fits = 4 <= length <= 4 + BLOCK_BYTES_MAX
        else:
            raise ArchiveError(f"a chunk of the unknown kind {kind:#04x}")
        if not fits:
            raise ArchiveError(f"a chunk of kind {kind:#04x} and {length} bytes")

    def finish(self) -> None:
        """Check that nothing is missing, after the last byte. Raises: ArchiveError."""
        if self._have or self._skip:
            raise ArchiveError("the archive is cut off within a chunk")
        if not self._named:
            raise ArchiveError("the archive is empty")
