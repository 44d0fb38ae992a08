"""A block's message index: each message's place, subject and time. It is read by one small get, then cached.

    fixed part
         0     4  magic "JIDX"
         4     2  version, 4; of earlier releases 1
         6     1  flags: 2 a staged block, 4 a grouped block (see ``frame``); version 1: 1 the body is compressed
         7     1  0
         8     8  stream incarnation  \\
        16    20  epoch, number, id    > as in the block's core and the object's header
        36     8  first_seq           /
        44     4  message count
        48     4  frame count
        52     4  subject count
        56     4  bytes of the subject names, all together
        60    16  header of the body (``section``); version 1: 12 bytes, without the form
        76     4  crc32 of bytes 0 to 76; version 1: 72, of bytes 0 to 72
    body
        frame table      a row of 20 bytes each: first ordinal, header of the frame (``section``); in a grouped block
                         a row for each part, those of one frame with its first ordinal;
                         version 1: 16 bytes: first ordinal, stored bytes, raw bytes, crc32 of the stored bytes
        descriptions     of nine columns, 9 bytes each (``columns``)
        message columns  seq (width 0: ascending by one from first_seq), time in ns, subject id, header bytes, body
        bytes subject columns  name bytes, count, first ordinal, last ordinal
        names            of the subjects, in order of their bytes, each once, side by side

The subject id column also serves as postings: the ordinals with an id are those of its subject.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from zlib import crc32

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.codec import SECTION_BYTES_MAX, Undecodable
from broker.storage.format.columns import ARRAYS, COLUMN, CheckedValues, Column, Misfit, Values
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.frame import Frame
from broker.storage.format.header import FORMAT_VERSION, UNFLAGGED_VERSION, Position
from broker.storage.format.lazy_columns import KNOWN, Names, Shifted
from broker.storage.format.message_size import HEADERS_BYTES, ROW_BYTES
from broker.storage.format.section import (
    SECTIONS,
    SectionCodec,
    SectionKind,
    SectionPosition,
    check_compressed_flag,
    fixed_layout,
    fixed_part_header,
    header_of_version_1,
    is_known,
    pack_header,
    stored_bytes_max,
)

__all__ = ["INDEX_BYTES_MIN", "INDEX_FIXED_BYTES", "INDEX_PREFIX", "Head", "decode_index", "decode_known_index",
           "encode_index", "find_frames"]

T = TypeVar("T")

_MAGIC: Final = b"JIDX"
_STAGED: Final = 2
_GROUPED: Final = 4
_LAYOUT_V1: Final = struct.Struct("<4sHBBQIQQQIIII III I".replace(" ", ""))
_LAYOUT: Final = struct.Struct("<4sHBBQIQQQIIII IIII I".replace(" ", ""))
_FRONT: Final = struct.Struct(_LAYOUT.format[:-5])  # what precedes the header of the body
_HEADER_AT: Final = _FRONT.size
INDEX_FIXED_BYTES: Final = _LAYOUT.size
"""The fixed part of an index."""
INDEX_BYTES_MIN: Final = _LAYOUT_V1.size
"""The length of the shortest fixed part of any version."""
assert (INDEX_BYTES_MIN, INDEX_FIXED_BYTES) == (76, 80)
_FRAME_V1: Final = struct.Struct("<IIII")
_FRAME: Final = struct.Struct("<IIIII")
_COLUMNS: Final = 9
_DESCRIPTIONS: Final = struct.Struct("<" + _COLUMNS * COLUMN.format.lstrip("<"))
_FRAME_MESSAGES_BOUND: Final = 1 << 16
"""The most messages of a frame that a reader accepts; writers stay below FRAME_MESSAGES_MAX."""

_SEARCH_WORTH: Final = 8
"""A search for a subject is faster than a loop over all messages if at most one in so many has it."""

_SEQS_DIFFER: Final = "its sequences do not run from the block's first to its last"

class Head:
    """The decoded index of one block. Treat it as immutable: caches share it.

    Columns, one value a message: ``seqs`` (None: first_seq + ordinal), ``times`` (None: all ``time_ns``),
    ``subject_ids`` (None: all 0), ``hlens`` (None: all ``hlen``), ``body_lens`` (None: all ``body_len``).
    Columns, one value a subject: ``subjects`` (sorted), ``subject_counts``, ``subject_firsts``, ``subject_lasts``
    (ordinals). ``frames`` is the frame table, ``frames_offset`` the place of the frames in the object.
    """

    __slots__ = ("__weakref__", "body_len", "body_lens", "count", "first_seq", "frames", "frames_offset", "hlen",
                 "hlens", "last_seq", "object_id", "position", "seqs", "starts", "stream_id", "subject_counts",
                 "subject_firsts", "subject_ids", "subject_lasts", "subjects", "time_ns", "times")

    def __init__(self, stream_id: int, position: Position, object_id: int, count: int, first_seq: int, *,
                 seqs: Sequence[int] | None, time_ns: int, times: array[int] | Shifted | None,
                 subject_ids: Sequence[int] | None, hlen: int, hlens: Sequence[int] | None, body_len: int,
                 body_lens: Sequence[int] | None, subjects: Sequence[bytes], subject_counts: Sequence[int],
                 subject_firsts: Sequence[int], subject_lasts: Sequence[int], frames: Sequence[Frame],
                 frames_offset: int = 0) -> None:
        self.stream_id = stream_id
        self.position = position
        self.object_id = object_id
        self.count = count
        self.first_seq = first_seq
        self.last_seq = seqs[-1] if seqs is not None else first_seq + count - 1
        self.seqs = seqs
        self.time_ns = time_ns
        self.times = times
        self.subject_ids = subject_ids
        self.hlen = hlen
        self.hlens = hlens
        self.body_len = body_len
        self.body_lens = body_lens
        self.subjects = _untracked(subjects)
        self.subject_counts = _untracked(subject_counts)
        self.subject_firsts = _untracked(subject_firsts)
        self.subject_lasts = _untracked(subject_lasts)
        self.place_frames(frames, frames_offset)

    def place_frames(self, frames: Sequence[Frame], frames_offset: int = 0) -> None:
        """Set the frame table. A writer knows it only after the columns, and its lengths only after compression."""
        self.frames = frames
        self.frames_offset = frames_offset
        self.starts: Sequence[int] = [frame.start for frame in frames]

    @property
    def grouped(self) -> bool:
        """True if each frame is stored by subjects, in parts."""
        return bool(self.frames and self.frames[0].parts)

    @property
    def size(self) -> int:
        """The memory of the index, about, in bytes."""
        cells = 0
        for column in (self.seqs, self.times, self.subject_ids, self.hlens, self.body_lens):
            if column is not None:
                cells += len(column)
        names = self.subjects
        text_bytes = names.text_bytes if isinstance(names, Names) else sum(map(len, names))
        return 512 + 8 * cells + text_bytes + 65 * len(names) + 200 * len(self.frames)

    def frame_of(self, ordinal: int) -> int:
        """Return the number of the frame with message ``ordinal``, 0 <= ordinal < count."""
        return bisect_right(self.starts, ordinal) - 1

    def ordinal_of(self, seq: int) -> int:
        """Return the ordinal of the first message at or after ``seq``; ``count`` if there is none."""
        if self.seqs is not None:
            return bisect_left(self.seqs, seq)
        return min(max(seq - self.first_seq, 0), self.count)

    def seq_of(self, ordinal: int) -> int:
        """Return the sequence of message ``ordinal``."""
        return self.first_seq + ordinal if self.seqs is None else self.seqs[ordinal]

    def ordinal_at(self, time_ns: int) -> int:
        """Return the ordinal of the first message at or after ``time_ns``, if times ascend; ``count``: none."""
        if self.times is not None:
            return bisect_left(self.times, time_ns)
        return 0 if self.time_ns >= time_ns else self.count

    def time_of(self, ordinal: int) -> int:
        """Return the time of message ``ordinal``, UTC ns."""
        return self.time_ns if self.times is None else self.times[ordinal]

    def subject_of(self, ordinal: int) -> bytes:
        """Return the subject of message ``ordinal``."""
        return self.subjects[0 if self.subject_ids is None else self.subject_ids[ordinal]]

    def size_of(self, ordinal: int) -> int:
        """Return the size of message ``ordinal`` as its stream's ``bytes`` counts it."""
        hlen = self.hlen if self.hlens is None else self.hlens[ordinal]
        body_len = self.body_len if self.body_lens is None else self.body_lens[ordinal]
        return ROW_BYTES + len(self.subject_of(ordinal)) + body_len + (HEADERS_BYTES if hlen else 0)

    def subject_id(self, subject: bytes) -> int | None:
        """Return the index of ``subject`` in the subject columns; None if no message of the block has it."""
        i = bisect_left(self.subjects, subject)
        return i if i < len(self.subjects) and self.subjects[i] == subject else None

    def postings(self, subject_id: int) -> list[int]:
        """Return the ordinals of all messages with this subject, in order."""
        if self.subject_ids is None:
            return list(range(self.count))
        first, last = self.subject_firsts[subject_id], self.subject_lasts[subject_id]
        count, ids = self.subject_counts[subject_id], self.subject_ids
        if _SEARCH_WORTH * count > last - first:
            return [first + i for i, one in enumerate(ids[first:last + 1]) if one == subject_id]
        found: list[int] = []
        with suppress(ValueError):  # there are no more
            while True:
                found.append(ids.index(subject_id, first, last + 1))
                first = found[-1] + 1
        return found

    def __repr__(self) -> str:
        return (f"<Head stream {self.stream_id:016x} in {self.position}: {self.count} messages, "
                f"{len(self.subjects)} subjects, {len(self.frames)} frames>")


