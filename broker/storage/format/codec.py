"""Compression, checksums and msgpack, with the bounds that keep hostile bytes from costing memory. ``section`` uses them
for stored bytes.

Compressors and packers are kept, one for each thread: making a compressor costs as much as compressing 10 KiB, making a
packer as much as packing a record.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar
from zlib import crc32

import msgpack
import zstandard

__all__ = ["SECTION_BYTES_MAX", "Compression", "Stored", "Undecodable", "Unpackable", "checksum", "compress",
           "compress_all", "decompress", "join_rows", "pack_value", "says_size", "unpack_tuples", "unpack_value"]

SECTION_BYTES_MAX: Final = 1 << 28
"""No section is larger before compression: indexes, records, pages and frames stay far below, and a decoder allocates
no more because a length field asks for it."""

_LEVEL: Final = 1
"""On 128 KiB frames of text or JSON level 3 is half as fast and no smaller."""

_DENSE_LEVEL: Final = 3
"""For columns: the times of messages that came one by one take 4.2 bytes each instead of 6.0; higher levels save no more."""

_SMALL: Final = 128
"""Below this, zstd's own header outweighs what it saves."""

_SAMPLED: Final = 64 * 1024
_SAMPLES: Final = 4
_SAMPLE_BYTES: Final = 1024
"""Of a frame at least as large as the first, so many pieces of such a size are tried: where they do not shrink, nor would the
rest, and finding out took most of the time of storing it. What repeats over kilobytes alone is stored as it is."""

_GIL_RELEASE: Final = 5 * 1024
"""zlib.crc32 releases the GIL above 5 KiB."""


Stored = TypeVar("Stored", bytes, memoryview)


class Compression(IntEnum):
    """How bytes are compressed. Those that do not shrink are stored as they are."""

    NONE = 0
    ZSTD = 1


class Undecodable(ValueError):
    """Compressed bytes that do not give what was promised."""


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
    """``raw`` by zstd; None if that saves less than a sixteenth. ``dense``: for columns that are stored for long."""
    if len(raw) < _SMALL:
        return None
    packed: bytes = (_per_thread.dense if dense else _per_thread.compressor).compress(raw)
    return packed if len(packed) <= len(raw) - (len(raw) >> 4) else None


def _may_shrink(raw: bytes) -> bool:
    if len(raw) < _SAMPLED:
        return True
    step = len(raw) // _SAMPLES
    sample = b"".join([raw[at:at + _SAMPLE_BYTES] for at in range(0, _SAMPLES * step, step)])
    return len(_per_thread.compressor.compress(sample)) <= len(sample) - (len(sample) >> 4)


def compress_all(frames: Sequence[bytes]) -> list[bytes | None]:
    """``compress`` for each of ``frames``, releasing the GIL once for all of them; large ones only if samples shrink.

    A loop thread that is always busy gives the GIL back only after a switch interval, so each release costs the encoder
    one such wait: 3 MiB took 14 ms beside a busy thread, 40 ms with a release for each frame and each of its checksums.
    """
    large = [i for i, frame in enumerate(frames) if len(frame) >= _SMALL and _may_shrink(frame)]
    out: list[bytes | None] = [None] * len(frames)
    if len(large) < 2 or not hasattr(_per_thread.compressor, "multi_compress_to_buffer"):
        for i in large:
            out[i] = compress(frames[i])
        return out
    packed = _per_thread.compressor.multi_compress_to_buffer([frames[i] for i in large])
    for n, i in enumerate(large):
        raw, segment = frames[i], packed[n]
        if len(segment) <= len(raw) - (len(raw) >> 4):
            out[i] = segment.tobytes()
    return out


def says_size(stored: Stored, raw_bytes: int) -> bool:
    """Whether compressed bytes say that so many come out, without which ``decompress`` does not begin."""
    try:
        return int(zstandard.frame_content_size(stored)) == raw_bytes
    except zstandard.ZstdError:
        return False


def decompress(stored: bytes | memoryview, raw_bytes: int) -> bytes:
    """Undo ``compress``. Raises: Undecodable unless exactly ``raw_bytes`` come out."""
    try:
        # The content size is compared first: the decompressor allocates what the frame says.
        if raw_bytes > SECTION_BYTES_MAX or zstandard.frame_content_size(stored) != raw_bytes:
            raise Undecodable(f"the compressed size does not say {raw_bytes} bytes")
        raw: bytes = _per_thread.decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Undecodable(f"zstd: {error}") from None
    if len(raw) != raw_bytes:
        raise Undecodable(f"{len(raw)} bytes came out, not {raw_bytes}")
    return raw


def checksum(data: bytes, crc: int = 0) -> int:
    """zlib.crc32 in pieces that keep the GIL: 1 µs each, where getting the GIL back may cost a switch interval."""
    if len(data) <= _GIL_RELEASE:
        return crc32(data, crc)
    view = memoryview(data)
    for at in range(0, len(data), _GIL_RELEASE):
        crc = crc32(view[at:at + _GIL_RELEASE], crc)
    return crc


def pack_value(value: object) -> bytes:
    """``value`` in msgpack. Any text is accepted, lone surrogates too: API JSON may hold them."""
    packed: bytes = _per_thread.packer.pack(value)
    return packed


def join_rows(head: object, rows: Sequence[object], before: bytes = b"") -> bytes:
    """[``head``, ``rows``] in msgpack. ``before`` has an earlier such value: its rows, as they are there, come first.

    Raises: Unpackable when ``before`` is something else.
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
    return b"".join((packer.pack_array_header(2), packer.pack(head), packer.pack_array_header(count + len(rows)), before[at:],
                     *map(packer.pack, rows)))


def unpack_value(data: bytes) -> Any:
    """The one msgpack value in ``data``: maps, lists, str, bytes, numbers. Raises: Unpackable."""
    return _unpack(data, use_list=True)


def unpack_tuples(data: bytes) -> Any:
    """As ``unpack_value``, with tuples for lists: smaller, and those of plain values cost the garbage collector nothing."""
    return _unpack(data, use_list=False)


def _unpack(data: bytes, *, use_list: bool) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogatepass", use_list=use_list)
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgpack.UnpackException) as error:
        raise Unpackable(f"not msgpack: {error!r}") from None
