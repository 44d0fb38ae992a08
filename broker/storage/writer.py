"""Messages and records to the bytes of a segment, in three steps: gather, seal, encode. No I/O.

    OpenBlock        on the loop, as messages are sequenced: lists grow, nothing else happens
    seal_block       on the loop, when the segment is cut: columns, and frames joined (some 100 ns a message)
    encode_segment   in a thread: compression and checksums, which release the GIL, and the object put together

Owns what one block holds and how it is cut into frames. Owns neither when a segment is cut, nor where it goes
(``storage.log``), nor what an outcome or a record says (who adds them).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import itemgetter, mul
from typing import Any, Final, Generic, TypeVar

from .format.block import (
    SUMMARY_BYTES_MAX,
    SUMMARY_SUBJECTS_MAX,
    BlockCore,
    BlockPlace,
    BlockRef,
    Outcome,
    Removed,
    SubjectSummary,
    encode_core,
)
from .format.codec import Codec, checksum, compress_all
from .format.columns import compact
from .format.frame import FRAME_BYTES, FRAME_MESSAGES_MAX, Chunk, Frame
from .format.header import ObjectKind, Position
from .format.index import Head, encode_index
from .format.record import Record
from .format.segment import encode_segment_front

__all__ = ["BODY_BYTES_MAX", "OpenBlock", "SealedBlock", "encode_segment", "seal_block", "user_bytes"]

BODY_BYTES_MAX: Final = 128 << 20
"""No message is larger: max_payload is at most 64 MiB, and headers count in it."""

_ROW_BYTES: Final = 30
"""What a message counts for beside its subject and body: in nats-server's files 22 bytes of row and 8 of checksum."""

_BUFFER_BYTES: Final = 64 * 1024
"""Smaller neighbours are joined, so that a segment of a thousand blocks is still a few writes."""

_ONE_START: Final = (0,)

Owner = TypeVar("Owner")


def user_bytes(subject: bytes, hlen: int, body: bytes) -> int:
    """What one message counts for in its stream's ``bytes``. Source: fileStoreMsgSizeRaw in server/filestore.go."""
    return _ROW_BYTES + len(subject) + len(body) + (4 if hlen else 0)


class OpenBlock(Generic[Owner]):
    """What one stream has to say in the segment that is being gathered.

    ``raw_bytes`` is its size so far (bodies, records, removed ranges), which decides when a segment is full;
    ``first_seq`` and ``last_seq`` are 0 while it holds no message. ``outcome`` is set by the owner before it is sealed.
    """

    __slots__ = ("_hlens", "_runs", "bodies", "count", "first_seq", "last_seq", "outcome", "owner", "raw_bytes",
                 "records", "removed", "stream_id", "subjects")

    def __init__(self, stream_id: int, owner: Owner) -> None:
        self.stream_id = stream_id
        self.owner = owner
        self.outcome = Outcome()
        self.count = 0
        self.raw_bytes = 0
        self.first_seq = 0
        self.last_seq = 0
        self.subjects: list[bytes] = []
        self.bodies: list[bytes] = []
        self.records: list[Record] = []
        self.removed: list[Removed] = []
        self._hlens: list[int] | None = None
        self._runs: list[tuple[int, int, int]] = []  # first_seq, messages, time_ns

    @property
    def empty(self) -> bool:
        """Whether there is nothing to persist; an outcome alone is nothing."""
        return not (self.count or self.records or self.removed)

    @property
    def hlens(self) -> Sequence[int] | None:
        """Header bytes of each message; None while none has headers."""
        return self._hlens

    def run_of(self, ordinal: int) -> tuple[int, int, int]:
        """The run that message ``ordinal`` was appended in: its first ordinal, its first sequence, its time."""
        runs, start = self._runs, 0
        if self.last_seq - self.first_seq + 1 == self.count:
            first_seq, _, time_ns = runs[bisect_right(runs, self.first_seq + ordinal, key=itemgetter(0)) - 1]
            return first_seq - self.first_seq, first_seq, time_ns
        for first_seq, count, time_ns in runs:
            if ordinal < start + count:
                return start, first_seq, time_ns
            start += count
        raise IndexError(ordinal)

    def append_run(self, first_seq: int, subjects: Sequence[bytes], hlens: Sequence[int] | None,
                   bodies: Sequence[bytes], time_ns: int) -> None:
        """Add messages with the sequences from ``first_seq`` on, all at ``time_ns`` (UTC, not negative).

        ``first_seq`` lies beyond every sequence before it, with or without a gap. hlens None: none has headers.
        """
        count = len(bodies)
        if not count:
            return
        assert first_seq > self.last_seq, (first_seq, self.last_seq)
        assert len(subjects) == count
        assert time_ns >= 0
        if hlens is not None:
            if self._hlens is None:
                self._hlens = [0] * self.count
            self._hlens += hlens
        elif self._hlens is not None:
            self._hlens += repeat(0, count)
        if not self.count:
            self.first_seq = first_seq
        self.subjects += subjects
        self.bodies += bodies
        self._runs.append((first_seq, count, time_ns))
        self.raw_bytes += sum(map(len, bodies))
        self.count += count
        self.last_seq = first_seq + count - 1

    def append_one(self, seq: int, subject: bytes, body: bytes, time_ns: int) -> None:
        """``append_run`` for one message without headers."""
        assert seq > self.last_seq, (seq, self.last_seq)
        assert time_ns >= 0
        if self._hlens is not None:
            self._hlens.append(0)
        if not self.count:
            self.first_seq = seq
        self.subjects.append(subject)
        self.bodies.append(body)
        self._runs.append((seq, 1, time_ns))
        self.raw_bytes += len(body)
        self.count += 1
        self.last_seq = seq

    def add_record(self, kind: int, body: object, must_understand: bool = True) -> None:
        """Add a record that applies after the messages appended so far. ``body`` is packed now."""
        record = Record.of(kind, self.last_seq, body, must_understand)
        self.records.append(record)
        self.raw_bytes += record.size

    def remove(self, first_seq: int, last_seq: int, msgs: int, size: int) -> None:
        """Say that ``msgs`` messages of ``size`` user bytes in all, in first_seq..last_seq, are no more.

        They may stand in this block or in an earlier one of the stream.
        """
        assert 1 <= first_seq <= last_seq
        self.removed.append(Removed(first_seq, last_seq, msgs, size))
        self.raw_bytes += 8


