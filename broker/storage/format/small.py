"""Encodes core and index of a small block in a few calls of ``struct``, to the same bytes as ``encode_core`` and
``encode_index``, except that a short index is not compressed.

When a thousand streams share a segment, the cost of each block dominates. Most blocks are of a few messages with one
subject, without headers, gaps, removals or records. So most of their fields are 0 or repeat others: here these fields
are the padding of a layout. The general encoders encode all other blocks (see ``is_small``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgpack

from broker.storage.format.block import CORE_FIXED_BYTES, Outcome, SubjectSummary, core_prefix
from broker.storage.format.columns import Column
from broker.storage.format.header import Position
from broker.storage.format.index import INDEX_FIXED_BYTES, INDEX_PREFIX
from broker.storage.format.section import (
    SECTION_HEADER_BYTES,
    Compressed,
    SectionCodec,
    SectionHeader,
    SectionKind,
)

__all__ = ["COMPRESSED_MIN", "NAME_BYTES_MAX", "SmallEncoder"]

COMPRESSED_MIN: Final = 256
"""The shortest index that is compressed, in 4 µs: a shorter one would get at most a few dozen bytes shorter."""

NAME_BYTES_MAX: Final = 64
"""The longest subject of a small block, such that compressing its core cannot help."""

_CORE: Final = struct.Struct("<12s I Q 20s QQQQ qq QQQQ q 8x I IIII".replace(" ", ""))
"""The common prefix; messages, stream, position and id; first_seq, last_seq, bytes, raw bytes, times; outcome; no
removed ranges and no records; bytes of the summary, the only section; the header of the section."""

_INDEX: Final = struct.Struct("<8s Q 20s Q I 8s I IIII".replace(" ", ""))
"""The common prefix; stream, position and id, first_seq; messages, one frame, one subject; bytes of its name;
the header of the body."""

_BODY: Final = struct.Struct("<4x IIII 9x QB 9x 9x QB Qx Qx 9x Qx".replace(" ", ""))
"""The one frame: its header. Columns: time; body bytes; name bytes, messages, last ordinal."""

assert _CORE.size + 4 == CORE_FIXED_BYTES
assert _INDEX.size + 4 == INDEX_FIXED_BYTES
assert _BODY.size == 20 + 9 * 9

_IN_CORE, _IN_FRAME, _IN_INDEX = SectionKind.CORE, SectionKind.FRAME, SectionKind.INDEX
_ONE_FRAME_ONE_SUBJECT: Final = struct.pack("<II", 1, 1)


class SmallEncoder:
    """Encodes the small blocks of one object."""

    def __init__(self, position: Position, object_id: int, codec: SectionCodec) -> None:
        self._codec = codec
        self._position, self._object_id = position, object_id
        self._core = core_prefix(codec.compression)
        self._place = struct.pack("<IQQ", *position, object_id)
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def encode(self, stream_id: int, first_seq: int, subject: bytes, stamps: Sequence[int], lens: Sequence[int],
               size: int, outcome: Outcome, frame: Compressed
               ) -> tuple[bytes, bytes, tuple[SectionHeader, bytes], SubjectSummary]:
        """Encode one block of at least one message.

        Args: stamps are the times of its messages, ascending, or one time for all. size is that of the messages in the
            stream's bytes. lens are the lengths of their bodies, and frame has the bodies.
        Returns: core, index, frame, and the summary.
        """
        position, object_id, codec = self._position, self._object_id, self._codec
        place, count = self._place, len(lens)
        last_seq, first_time_ns, last_time_ns = first_seq + count - 1, stamps[0], stamps[-1]
        summary = ((subject, count, first_seq, last_seq),)
        sections = self._pack(summary)
        summary_bytes = len(sections)
        at = position, object_id, stream_id, _IN_CORE, 0
        front = b"" if not codec.sealing else _CORE.pack(
            self._core, count, stream_id, place, first_seq, last_seq, size, frame[1], first_time_ns, last_time_ns,
            *outcome, summary_bytes, 0, 0, 0, 0)[:-SECTION_HEADER_BYTES]
        header, sections = codec.seal((sections, summary_bytes, 0), at, front)
        fixed = _CORE.pack(self._core, count, stream_id, place, first_seq, last_seq, size, frame[1], first_time_ns,
                           last_time_ns, *outcome, summary_bytes, *header)
        core = b"%b%b%b" % (fixed, crc32(fixed).to_bytes(4, "little"), sections)

        sealed = codec.seal(frame, (position, object_id, stream_id, _IN_FRAME, 0))
        time_width, time_cells = 0, b""
        if last_time_ns != first_time_ns:
            _, time_width, time_cells = Column.of(stamps, first_time_ns, last_time_ns, first_time_ns)
        body_len, body_width, body_cells = lens[0], 0, b""
        if lens.count(body_len) != count:
            body_len, body_width, body_cells = Column.of(lens)
        body = b"%b%b%b%b" % (
            _BODY.pack(*sealed[0], first_time_ns, time_width, body_len, body_width, len(subject), count, count - 1),
            time_cells, body_cells, subject)
        packed = codec.compress(body) if len(body) >= COMPRESSED_MIN else (body, len(body), 0)
        front = b"" if not codec.sealing else _INDEX.pack(
            INDEX_PREFIX, stream_id, place, first_seq, count, _ONE_FRAME_ONE_SUBJECT, len(subject), 0, 0, 0, 0
        )[:-SECTION_HEADER_BYTES]
        header, stored = codec.seal(packed, (position, object_id, stream_id, _IN_INDEX, 0), front)
        fixed = _INDEX.pack(INDEX_PREFIX, stream_id, place, first_seq, count, _ONE_FRAME_ONE_SUBJECT, len(subject),
                            *header)
        return core, b"%b%b%b" % (fixed, crc32(fixed).to_bytes(4, "little"), stored), sealed, summary
