"""Core and index of a small block in a few calls of ``struct``: the bytes that ``encode_core`` and ``encode_index`` give,
but that a short index is not compressed.

When a thousand streams share a segment, the cost of each block dominates. Most are of a few messages under one
subject, without headers, gaps, removals or records, so most of their fields are 0 or repeat others: here they
are the padding of a layout. All other blocks take the general encoders (see ``is_small``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgpack

from broker.storage.format.block import CORE_BYTES_MIN, Outcome, SubjectSummary, core_prefix
from broker.storage.format.codec import Codec, compress
from broker.storage.format.columns import Column
from broker.storage.format.header import Position
from broker.storage.format.index import INDEX_BYTES_MIN, index_prefix

__all__ = ["COMPRESSED_MIN", "NAME_BYTES_MAX", "SmallEncoder"]

COMPRESSED_MIN: Final = 256
"""Bytes of an index that are worth the 4 µs of compressing: fewer save a few dozen at most."""

NAME_BYTES_MAX: Final = 64
"""Of a small block's subject: so that nothing tries to compress its core."""

_CORE: Final = struct.Struct("<12s I Q 20s QQQQ qq QQQQ q 8x III I".replace(" ", ""))
"""The common prefix; messages, stream, position and id; first_seq, last_seq, bytes, raw bytes, times; outcome; no
removed ranges and no records; bytes of the summary, which is all there is, three times; its checksum."""

_INDEX: Final = struct.Struct("<8s Q 20s Q I 8s I II I".replace(" ", ""))
"""The common prefix; stream, position and id, first_seq; messages, one frame, one subject; bytes of its name, of the
body twice; its checksum."""

_BODY: Final = struct.Struct("<4x III 9x QB 9x 9x QB Qx Qx 9x Qx".replace(" ", ""))
"""The one frame: stored and raw bytes, checksum. Columns: time; body bytes; name bytes, messages, last ordinal."""

assert _CORE.size + 4 == CORE_BYTES_MIN
assert _INDEX.size + 4 == INDEX_BYTES_MIN
assert _BODY.size == 16 + 9 * 9

_ONE_FRAME_ONE_SUBJECT: Final = struct.pack("<II", 1, 1)


class SmallEncoder:
    """Encodes the small blocks of one object."""

    def __init__(self, position: Position, object_id: int, codec: Codec) -> None:
        self._core = core_prefix(codec)
        self._index, self._index_compressed = index_prefix(False), index_prefix(True)
        self._place = struct.pack("<IQQ", *position, object_id)
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def encode(self, stream_id: int, first_seq: int, subject: bytes, stamps: Sequence[int], lens: Sequence[int],
               raw_bytes: int, size: int, outcome: Outcome, stored: bytes) -> tuple[bytes, bytes, int, SubjectSummary]:
        """One block, of at least one message.

        Args: stamps are the times of its messages, not falling, or the one that all have; raw_bytes is the sum of
            ``lens``, size what the stream counts for them; stored is their frame.
        Returns: core, index, checksum of the frame, and the summary.
        """
        place, count = self._place, len(lens)
        last_seq, first_time_ns, last_time_ns = first_seq + count - 1, stamps[0], stamps[-1]
        summary = ((subject, count, first_seq, last_seq),)
        sections = self._pack(summary)
        said = len(sections)
        fixed = _CORE.pack(self._core, count, stream_id, place, first_seq, last_seq, size, raw_bytes, first_time_ns,
                           last_time_ns, *outcome, said, said, said, crc32(sections))
        core = b"%b%b%b" % (fixed, crc32(fixed).to_bytes(4, "little"), sections)

        crc = crc32(stored)
        time_width, time_cells = 0, b""
        if last_time_ns != first_time_ns:
            _, time_width, time_cells = Column.of(stamps, first_time_ns, last_time_ns, first_time_ns)
        body_len, body_width, body_cells = lens[0], 0, b""
        if lens.count(body_len) != count:
            body_len, body_width, body_cells = Column.of(lens)
        body = b"%b%b%b%b" % (
            _BODY.pack(len(stored), raw_bytes, crc, first_time_ns, time_width, body_len, body_width, len(subject),
                       count, count - 1), time_cells, body_cells, subject)
        prefix, packed = self._index, body
        if len(body) >= COMPRESSED_MIN:
            packed = compress(body)
            if len(packed) != len(body):
                prefix = self._index_compressed
        fixed = _INDEX.pack(prefix, stream_id, place, first_seq, count, _ONE_FRAME_ONE_SUBJECT, len(subject), len(body),
                            len(packed), crc32(packed))
        return core, b"%b%b%b" % (fixed, crc32(fixed).to_bytes(4, "little"), packed), crc, summary
