"""Compression, checksums and msgpack, with bounds on the memory that hostile bytes can claim. ``section`` uses them for
stored bytes.

Compressors and packers are reused, one for each thread: making a compressor costs as much as compressing 10 KiB, and
making a packer as much as packing a record.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeVar
from zlib import crc32

import msgpack
import zstandard

__all__ = ["SECTION_BYTES_MAX", "Compression", "Stored", "Undecodable", "Unpackable", "checksum", "checksum_joined",
           "compress", "compress_all", "decompress", "decompress_into",
           "has_content_size", "join_rows", "pack_array_header", "pack_value",
           "unpack_tuples", "unpack_value"]

SECTION_BYTES_MAX: Final = 1 << 28
"""The most bytes of a section before compression. Indexes, records, pages and frames stay far below, and a decoder
allocates no more, whatever a length field has."""

_LEVEL: Final = 1
"""The level for frames: on 128 KiB of text or JSON, level 3 is half as fast and saves no more."""

_DENSE_LEVEL: Final = 3
"""The level for columns: times of messages that came one by one take 4.2 bytes each instead of 6.0."""

_SMALL: Final = 128
"""The fewest bytes that are compressed: for fewer, zstd's own header costs more than it saves."""

_SAMPLED: Final = 64 * 1024
_SAMPLES: Final = 4
_SAMPLE_BYTES: Final = 1024
"""Samples of a frame with at least ``_SAMPLED`` bytes: so many pieces of such a size are compressed first. If these do
not shrink, the frame is stored uncompressed. Trying to compress the whole frame took most of the time of storing it.
Data that repeats only over kilobytes is stored uncompressed, too."""

_CRC_POLYNOMIAL: Final = 0xEDB88320

_GIL_RELEASE: Final = 5 * 1024
"""zlib.crc32 releases the GIL for more bytes than this."""


Stored = TypeVar("Stored", bytes, memoryview)


class Compression(IntEnum):
    """The compression of stored bytes. Bytes that do not shrink are stored uncompressed."""

    NONE = 0
    ZSTD = 1


class Undecodable(ValueError):
    """Compressed bytes that cannot be decompressed to the expected length."""


