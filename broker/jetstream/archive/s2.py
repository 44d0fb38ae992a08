"""Blocks of S2, the extension of Snappy that nats-server's archives are compressed with.

Snappy's decoder reads most of them. It refuses a repeated offset, which S2 writes as a copy with the offset 0; such
blocks are decoded here.

    tag  0  literal             1  copy, 11 bits of offset; offset 0: the last offset again, with a length of its own
         2  copy, 16 bits       3  copy, 32 bits

Source: github.com/klauspost/compress, s2/decode_other.go and the description of the format in s2/README.md.
"""

from __future__ import annotations

from typing import Final

from broker.jetstream.archive.errors import ArchiveError

__all__ = ["BLOCK_BYTES_MAX", "compress", "decompress"]

BLOCK_BYTES_MAX: Final = 4 << 20
"""The largest size of a block's raw bytes, by the format; it bounds the expansion of a few bytes."""

_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2


def compress(raw: bytes) -> bytes:
    """Return a block of ``raw``, in the part of the format that is Snappy."""
    import cramjam  # not at the start: it takes 0.1 s

    return bytes(cramjam.snappy.compress_raw(raw))


def decompress(block: bytes) -> bytes:
    """Return the raw bytes of a block. Raises: ArchiveError."""
    import cramjam

    size, at = _size(block)
    if size > BLOCK_BYTES_MAX:
        raise ArchiveError(f"a block of {size} bytes, and the format allows {BLOCK_BYTES_MAX}")
    if not size:
        if at != len(block):
            raise ArchiveError("a block that is longer than its data")
        return b""
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        try:
            return _decompress(block, at, size)
        except IndexError:
            raise ArchiveError("a block ends within an element") from None


def _size(block: bytes) -> tuple[int, int]:
    """Return the raw size that a block begins with, and where its elements begin."""
    size = shift = 0
    for at, byte in enumerate(block[:5], 1):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7
    raise ArchiveError("a block without a size")


def _decompress(block: bytes, at: int, size: int) -> bytes:
    """Decode the elements of ``block`` from ``at`` on. Raises: ArchiveError; IndexError: it ends within an element."""
    out = bytearray()
    offset, end = 0, len(block)

    def number(start: int, length: int) -> int:
        if start + length > end:
            raise IndexError
        return int.from_bytes(block[start:start + length], "little")

    while at < end:
        tag = block[at]
        kind = tag & 3
        at += 1
        if kind == _LITERAL:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = number(at, extra)
                at += extra
            length += 1
            if at + length > end or len(out) + length > size:
                raise ArchiveError("a literal beyond the end of its block")
            out += block[at:at + length]
            at += length
            continue
        if kind == _COPY_1:
            length = tag >> 2 & 7
            near = (tag & 0xE0) << 3 | block[at]
            at += 1
            if near:
                offset = near
            elif length >= 5:
                extra = length - 4
                # Each longer form begins where the one before it ends.
                length = number(at, extra) + (4, 1 << 8, 1 << 16)[extra - 1]
                at += extra
            length += 4
        else:
            extra = 2 if kind == _COPY_2 else 4
            length = (tag >> 2) + 1
            offset = number(at, extra)
            at += extra
        have = len(out)
        if not 0 < offset <= have or have + length > size:
            raise ArchiveError("a copy from outside of its block")
        start = have - offset
        if offset >= length:
            out += out[start:start + length]
        else:
            pattern = bytes(out[start:])
            out += pattern * (length // offset) + pattern[:length % offset]
    if len(out) != size:
        raise ArchiveError(f"a block of {len(out)} bytes, and it says {size}")
    return bytes(out)
