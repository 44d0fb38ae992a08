"""The index of one block as numpy columns: the wanted rows, their values, and the sections that hold them.

    decode_index (numpy)  ──>  Block.rows: the wanted ordinals     ──>  Block.sections: those that hold them
                                     │                                          │
                                     └──> Block.seq, time_ns, subject_ids       └──> bodies.Bodies

``storage.format.index`` decodes and checks the bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.columns import NUMPY, Numbers
from broker.pipeline.read.sections import Rows, Sections, as_array, values_at
from broker.pipeline.read.subjects import SubjectTest
from broker.protocol import headers as protocol_headers
from broker.storage.format.block import BlockRef
from broker.storage.format.index import Head, decode_index
from broker.storage.state.dead import DeadSet

__all__ = ["Block", "parse_headers", "readable"]

class Block:
    """The columns of one block. ``head`` may be None if only the sequences of a block without gaps are needed.

    Args: name is the object's key, for errors.
    """

    __slots__ = ("_sections", "count", "head", "name", "ref")

    def __init__(self, ref: BlockRef, head: Head | None, name: str) -> None:
        self.ref = ref
        self.head = head
        self.name = name
        self.count = ref.count
        self._sections: Sections | None = None

    @classmethod
    def decode(cls, index: bytes, ref: BlockRef, name: str) -> Block:
        """Decode the bytes of the index. Raises: Corrupt; VersionUnknown."""
        return cls(ref, decode_index(index, ref, name, NUMPY), name)

    # ---- which rows

    def rows(self, first_seq: int, last_seq: int, dead: DeadSet | None, selection: Selection,
             subjects: SubjectTest | None) -> Rows:
        """Return the live messages from ``first_seq`` to ``last_seq`` that the selection's times and ``subjects``
        admit."""
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
            # Each time is compared, because the format does not promise that times are in order.
            times: Numbers = (np.asarray([head.time_ns]) if head.times is None
                              else values_at(head.times, range(start, stop)))
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

    def seq(self, rows: Rows) -> Numbers:
        """Sequences, int64."""
        seqs = None if self.head is None else self.head.seqs
        if seqs is not None:
            return values_at(seqs, rows).astype(np.int64)
        first = self.ref.first_seq
        if isinstance(rows, range):
            return np.arange(first + rows.start, first + rows.stop, dtype=np.int64)
        return rows + first

    def seq_of(self, ordinal: int) -> int:
        """Sequence of one message."""
        seqs = None if self.head is None else self.head.seqs
        return self.ref.first_seq + ordinal if seqs is None else int(seqs[ordinal])

    def time_ns(self, rows: Rows) -> Numbers:
        """Times in ns, int64."""
        times = self.index.times
        return np.full(len(rows), self.index.time_ns, np.int64) if times is None else values_at(times, rows)

    def subject_ids(self, rows: Rows) -> Numbers:
        """The place of each message's subject in ``names``."""
        ids = self.index.subject_ids
        return np.zeros(len(rows), np.int8) if ids is None else values_at(ids, rows)

    @property
    def names(self) -> pa.BinaryArray:
        """The block's subjects, sorted by bytes."""
        return self.index.subjects

    def occurrences(self, rows: Rows) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Count the subjects of ``rows``: ascending ids, and for each the number of rows, first and last ordinal."""
        ordinals = as_array(rows)
        ids = self.subject_ids(rows).astype(np.int64)
        count = len(self.names)
        counts = np.bincount(ids, minlength=count)
        firsts, lasts = np.zeros((2, count), np.int64)
        firsts[ids[::-1]] = ordinals[::-1]  # with several values for one place, the last one wins
        lasts[ids] = ordinals
        there = np.flatnonzero(counts)
        return there, counts[there], firsts[there], lasts[there]

    @property
    def index(self) -> Head:
        assert self.head is not None, "this needs the index"
        return self.head

    # ---- bodies

    @property
    def sections(self) -> Sections:
        """The stored sections of its bodies."""
        if self._sections is None:
            self._sections = Sections(self.index)
        return self._sections


def readable(names: pa.BinaryArray) -> pa.StringArray:
    """Convert bytes to text; bytes that are not UTF-8 become U+FFFD."""
    if len(names) == 1 and names[0].is_valid:
        return pa.array([names[0].as_py().decode("utf-8", "replace")], pa.string())
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if name is None else name.decode("utf-8", "replace") for name in names.to_pylist()],
                        pa.string())


def parse_headers(blocks: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Parse header blocks into lists of (name, value), null for no block; bytes that are not UTF-8 become U+FFFD."""
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
