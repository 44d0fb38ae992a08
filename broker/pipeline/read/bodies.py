"""Bodies of messages, from the sections of one block or of many: one buffer with offsets, and columns made from it.

    sections, as stored ──> checked, decompressed    ──> one buffer      ──┐
    lengths in indexes  ──> checked against sections ──> offsets into it ──┴──> headers, data

Many blocks share the buffer, since separate arrays would cost a block as much as decoding a hundred messages.
Uncompressed payloads of a block without headers are not copied at all: the fetched buffer is their column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.read.columns import Numbers
from broker.pipeline.read.decode import Block
from broker.pipeline.read.sections import Rows, as_array, bounded, values_at
from broker.storage.format.codec import Undecodable
from broker.storage.format.errors import Corrupt
from broker.storage.format.frame import Frame
from broker.storage.format.frames import (
    HEADERS_TOO_LONG,
    LENGTHS_DIFFER,
    corrupt_section,
    fill_section_body,
    section_body,
)

__all__ = ["Bodies", "Slice"]

_T = TypeVar("_T")


class Slice(NamedTuple):
    """Rows of one block, at least one; and the sections that hold them, as stored, if bodies are needed."""

    task: ScanTask
    block: Block
    rows: Rows
    frames: Sequence[int] = ()
    """Numbers of the sections, ascending."""
    stored: Sequence[memoryview] = ()

    @property
    def table(self) -> list[Frame]:
        """The frames' rows in the table of stored sections."""
        frames = self.block.sections.table
        return [frames[number] for number in self.frames]


class Bodies:
    """The bodies (headers + payload) of the rows of some slices. At most 2 GiB, as Arrow's offsets have 32 bits."""

    __slots__ = ("_buffer", "_halves_made", "_hlens", "_offsets", "_rows")

    def __init__(self, slices: Sequence[Slice]) -> None:
        """Check and join the bodies of ``slices``. Raises: Corrupt."""
        tables = [one.table for one in slices]
        counts = np.cumsum([frame.messages for table in tables for frame in table])
        sizes = np.cumsum([frame.raw_bytes for table in tables for frame in table])
        count, size = int(counts[-1]), int(sizes[-1])
        assert size < 1 << 31
        # The members are all messages of the sections, as they are stored; the slices' rows are some of them.
        members = [one.block.sections.members(one.frames) for one in slices]
        self._rows = _places(slices, members)
        lens = np.empty(count, np.int64)
        at = 0
        for one, some in zip(slices, members, strict=True):
            head = one.block.index
            lens[at:(at := at + len(some))] = bounded(head.body_len, head.body_lens, some)
        ends = np.zeros(count + 1, np.int64)
        np.cumsum(lens, out=ends[1:])
        wrong = np.flatnonzero(ends[counts] != sizes)
        if len(wrong):
            raise _corrupt(slices, int(wrong[0]), LENGTHS_DIFFER)
        self._offsets = ends.astype(np.int32)
        self._hlens = _header_lengths(slices, members, lens, counts)
        self._buffer = _joined([(one, *section) for one, table in zip(slices, tables, strict=True)
                                for section in zip(one.frames, table, one.stored, strict=True)], size)
        self._halves_made: pa.BinaryArray | None = None

    def headers(self) -> pa.BinaryArray:
        """The header block of each row, null for messages without one."""
        if self._hlens is None:
            return pa.nulls(len(self._rows), pa.binary())
        lens = values_at(self._hlens, self._rows)
        there = lens > 0
        blocks = self._halves.take(pa.array(2 * as_array(self._rows)[there]))
        offsets = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(lens, out=offsets[1:], dtype=np.int32)
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(lens), [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(offsets),
                                     blocks.buffers()[2]])

    def payloads(self) -> pa.BinaryArray:
        """The payload of each row."""
        if self._hlens is not None:
            return self._halves.take(pa.array(2 * as_array(self._rows) + 1))
        payloads = pa.BinaryArray.from_buffers(pa.binary(), len(self._offsets) - 1,
                                               [None, pa.py_buffer(self._offsets), self._buffer])
        if isinstance(self._rows, range):
            return payloads.slice(self._rows.start, len(self._rows))
        return payloads.take(pa.array(self._rows))

    @property
    def _halves(self) -> pa.BinaryArray:
        """Each body as two adjacent values, headers and payload, so that ordinals pick out either column."""
        if self._halves_made is None:
            offsets, count = self._offsets, len(self._offsets) - 1
            halves = np.empty(2 * count + 1, np.int32)
            halves[0::2] = offsets
            halves[1::2] = offsets[:-1] + (0 if self._hlens is None else self._hlens)
            self._halves_made = pa.BinaryArray.from_buffers(
                pa.binary(), 2 * count, [None, pa.py_buffer(halves), self._buffer])
        return self._halves_made


