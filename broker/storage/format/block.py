"""A block's core, which has all that a replay needs of one stream's part of an object; and references to blocks.

    core      fixed part | sections, compressed together if that saves something

    fixed part
         0     4  magic "JBLK"
         4     2  version, 4; of earlier releases 1
         6     1  flags: 2 a subject summary is present, 4 a subject filter is present,
              8 staged: sequences count from 1;
              version 1: 1 the sections are compressed
         7     1  compression that was tried with the frames
         8     4  0
        12     4  message count
        16     8  stream incarnation, 0 for the shard's own block
        24     4  epoch  \\  of the object
        28     8  number  > (so that a core moved to
        36     8  id     /  another object is noticed)
        44    16  first_seq, last_seq           0 if the block has no message
        60    16  user bytes, raw bytes         (what the stream counts; headers + payloads)
        76    16  first_time_ns, last_time_ns   of the first and of the last message
        92    32  outcome: first_seq, last_seq, msgs, bytes of the stream after this block
       124     8  outcome: first_time_ns
       132    12  rows of removed ranges, bytes of records, bytes of the subject summary or filter
       144    16  header of the sections (``section``); version 1: 12 bytes, without the form
       160     4  crc32 of bytes 0 to 160; version 1: 156, of bytes 0 to 156
    sections
               removed    four columns' descriptions (9 bytes each), then their cells: first, last - first, msgs, bytes
               records    see ``record``
               summary    msgpack [[subject, count, first_seq, last_seq], …]: at most 16 subjects and 1 KiB of names
                or filter  for more subjects: see ``subject_filter``

A block with too many subjects for a filter has neither. The index has the whole table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple
from zlib import crc32

from broker.storage.format.codec import (
    SECTION_BYTES_MAX,
    Compression,
    Undecodable,
    Unpackable,
    pack_value,
    unpack_value,
)
from broker.storage.format.columns import COLUMN, Column, Misfit, read_column
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import FORMAT_VERSION, NUMBER_MAX, Position
from broker.storage.format.record import Record, decode_records, encode_records
from broker.storage.format.section import (
    SECTIONS,
    SectionCodec,
    SectionKind,
    SectionPosition,
    check_compressed_flag,
    fixed_layout,
    fixed_part_header,
    pack_header,
    unpack_header,
)
from broker.storage.format.subject_filter import check_filter

__all__ = ["BYTES", "CORE_BYTES", "CORE_BYTES_MIN", "CORE_FIXED_BYTES", "COUNT", "FIRST_SEQ", "FIRST_TIME_NS",
           "FRAMES_BYTES", "INDEX_BYTES", "LAST_SEQ", "LAST_TIME_NS", "STREAM_ID", "SUMMARY_BYTES_MAX",
           "SUMMARY_SUBJECTS_MAX", "BlockCore", "BlockPlace", "BlockRef", "Outcome", "PackedRef", "Removed",
           "SubjectSummary", "checked_ref", "core_prefix", "core_size", "decode_core", "encode_core", "unpack_summary"]

SUMMARY_SUBJECTS_MAX: Final = 16
SUMMARY_BYTES_MAX: Final = 1024

_MAGIC: Final = b"JBLK"
_SUMMARY: Final = 2
_FILTER: Final = 4
_STAGED: Final = 8
_LAYOUT_V1: Final = struct.Struct("<4sHBBB3sIQIQQ QQ QQ qq QQQQ q III III I".replace(" ", ""))
_LAYOUT: Final = struct.Struct("<4sHBBB3sIQIQQ QQ QQ qq QQQQ q III IIII I".replace(" ", ""))
_FRONT: Final = struct.Struct(_LAYOUT.format[:-5])  # what precedes the header of the sections
CORE_FIXED_BYTES: Final = _LAYOUT.size
"""The fixed part of a core."""
CORE_BYTES_MIN: Final = _LAYOUT_V1.size
"""The length of the shortest fixed part of any version."""
_HEADER_AT: Final = 144
assert (CORE_BYTES_MIN, CORE_FIXED_BYTES, _FRONT.size) == (160, 164, _HEADER_AT)

SubjectSummary = tuple[tuple[bytes, int, int, int], ...]
"""(subject, count, first_seq, last_seq) for each subject in a block, in subject order."""


class Outcome(NamedTuple):
    """The numbers of a stream after a block: facts, not rules. An empty stream has ``first_seq == last_seq + 1``."""

    first_seq: int = 0
    last_seq: int = 0
    msgs: int = 0
    bytes: int = 0
    first_time_ns: int = 0


class Removed(NamedTuple):
    """Messages of the stream that were removed from this block or an earlier one: ``msgs`` of them in first..last."""

    first_seq: int
    last_seq: int
    msgs: int
    bytes: int


class BlockCore:
    """The decoded core of one block. Treat it as immutable: caches and replay share it."""

    __slots__ = ("bytes", "codec", "count", "first_seq", "first_time_ns", "last_seq", "last_time_ns", "object_id",
                 "outcome", "position", "raw_bytes", "records", "removed", "staged", "stream_id", "subject_filter",
                 "subjects")

    def __init__(self, stream_id: int, position: Position, *, count: int = 0, first_seq: int = 0, last_seq: int = 0,
                 bytes: int = 0, raw_bytes: int = 0, first_time_ns: int = 0, last_time_ns: int = 0,
                 outcome: Outcome | None = None, removed: Sequence[Removed] = (), records: Sequence[Record] = (),
                 subjects: SubjectSummary | None = (), codec: Compression = Compression.ZSTD, object_id: int = 0,
                 subject_filter: bytes | None = None, staged: bool = False) -> None:
        self.stream_id = stream_id
        self.position = position
        self.object_id = object_id
        self.codec = codec
        self.count = count
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.bytes = bytes
        self.raw_bytes = raw_bytes
        self.first_time_ns = first_time_ns
        self.last_time_ns = last_time_ns
        self.outcome = outcome or Outcome()
        self.removed = removed
        self.records = records
        self.subjects = subjects
        self.subject_filter = subject_filter
        self.staged = staged
        """True if its writer did not know its place in the stream: its sequences count from 1."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockCore):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # compared in tests only

    def _values(self) -> tuple[object, ...]:
        return tuple(tuple(value) if isinstance(value, list) else value
                     for value in (getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        return (f"<BlockCore stream {self.stream_id:016x} in {self.position}: {self.count} messages "
                f"{self.first_seq}..{self.last_seq}, {len(self.removed)} removed, {len(self.records)} records>")


class BlockPlace(IntEnum):
    """The kind of object that contains a block, and so the kind of its key."""

    LOG = 1
    """shards/<shard>/log/<epoch>-<number>"""
    RUN = 2
    """shards/<shard>/runs/<epoch>-<position>-<id>"""
    STREAM_RUN = 3
    """streams/<account>/<name>/<incarnation>/runs/<epoch>-<position>-<id>"""
    STAGED = 4
    """The key of a run, which no owner wrote. Only the reference has the sequences and times of its messages."""

    @property
    def of_stream(self) -> bool:
        """True if the object is below its stream's prefix."""
        return self >= BlockPlace.STREAM_RUN


PackedRef = tuple[Any, ...]
"""A BlockRef's values in its order: place, epoch, number, object_id, stream_id, … subjects or filter. All are plain
values, which the garbage collector ignores and msgpack packs fast."""

STREAM_ID: Final = 4
CORE_BYTES: Final = 6
INDEX_BYTES: Final = 8
FRAMES_BYTES: Final = 10
FIRST_SEQ: Final = 11
LAST_SEQ: Final = 12
COUNT: Final = 13
BYTES: Final = 14
FIRST_TIME_NS: Final = 15
LAST_TIME_NS: Final = 16
"""Indexes into a PackedRef."""

_REF_NUMBERS: Final = 17
"""The members of a PackedRef before the subjects."""
_INTEGERS: Final = {int}
_PLACES: Final = frozenset(map(int, BlockPlace))


class BlockRef:
    """The place of one stored block with messages, and the facts about it that are needed without reading it.
    Immutable.

    ``place``, ``position`` and ``object_id`` are the parts of the object's key. ``paths`` builds the key; the caller
    supplies the stream's names. Offsets are into the object. ``bytes`` is the user size. ``subjects`` is None if there
    are too many: then ``subject_filter`` may exclude some, and the index lists them.
    """

    __slots__ = ("bytes", "core_bytes", "core_offset", "count", "first_seq", "first_time_ns", "frames_bytes",
                 "frames_offset", "index_bytes", "index_offset", "last_seq", "last_time_ns", "object_id", "place",
                 "position", "stream_id", "subject_filter", "subjects")

    def __init__(self, place: BlockPlace, position: Position, object_id: int, stream_id: int, core_offset: int,
                 core_bytes: int, index_offset: int, index_bytes: int, frames_offset: int, frames_bytes: int,
                 first_seq: int, last_seq: int, count: int, bytes: int, first_time_ns: int, last_time_ns: int,
                 subjects: SubjectSummary | None, subject_filter: bytes | None = None) -> None:
        self.place = place
        self.position = position
        self.object_id = object_id
        self.stream_id = stream_id
        self.core_offset = core_offset
        self.core_bytes = core_bytes
        self.index_offset = index_offset
        self.index_bytes = index_bytes
        self.frames_offset = frames_offset
        self.frames_bytes = frames_bytes
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.count = count
        self.bytes = bytes
        self.first_time_ns = first_time_ns
        self.last_time_ns = last_time_ns
        self.subjects = subjects
        self.subject_filter = subject_filter

    def pack(self) -> PackedRef:
        """Return the reference as a tuple, for msgpack or to be kept; ``unpack`` and ``of`` are the inverse."""
        return (int(self.place), self.position.epoch, self.position.number, self.object_id, self.stream_id,
                self.core_offset, self.core_bytes, self.index_offset, self.index_bytes, self.frames_offset,
                self.frames_bytes, self.first_seq, self.last_seq, self.count, self.bytes, self.first_time_ns,
                self.last_time_ns, self.subjects if self.subject_filter is None else self.subject_filter)

    @classmethod
    def of(cls, packed: PackedRef) -> BlockRef:
        """Return the reference that ``pack`` packed in this process."""
        place, epoch, number, *rest, subjects = packed
        known = (None, subjects) if type(subjects) is bytes else (subjects, None)
        return cls(BlockPlace(place), Position(epoch, number), *rest, *known)

    @classmethod
    def unpack(cls, packed: Any) -> BlockRef:
        """Return the reference that ``pack`` packed. Raises: Corrupt for any other value."""
        return cls.of(checked_ref(packed))

    def __reduce__(self) -> tuple[Any, ...]:
        # Half the bytes of a pickled object with slots; the result is a BlockRef even for a subclass.
        return BlockRef.unpack, (self.pack(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockRef):
            return NotImplemented
        return self.pack() == other.pack()

    @property
    def gapless(self) -> bool:
        """True if the block has a message for every sequence from the first to the last."""
        return self.last_seq - self.first_seq + 1 == self.count

    def __hash__(self) -> int:
        return hash((self.place, self.position, self.object_id, self.core_offset))

    def __repr__(self) -> str:
        return (f"<BlockRef {self.place.name.lower()} {self.position}+{self.core_offset}: stream {self.stream_id:016x} "
                f"{self.first_seq}..{self.last_seq}>")


def checked_ref(packed: Any) -> PackedRef:
    """Return a packed reference, from a list as msgpack decodes it. Raises: Corrupt for any other value."""
    try:
        *numbers, subjects = packed
        if len(numbers) != _REF_NUMBERS or set(map(type, numbers)) != _INTEGERS:
            raise ValueError("a number is missing or has another type")
        if numbers[0] not in _PLACES:
            raise ValueError(f"{numbers[0]} is no place")
        if subjects is not None:
            subjects = check_filter(subjects) if isinstance(subjects, bytes) else unpack_summary(subjects)
        return (*numbers, subjects)
    except (TypeError, ValueError) as error:
        raise Corrupt("block reference", "fields", 0, str(error)) from None


def encode_core(core: BlockCore, codec: SectionCodec = SECTIONS) -> bytes:
    """Return the bytes of one core."""
    records = encode_records(core.records) if core.records else b""
    summary = core.subject_filter or b"" if core.subjects is None else pack_value(core.subjects)
    sections = b"".join((_encode_removed(core.removed), records, summary))
    at = _position(core.position, core.object_id, core.stream_id)
    flags = (_SUMMARY if core.subjects is not None else _FILTER if core.subject_filter is not None else 0) | (
        _STAGED if core.staged else 0)
    front = _FRONT.pack(
        _MAGIC, FORMAT_VERSION, flags, core.codec, 0, b"", core.count, core.stream_id, *core.position, core.object_id,
        core.first_seq, core.last_seq, core.bytes, core.raw_bytes, core.first_time_ns, core.last_time_ns, *core.outcome,
        len(core.removed), len(records), len(summary))
    header, stored = codec.seal(SECTIONS.compress(sections), at, front)
    fixed = front + pack_header(header)
    return b"".join((fixed, crc32(fixed).to_bytes(4, "little"), stored))


def core_prefix(codec: Compression) -> bytes:
    """Return the first 12 bytes of every core with a summary."""
    return struct.pack("<4sHBBB3s", _MAGIC, FORMAT_VERSION, _SUMMARY, codec, 0, b"")


def core_size(data: bytes, at: int = 0) -> int:
    """Return the length of the core that begins ``at``. ``data`` has at least ``CORE_BYTES_MIN`` bytes of it."""
    return fixed_layout(data, _LAYOUT_V1, _LAYOUT, at).size + unpack_header(data, at + _HEADER_AT)[1]


def _position(position: Position, object_id: int, stream_id: int) -> SectionPosition:
    return position, object_id, stream_id, SectionKind.CORE, 0


def decode_core(data: bytes, position: Position, stream_id: int, *, object_id: int = 0, name: str | None = None,
                offset: int = 0, everything: bool = False) -> BlockCore:
    """Decode one core, whole.

    Args: position, object_id and stream_id come from the key and the directory, and must be repeated in the core. name
        and offset are the object and the core's place in it, for errors. everything keeps unknown records too.
    Raises: Corrupt; VersionUnknown for a newer block; RecordUnknown for a record that must be understood. The last two
        concern only this block's stream.
    """
    name = name or f"block {position}"
    layout = fixed_layout(data, _LAYOUT_V1, _LAYOUT)
    if len(data) < layout.size:
        raise Corrupt(name, "block core", offset + len(data), "cut short")
    (magic, version, flags, codec, cipher, spare, count, core_stream_id, epoch, number, core_object_id, first_seq,
     last_seq, size, raw_bytes, first_time_ns, last_time_ns, out_first, out_last, out_msgs, out_bytes, out_time,
     removed_rows, records_bytes, summary_bytes, *_, crc) = fields = layout.unpack_from(data)
    if magic != _MAGIC or crc32(data[:layout.size - 4]) != crc:
        raise Corrupt(name, "block core", offset, "the checksum of its fixed part does not match")
    header, readable = fixed_part_header(version, flags, fields, _SUMMARY | _FILTER | _STAGED)
    if not readable or cipher or codec > max(Compression):
        raise VersionUnknown(name, "block core", offset + 4,
                             f"version {version}, codec {codec}, cipher {cipher}, flags {flags}, form {header[-1]}: "
                             "not this reader's")
    if (epoch, number, core_object_id, core_stream_id) != (*position, object_id, stream_id):
        raise Corrupt(name, "block core", offset + 16, "it belongs to another object or stream")
    if any(spare) or number > NUMBER_MAX or header[0] > SECTION_BYTES_MAX or (
            count and not (first_seq >= 1 and last_seq - first_seq >= count - 1)) or (
            flags & _STAGED and (first_seq, last_seq) != (1, count)):
        raise Corrupt(name, "block core", offset, "a field is out of its range")
    at = offset + layout.size
    try:
        check_compressed_flag(version, flags, header)
        sections = SECTIONS.open(header, data[layout.size:], _position(position, object_id, stream_id),
                                 data[:_HEADER_AT])
        removed, end = _decode_removed(sections, removed_rows)
        if end + records_bytes + summary_bytes != len(sections):
            raise Misfit("the sections do not add up")
        known = sections[end + records_bytes:]
        summary = unpack_value(known) if flags & _SUMMARY else None
        subjects = None if summary is None else unpack_summary(summary)
        if flags & _SUMMARY and flags & _FILTER:
            raise Misfit("a summary and a filter")
        subject_filter = check_filter(known) if flags & _FILTER else None
    except (Misfit, Undecodable, Unpackable, TypeError, ValueError) as error:
        raise Corrupt(name, "block core", at, str(error)) from None
    records = decode_records(sections[end:end + records_bytes], stream_id=stream_id, name=name, offset=at,
                             everything=everything)
    return BlockCore(
        stream_id, position, count=count, first_seq=first_seq, last_seq=last_seq, bytes=size, raw_bytes=raw_bytes,
        first_time_ns=first_time_ns, last_time_ns=last_time_ns, removed=removed, records=records, subjects=subjects,
        outcome=Outcome(out_first, out_last, out_msgs, out_bytes, out_time), codec=Compression(codec),
        object_id=object_id,
        subject_filter=subject_filter, staged=bool(flags & _STAGED))


def _encode_removed(removed: Sequence[Removed]) -> bytes:
    if not removed:
        return b""
    firsts, lasts, msgs, sizes = zip(*removed, strict=True)
    # Every row takes at least a byte (high is never low), so few bytes cannot stand for many rows.
    columns = (Column.of(firsts, high=max(firsts) + 1, base=min(firsts)),
               Column.of([last - first for first, last in zip(firsts, lasts, strict=True)]),
               Column.of(msgs), Column.of(sizes))
    return b"".join([column.description for column in columns] + [column.cells for column in columns])


def _decode_removed(data: bytes, rows: int) -> tuple[list[Removed], int]:
    """Return the removed ranges at the beginning of ``data``, and where they end. Raises: Misfit."""
    if not rows:
        return [], 0
    at = 4 * COLUMN.size
    if at > len(data):
        raise Misfit("the removed ranges are cut short")
    descriptions = list(COLUMN.iter_unpack(data[:at]))
    if descriptions[0][1] == 0 or rows > len(data):
        raise Misfit("the removed ranges are more than their bytes")
    columns: list[Sequence[int]] = []
    for base, width in descriptions:
        values, at = read_column(data, at, base, width, rows)
        columns.append([base] * rows if values is None else values)
    firsts, spans, msgs, sizes = columns
    if min(firsts) < 1 or min(spans) < 0 or min(msgs) < 0 or min(sizes) < 0:
        raise Misfit("a removed range is out of bounds")
    lasts = [first + span for first, span in zip(firsts, spans, strict=True)]
    return list(map(Removed, firsts, lasts, msgs, sizes)), at


def unpack_summary(rows: Any) -> SubjectSummary:
    """Return a subject summary as tuples, from lists as msgpack decodes it. Raises: TypeError or ValueError."""
    summary = []
    for subject, count, first_seq, last_seq in rows:
        if not isinstance(subject, bytes) or not (type(count) is type(first_seq) is type(last_seq) is int):
            raise TypeError("a subject summary has other fields")
        summary.append((subject, count, first_seq, last_seq))
    return tuple(summary)
