"""One block as columns: its index as numpy arrays, its frames as one buffer with offsets, both as Arrow.

    decode_index (numpy)  ──>  Block.rows: which ordinals are wanted  ──>  frames that hold them
                                     │                                          │  joined, or as they were fetched
                                     └──> Block.seq, ts, subject, …             └──> Bodies: headers, data

``storage.format.index`` decodes and checks the bytes; this module turns its columns into Arrow's with few copies.
Uncompressed payloads of a block without headers are not copied at all: the fetched buffer is their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.columns import NUMPY, Numbers
from broker.pipeline.read.subjects import SubjectTest
from broker.protocol import headers as protocol_headers
from broker.storage.format.block import BlockRef
from broker.storage.format.codec import SECTION_BYTES_MAX
from broker.storage.format.index import (
    HEADERS_TOO_LONG,
    LENGTHS_DIFFER,
    Head,
    corrupt_frame,
    decode_index,
    frame_body,
)
from broker.storage.state.dead import DeadSet

__all__ = ["Block", "Bodies", "Rows", "parse_headers", "readable"]

Rows = range | Numbers
"""Ordinals of a block, ascending."""


class Block:
    """One block's columns. ``head`` may be None where only the sequences of a block without gaps are needed.

    Args: name is the object's key, for errors.
    """

    __slots__ = ("_strings", "count", "head", "name", "ref")

    def __init__(self, ref: BlockRef, head: Head | None, name: str) -> None:
        self.ref = ref
        self.head = head
        self.name = name
        self.count = ref.count
        self._strings: pa.StringArray | None = None

    @classmethod
    def decode(cls, index: bytes, ref: BlockRef, name: str) -> Block:
        """Decode the bytes of the index. Raises: Corrupt; VersionUnknown."""
        return cls(ref, decode_index(index, ref, name, NUMPY), name)

    # ---- which rows

    def rows(self, first_seq: int, last_seq: int, dead: DeadSet | None, selection: Selection,
             subjects: SubjectTest | None) -> Rows:
        """The live messages from ``first_seq`` to ``last_seq`` that the selection's times and ``subjects`` admit."""
        start, stop = self._extent(first_seq, last_seq)
        if start >= stop:
            return range(0)
        masks = []
        if dead is not None:
            masks.append(~self._dead(start, stop, dead))
        head = self.head
        if selection.needs_time():
            assert head is not None
            low, high = selection.first_ns, selection.last_ns
            # Compared one by one: the format does not promise that times are in order.
            times: Numbers = (np.asarray([head.time_ns]) if head.times is None
                              else _taken(head.times, range(start, stop)))
            if low is not None:
                masks.append(times >= low)
            if high is not None:
                masks.append(times <= high)
        if subjects is not None:
            assert head is not None
            wanted = subjects.ids(head.subjects)
            if head.subject_ids is None:
                masks.append(wanted)
            elif not wanted.all():
                masks.append(wanted[head.subject_ids[start:stop]])
        mask: npt.NDArray[np.bool_] | None = None
        for one in masks:
            if len(one) == 1:  # a column with a single value
                if not one[0]:
                    return range(0)
            else:
                mask = one if mask is None else mask & one
        if mask is None:
            return range(start, stop)
        picked = np.flatnonzero(mask)
        if len(picked) == 0:
            return range(0)
        first, last = int(picked[0]), int(picked[-1])
        if last - first + 1 == len(picked):
            return range(start + first, start + last + 1)
        return picked + start

    def _extent(self, first_seq: int, last_seq: int) -> tuple[int, int]:
        """The range of ordinals for the sequences from ``first_seq`` to ``last_seq``."""
        seqs = None if self.head is None else self.head.seqs
        if seqs is None:
            assert self.ref.last_seq - self.ref.first_seq + 1 == self.count, "sequences with gaps need the index"
            return max(0, first_seq - self.ref.first_seq), min(self.count, last_seq - self.ref.first_seq + 1)
        return (int(np.searchsorted(seqs, np.uint64(max(0, first_seq)))),
                int(np.searchsorted(seqs, np.uint64(max(0, last_seq)), "right")))

    def _dead(self, start: int, stop: int, dead: DeadSet) -> npt.NDArray[np.bool_]:
        seqs = None if self.head is None else self.head.seqs
        if seqs is None:
            at = self.ref.first_seq + start - dead.first_seq
            end = at + stop - start
            if dead.bits is not None:
                some = np.frombuffer(dead.bits, np.uint8, ((end + 7) >> 3) - (at >> 3), at >> 3)
                return np.unpackbits(some, bitorder="little")[at & 7:(at & 7) + stop - start].view(np.bool_)
            mask = np.zeros(stop - start, np.bool_)
            base = self.ref.first_seq + start
            for first, last in dead.ranges:
                mask[max(0, first - base):max(0, last + 1 - base)] = True
            return mask
        mine = np.asarray(seqs[start:stop]).astype(np.uint64)
        if dead.bits is not None:
            offsets = mine - np.uint64(dead.first_seq)
            bits = np.frombuffer(dead.bits, np.uint8)
            shifts = (offsets & np.uint64(7)).astype(np.uint8)
            return np.asarray(bits[offsets >> np.uint64(3)] >> shifts & 1, np.bool_)
        if not dead.ranges:
            return np.zeros(stop - start, np.bool_)
        firsts, lasts = np.asarray(dead.ranges, np.uint64).T
        place = np.searchsorted(firsts, mine, "right")
        return np.asarray((place > 0) & (lasts[np.maximum(place, 1) - 1] >= mine))

    # ---- columns of the index

    def seq(self, rows: Rows) -> pa.Array:
        """Sequences, int64."""
        seqs = None if self.head is None else self.head.seqs
        if seqs is None:
            first = self.ref.first_seq
            if isinstance(rows, range):
                return pa.array(np.arange(first + rows.start, first + rows.stop, dtype=np.int64))
            return pa.array(rows + first)
        return pa.array(_taken(seqs, rows).astype(np.int64))

    def seq_of(self, ordinal: int) -> int:
        """Sequence of one message."""
        seqs = None if self.head is None else self.head.seqs
        return self.ref.first_seq + ordinal if seqs is None else int(seqs[ordinal])

    def time_ns(self, rows: Rows) -> pa.Array:
        """Times in ns, int64."""
        head = self._index
        if head.times is None:
            return pa.array(np.full(len(rows), head.time_ns, np.int64))
        return pa.array(_taken(head.times, rows))

    def ts(self, rows: Rows) -> pa.Array:
        """Times in µs, rounded down."""
        head = self._index
        times = (np.full(len(rows), head.time_ns // 1000, np.int64) if head.times is None
                 else _taken(head.times, rows) // 1000)
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(rows), [None, pa.py_buffer(times)])

    def subject(self, rows: Rows, kind: pa.DataType) -> pa.Array:
        """Subjects as ``kind``: string (bytes that are not UTF-8 become U+FFFD) or binary."""
        names = self.names(kind)
        if self._index.subject_ids is None:
            return pa.repeat(names[0], len(rows))
        return names.take(pa.array(_taken(self._index.subject_ids, rows)))

    def names(self, kind: pa.DataType) -> pa.Array:
        """The block's subjects, sorted by bytes, as ``kind``."""
        if kind == pa.binary():
            return self._index.subjects
        if self._strings is None:
            self._strings = readable(self._index.subjects)
        return self._strings

    def occurrences(self, rows: Rows) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """The subjects of ``rows``: ascending ids, and for each the number of rows, first and last ordinal."""
        ordinals = _listed(rows)
        if self._index.subject_ids is None:
            ids = np.zeros(len(ordinals), np.int64)
        else:
            ids = _taken(self._index.subject_ids, rows).astype(np.int64)
        count = len(self._index.subjects)
        counts = np.bincount(ids, minlength=count)
        firsts, lasts = np.zeros((2, count), np.int64)
        firsts[ids[::-1]] = ordinals[::-1]  # with several values for one place, the last one wins
        lasts[ids] = ordinals
        there = np.flatnonzero(counts)
        return there, counts[there], firsts[there], lasts[there]

    def pos(self, rows: Rows) -> pa.Array:
        """Ordinals, int32."""
        if isinstance(rows, range):
            return pa.array(np.arange(rows.start, rows.stop, dtype=np.int32))
        return pa.array(rows.astype(np.int32))

    @property
    def _index(self) -> Head:
        assert self.head is not None, "this column is the index's"
        return self.head

    # ---- frames

    def frames_of(self, rows: Rows) -> list[int]:
        """The numbers of the frames that hold ``rows``, ascending."""
        starts = np.asarray(self._index.starts)
        if isinstance(rows, range):
            if not rows:
                return []
            first, last = np.searchsorted(starts, [rows.start, rows.stop - 1], "right") - 1
            return list(range(int(first), int(last) + 1))
        return np.unique(np.searchsorted(starts, rows, "right") - 1).tolist()  # type: ignore[no-any-return]

    def bodies(self, frames: Sequence[int], stored: Sequence[memoryview]) -> Bodies:
        """Decode some frames, in ascending order; ``stored`` are their bytes as stored in the object.

        Raises: Corrupt.
        """
        return Bodies(self._index, self.name, frames, stored)


class Bodies:
    """The bodies (headers + payload) of the messages in some frames of a block: one buffer with offsets.

    At most 2 GiB in all, as Arrow's offsets have 32 bits.
    """

    __slots__ = ("_buffer", "_halves_made", "_hlens", "_members", "_offsets")

    def __init__(self, head: Head, name: str, frames: Sequence[int], stored: Sequence[memoryview]) -> None:
        table = [head.frames[number] for number in frames]
        raw = sum(frame.raw_bytes for frame in table)
        assert raw < 1 << 31
        self._members = _members(head, frames)
        count = sum(frame.messages for frame in table)
        self._offsets: Numbers = np.zeros(count + 1, np.int32)
        if head.body_lens is None:
            lens = np.full(count, min(head.body_len, SECTION_BYTES_MAX + 1), np.uint64)
        else:
            # No frame exceeds the bound, so a longer length is wrong in any frame; clipping keeps the sums from wrapping.
            lens = np.minimum(_taken(head.body_lens, self._members).astype(np.uint64), SECTION_BYTES_MAX + 1)
        ends = np.cumsum(lens, dtype=np.int64)
        at = total = 0
        for number, frame in zip(frames, table, strict=True):
            at += frame.messages
            total += frame.raw_bytes
            if int(ends[at - 1]) != total:
                raise corrupt_frame(head, number, name, LENGTHS_DIFFER)
        self._offsets[1:] = ends
        self._hlens = self._headers(head, name, frames, lens)
        bodies = [frame_body(head, number, one, name) for number, one in zip(frames, stored, strict=True)]
        self._buffer = _joined(bodies, stored, raw)
        self._halves_made: pa.BinaryArray | None = None

    def _headers(self, head: Head, name: str, frames: Sequence[int], lens: Numbers) -> Numbers | None:
        """Header bytes of each message; None if no message has headers. Raises: Corrupt."""
        if head.hlens is None and not head.hlen:
            return None
        hlens = (np.full(len(lens), head.hlen, np.uint64) if head.hlens is None
                 else _taken(head.hlens, self._members))
        if not hlens.any():
            return None
        wrong = np.flatnonzero(hlens > lens)
        if len(wrong):
            ordinal = self._members[int(wrong[0])]
            number = next(n for n in frames if ordinal < head.frames[n].start + head.frames[n].messages)
            raise corrupt_frame(head, number, name, HEADERS_TOO_LONG)
        return hlens.astype(np.int32)

    def _places(self, rows: Rows) -> Rows:
        """The places of ``rows`` among the decoded messages, which include all of them."""
        members = self._members
        if isinstance(members, range):
            if isinstance(rows, range):
                return range(rows.start - members.start, rows.stop - members.start)
            return rows - members.start
        return np.searchsorted(members, _listed(rows))

    def headers(self, rows: Rows) -> pa.BinaryArray:
        """Header blocks of ``rows``, null for messages without one."""
        if self._hlens is None:
            return pa.nulls(len(rows), pa.binary())
        places = self._places(rows)
        return self._halves.take(pa.array(2 * _listed(places), mask=_taken(self._hlens, places) == 0))

    def payloads(self, rows: Rows) -> pa.BinaryArray:
        """Payloads of ``rows``."""
        places = self._places(rows)
        if self._hlens is not None:
            return self._halves.take(pa.array(2 * _listed(places) + 1))
        payloads = pa.BinaryArray.from_buffers(pa.binary(), len(self._offsets) - 1,
                                               [None, pa.py_buffer(self._offsets), self._buffer])
        if isinstance(places, range):
            return payloads.slice(places.start, len(places))
        return payloads.take(pa.array(places))

    @property
    def _halves(self) -> pa.BinaryArray:
        """Each body as two adjacent values, headers and payload, so that ordinals pick out either column."""
        if self._halves_made is not None:
            return self._halves_made
        offsets, count = self._offsets, len(self._offsets) - 1
        halves = np.empty(2 * count + 1, np.int32)
        halves[0::2] = offsets
        halves[1::2] = offsets[:-1] + self._hlens
        self._halves_made = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(halves), self._buffer])
        return self._halves_made