class Unpackable(ValueError):
    """Bytes that are not one msgpack value."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.dense = zstandard.ZstdCompressor(level=_DENSE_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()
        self.packer = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass")


_per_thread = _PerThread()


def compress(raw: bytes, *, dense: bool = False) -> bytes | None:
    """Return ``raw`` compressed by zstd; None if that saves less than a sixteenth.

    Args: ``dense`` takes longer and saves more; it is for columns that are stored for long.
    """
    if len(raw) < _SMALL:
        return None
    packed: bytes = (_per_thread.dense if dense else _per_thread.compressor).compress(raw)
    return packed if len(packed) <= len(raw) - (len(raw) >> 4) else None


def _shrinking(frames: Sequence[bytes]) -> list[int]:
    """Return the places of the frames that may shrink: large ones only if their samples do."""
    places = [i for i, frame in enumerate(frames) if len(frame) >= _SMALL]
    sampled = [i for i in places if len(frames[i]) >= _SAMPLED]
    packed = _compress_each([_sample(frames[i]) for i in sampled])
    bound = _SAMPLES * _SAMPLE_BYTES - (_SAMPLES * _SAMPLE_BYTES >> 4)
    no = {i for i, segment in zip(sampled, packed, strict=True) if len(segment) > bound}
    return [i for i in places if i not in no]


def _sample(raw: bytes) -> bytes:
    step = len(raw) // _SAMPLES
    return b"".join([raw[at:at + _SAMPLE_BYTES] for at in range(0, _SAMPLES * step, step)])


def _compress_each(raw: list[Any]) -> Any:
    """Compress each of the bytes ``raw`` on its own, releasing the GIL once.

    Returns: a sequence of results, which have a length and ``tobytes``.
    """
    if len(raw) < 2 or not hasattr(_per_thread.compressor, "multi_compress_to_buffer"):
        return [memoryview(_per_thread.compressor.compress(one)) for one in raw]
    return _per_thread.compressor.multi_compress_to_buffer(raw)


def compress_all(frames: Sequence[bytes]) -> list[bytes | None]:
    """Call ``compress`` for each of ``frames``, releasing the GIL once for all; large frames only if samples shrink.

    A busy loop thread gives the GIL back only after a switch interval, so each release costs the encoder one such wait:
    3 MiB took 14 ms beside a busy thread, and 40 ms with a release for each frame and each of its checksums.
    """
    places = _shrinking(frames)
    out: list[bytes | None] = [None] * len(frames)
    for i, packed in zip(places, _compress_each([frames[i] for i in places]), strict=True):
        if len(packed) <= len(frames[i]) - (len(frames[i]) >> 4):
            out[i] = packed.tobytes()
    return out


def has_content_size(stored: Stored, raw_bytes: int) -> bool:
    """Return whether compressed bytes name this content size; ``decompress`` refuses any other."""
    try:
        return int(zstandard.frame_content_size(stored)) == raw_bytes
    except zstandard.ZstdError:
        return False


def decompress(stored: bytes | memoryview, raw_bytes: int) -> bytes:
    """Return the bytes that were compressed. Raises: Undecodable unless these are exactly ``raw_bytes``."""
    try:
        # Compare the content size first: the decompressor allocates as much as the frame names.
        if raw_bytes > SECTION_BYTES_MAX or zstandard.frame_content_size(stored) != raw_bytes:
            raise Undecodable(f"the compressed content size is not {raw_bytes} bytes")
        raw: bytes = _per_thread.decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Undecodable(f"zstd: {error}") from None
    if len(raw) != raw_bytes:
        raise Undecodable(f"{len(raw)} bytes came out, not {raw_bytes}")
    return raw


def decompress_into(stored: bytes | memoryview, out: memoryview) -> None:
    """Fill ``out`` with the bytes that were compressed, without a copy.

    Raises: Undecodable unless there are as many.
    """
    try:
        if (zstandard.frame_content_size(stored) != len(out)
                or _per_thread.decompressor.stream_reader(stored).readinto(out) != len(out)):
            raise Undecodable(f"the compressed content size is not {len(out)} bytes")
    except zstandard.ZstdError as error:
        raise Undecodable(f"zstd: {error}") from None


def checksum(data: bytes | memoryview, crc: int = 0) -> int:
    """Return zlib.crc32, computed in pieces of 1 µs that keep the GIL: regaining it may cost a switch interval."""
    if len(data) <= _GIL_RELEASE:
        return crc32(data, crc)
    view = memoryview(data)
    for at in range(0, len(data), _GIL_RELEASE):
        crc = crc32(view[at:at + _GIL_RELEASE], crc)
    return crc


def checksum_joined(crc: int, following: int, size: int) -> int:
    """Return the checksum of two pieces from the checksum of each; ``size`` is the length of the second piece.

    It takes 4 µs, so it pays for large pieces only. Source: zlib, crc32_combine.
    """
    return _product(_power(8 * size), crc) ^ following


def _product(a: int, b: int) -> int:
    """Multiply two polynomials modulo the polynomial of crc32; bit 31 of a number is the coefficient of 1."""
    bit, product = 1 << 31, 0
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _CRC_POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=256)
def _power(exponent: int) -> int:
    """Return x to the power of ``exponent``, modulo the polynomial of crc32."""
    power, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power


def pack_array_header(count: int) -> bytes:
    """Return the beginning of an array of ``count`` values in msgpack."""
    packed: bytes = _per_thread.packer.pack_array_header(count)
    return packed


def pack_value(value: object) -> bytes:
    """Return ``value`` in msgpack. Any text is accepted, including lone surrogates, which API JSON may have."""
    packed: bytes = _per_thread.packer.pack(value)
    return packed


def join_rows(head: object, rows: Sequence[object], before: bytes = b"") -> bytes:
    """Return [``head``, ``rows``] in msgpack. ``before`` is an earlier such value, whose rows come first, unchanged.

    Raises: Unpackable if ``before`` is anything else.
    """
    packer = _per_thread.packer
    count, at = 0, 0
    if before:
        unpacker = msgpack.Unpacker(max_buffer_size=SECTION_BYTES_MAX)
        unpacker.feed(before)
        try:
            unpacker.read_array_header()
            unpacker.skip()
            count, at = unpacker.read_array_header(), unpacker.tell()
        except (ValueError, msgpack.UnpackException) as error:
            raise Unpackable(f"not a list of rows: {error!r}") from None
    return b"".join((packer.pack_array_header(2), packer.pack(head), packer.pack_array_header(count + len(rows)),
                     before[at:], *map(packer.pack, rows)))


def unpack_value(data: bytes) -> Any:
    """Return the only msgpack value in ``data``: maps, lists, str, bytes, numbers. Raises: Unpackable."""
    return _unpack(data, use_list=True)


def unpack_tuples(data: bytes) -> Any:
    """Return the value with tuples instead of lists: they are smaller, and the garbage collector ignores plain ones."""
    return _unpack(data, use_list=False)


def _unpack(data: bytes, *, use_list: bool) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogatepass", use_list=use_list)
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgpack.UnpackException) as error:
        raise Unpackable(f"not msgpack: {error!r}") from None
