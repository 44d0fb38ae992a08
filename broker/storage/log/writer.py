"""Turns messages and records into the bytes of a segment, in three steps: gather, seal, encode. No I/O.

    OpenBlock        on the loop, as messages are sequenced: lists grow, nothing else happens
    seal_block       on the loop, when the segment's put begins: columns, and frames joined (some 100 ns a message);
                     compaction's blocks in a thread, grouped by subject (see ``storage.format.frame``)
    encode_segment   in a thread, or on the loop if the segment is small: compression and checksums, which release the
                     GIL; then the parts of the object are joined

Owns the contents of one block and how it is cut into frames. Does not own when a segment is closed (``log``), how it is
put (``putter``), nor the meaning of an outcome or a record (the block's owner).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, Final, Generic, NamedTuple

from broker.storage.format.block import (
    SUMMARY_BYTES_MAX,
    SUMMARY_SUBJECTS_MAX,
    BlockCore,
    BlockPlace,
    BlockRef,
    Outcome,
    PackedRef,
    SubjectSummary,
    encode_core,
)
from broker.storage.format.codec import Compression
from broker.storage.format.columns import compact
from broker.storage.format.frame import (
    FRAME_BYTES,
    FRAME_MESSAGES_MAX,
    GROUPED_BLOCK_MAX,
    GROUPED_BYTES,
    PART_BYTES,
    Chunk,
    Frame,
)
from broker.storage.format.frames import stored_order
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import Head, encode_index
from broker.storage.format.message_size import messages_size
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.section import (
    SECTIONS,
    Compressed,
    SectionCodec,
    SectionHeader,
    SectionKind,
)
from broker.storage.format.segment import RowValues, encode_segment_front
from broker.storage.format.small import NAME_BYTES_MAX, SmallEncoder
from broker.storage.format.subject_filter import encode_filter
from broker.storage.log.open_block import BODY_BYTES_MAX, OpenBlock, Owner, Tally
from broker.storage.state.ids import BlockIds

__all__ = ["BODY_BYTES_MAX", "Failure", "OpenBlock", "PlainColumns", "SealedBlock", "Tally", "encode_segment",
           "is_small", "seal_block", "seal_columns"]

_BUFFER_BYTES: Final = 64 * 1024
"""Adjacent buffers smaller than this are joined, so that a segment of a thousand blocks needs only a few writes."""

_GROUPED_MIN: Final = 256 * 1024
"""The smallest bodies of a grouped block. A smaller one is read whole anyway."""

_ONE_START: Final = (0,)
_NO_FRAMES: Final[list[bytes]] = []

_SMALL_BYTES_MAX: Final = 16 * 1024
"""The most bytes of bodies in a small block. In a larger block the messages cost more than the block itself."""


class SealedBlock(Generic[Owner]):
    """A block whose contents are fixed: its core and head as a reader would decode them, and its messages.

    ``chunks`` has one Chunk for each frame, for the cache, and none of a grouped block, which no cache needs at once.
    ``frames`` has a row for each stored section. ``head`` is None for a block without messages. For a small
    block, core, head and chunks are made on first use: if a thousand streams share a segment, most are never used.
    """

    __slots__ = ("_chunks", "_core", "_head", "_ref", "compressed", "compression", "crcs", "frame", "frames", "ids",
                 "kept", "opened", "owner", "packed", "position")

    def __init__(self, owner: Owner, core: BlockCore | None, head: Head | None, chunks: Sequence[Chunk],
                 frames: list[bytes], position: Position) -> None:
        self.owner = owner
        self.position = position
        self.frames = frames
        """The raw frames, or parts of frames; dropped once they are encoded."""
        self.compressed: list[Compressed] | None = None
        """The frames after ``compress``."""
        self.crcs: Mapping[int, int] = {}
        """The known checksums of raw frames, by their numbers."""
        self.packed: PackedRef | None = None
        """The block's place in the store; None for a block without messages, or before ``encode_segment``."""
        self.opened: OpenBlock[Owner] | None = None
        """The open block that a small block was made from."""
        self.ids: BlockIds | None = None
        """The message ids in its record, packed; None: there are none, or they are not packed yet."""
        self.kept = False
        """True if the whole segment is kept in memory."""
        self.compression = Compression.ZSTD
        self.frame: SectionHeader | None = None
        """The header of a small block's frame, once it is encoded."""
        self._core = core
        self._head = head
        self._chunks = chunks
        self._ref: BlockRef | None = None

    @classmethod
    def of_small(cls, block: OpenBlock[Owner], position: Position) -> SealedBlock[Owner]:
        """Return a small block, which ``SmallEncoder`` encodes from the lists in which it was gathered."""
        sealed = cls(block.owner, None, None, (), _NO_FRAMES, position)
        sealed.opened = block
        return sealed

    @property
    def stream_id(self) -> int:
        return self.opened.stream_id if self.opened is not None else self.core.stream_id

    @property
    def small(self) -> bool:
        """True if ``SmallEncoder`` encodes it."""
        return self.opened is not None

    @property
    def outcome(self) -> Outcome:
        """The outcome in the core."""
        return self.opened.outcome if self.opened is not None else self.core.outcome

    @property
    def subjects(self) -> SubjectSummary | None:
        """The subject summary in the core."""
        return self.packed[-1] if self.opened is not None and self.packed is not None else self.core.subjects

    @property
    def core(self) -> BlockCore:
        if self._core is None:
            self._expand()
            assert self._core is not None
        return self._core

    @property
    def head(self) -> Head | None:
        if self._core is None:
            self._expand()
        return self._head

    @property
    def chunks(self) -> Sequence[Chunk]:
        if self._core is None:
            self._expand()
        return self._chunks

    @property
    def ref(self) -> BlockRef | None:
        """The block's place in the store as an object; None as for ``packed``."""
        if self._ref is None and self.packed is not None:
            self._ref = BlockRef.of(self.packed)
        return self._ref

    def compress(self, codec: SectionCodec) -> None:
        """Compress the frames before ``encode_segment`` does, to free the raw ones."""
        self.compressed = codec.compress_frames(self.frames)
        self.frames = _NO_FRAMES

    def pack_ids(self) -> None:
        """Set ``ids`` in an encoding thread, so that the loop need not pack them when the segment is applied."""
        if self.opened is not None:
            return
        for record in self.core.records:
            if record.kind == MessageIds.KIND:
                try:
                    self.ids = BlockIds.of(self.core, record, self.head)
                except (ValueError, TypeError, LookupError, OverflowError):
                    self.ids = None  # ``apply_block`` finds the same error and takes only this stream offline

    def _expand(self) -> None:
        assert self.opened is not None
        whole = seal_block(self.opened, self.position, stored=False)
        self._core, self._head, self._chunks = whole._core, whole._head, whole._chunks
        whole.core.codec = self.compression
        if self.packed is not None and self._head is not None and self.frame is not None:
            [frame] = self._head.frames
            self._head.place_frames((Frame(*frame[:3], *self.frame),), BlockRef.of(self.packed).frames_offset)


