"""The segment that opens an epoch: number 0 of its log, which has only an ``Opening`` record."""

from __future__ import annotations

from broker.storage.format.block import BlockCore, Outcome, encode_core
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.record import Record
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import SegmentHead, encode_segment_front

__all__ = ["decode_opening", "encode_opening"]


def encode_opening(opening: Opening, position: Position, nonce: bytes) -> bytes:
    """Return the whole object at ``position``."""
    core = encode_core(BlockCore(0, position, outcome=Outcome(), records=[Record.pack(opening, 0)]))
    front, _ = encode_segment_front(ObjectKind.SEGMENT, position, 0, nonce, [(0, 0, 0, 0, len(core), 0, 0, 0)])
    return front + core


def decode_opening(head: SegmentHead, key: str) -> Opening:
    """Return the opening in the segment ``key`` with this head. Raises: Corrupt, also if there is none."""
    for i, row in enumerate(head.rows):
        if row.stream_id == 0:
            for record in head.core(i).records:
                if record.kind == Opening.KIND:
                    return Opening.decode(record.body, key)
    raise Corrupt(key, "opening", 0, "an epoch begins without one")
