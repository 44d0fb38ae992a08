"""The segment that opens an epoch: number 0 of its log, which holds an ``Opening`` record and nothing else."""

from __future__ import annotations

from broker.storage.format.block import BlockCore, Outcome, encode_core
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.record import Record
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import encode_segment_front

__all__ = ["encode_opening"]


def encode_opening(opening: Opening, position: Position, nonce: bytes) -> bytes:
    """The whole object at ``position``."""
    core = encode_core(BlockCore(0, position, outcome=Outcome(), records=[Record.pack(opening, 0)]))
    front, _ = encode_segment_front(ObjectKind.SEGMENT, position, 0, nonce, [(0, 0, 0, 0, len(core), 0, 0, 0)])
    return front + core