Failure = tuple[SealedBlock[Any], Exception]
"""A block that could not be encoded, and its error."""


def is_small(block: OpenBlock[Any]) -> bool:
    """Return whether ``block`` may be sealed as small: only a few plain messages with one subject."""
    subjects = block.subjects
    # Both bounds are needed for a single frame: empty messages have no bytes.
    return (block.raw_bytes <= _SMALL_BYTES_MAX and block.count <= FRAME_MESSAGES_MAX
            and not block.records and not block.removed and block.hlens is None
            and 0 < block.count == block.last_seq - block.first_seq + 1 and len(subjects[0]) <= NAME_BYTES_MAX
            and subjects.count(subjects[0]) == block.count)


def seal_block(block: OpenBlock[Owner], position: Position, *, object_id: int = 0, stored: bool = True,
               grouped: bool = False) -> SealedBlock[Owner]:
    """Fix the contents of ``block`` for the object at ``position``. Nothing may be added to it afterwards.

    Cost: 100 to 300 ns a message, on the loop; the join of each frame copies its bytes once.
    Args: stored False skips that join for a block that will never be encoded. grouped: the
        block has no chunks, and is stored by subject if it is large and has several.
    """
    count = block.count
    core = BlockCore(block.stream_id, position, count=count, first_seq=block.first_seq, last_seq=block.last_seq,
                     outcome=block.outcome, removed=block.removed, records=block.records, object_id=object_id)
    if not count:
        return SealedBlock(block.owner, core, None, [], [], position)
    lens = list(map(len, block.bodies))
    head, names = _head(block, lens, position, object_id)
    raw_bytes = core.raw_bytes = sum(lens)
    core.bytes = messages_size(
        count, 0 if block._hlens is None else count - block._hlens.count(0),
        count * len(head.subjects[0]) if head.subject_ids is None
        else sum(map(mul, map(len, head.subjects), head.subject_counts)), raw_bytes)
    core.first_time_ns, core.last_time_ns = block.runs[0][2], block.runs[-1][2]
    core.subjects = _summary(head)
    if grouped and head.subject_ids is not None and _GROUPED_MIN <= raw_bytes <= GROUPED_BLOCK_MAX:
        return SealedBlock(block.owner, core, head, (), _parts(block, lens, head), position)
    if raw_bytes <= FRAME_BYTES and count <= FRAME_MESSAGES_MAX:
        chunks, frames = _one_frame(block, raw_bytes, head, names, stored)
    else:
        chunks, frames = _frames(block, lens, head, names, stored)
    sealed = SealedBlock(block.owner, core, head, () if grouped else chunks, frames, position)
    if block.crcs:
        sealed.crcs = {number: block.crcs[frame.start] for number, frame in enumerate(head.frames)
                       if frame.messages == 1 and frame.start in block.crcs}
    return sealed


