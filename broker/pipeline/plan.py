"""From a moment and a selection to the parts of blocks that tasks read, packed into partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.pipeline.moment import StreamMoment
from broker.pipeline.selection import Selection
from broker.storage.dead import DeadSet
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.paths import ShardPaths, StreamPaths, object_key

__all__ = ["Estimate", "Piece", "estimate", "pack", "pieces"]


class Piece(NamedTuple):
    """One block's part of a query."""

    account: str
    stream: str
    stream_id: int
    shard: int
    key: str
    """Of the object."""
    ref: BlockRef
    """Without its subjects."""
    first_seq: int
    last_seq: int
    """Inclusive, within the block; clipped to the stream's first_seq, to asOf and to the selection."""
    dead: DeadSet | None


class Estimate(NamedTuple):
    """How much a query will read. blocks_of: blocks before pruning; messages: at most so many; bytes: of the store,
    the indexes' and, where payloads are asked for, the frames'."""

    blocks: int
    blocks_of: int
    messages: int
    index_bytes: int
    frames_bytes: int


def pieces(moment: StreamMoment, selection: Selection) -> list[Piece]:
    """The blocks that may hold what is wanted, in order of sequence. Raises: Damaged for a stream that is off line."""
    found = []
    paths = ShardPaths(moment.shard)
    for entry in moment.blocks:
        ref = entry.ref
        first = max(ref.first_seq, moment.first_seq, selection.first_seq)
        last = min(ref.last_seq, moment.end_seq)
        if selection.last_seq is not None:
            last = min(last, selection.last_seq)
        if first > last:
            continue
        own = (StreamPaths(moment.account, moment.name, moment.stream_id) if ref.place is BlockPlace.STREAM_RUN
               else None)
        found.append(Piece(moment.account, moment.name, moment.stream_id, moment.shard, object_key(paths, ref, own),
                           ref, first, last, entry.dead))
    return found


def pack(found: Iterable[Piece], target_bytes: int, *, payload: bool = True, min_partitions: int = 1
         ) -> list[list[Piece]]:
    """Pieces in order as partitions of about ``target_bytes`` that will be read; at least ``min_partitions`` where
    there is much. payload: whether frames will be read, or indexes alone."""
    packed: list[list[Piece]] = []
    size = 0
    for piece in found:
        own = piece.ref.index_bytes + (piece.ref.frames_bytes if payload else 0)
        if not packed or size + own > target_bytes:
            packed.append([])
            size = 0
        packed[-1].append(piece)
        size += own
    return packed


def estimate(moments: Sequence[StreamMoment], selection: Selection) -> Estimate:
    """How much a query will read, without reading it."""
    found = [piece for moment in moments for piece in pieces(moment, selection)]
    return Estimate(len(found), sum(len(moment.blocks) for moment in moments), sum(p.ref.count for p in found),
                    sum(p.ref.index_bytes for p in found), sum(p.ref.frames_bytes for p in found))
