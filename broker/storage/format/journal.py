"""``log/.journal``: the changes of a directory's log that are acknowledged and perhaps not in its segments yet.

The journal is a file of two areas. The owner of the shard appends a record for each commit to one area; when it is
full, to the other one. An area is written again from its start once all segments of its records are in the log.

    area     at offset 0, and at AREA_BYTES_MAX
         0     8  magic "JETJOURN"
         8     2  version, 1
        10     2  0
        12     4  epoch of the writer
        16     8  serial: 0 for the first area that the writer used, then one more each time
        24    16  nonce of the writer, as in the headers of its segments
        40     4  crc32 of bytes 0 to 40
        44    20  0
        64        records, one after the other; a length of 0 ends them
    record
         0     4  length of the commit, not 0
         4     4  crc32 of the length, the record's number in the area and the commit; it begins with a seed
         8        commit
    commit
         0     1  kind: 1 a single message without headers and records; 2 anything else; 3 an encrypted commit
         1     1  flags: 1 the commit closes its segment
         2     8  number of the segment in the log of the epoch
        10     4  number of the commit in the segment, from 0
        14        kind 1: stream id, sequence, time; outcome; length of the subject; subject, body
                  kind 2: msgpack, one row for each block that has changed (``JournaledBlock``)
                  kind 3: a section header and a section, the commit under the key of the shard

The seed of an area differs from the seed of every other serial of the same writer. CRC-32 is linear, so two records of
equal length with different seeds never have the same checksum: a record of an earlier lap is never valid. The first
record that is not valid ends the area.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from broker.storage.format.block import Outcome, Removed
from broker.storage.format.codec import (
    Undecodable,
    Unpackable,
    checksum,
    checksum_joined,
    pack_array_header,
    pack_value,
    unpack_value,
)
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import NONCE_BYTES, Position
from broker.storage.format.record import Record
from broker.storage.format.section import (
    SECTION_HEADER_BYTES,
    SECTIONS,
    SectionCodec,
    SectionKind,
    SectionPosition,
    pack_header,
    unpack_header,
)

__all__ = ["AREA_BYTES_MAX", "AREA_HEADER_BYTES", "JOURNAL", "LARGE_BODY_BYTES", "RECORD_HEADER_BYTES", "Area",
           "AreaHeader", "Commit", "EncodedCommit", "JournaledBlock", "JournaledSegment", "RecordPlace", "decode_area",
           "encode_commit", "encode_message", "encode_record", "seal_commit", "segments_of"]

JOURNAL: Final = ".journal"
"""The name of the file in the folder of the log. No key can have this name."""

AREA_BYTES_MAX: Final = 32 << 20
LARGE_BODY_BYTES: Final = 16 * 1024
"""A body from this size on is a part of its own in an encoded commit, so it is not copied."""

AREA_HEADER_BYTES: Final = 64
RECORD_HEADER_BYTES: Final = 8

_VERSION: Final = 1
_MAGIC: Final = b"JETJOURN"
_AREA: Final = struct.Struct("<8sHHIQ16s")
_RECORD: Final = struct.Struct("<II")
_NUMBERED: Final = struct.Struct("<II")
_COMMIT: Final = struct.Struct("<BBQI")
_MESSAGE: Final = struct.Struct("<BBQI QQQ QQQQq I".replace(" ", ""))
_LARGE_BINARY: Final = struct.Struct(">BI")
"""The beginning of a body in msgpack, as for any with more than 65 535 bytes."""

_ONE_MESSAGE, _BLOCKS, _SEALED = 1, 2, 3
_CLOSES: Final = 1
_BODIES: Final = 5
"""The place of the bodies in a row."""

NO_CRCS: Final[Mapping[int, Mapping[int, int]]] = {}


class AreaHeader(NamedTuple):
    """The beginning of an area: who wrote it, and in which order."""

    epoch: int
    nonce: bytes
    serial: int

    @property
    def seed(self) -> int:
        """The value with which the checksums of the area's records begin."""
        return crc32(self.nonce) ^ (self.serial & 0xFFFFFFFF)

    def encode(self) -> bytes:
        """Return the bytes before the first record."""
        if len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
        body = _AREA.pack(_MAGIC, _VERSION, 0, self.epoch, self.serial, self.nonce)
        return (body + crc32(body).to_bytes(4, "little")).ljust(AREA_HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> AreaHeader | None:
        """Decode an area's header; None if it was never written completely. Raises: VersionUnknown."""
        if len(data) < AREA_HEADER_BYTES:
            return None
        magic, version, _, epoch, serial, nonce = _AREA.unpack_from(data)
        if magic != _MAGIC or crc32(data[:_AREA.size]) != int.from_bytes(data[_AREA.size:_AREA.size + 4], "little"):
            return None
        if version != _VERSION:
            raise VersionUnknown(JOURNAL, "area", 8, f"version {version}; this reader knows {_VERSION}")
        return cls(epoch, nonce, serial)


class JournaledBlock(NamedTuple):
    """The part of a commit that belongs to one stream: what its open block has gained since the commit before.

    Attributes: runs are (first_seq, number of messages, time_ns), as in ``OpenBlock``. hlens None: no message of the
        block has headers so far. listed are records about these messages that the segment has in one record for all of
        its messages; they are ignored if the segment was closed. outcome is the stream's after this commit.
    """

    stream_id: int
    outcome: Outcome
    runs: Sequence[tuple[int, int, int]] = ()
    subjects: Sequence[bytes] = ()
    hlens: Sequence[int] | None = None
    bodies: Sequence[bytes] = ()
    removed: Sequence[Removed] = ()
    records: Sequence[Record] = ()
    listed: Sequence[Record] = ()


class Commit(NamedTuple):
    """A record of the journal. ``closes``: nothing was added to the segment after it."""

    segment: int
    number: int
    closes: bool
    blocks: Sequence[JournaledBlock]


class EncodedCommit(NamedTuple):
    """The bytes of a commit.

    Attributes: parts, which are written side by side; crcs: the checksums of large parts, by their places.
    """

    parts: list[bytes]
    crcs: dict[int, int]

    @property
    def size(self) -> int:
        """The number of all bytes."""
        return sum(map(len, self.parts))


class RecordPlace(NamedTuple):
    """A valid record of an area: the numbers at the beginning of its commit, and the commit's place."""

    segment: int
    number: int
    closes: bool
    start: int
    end: int


class Area(NamedTuple):
    """An area of the file that was used. Its commits are decoded on demand: it may have 300 000 of them."""

    header: AreaHeader
    data: bytes

    def places(self) -> Iterator[RecordPlace]:
        """Yield the records up to the first one that is not valid. Raises: Corrupt for one that is, and unusable."""
        data, seed, at, end, count = self.data, self.header.seed, AREA_HEADER_BYTES, len(self.data), 0
        view = memoryview(data)
        while at + RECORD_HEADER_BYTES <= end:
            length, crc = _RECORD.unpack_from(data, at)
            start = at + RECORD_HEADER_BYTES
            if not length or length > end - start:
                return
            if crc32(view[start:start + length], crc32(_NUMBERED.pack(length, count), seed)) != crc:
                return
            if length < _COMMIT.size:
                raise Corrupt(JOURNAL, "commit", at, f"{length} bytes")
            _, flags, segment, number = _COMMIT.unpack_from(data, start)
            at = start + length
            count += 1
            yield RecordPlace(segment, number, bool(flags & _CLOSES), start, at)

    def commit(self, start: int, end: int) -> Commit:
        """Decode the commit of a record. Raises: Corrupt."""
        return _decode_commit(self.data[start:end], start, self.header.epoch)


class JournaledSegment:
    """The commits of one segment, from its first one on.

    Attributes: number; nonce: the writer's; count: of the commits; closed False: the segment was still open.
    """

    __slots__ = ("_places", "closed", "count", "nonce", "number")

    def __init__(self, number: int, nonce: bytes) -> None:
        self.number = number
        self.nonce = nonce
        self.count = 0
        self.closed = False
        self._places: list[tuple[Area, array[int]]] = []

    def add(self, area: Area, place: RecordPlace) -> None:
        """Add the next commit."""
        if not self._places or self._places[-1][0] is not area:
            self._places.append((area, array("I")))
        self._places[-1][1].extend((place.start, place.end))
        self.count += 1
        self.closed = place.closes

    def commits(self) -> Iterator[Commit]:
        """Decode the commits. Raises: Corrupt."""
        for area, places in self._places:
            for start, end in zip(places[::2], places[1::2], strict=True):
                yield area.commit(start, end)


def encode_message(segment: int, number: int, stream_id: int, outcome: Outcome, run: tuple[int, int, int],
                   subject: bytes, body: bytes, crc: int | None = None) -> EncodedCommit:
    """Return a commit of a single message without headers: a faster ``encode_commit``. ``crc``: a large body's."""
    head = _MESSAGE.pack(_ONE_MESSAGE, 0, segment, number, stream_id, run[0], run[2], *outcome, len(subject))
    if crc is None:
        return EncodedCommit([b"".join((head, subject, body))], {})
    return EncodedCommit([head + subject, body], {1: crc})


def encode_commit(commit: Commit, crcs: Mapping[int, Mapping[int, int]] = NO_CRCS) -> EncodedCommit:
    """Return the bytes of a commit.

    Args: ``crcs``: for some rows, by their numbers, the checksums of large bodies, by their places in the row.
    """
    front = _COMMIT.pack(_BLOCKS, _CLOSES if commit.closes else 0, commit.segment, commit.number)
    if not crcs:
        return EncodedCommit([front + pack_value([_row(block) for block in commit.blocks])], {})
    parts, of_parts = [front, pack_array_header(len(commit.blocks))], {}
    for number, block in enumerate(commit.blocks):
        row, of_bodies = _row(block), crcs.get(number)
        if of_bodies is None:
            parts.append(pack_value(row))
            continue
        parts += (pack_array_header(len(row)), *map(pack_value, row[:_BODIES]), pack_array_header(len(block.bodies)))
        for place, body in enumerate(block.bodies):
            if (crc := of_bodies.get(place)) is None:
                parts.append(pack_value(body))
            else:
                parts.append(_LARGE_BINARY.pack(0xC6, len(body)))
                of_parts[len(parts)] = crc
                parts.append(body)
        parts += map(pack_value, row[_BODIES + 1:])
    return EncodedCommit(parts, of_parts)


def _row(block: JournaledBlock) -> tuple[Any, ...]:
    return (block.stream_id, block.outcome, block.runs, block.subjects, block.hlens, block.bodies, block.removed,
            _packed(block.records), _packed(block.listed))


def seal_commit(encoded: EncodedCommit, epoch: int, codec: SectionCodec) -> EncodedCommit:
    """Return an encoded commit as a section of ``codec``."""
    commit = b"".join(encoded.parts)
    _, flags, segment, number = _COMMIT.unpack_from(commit)
    front = _COMMIT.pack(_SEALED, flags, segment, number)
    header, stored = codec.seal((commit, len(commit), 0), _position(epoch, segment, number), front)
    return EncodedCommit([b"%b%b%b" % (front, pack_header(header), stored)], {})


def _position(epoch: int, segment: int, number: int) -> SectionPosition:
    return Position(epoch, segment), 0, 0, SectionKind.JOURNAL, number


def encode_record(commit: EncodedCommit, number: int, seed: int) -> list[bytes]:
    """Return the record of an encoded commit, the ``number``-th of its area, in parts."""
    parts, crcs = commit
    length = commit.size
    crc = crc32(_NUMBERED.pack(length, number), seed)
    if not crcs:
        [data] = parts
        return [_RECORD.pack(length, checksum(data, crc)) + data]
    joined: list[bytes] = []
    small: list[bytes] = [b""]
    for place, part in enumerate(parts):
        known = crcs.get(place)
        if known is None:
            small.append(part)
            crc = checksum(part, crc)
            continue
        crc = checksum_joined(crc, known, len(part))
        joined += (b"".join(small), part)
        small = []
    joined.append(b"".join(small))
    joined[0] = _RECORD.pack(length, crc) + joined[0]
    return joined


def decode_area(data: bytes) -> Area | None:
    """Return an area; None if it was never used. Raises: VersionUnknown."""
    header = AreaHeader.decode(data)
    return None if header is None else Area(header, data)


def segments_of(areas: Sequence[Area], first: int) -> Iterator[JournaledSegment]:
    """Yield the segments from number ``first`` on whose commits are complete, in order; only the last may be open.

    The areas have one writer. The journal ends where a commit or a segment is missing. Raises: Corrupt.
    """
    in_order = sorted(areas, key=lambda area: area.header.serial)
    if not in_order:
        return
    nonce = in_order[0].header.nonce
    segment = JournaledSegment(first, nonce)
    for area in in_order:
        for place in area.places():
            if place.segment < segment.number:
                continue
            if place.segment != segment.number or place.number != segment.count:
                break
            segment.add(area, place)
            if segment.closed:
                yield segment
                segment = JournaledSegment(segment.number + 1, nonce)
        else:
            continue
        break
    if segment.count:
        yield segment


def _packed(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(record.kind, record.after_seq, record.packed, record.version, record.must_understand)
            for record in records]


def _decode_commit(data: bytes, offset: int, epoch: int) -> Commit:
    """Decode a commit whose checksum was correct. Raises: Corrupt; KeyMissing."""
    try:
        kind, flags, segment, number = _COMMIT.unpack_from(data)
        if kind == _SEALED:
            front, at = data[:_COMMIT.size], _position(epoch, segment, number)
            data = bytes(SECTIONS.open(unpack_header(data, len(front)), data[len(front) + SECTION_HEADER_BYTES:], at,
                                       front))
            kind = data[0]
        if kind == _ONE_MESSAGE:
            _, _, _, _, stream_id, seq, time_ns, *numbers, subject_bytes = _MESSAGE.unpack_from(data)
            body_at = _MESSAGE.size + subject_bytes
            one = JournaledBlock(stream_id, Outcome(*numbers), [(seq, 1, time_ns)], [data[_MESSAGE.size:body_at]], None,
                                 [data[body_at:]])
            return Commit(segment, number, False, [one])
        if kind != _BLOCKS:
            raise ValueError(f"a commit of kind {kind}")
        blocks = [_block(*row) for row in unpack_value(data[_COMMIT.size:])]
    except (ValueError, TypeError, IndexError, struct.error, Unpackable, Undecodable) as error:
        raise Corrupt(JOURNAL, "commit", offset, str(error)) from None
    return Commit(segment, number, bool(flags & _CLOSES), blocks)


def _block(stream_id: int, outcome: list[int], runs: list[list[int]], subjects: list[bytes], hlens: list[int] | None,
           bodies: list[bytes], removed: list[list[int]], records: list[list[Any]], listed: list[list[Any]]
           ) -> JournaledBlock:
    return JournaledBlock(stream_id, Outcome(*outcome), [(first, count, time_ns) for first, count, time_ns in runs],
                          subjects, hlens, bodies, [Removed(*row) for row in removed],
                          [Record(*row) for row in records], [Record(*row) for row in listed])
