"""Salvage: find the blocks of a segment or run without its directory.

Cores and indexes begin with magic bytes, carry their lengths and checksums, and name their stream and object, so each
can be found and verified by itself. Frames carry none of these, but are stored contiguously after the last index, in
the order of the blocks. If every index was found, the places of all frames follow from the indexes. Otherwise the
places are counted from the object's end back to the first block without an index. The index's checksums verify each
frame.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.storage.format.block import CORE_BYTES_MIN, BlockCore, core_size, decode_core
from broker.storage.format.codec import Undecodable
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, Position
from broker.storage.format.index import INDEX_BYTES_MIN, find_frames
from broker.storage.format.segment import DirectoryRow

__all__ = ["Found", "find_blocks"]

_CORE = struct.Struct("<4s12xQIQQ")
"""The beginning of a core: magic, incarnation, epoch, number, id; see the diagram in docs/FORMAT.md."""
_INDEX = struct.Struct("<4s4xQIQQQI")
"""The beginning of an index: magic, incarnation, epoch, number, id, first_seq, messages."""


class Found(NamedTuple):
    """A found block with a rebuilt directory row; ``frames_offset`` is 0 if the place of the frames is unknown."""

    row: DirectoryRow
    core: BlockCore | None


class _Index(NamedTuple):
    stream_id: int
    first_seq: int
    messages: int
    offset: int
    size: int
    frames_bytes: int


def find_blocks(data: bytes, position: Position, object_id: int = 0) -> list[Found]:
    """Find all blocks that belong to the object at ``position``; a block may have an index and no core."""
    cores = _cores(data, position, object_id)
    indexes = _indexes(data, position, object_id)
    by_block = {(index.stream_id, index.first_seq, index.messages): index for index in indexes}
    blocks: list[tuple[int, BlockCore | None, _Index | None]] = []
    for at, core in cores:
        blocks.append((at, core, by_block.pop((core.stream_id, core.first_seq, core.count), None)))
    blocks += [(0, None, index) for index in by_block.values()]
    blocks.sort(key=lambda block: block[2].offset if block[2] is not None else block[0])
    with_messages = [(core, index) for _, core, index in blocks if core is None or core.count]
    starts: dict[int, int] = {}
    if all(index is not None for _, index in with_messages) and indexes:
        at = indexes[-1].offset + indexes[-1].size
        for index in indexes:
            starts[index.offset] = at
            at += index.frames_bytes
    else:
        at = len(data)
        for _, known in reversed(with_messages):
            if known is None:
                break
            at -= known.frames_bytes
            starts[known.offset] = at
    return [_found(data, at, core, index, starts) for at, core, index in blocks]


def _found(data: bytes, at: int, core: BlockCore | None, index: _Index | None, starts: dict[int, int]) -> Found:
    size = 0
    if core is not None:
        size = core_size(data, at)
    stream_id = core.stream_id if core is not None else index.stream_id if index is not None else 0
    first_seq = index.first_seq if index is not None else core.first_seq if core is not None else 0
    messages = index.messages if index is not None else core.count if core is not None else 0
    last_seq = core.last_seq if core is not None else first_seq + messages - 1
    raw = core.raw_bytes if core is not None else 0
    if index is None:
        return Found(DirectoryRow(stream_id, first_seq, last_seq, messages, at, size, 0, 0, 0, 0, raw), core)
    return Found(DirectoryRow(stream_id, first_seq, last_seq, messages, at, size, index.offset, index.size,
                              starts.get(index.offset, 0), index.frames_bytes, raw), core)


def _cores(data: bytes, position: Position, object_id: int) -> list[tuple[int, BlockCore]]:
    found: list[tuple[int, BlockCore]] = []
    at = data.find(b"JBLK", HEADER_BYTES)
    while 0 <= at <= len(data) - CORE_BYTES_MIN:
        _, stream_id, epoch, number, its_id = _CORE.unpack_from(data, at)
        end = at + core_size(data, at)
        step = at + 4
        if (epoch, number, its_id) == (*position, object_id) and end <= len(data):
            try:
                found.append((at, decode_core(data[at:end], position, stream_id, object_id=object_id, offset=at,
                                              everything=True)))
                step = end
            except FormatError:
                pass
        at = data.find(b"JBLK", step)
    return found


def _indexes(data: bytes, position: Position, object_id: int) -> list[_Index]:
    found: list[_Index] = []
    at = data.find(b"JIDX", HEADER_BYTES)
    while 0 <= at <= len(data) - INDEX_BYTES_MIN:
        _, stream_id, epoch, number, its_id, first_seq, messages = _INDEX.unpack_from(data, at)
        step = at + 4
        if (epoch, number, its_id) == (*position, object_id):
            try:
                step, frames_bytes = find_frames(data, at, stream_id, position, object_id)
                found.append(_Index(stream_id, first_seq, messages, at, step - at, frames_bytes))
            except (Undecodable, MemoryError):
                pass
        at = data.find(b"JIDX", step)
    return found