def _untracked(column: Sequence[T]) -> Sequence[T]:
    """Return a column as a tuple, which the garbage collector scans only once.

    The lists of new blocks with thousands of subjects each, together a million values, once delayed it by 15 ms.
    """
    return tuple(column) if type(column) is list else column


def encode_index(head: Head, *, staged: bool = False, codec: SectionCodec = SECTIONS) -> bytes:
    """Return the bytes of one index.

    Args: ``head`` has at least one message, and its frames have their stored lengths and CRCs. ``staged``: the block's
        sequences count from 1.
    """
    times, count, subjects = head.times, head.count, head.subjects
    # Base and width of each column, and the cells of columns that have some: most small blocks have hardly any.
    described: list[int] = []
    cells: list[bytes] = []

    def add(column: Column) -> None:
        described.extend(column[:2])
        cells.append(column.cells)

    if head.seqs is None:
        described += (0, 0)
    else:
        add(Column.of(head.seqs, head.first_seq, head.last_seq, head.first_seq))
    if times is None:
        described += (head.time_ns, 0)
    else:
        add(Column.of(times, base=min(times)))
    if head.subject_ids is None:
        described += (0, 0)
    else:
        add(Column.of(head.subject_ids, 0, len(subjects) - 1))
    if head.hlens is None:
        described += (head.hlen, 0)
    else:
        add(Column.of(head.hlens))
    if head.body_lens is None:
        described += (head.body_len, 0)
    else:
        add(Column.of(head.body_lens))
    if len(subjects) == 1:
        names = subjects[0]
        described += (len(names), 0, count, 0, 0, 0, count - 1, 0)
    else:
        names = b"".join(subjects)
        add(Column.of(list(map(len, subjects))))
        add(Column.of(head.subject_counts))
        add(Column.of(head.subject_firsts))
        add(Column.of(head.subject_lasts))
    rows = [_FRAME.pack(frame.start, *header) for frame in head.frames for header in frame.parts or (frame.header,)]
    body = b"".join((*rows, _DESCRIPTIONS.pack(*described), *cells, names))
    compressed = SECTIONS.compress(body, dense=head.object_id != 0 and not staged)  # dense if compaction made it
    epoch, number = head.position
    flags = (_STAGED if staged else 0) | (_GROUPED if head.grouped else 0)
    front = _FRONT.pack(
        _MAGIC, FORMAT_VERSION, flags, 0, head.stream_id, epoch, number, head.object_id, head.first_seq, count,
        len(rows), len(subjects), len(names))
    header, stored = codec.seal(compressed, _position(head), front)
    fixed = front + pack_header(header)
    return b"".join((fixed, crc32(fixed).to_bytes(4, "little"), stored))


