"""Makes a staged run of published messages, which get sequences and times when they join their stream.

It is for the stream's own owner, which checks the messages itself; other writers make runs with ``writer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.storage.format.block import BlockPlace
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block

if TYPE_CHECKING:
    from broker.storage.format.block import BlockRef
    from broker.storage.format.section import SectionCodec

__all__ = ["Row", "encode_run", "in_blocks"]

_BLOCK_BYTES: Final = 4 << 20


class Row(NamedTuple):
    """A stored message: the first ``hlen`` bytes of ``body`` are its headers; ``msg_id`` is b"" for none."""

    subject: bytes
    body: bytes
    hlen: int
    msg_id: bytes


def in_blocks(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Divide ``rows`` into blocks: of at most 4 MiB, or of one larger message."""
    blocks = []
    start = size = 0
    for at, row in enumerate(rows):
        if at > start and size + len(row.body) > _BLOCK_BYTES:
            blocks.append(rows[start:at])
            start, size = at, 0
        size += len(row.body)
    return [*blocks, rows[start:]]


def encode_run(stream_id: int, position: Position, run_id: int, nonce: bytes, blocks: Sequence[Sequence[Row]],
               codec: SectionCodec) -> tuple[list[bytes], list[BlockRef]]:
    """Return the bytes of a run of ``blocks``, and references with sequences from 1 at time 0. In any thread."""
    sealed = []
    for rows in blocks:
        block: OpenBlock[None] = OpenBlock(stream_id, None)
        subjects, bodies, hlens, ids = zip(*rows, strict=True)
        block.append_run(1, subjects, hlens if any(hlens) else None, bodies, 0)
        if any(ids):
            ordinals = [at for at, msg_id in enumerate(ids) if msg_id]
            block.add(MessageIds(ordinals, [ids[at] for at in ordinals]))
        one = seal_block(block, position, object_id=run_id)
        one.core.staged = True
        sealed.append(one)
    data = encode_segment(position, nonce, sealed, codec, kind=ObjectKind.RUN, object_id=run_id,
                          place=BlockPlace.STAGED)
    return data, [ref for one in sealed if (ref := one.ref) is not None]