class SealedBlock(Generic[Owner]):
    """A block whose contents are fixed: its core and head as a reader would decode them, and its messages.

    ``chunks`` has one Chunk for each frame, for the cache. ``ref`` is None until ``encode_segment`` has placed the
    block, and for a block without messages. ``head`` is None for such a block.
    """

    __slots__ = ("chunks", "core", "frames", "head", "owner", "ref")

    def __init__(self, owner: Owner, core: BlockCore, head: Head | None, chunks: list[Chunk],
                 frames: list[bytes]) -> None:
        self.owner = owner
        self.core = core
        self.head = head
        self.chunks = chunks
        self.frames = frames
        """The raw frames; given up when they are encoded."""
        self.ref: BlockRef | None = None

    @property
    def stream_id(self) -> int:
        return self.core.stream_id


def seal_block(block: OpenBlock[Owner], position: Position, *, object_id: int = 0,
               stored: bool = True) -> SealedBlock[Owner]:
    """Fix what ``block`` holds, for the object at ``position``; it takes no more afterwards.

    Cost: 100 to 300 ns a message, on the loop; the bytes themselves are copied once, by the join of each frame.
    Args: stored False spares that for a block that will never be encoded.
    """
    count = block.count
    core = BlockCore(block.stream_id, position, count=count, first_seq=block.first_seq, last_seq=block.last_seq,
                     outcome=block.outcome, removed=block.removed, records=block.records, object_id=object_id)
    if not count:
        return SealedBlock(block.owner, core, None, [], [])
    lens = list(map(len, block.bodies))
    head, names = _head(block, lens, position, object_id)
    raw_bytes = core.raw_bytes = sum(lens)
    core.bytes = raw_bytes + _ROW_BYTES * count + (
        count * len(head.subjects[0]) if head.subject_ids is None
        else sum(map(mul, map(len, head.subjects), head.subject_counts)))
    if head.hlens is not None:
        core.bytes += 4 * (count - block._hlens.count(0))  # type: ignore[union-attr]  # hlens came from there
    elif head.hlen:
        core.bytes += 4 * count
    core.first_time_ns, core.last_time_ns = block._runs[0][2], block._runs[-1][2]
    core.subjects = _summary(head)
    if raw_bytes <= FRAME_BYTES and count <= FRAME_MESSAGES_MAX:
        chunks, frames = _one_frame(block, raw_bytes, head, names, stored)
    else:
        chunks, frames = _frames(block, lens, head, names, stored)
    return SealedBlock(block.owner, core, head, chunks, frames)


def _head(block: OpenBlock[Any], lens: list[int], position: Position,
          object_id: int) -> tuple[Head, Sequence[bytes]]:
    """The index of ``block`` with no frames yet, and each message's subject, the same object where they are equal."""
    count, subjects, runs = block.count, block.subjects, block._runs
    ids: array[int] | None = None
    if subjects[0] == subjects[-1] and subjects.count(subjects[0]) == count:
        # Tuples: the collector forgets those that hold no container, and of such blocks there may be very many.
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
    """How often each id from 0 to subjects - 1 occurs in ``ids``, and where first and last; every one does."""
    numbers = range(subjects)
    if subjects <= 64:
        cells = bytes(ids)  # whose searches are memchr's
        return list(map(cells.count, numbers)), list(map(cells.find, numbers)), list(map(cells.rfind, numbers))
    counter = Counter(ids)
    firsts = [0] * subjects
    at = -1
    for number in counter:  # in the order of their first occurrence, so one scan finds them all
        at = firsts[number] = ids.index(number, at + 1)
    last_of = dict(zip(ids, range(len(ids)), strict=True))  # a later pair replaces an earlier one
    return list(map(counter.__getitem__, numbers)), firsts, list(map(last_of.__getitem__, numbers))


