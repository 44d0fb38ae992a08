"""The memory that one merge takes."""

from __future__ import annotations

import random
import tracemalloc

from broker.storage.compaction.merge import Input, Piece, merge
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import Position
from broker.storage.format.section import SECTIONS
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block

NONCE = bytes(16)
BODY_BYTES = 128
MESSAGES = 2000


def stored(number: int, rng: random.Random) -> Input:
    """Return a block of ``MESSAGES`` messages, half of whose bytes cannot be compressed, alone in its segment."""
    position = Position(1, number)
    block: OpenBlock[None] = OpenBlock(7, None)
    bodies = [rng.randbytes(BODY_BYTES // 2) + bytes(BODY_BYTES // 2) for _ in range(MESSAGES)]
    block.append_run(1 + (number - 1) * MESSAGES, [b"s"] * MESSAGES, None, bodies, 10**18 + number)
    sealed = seal_block(block, position)
    data = b"".join(encode_segment(position, NONCE, [sealed]))
    ref = sealed.ref
    assert ref is not None
    core, index, frames = [data[at:at + size] for at, size in (
        (ref.core_offset, ref.core_bytes), (ref.index_offset, ref.index_bytes), (ref.frames_offset, ref.frames_bytes))]
    return Input(ref, None, core, index, frames, f"segment {number}")


def test_a_merge_does_not_hold_all_of_its_messages_as_objects() -> None:
    """Shows that the new blocks are compressed one after the other: all messages of a merge took three times their
    bytes at once, 100 MiB for a large merge."""
    rng = random.Random(1)
    inputs = [stored(number, rng) for number in range(1, 61)]
    raw_bytes = len(inputs) * MESSAGES * BODY_BYTES
    tracemalloc.start()
    try:
        run = merge([Piece(7, False, raw_bytes, inputs)], Position(1, 61), 5, NONCE, SECTIONS, CompactionSettings(),
                    BlockPlace.RUN)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run is not None
    assert sum(run.inputs) == len(inputs)
    assert len(run.blocks) >= 4
    assert peak_bytes < 2 * raw_bytes
