"""An object of blocks: a segment of the log, or a run. Heads come first, so a replay reads only the beginning.

    object    header | fixed part | directory | cores | indexes | frames           (each kind side by side, no gaps)

    fixed part, 40 bytes
        64     4  block count
        68     4  landed: the distance back to the newest entry of the log up to which all entries were stored when the
                  put of this one began; 0: not known (runs, openings, objects of version 1)
        72    24  bytes of the cores, of the indexes, of the frames, each of all blocks together
        96     4  crc32 of the directory
       100     4  crc32 of bytes 64 to 100
    directory row, 56 bytes, one for each block
         0     8  stream incarnation
         8    16  first_seq, last_seq
        24     4  message count
        28     4  bytes of its core
        32     8  bytes of its index
        40     8  bytes of its frames
        48     8  raw bytes (headers + payloads)

With ``landed`` a reader distinguishes the end of the log from an entry that the store has lost (``log_end``).

A block's core, index and frames follow in the order of the directory, so their offsets are sums of the rows before.
A segment without blocks is a heartbeat. Cores, indexes and frames have checksums of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, starmap
from typing import Final, NamedTuple
from zlib import crc32

from broker.storage.format.block import CORE_BYTES_MIN, BlockCore, BlockPlace, BlockRef, decode_core
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import (
    HEADER_BYTES,
    UNFLAGGED_VERSION,
    ObjectHeader,
    ObjectKind,
    Position,
    object_name,
)

__all__ = [
    "HEAD_BYTES",
    "HEAD_BYTES_MIN",
    "PUTS_IN_FLIGHT_MAX",
    "ROW_BYTES",
    "DirectoryRow",
    "RowValues",
    "SegmentHead",
    "decode_head",
    "decode_landed",
    "encode_segment_front",
    "fixed_landed",
]

_FIXED: Final = struct.Struct("<IIQQQII")
_ROW: Final = struct.Struct("<QQQIIQQQ")
assert (_FIXED.size, _ROW.size) == (40, 56)
HEAD_BYTES_MIN: Final = HEADER_BYTES + _FIXED.size
"""The length of the shortest segment; fewer bytes do not show the length of its head."""

ROW_BYTES: Final = _ROW.size
"""The length of a directory row."""

HEAD_BYTES: Final = 64 * 1024
"""The bytes of a first get: the head of nearly every segment, or of an object of pages, is not longer."""

BLOCKS_MAX: Final = 1 << 20
PUTS_IN_FLIGHT_MAX: Final = 16
"""The most puts that any writer has in flight, so orphans are stored at most this far beyond an epoch's end."""

RowValues = tuple[int, int, int, int, int, int, int, int]
"""The values of a directory row before it is packed."""


class DirectoryRow(NamedTuple):
    """A block of an object, with the places of its parts in the object."""

    stream_id: int
    first_seq: int
    last_seq: int
    messages: int
    core_offset: int
    core_bytes: int
    index_offset: int
    index_bytes: int
    frames_offset: int
    frames_bytes: int
    raw_bytes: int

    def ref(self, place: BlockPlace, core: BlockCore) -> BlockRef:
        """Return the reference to this block, whose core is ``core``."""
        return BlockRef(place, core.position, core.object_id, self.stream_id, self.core_offset, self.core_bytes,
                        self.index_offset, self.index_bytes, self.frames_offset, self.frames_bytes, self.first_seq,
                        self.last_seq, self.messages, core.bytes, core.first_time_ns, core.last_time_ns, core.subjects,
                        core.subject_filter)


class SegmentHead:
    """The head of a segment or run: header, directory and cores, all of them read; cores are decoded on demand."""

    __slots__ = ("_data", "header", "landed", "rows", "size")

    def __init__(self, header: ObjectHeader, rows: list[DirectoryRow], data: bytes, size: int, landed: int | None
                 ) -> None:
        self.header = header
        self.rows = rows
        self.size = size
        """Bytes from the object's beginning to the end of the cores."""
        self.landed = landed
        """The number of its epoch up to which all entries were stored when its put began; None: not known."""
        self._data = data

    def __len__(self) -> int:
        return len(self.rows)

    def core(self, i: int, *, everything: bool = False) -> BlockCore:
        """Decode block ``i``'s core; ``everything`` keeps records that this reader does not know.

        Raises: Corrupt, VersionUnknown or RecordUnknown; each concerns only the stream of ``rows[i]``.
        """
        row = self.rows[i]
        core = decode_core(self._data[row.core_offset:row.core_offset + row.core_bytes], self.header.position,
                           row.stream_id, object_id=self.header.object_id, name=self.header.name,
                           offset=row.core_offset, everything=everything)
        if (core.first_seq, core.last_seq, core.count, core.raw_bytes) != (
                row.first_seq, row.last_seq, row.messages, row.raw_bytes):
            raise Corrupt(self.header.name, "block core", row.core_offset, "it contradicts the directory")
        return core

    def ref(self, i: int, core: BlockCore, place: BlockPlace = BlockPlace.LOG) -> BlockRef | None:
        """Return the reference to block ``i``, whose core is ``core``; None if it has no message."""
        return self.rows[i].ref(place, core) if core.count else None