def _constant_or_column(values: list[int]) -> tuple[int, array[int] | None]:
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
    """``_frames`` for a block that fits in one, as most do."""
    count, seqs = head.count, head.seqs
    times = array("q", (head.time_ns,)) * count if head.times is None else head.times
    head.frames, head.starts = (Frame(0, count, 0, raw_bytes, raw_bytes, 0),), _ONE_START
    hlens = block._hlens if head.hlens is not None or head.hlen else None
    chunk = Chunk(0, head.first_seq, seqs, names, hlens, block.bodies, times, raw_bytes)
    return [chunk], [b"".join(block.bodies)] if stored else []


def _frames(block: OpenBlock[Any], lens: list[int], head: Head,
            names: Sequence[bytes], stored: bool) -> tuple[list[Chunk], list[bytes]]:
    """Cut the bodies into frames; adds the frame table to ``head``, stored lengths and CRCs still missing.

    Returns: the chunks, and the raw frames (none unless they will be ``stored``).
    """
    chunks: list[Chunk] = []
    frames: list[bytes] = []
    table: list[Frame] = []
    bodies, count, seqs = block.bodies, block.count, head.seqs
    hlens = block._hlens if head.hlens is not None or head.hlen else None
    ends = list(accumulate(lens))
    start = before = 0
    while start < count:
        end = max(bisect_right(ends, before + FRAME_BYTES, start, min(count, start + FRAME_MESSAGES_MAX)), start + 1)
        chunk_bodies = bodies[start:end]
        raw_bytes = ends[end - 1] - before
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
        table.append(Frame(start, end - start, 0, raw_bytes, raw_bytes, 0))
        start, before = end, ends[end - 1]
    head.place_frames(table)
    return chunks, frames


def encode_segment(position: Position, nonce: bytes, blocks: Sequence[SealedBlock[Any]], codec: Codec = Codec.ZSTD, *,
                   kind: ObjectKind = ObjectKind.SEGMENT, object_id: int = 0,
                   place: BlockPlace = BlockPlace.LOG) -> list[bytes]:
    """Compress, checksum and put together the object of ``blocks``, in their order; runs too.

    Called once for each object, in any thread; nothing else touches ``blocks`` meanwhile. Sets each block's ``ref``.
    Returns: the object's bytes as buffers, in order.
    """
    compressed = iter(_compressed(blocks, codec))
    cores: list[bytes] = []
    indexes: list[bytes] = []
    stored_frames: list[bytes] = []
    parts: list[tuple[int, int, int]] = []
    for block in blocks:
        head, core = block.head, block.core
        core.codec = codec
        index = b""
        frames_bytes = 0
        if head is not None:
            table: list[Frame] = []
            for frame in head.frames:
                stored = next(compressed)
                start, messages, _, _, raw_bytes, _ = frame
                table.append(Frame(start, messages, frames_bytes, len(stored), raw_bytes, checksum(stored)))
                frames_bytes += len(stored)
                stored_frames.append(stored)
            head.frames = tuple(table)
            index = encode_index(head)
            block.frames = []
        encoded = encode_core(core)
        cores.append(encoded)
        indexes.append(index)
        parts.append((len(encoded), len(index), frames_bytes))
    front, places = encode_segment_front(kind, position, object_id, nonce, [block.core for block in blocks], parts)
    for block, (core_at, index_at, frames_at), (core_bytes, index_bytes, frames_bytes) in zip(
            blocks, places, parts, strict=True):
        if block.head is not None:
            core = block.core
            block.ref = BlockRef(place, position, object_id, core.stream_id, core_at, core_bytes, index_at, index_bytes,
                                 frames_at, frames_bytes, core.first_seq, core.last_seq, core.count, core.bytes,
                                 core.first_time_ns, core.last_time_ns, core.subjects)
            block.head.frames_offset = frames_at
    return _joined([front, *cores, *indexes, *stored_frames])


def _compressed(blocks: Sequence[SealedBlock[Any]], codec: Codec) -> list[bytes]:
    frames = [frame for block in blocks for frame in block.frames]
    return compress_all(frames) if codec is Codec.ZSTD else frames


def _joined(buffers: list[bytes]) -> list[bytes]:
    """``buffers`` with small neighbours joined."""
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