def _places(slices: Sequence[Slice], members: Sequence[Rows]) -> Rows:
    """The places of the slices' rows among all members, one slice after another."""
    found: list[Rows] = []
    at = 0
    for one, some in zip(slices, members, strict=True):
        places = one.block.sections.among(one.rows, one.frames)
        places = range(places.start + at, places.stop + at) if isinstance(places, range) else places + at
        # Ranges that continue one another stay one range.
        if found and isinstance(places, range) and isinstance(found[-1], range) and found[-1].stop == places.start:
            found[-1] = range(found[-1].start, places.stop)
        else:
            found.append(places)
        at += len(some)
    return found[0] if len(found) == 1 else np.concatenate([as_array(places) for places in found])


def _header_lengths(slices: Sequence[Slice], members: Sequence[Rows], lens: Numbers, counts: Numbers) -> Numbers | None:
    """Header bytes of each member; None if no message has headers. Raises: Corrupt."""
    heads = [one.block.index for one in slices]
    if all(head.hlens is None and not head.hlen for head in heads):
        return None
    hlens = np.empty(len(lens), np.int64)
    at = 0
    for head, some in zip(heads, members, strict=True):
        hlens[at:(at := at + len(some))] = bounded(head.hlen, head.hlens, some)
    wrong = np.flatnonzero(hlens > lens)
    if len(wrong):
        raise _corrupt(slices, int(np.searchsorted(counts, wrong[0], "right")), HEADERS_TOO_LONG)
    return hlens.astype(np.int32) if hlens.any() else None


def _corrupt(slices: Sequence[Slice], place: int, why: str) -> Corrupt:
    """The error for one of the slices' sections."""
    one, number = [(one, number) for one in slices for number in one.frames][place]
    return corrupt_section(one.block.index, number, one.block.sections.table[number].offset, one.block.name, why)


_Section = tuple[Slice, int, Frame, memoryview]
"""A section of a slice: its number, its row in the table, and its stored bytes."""


def _joined(sections: Sequence[_Section], size: int) -> pa.Buffer:
    """Check sections, and return their bodies in one buffer: as they were fetched, if that is possible. Raises:
    Corrupt."""
    if all(frame.form == 0 for _, _, frame, _ in sections):
        bodies = [_opened(section_body, section) for section in sections]
        parts = [pa.py_buffer(body) for body in bodies]
        if all(one.address + one.size == after.address for one, after in pairwise(parts)):
            return pa.foreign_buffer(parts[0].address, size, base=parts)
        return pa.py_buffer(b"".join(bodies))
    # Arrow's pool reuses memory; page faults on fresh memory would cost as much as a copy.
    joined = pa.allocate_buffer(size)
    view = memoryview(joined).cast("B")
    at = 0
    for section in sections:
        end = at + section[2].raw_bytes
        _opened(partial(fill_section_body, view[at:end]), section)
        at = end
    return joined


def _opened(opened: Callable[..., _T], section: _Section) -> _T:
    """Call ``section_body`` or ``fill_section_body``. Raises: Corrupt."""
    one, number, frame, stored = section
    try:
        return opened(one.block.index, number, frame.header, stored)
    except Undecodable as error:
        raise corrupt_section(one.block.index, number, frame.offset, one.block.name, str(error)) from None