class PlainColumns(NamedTuple):
    """Messages that have neither headers nor records, as columns, at least one message.

    Fields: ``names`` are the subjects, sorted. ``ids``: for each message the place of its subject there, at the least
        width. ``counts``, ``firsts``, ``lasts``: for each subject the number of messages, the first and the last
        ordinal. ``lens``: the bytes of each body. ``bodies``: the bodies side by side.
    """

    names: Sequence[bytes]
    ids: array[int]
    counts: Sequence[int]
    firsts: Sequence[int]
    lasts: Sequence[int]
    lens: Sequence[int]
    bodies: bytes


def seal_columns(columns: PlainColumns, stream_id: int, time_ns: int, position: Position, *, object_id: int
                 ) -> SealedBlock[None]:
    """Return the block that ``seal_block`` makes of the same messages, with sequences from 1 on, all at ``time_ns``."""
    names, lens, bodies = columns.names, columns.lens, columns.bodies
    count = len(lens)
    body_len, body_lens = _constant_or_column(lens)
    head = Head(stream_id, position, object_id, count, 1, seqs=None, time_ns=time_ns, times=None,
                subject_ids=columns.ids if len(names) > 1 else None, hlen=0, hlens=None, body_len=body_len,
                body_lens=body_lens, subjects=names, subject_counts=columns.counts, subject_firsts=columns.firsts,
                subject_lasts=columns.lasts, frames=())
    size = messages_size(count, 0, sum(map(mul, map(len, names), columns.counts)), len(bodies))
    core = BlockCore(stream_id, position, count=count, first_seq=1, last_seq=count, bytes=size, raw_bytes=len(bodies),
                     first_time_ns=time_ns, last_time_ns=time_ns, subjects=_summary(head), object_id=object_id)
    cuts = list(_cuts(lens, FRAME_BYTES))
    head.place_frames([Frame(start, end - start, 0, size, size) for start, end, size in cuts])
    ends = list(accumulate([size for _, _, size in cuts]))
    frames = [bodies[end - size:end] for (_, _, size), end in zip(cuts, ends, strict=True)]
    return SealedBlock(None, core, head, (), frames, position)


