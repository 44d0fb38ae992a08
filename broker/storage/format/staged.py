"""Staged blocks: their writer did not know the places of the messages in the stream.

In such a block sequences count from 1, and times are those of its writer. The reference in the stream's block table has
the first and the last sequence and time that the messages get. All others follow from these, so the object is never
rewritten.

    in the object     1 2 3 …        09:00  09:00  09:05
    low and high                     09:01 (the stream's last time) to 09:04 (the time of adoption)
    the reference     71 72 73 …     09:01  09:01  09:04

The run's key has epoch 0, which no owner has, and as its number the time at which it was made, in milliseconds.
"""

from __future__ import annotations

from typing import Final

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import NUMBER_MAX, Position

__all__ = ["STAGED_EPOCH", "placed", "staged_position"]

STAGED_EPOCH: Final = 0


def staged_position(made_at_ns: int) -> Position:
    """Return the position in the key of a run that was staged at this time."""
    return Position(STAGED_EPOCH, min(max(made_at_ns, 0) // 1_000_000, NUMBER_MAX))


def placed(ref: BlockRef, first_seq: int, low_ns: int, high_ns: int) -> BlockRef:
    """Return the stream's reference to a staged block: sequences from ``first_seq`` on, times clipped to low..high."""
    shift = first_seq - ref.first_seq
    subjects = ref.subjects
    if subjects is not None:
        subjects = tuple((subject, count, first + shift, last + shift) for subject, count, first, last in subjects)
    return BlockRef(BlockPlace.STAGED, ref.position, ref.object_id, ref.stream_id, ref.core_offset, ref.core_bytes,
                    ref.index_offset, ref.index_bytes, ref.frames_offset, ref.frames_bytes, first_seq,
                    ref.last_seq + shift, ref.count, ref.bytes, min(max(ref.first_time_ns, low_ns), high_ns),
                    min(max(ref.last_time_ns, low_ns), high_ns), subjects, ref.subject_filter)