INDEX_PREFIX: Final = struct.pack("<4sHBB", _MAGIC, FORMAT_VERSION, 0, 0)
"""The first 8 bytes of every index except those of staged blocks."""


def _position(block: BlockRef | Head) -> SectionPosition:
    return block.position, block.object_id, block.stream_id, SectionKind.INDEX, 0


def find_frames(data: bytes, at: int, stream_id: int, position: Position, object_id: int) -> tuple[int, int]:
    """Return the end of the index that begins ``at``, and the bytes of all of its frames, for repair.

    Raises: Undecodable if there is no index.
    """
    layout = fixed_layout(data, _LAYOUT_V1, _LAYOUT, at)
    old = layout is _LAYOUT_V1  # by the checksum, for an unknown version
    if len(data) < at + layout.size:
        raise Undecodable("cut short")
    fields = layout.unpack_from(data, at)
    frames = fields[10]
    header = header_of_version_1(*fields[-4:-1]) if old else fields[-5:-1]
    body_at = at + layout.size
    end = body_at + header[1]
    body = SECTIONS.open(header, data[body_at:end], (position, object_id, stream_id, SectionKind.INDEX, 0),
                         data[at:at + _HEADER_AT])
    row = _FRAME_V1 if old else _FRAME
    if frames * row.size > len(body):
        raise Undecodable("its frame table is cut short")
    return end, sum(fields[1 if old else 2] for fields in row.iter_unpack(body[:frames * row.size]))