def _members(head: Head, frames: Sequence[int]) -> Rows:
    """The ordinals of all messages in ``frames``."""
    first, last = head.frames[frames[0]], head.frames[frames[-1]]
    if frames[-1] - frames[0] + 1 == len(frames):
        return range(first.start, last.start + last.messages)
    return np.concatenate([np.arange(frame.start, frame.start + frame.messages)
                           for frame in (head.frames[number] for number in frames)])


def _joined(bodies: Sequence[bytes | memoryview], stored: Sequence[memoryview], size: int) -> pa.Buffer:
    """One buffer of ``bodies``; their own memory if that is contiguous already."""
    if len(bodies) == 1:
        return pa.py_buffer(bodies[0])
    if all(body is one for body, one in zip(bodies, stored, strict=True)):
        parts = [pa.py_buffer(body) for body in bodies]
        if all(one.address + one.size == after.address for one, after in pairwise(parts)):
            return pa.foreign_buffer(parts[0].address, size, base=parts)
    # Arrow's pool reuses memory; page faults on fresh memory would cost as much as the copy.
    joined = pa.allocate_buffer(size)
    view = memoryview(joined).cast("B")
    at = 0
    for body in bodies:
        view[at:(at := at + len(body))] = body
    return joined


def _taken(column: Any, rows: Rows) -> Numbers:
    taken: Numbers = column[rows.start:rows.stop] if isinstance(rows, range) else column[rows]
    return taken


def _listed(rows: Rows) -> Numbers:
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows


def readable(names: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; what is not UTF-8 becomes U+FFFD."""
    if len(names) == 1 and names[0].is_valid:
        return pa.array([names[0].as_py().decode("utf-8", "replace")], pa.string())
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if name is None else name.decode("utf-8", "replace") for name in names.to_pylist()],
                        pa.string())


def parse_headers(blocks: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Header blocks as lists of (name, value), null where there is none; bytes that are not UTF-8 become U+FFFD."""
    there = blocks.is_valid()
    items = [protocol_headers.items(block) for block in blocks.filter(there).to_pylist()]
    offsets = np.zeros(len(blocks) + 1, np.int32)
    offsets[1:][there.to_numpy(zero_copy_only=False)] = list(map(len, items))
    np.cumsum(offsets, out=offsets)
    names, values = ([pair[side].decode("utf-8", "replace") for pairs in items for pair in pairs] for side in (0, 1))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.string())],
                                       fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=kind,
                                    mask=None if blocks.null_count == 0 else pc.invert(there))