def _cuts(lens: Sequence[int], bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Cut a block into frames; yield for each one its first ordinal, the one after its last, and its raw bytes."""
    count, ends = len(lens), list(accumulate(lens))
    start = before = 0
    while start < count:
        end = max(bisect_right(ends, before + bytes_max, start, min(count, start + FRAME_MESSAGES_MAX)), start + 1)
        yield start, end, ends[end - 1] - before
        start, before = end, ends[end - 1]


def _head(block: OpenBlock[Any], lens: list[int], position: Position,
          object_id: int) -> tuple[Head, Sequence[bytes]]:
    """Return the index of ``block`` without frames, and each message's subject, the same object for equal subjects."""
    count, subjects, runs = block.count, block.subjects, block.runs
    ids: array[int] | None = None
    if subjects[0] == subjects[-1] and subjects.count(subjects[0]) == count:
        # Tuples: the garbage collector ignores a tuple without containers, and there may be very many such blocks.
        names: Sequence[bytes] = (subjects[0],)
        of_message: Sequence[bytes] = (subjects[0],) * count
        counts: Sequence[int] = (count,)
        firsts: Sequence[int] = (0,)
        lasts: Sequence[int] = (count - 1,)
    else:
        names = sorted(set(subjects))
        id_list = list(map(dict(zip(names, range(len(names)), strict=True)).__getitem__, subjects))
        ids = compact(id_list, len(names) - 1)
        of_message = list(map(names.__getitem__, id_list))
        counts, firsts, lasts = _occurrences(id_list, len(names))
    time_ns = runs[0][2]
    times: array[int] | None = None
    stamps = [run[2] for run in runs] if len(runs) > 1 else ()
    if stamps and stamps.count(time_ns) < len(stamps):
        times = array("q", stamps)
        if len(stamps) < count:
            cells = times.tobytes()
            times = array("q")
            times.frombytes(b"".join([cells[8 * i:8 * i + 8] * run[1] for i, run in enumerate(runs)]))
    seqs: array[int] | None = None
    if block.last_seq - block.first_seq != count - 1:
        seqs = array("Q")
        for first_seq, messages, _ in runs:
            seqs.extend(range(first_seq, first_seq + messages))
    hlen, hlens = _constant_or_column(block._hlens) if block._hlens is not None else (0, None)
    body_len, body_lens = _constant_or_column(lens)
    head = Head(block.stream_id, position, object_id, count, block.first_seq, seqs=seqs, time_ns=time_ns, times=times,
                subject_ids=ids, hlen=hlen, hlens=hlens, body_len=body_len, body_lens=body_lens, subjects=names,
                subject_counts=counts, subject_firsts=firsts, subject_lasts=lasts, frames=())
    return head, of_message


def _occurrences(ids: list[int], subjects: int) -> tuple[list[int], list[int], list[int]]:
    """Return how often each id below ``subjects`` occurs in ``ids``, and where first and last. Each id occurs."""
    numbers = range(subjects)
    if subjects <= 64:
        cells = bytes(ids)  # searches in bytes use memchr
        return list(map(cells.count, numbers)), list(map(cells.find, numbers)), list(map(cells.rfind, numbers))
    counter = Counter(ids)
    firsts = [0] * subjects
    at = -1
    for number in counter:  # in the order of first occurrence, so one scan of ``ids`` finds all
        at = firsts[number] = ids.index(number, at + 1)
    last_of = dict(zip(ids, range(len(ids)), strict=True))  # the last of equal keys wins
    return list(map(counter.__getitem__, numbers)), firsts, list(map(last_of.__getitem__, numbers))


def _constant_or_column(values: Sequence[int]) -> tuple[int, array[int] | None]:
    high = max(values)
    return (high, None) if values.count(high) == len(values) else (0, compact(values, high))


def _summary(head: Head) -> SubjectSummary | None:
    names = head.subjects
    if head.subject_ids is None and len(names[0]) <= SUMMARY_BYTES_MAX:
        return ((names[0], head.count, head.first_seq, head.last_seq),)
    if len(names) > SUMMARY_SUBJECTS_MAX or sum(map(len, names)) > SUMMARY_BYTES_MAX:
        return None
    seq_of = head.seq_of
    return tuple((name, count, seq_of(first), seq_of(last)) for name, count, first, last in zip(
        names, head.subject_counts, head.subject_firsts, head.subject_lasts, strict=True))


def _one_frame(block: OpenBlock[Any], raw_bytes: int, head: Head, names: Sequence[bytes],
               stored: bool) -> tuple[list[Chunk], list[bytes]]:
    """Make the only frame of a block that fits in one, as most blocks do: a faster ``_frames``."""
    count, seqs = head.count, head.seqs
    times = array("q", (head.time_ns,)) * count if head.times is None else head.times
    head.frames, head.starts = (Frame(0, count, 0, raw_bytes, raw_bytes),), _ONE_START
    hlens = block._hlens if head.hlens is not None or head.hlen else None
    chunk = Chunk(0, head.first_seq, seqs, names, hlens, block.bodies, times, raw_bytes)
    return [chunk], [b"".join(block.bodies)] if stored else []


def _frames(block: OpenBlock[Any], lens: list[int], head: Head,
            names: Sequence[bytes], stored: bool) -> tuple[list[Chunk], list[bytes]]:
    """Cut the bodies into frames, and add the frame table to ``head``, without stored lengths and CRCs.

    Returns: the chunks, and the raw frames (an empty list unless ``stored``).
    """
    chunks: list[Chunk] = []
    frames: list[bytes] = []
    table: list[Frame] = []
    bodies, seqs = block.bodies, head.seqs
    hlens = block._hlens if head.hlens is not None or head.hlen else None
    for start, end, raw_bytes in _cuts(lens, FRAME_BYTES):
        chunk_bodies = bodies[start:end]
        times = array("q", (head.time_ns,)) * (end - start) if head.times is None else head.times[start:end]
        first_seq = head.seq_of(start)
        gaps = seqs is not None and seqs[end - 1] - first_seq != end - 1 - start
        some_hlens = hlens[start:end] if hlens is not None else None
        if some_hlens is not None and not any(some_hlens):
            some_hlens = None
        chunks.append(Chunk(start, first_seq, seqs[start:end] if seqs is not None and gaps else None, names[start:end],
                            some_hlens, chunk_bodies, times, raw_bytes))
        if stored:
            frames.append(b"".join(chunk_bodies))
        table.append(Frame(start, end - start, 0, raw_bytes, raw_bytes))
    head.place_frames(table)
    return chunks, frames


def _parts(block: OpenBlock[Any], lens: list[int], head: Head) -> list[bytes]:
    """Cut the bodies into frames, and each frame's bodies, sorted by subject, into parts. Add the frame table to
    ``head``, without stored lengths and CRCs.

    Returns: the raw parts of all frames.
    """
    parts: list[bytes] = []
    table: list[Frame] = []
    bodies = block.bodies
    assert head.subject_ids is not None
    for start, end, _ in _cuts(lens, GROUPED_BYTES):
        own = [bodies[start + at] for at in stored_order(head.subject_ids[start:end])]
        own_ends = list(accumulate(map(len, own)))
        first_part = len(parts)
        at = size = 0
        while at < len(own):
            stop = max(bisect_right(own_ends, size + PART_BYTES, at), at + 1)
            parts.append(b"".join(own[at:stop]))
            at, size = stop, own_ends[stop - 1]
        headers = tuple([(len(part), len(part), 0, 0) for part in parts[first_part:]])
        table.append(Frame(start, end - start, 0, size, size, 0, 0, headers, first_part))
    head.place_frames(table)
    return parts


def encode_segment(position: Position, nonce: bytes, blocks: Sequence[SealedBlock[Any]],
                   codec: SectionCodec = SECTIONS, *, kind: ObjectKind = ObjectKind.SEGMENT, object_id: int = 0,
                   place: BlockPlace = BlockPlace.LOG, failures: list[Failure] | None = None,
                   landed: int | None = None) -> list[bytes]:
    """Compress and checksum ``blocks``, and return their object, a segment or a run, as buffers in order.

    Call this once for each object, in any thread, while nothing else uses ``blocks``. Sets ``packed`` of each block.

    Args: ``failures`` receives the blocks that cannot be encoded, which are left out; None: the first such error is
        raised. ``landed`` is the number up to which all log entries were stored when the put of this entry began; None:
        the entry does not have it.
    """
    for block in blocks:
        if block.opened is not None:
            block.frames = [b"".join(block.opened.bodies)]
    compressed = codec.compress_frames([frame for block in blocks for frame in block.frames])
    at = 0
    small = SmallEncoder(position, object_id, codec)
    cores: list[bytes] = []
    indexes: list[bytes] = []
    stored_frames: list[bytes] = []
    rows: list[RowValues] = []
    facts: list[tuple[Any, ...]] = []
    encoded: list[SealedBlock[Any]] = []
    for block in blocks:
        start, frames = at, len(stored_frames)
        at += len(block.frames)
        try:
            if block.opened is not None:
                core, index, row, fact = _encode_small(block, block.opened, small, compressed[start], stored_frames)
                block.compression = codec.compression
            else:
                own = compressed[start:at] if block.compressed is None else block.compressed
                core, index, row, fact = _encode(block, codec, own, stored_frames)
                block.compressed = None
        except Exception as error:
            if failures is None:
                raise
            del stored_frames[frames:]
            failures.append((block, error))
            continue
        encoded.append(block)
        cores.append(core)
        indexes.append(index)
        rows.append(row)
        facts.append(fact)
    front, places = encode_segment_front(kind, position, object_id, nonce, rows, landed)
    before = (int(place), *position, object_id)
    for block, row, fact, (core_at, index_at, frames_at) in zip(encoded, rows, facts, places, strict=False):
        if row[3]:
            block.packed = (*before, row[0], core_at, row[4], index_at, row[5], frames_at, row[6], *fact)
            if block.opened is None:
                assert block.head is not None
                block.head.frames_offset = frames_at
    return _joined([front, *cores, *indexes, *stored_frames])


def _encode_small(block: SealedBlock[Any], opened: OpenBlock[Any], small: SmallEncoder, frame: Compressed,
                  frames: list[bytes]) -> tuple[bytes, bytes, RowValues, tuple[Any, ...]]:
    """Return a small block's core, index, row in the directory, and the last values of its ``PackedRef``."""
    count, runs, subject, first_seq, last_seq = (opened.count, opened.runs, opened.subjects[0], opened.first_seq,
                                                 opened.last_seq)
    lens = list(map(len, opened.bodies))
    raw_bytes = sum(lens)
    size = messages_size(count, 0, count * len(subject), raw_bytes)
    if len(runs) == count:
        stamps = [run[2] for run in runs]
    else:
        stamps = []
        for _, messages, time_ns in runs:
            stamps += (time_ns,) * messages
    core, index, (block.frame, stored), summary = small.encode(opened.stream_id, first_seq, subject, stamps, lens, size,
                                                               opened.outcome, frame)
    frames.append(stored)
    block.frames = _NO_FRAMES
    return (core, index,
            (opened.stream_id, first_seq, last_seq, count, len(core), len(index), len(stored), raw_bytes),
            (first_seq, last_seq, count, size, stamps[0], stamps[-1], summary))


def _encode(block: SealedBlock[Any], codec: SectionCodec, compressed: Sequence[Compressed],
            frames: list[bytes]) -> tuple[bytes, bytes, RowValues, tuple[Any, ...]]:
    """Encode a block that is not small, and return the same values as ``_encode_small``; ``compressed``: its frames."""
    head, core = block.head, block.core
    core.codec = codec.compression
    index = b""
    frames_bytes = 0
    if head is not None:
        sealed: list[tuple[SectionHeader, bytes]] = []
        for number, section in enumerate(compressed):
            at = core.position, core.object_id, core.stream_id, SectionKind.FRAME, number
            sealed.append(codec.seal(section, at, b"", block.crcs.get(number)))
        head.frames, frames_bytes = _stored_table(head.frames, [header for header, _ in sealed])
        frames += [stored for _, stored in sealed]
        index = encode_index(head, staged=core.staged, codec=codec)
        if core.subjects is None:
            core.subject_filter = encode_filter(head.subjects)
        block.frames = _NO_FRAMES
    encoded = encode_core(core, codec)
    return (encoded, index,
            (core.stream_id, core.first_seq, core.last_seq, core.count, len(encoded), len(index), frames_bytes,
             core.raw_bytes),
            (core.first_seq, core.last_seq, core.count, core.bytes, core.first_time_ns, core.last_time_ns,
             core.subjects if core.subject_filter is None else core.subject_filter))


def _stored_table(table: Sequence[Frame], headers: Sequence[SectionHeader]) -> tuple[tuple[Frame, ...], int]:
    """Return a frame table with offsets and the headers of its stored sections, and the bytes of all of them."""
    stored: list[Frame] = []
    at = size = 0
    for frame in table:
        own = headers[at:at + max(1, len(frame.parts))]
        stored_bytes = sum([header[1] for header in own])
        stored.append(frame._replace(offset=size, stored_bytes=stored_bytes, parts=tuple(own)) if frame.parts
                      else Frame(frame.start, frame.messages, size, *own[0]))
        at += len(own)
        size += stored_bytes
    return tuple(stored), size


def _joined(buffers: list[bytes]) -> list[bytes]:
    """Return ``buffers`` with small adjacent ones joined."""
    out: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for buffer in buffers:
        if len(buffer) >= _BUFFER_BYTES:
            if small:
                out.append(b"".join(small))
                small, size = [], 0
            out.append(buffer)
            continue
        small.append(buffer)
        size += len(buffer)
        if size >= _BUFFER_BYTES:
            out.append(b"".join(small))
            small, size = [], 0
    if small:
        out.append(b"".join(small))
    return out