def decode_index(data: bytes, ref: BlockRef, name: str | None = None, values: CheckedValues = ARRAYS) -> Head:
    """Decode the index that ``ref`` points to.

    Args: data is the object from ``ref.index_offset``, ``ref.index_bytes`` long. name is the object's, for errors.
        values makes the columns; with other ``values`` than ``ARRAYS``, the methods of the head must not be used.
    Raises: Corrupt for damaged bytes or those of another block; VersionUnknown.
    """
    return _decode(data, ref, name, values, values)


def decode_known_index(data: bytes, ref: BlockRef, name: str | None = None) -> Head:
    """Decode an index that this process has written or decoded before.

    Only its checksums are checked, except for a staged block, whose times depend on the reference.
    """
    if ref.place is BlockPlace.STAGED:
        return decode_index(data, ref, name)
    return _decode(data, ref, name, KNOWN, None)


def _decode(data: bytes, ref: BlockRef, name: str | None, values: Values, checks: CheckedValues | None) -> Head:
    name, offset = name or f"block {ref.position}", ref.index_offset
    layout = fixed_layout(data, _LAYOUT_V1, _LAYOUT)
    if len(data) < layout.size:
        raise Corrupt(name, "index", offset + len(data), "cut short")
    (magic, version, flags, spare, stream_id, epoch, number, object_id, first_seq, count, frames, subjects, names_bytes,
     *_, crc) = fields = layout.unpack_from(data)
    if magic != _MAGIC or crc32(data[:layout.size - 4]) != crc:
        raise Corrupt(name, "index", offset, "the checksum of its fixed part does not match")
    header, readable = fixed_part_header(version, flags, fields, _STAGED | _GROUPED)
    if not readable or spare:
        raise VersionUnknown(name, "index", offset + 4,
                             f"version {version}, flags {flags}, form {header[-1]}: not this reader's")
    staged = ref.place is BlockPlace.STAGED
    if (stream_id, epoch, number, object_id, first_seq, count, bool(flags & _STAGED)) != (
            ref.stream_id, *ref.position, ref.object_id, 1 if staged else ref.first_seq, ref.count, staged):
        raise Corrupt(name, "index", offset + 8, "it belongs to another block")
    try:
        check_compressed_flag(version, flags, header)
        if header[0] > SECTION_BYTES_MAX:
            raise Undecodable("its lengths are out of bounds")
        body = SECTIONS.open(header, data[layout.size:], _position(ref), data[:_HEADER_AT])
        return _decode_body(body, ref, frames, subjects, names_bytes, values, checks,
                            _FRAME_V1 if version == UNFLAGGED_VERSION else _FRAME, grouped=bool(flags & _GROUPED))
    except (Misfit, Undecodable) as error:
        raise Corrupt(name, "index", offset + layout.size, str(error)) from None
    except _FormUnknown as error:
        raise VersionUnknown(name, "index", offset + layout.size, str(error)) from None


class _FormUnknown(Exception):
    """A frame has a form that this release cannot open."""