def decode_head(prefix: bytes, position: Position, *, kind: ObjectKind = ObjectKind.SEGMENT, object_id: int = 0,
                complete: bool = False) -> SegmentHead | int:
    """Decode the head of the object whose key has ``position``, from its first bytes.

    Args: prefix is the beginning of the object; 64 KiB usually include the whole head. complete: the object has no more
        bytes than these (fewer were returned than requested).
    Returns: the head; or the number of bytes from 0 that are needed, if ``prefix`` is shorter.
    Raises: Corrupt for damaged, cut or moved bytes, and for an object of another kind; VersionUnknown.
    """
    name = object_name(kind, position, object_id)
    header = ObjectHeader.unpack(prefix, name)
    header.expect(kind, position, object_id)
    if complete and len(prefix) != header.size:
        raise Corrupt(name, "header", 40, f"the object has {len(prefix)} bytes, not {header.size}")
    if len(prefix) > header.size:
        raise Corrupt(name, "header", 40, f"the object has more than its {header.size} bytes")
    if len(prefix) < HEAD_BYTES_MIN:
        return _more(name, HEAD_BYTES_MIN, header.size)
    blocks, behind, cores, indexes, frames, directory_crc = _fixed_part(prefix, name)
    cores_at = HEAD_BYTES_MIN + blocks * _ROW.size
    size = cores_at + cores
    if blocks > BLOCKS_MAX or size + indexes + frames != header.size:
        raise Corrupt(name, "fixed part", HEADER_BYTES, "its parts do not add up to the object's size")
    if behind and (header.version == UNFLAGGED_VERSION or behind > min(PUTS_IN_FLIGHT_MAX, position.number)):
        raise Corrupt(name, "fixed part", HEADER_BYTES + 4, "landed is out of bounds")
    if len(prefix) < size:
        return _more(name, size, header.size)
    directory = prefix[HEAD_BYTES_MIN:cores_at]
    if crc32(directory) != directory_crc:
        raise Corrupt(name, "directory", HEAD_BYTES_MIN, "the checksum does not match")
    rows: list[DirectoryRow] = []
    core_at, index_at, frames_at = cores_at, size, size + indexes
    for row in _ROW.iter_unpack(directory):
        stream_id, first_seq, last_seq, count, core_bytes, index_bytes, frames_bytes, raw = row
        rows.append(DirectoryRow(stream_id, first_seq, last_seq, count, core_at, core_bytes, index_at, index_bytes,
                                 frames_at, frames_bytes, raw))
        if core_bytes < CORE_BYTES_MIN or bool(count) != bool(index_bytes) or (frames_bytes and not count):
            raise Corrupt(name, "directory", HEAD_BYTES_MIN + (len(rows) - 1) * _ROW.size, "a row is out of bounds")
        core_at, index_at, frames_at = core_at + core_bytes, index_at + index_bytes, frames_at + frames_bytes
    if (core_at, index_at, frames_at) != (size, size + indexes, header.size):
        raise Corrupt(name, "directory", HEAD_BYTES_MIN, "its rows do not add up to the object's parts")
    return SegmentHead(header, rows, prefix, size, position.number - behind if behind else None)


def decode_landed(prefix: bytes, position: Position) -> int | None:
    """Return ``landed`` of the segment at ``position``, as a number; ``prefix`` has at least ``HEAD_BYTES_MIN`` bytes.

    Raises: Corrupt; VersionUnknown.
    """
    ObjectHeader.unpack(prefix, name := object_name(ObjectKind.SEGMENT, position)).expect(ObjectKind.SEGMENT, position)
    return fixed_landed(prefix, position, name)


def fixed_landed(prefix: bytes, position: Position, name: str) -> int | None:
    """Return ``landed`` without checking the header. Raises: Corrupt."""
    if len(prefix) < HEAD_BYTES_MIN:
        raise Corrupt(name, "fixed part", len(prefix), "cut short")
    behind: int = _fixed_part(prefix, name)[1]
    return position.number - behind if 0 < behind <= min(PUTS_IN_FLIGHT_MAX, position.number) else None


def _fixed_part(prefix: bytes, name: str) -> tuple[int, ...]:
    """Return the fields of the fixed part, without the checksum. Raises: Corrupt."""
    *fields, crc = _FIXED.unpack_from(prefix, HEADER_BYTES)
    if crc32(prefix[HEADER_BYTES:HEAD_BYTES_MIN - 4]) != crc:
        raise Corrupt(name, "fixed part", HEAD_BYTES_MIN - 4, "the checksum does not match")
    return tuple(fields)


def _more(name: str, needed: int, size: int) -> int:
    if needed > size:
        raise Corrupt(name, "header", 40, f"the object has {size} bytes by its header; its head alone needs {needed}")
    return needed


def encode_segment_front(kind: ObjectKind, position: Position, object_id: int, nonce: bytes,
                         rows: Sequence[RowValues], landed: int | None = None
                         ) -> tuple[bytes, Iterable[tuple[int, int, int]]]:
    """Encode header, fixed part and directory of an object; cores, indexes and frames follow in the order of ``rows``.

    Args: landed is the number up to which all earlier entries of the log were stored; None: not known.
    Returns: the bytes, and the places of each block's core, index and frames in the object.
    """
    core_bytes, index_bytes, frames_bytes = ([row[at] for row in rows] for at in (4, 5, 6))
    cores, indexes, frames = sum(core_bytes), sum(index_bytes), sum(frames_bytes)
    core_at = HEAD_BYTES_MIN + len(rows) * _ROW.size
    index_at = core_at + cores
    frames_at = index_at + indexes
    directory = b"".join(starmap(_ROW.pack, rows))
    behind = 0 if landed is None else position.number - landed
    fixed = _FIXED.pack(len(rows), behind, cores, indexes, frames, crc32(directory), 0)[:-4]
    header = ObjectHeader(kind, position, nonce, frames_at + frames, object_id).pack()
    places = zip(accumulate(core_bytes, initial=core_at), accumulate(index_bytes, initial=index_at),
                 accumulate(frames_bytes, initial=frames_at), strict=True)
    return b"".join((header, fixed, crc32(fixed).to_bytes(4, "little"), directory)), places