def _decode_body(body: bytes, ref: BlockRef, frames: int, subjects: int, names_bytes: int, values: Values,
                 checks: CheckedValues | None, row: struct.Struct, *, grouped: bool) -> Head:
    """Decode the body of an index. Raises: Misfit; without ``checks``, values are not checked one by one."""
    count = ref.count
    frames_end = frames * row.size
    at = frames_end + _COLUMNS * COLUMN.size
    # No name is empty. So bytes that are present bound all counts but the messages', and the frames bound theirs.
    if not (1 <= frames <= count and 1 <= subjects <= min(count, names_bytes)) or at + names_bytes > len(body):
        raise Misfit("its counts are out of bounds")
    rows = list(row.iter_unpack(body[:frames_end]))
    if row is _FRAME_V1:
        rows = [(start, *header_of_version_1(raw_bytes, stored_bytes, crc))
                for start, stored_bytes, raw_bytes, crc in rows]
    table = _frame_table(rows, count, ref.frames_bytes, grouped=grouped)
    columns: list[tuple[int, Any]] = []
    for i, (base, width) in enumerate(COLUMN.iter_unpack(body[frames_end:at])):
        column, at = values.read(body, at, base, width, count if i < 5 else subjects)
        columns.append((base, column))
    if at + names_bytes != len(body):
        raise Misfit("its columns do not fill it")
    (_, seqs), (time_ns, times), (_, ids), (hlen, hlens), (body_len, body_lens), *of_subject = columns
    name_lens, counts, firsts, lasts = (
        column if column is not None else values.filled(base, subjects) for base, column in of_subject)
    last_seq = ref.first_seq + count - 1 if seqs is None else seqs[-1]
    if last_seq != ref.last_seq or (seqs is not None and seqs[0] != ref.first_seq):
        raise Misfit(_SEQS_DIFFER)
    names = values.names(body, at, name_lens)
    if checks is not None:
        if seqs is not None and not checks.rising(seqs):
            raise Misfit(_SEQS_DIFFER)
        if (checks.highest(ids) if ids is not None else 0) >= subjects or (ids is None and subjects != 1):
            raise Misfit("a subject id is out of bounds")
        if checks.total(counts) != count or checks.highest(lasts) >= count or not checks.within(firsts, lasts):
            raise Misfit("the subjects' counts do not add up")
        if (checks.highest(times) if times is not None else time_ns) >= 1 << 63:
            raise Misfit("a time is out of bounds")
    stamps = values.times(times) if times is not None else None
    if ref.place is BlockPlace.STAGED and checks is not None:
        if seqs is not None:
            raise Misfit("a staged block has gaps")
        time_ns, stamps = _as_adopted(ref, time_ns, stamps, checks)
    return Head(ref.stream_id, ref.position, ref.object_id, count, ref.first_seq, seqs=seqs, time_ns=time_ns,
                times=stamps, subject_ids=ids, hlen=hlen, hlens=hlens, body_len=body_len, body_lens=body_lens,
                subjects=names, subject_counts=counts, subject_firsts=firsts, subject_lasts=lasts, frames=table,
                frames_offset=ref.frames_offset)


def _as_adopted(ref: BlockRef, time_ns: int, stamps: Any, values: CheckedValues) -> tuple[int, Any]:
    """Return the times of a staged block, clipped to those that the stream gave its first and last message.

    Raises: Misfit.
    """
    low, high = ref.first_time_ns, ref.last_time_ns
    if stamps is None:
        return min(max(time_ns, low), high), None
    if not values.in_order(stamps):
        raise Misfit("the times of a staged block descend")
    if int(stamps[0]) == low and int(stamps[-1]) == high:
        return time_ns, stamps
    return (low, None) if low == high else (time_ns, values.clipped(stamps, low, high))


def _frame_table(rows: list[tuple[int, ...]], count: int, frames_bytes: int, *, grouped: bool) -> list[Frame]:
    """Make the frame table.

    Args: rows have the first ordinal and the section header of each frame, or of each part.
    Raises: Misfit unless the frames cover all messages and all their bytes, one after another.
    """
    table: list[Frame] = []
    offset = 0
    for number, (_, raw_bytes, stored_bytes, _, form) in enumerate(rows):
        if not is_known(form):
            raise _FormUnknown(f"frame {number} has form {form}: not this reader's")
        if raw_bytes > SECTION_BYTES_MAX or stored_bytes > stored_bytes_max(raw_bytes, form):
            raise Misfit("the frame table is out of bounds")
    at = 0
    while at < len(rows):
        start, end = rows[at][0], at + 1
        while grouped and end < len(rows) and rows[end][0] == start:
            end += 1
        messages = (rows[end][0] if end < len(rows) else count) - start
        if not 1 <= messages <= _FRAME_MESSAGES_BOUND:
            raise Misfit("the frame table is out of bounds")
        if grouped:
            parts = tuple([(raw, stored, crc, form) for _, raw, stored, crc, form in rows[at:end]])
            raw_bytes, stored_bytes = sum([part[0] for part in parts]), sum([part[1] for part in parts])
            if raw_bytes > SECTION_BYTES_MAX:
                raise Misfit("the frame table is out of bounds")
            table.append(Frame(start, messages, offset, raw_bytes, stored_bytes, 0, 0, parts, at))
        else:
            _, raw_bytes, stored_bytes, crc, form = rows[at]
            table.append(Frame(start, messages, offset, raw_bytes, stored_bytes, crc, form))
        offset += stored_bytes
        at = end
    if rows[0][0] != 0 or offset != frames_bytes:
        raise Misfit("the frames do not cover the block")
    return table
