"""Substitutes: they replace damaged or missing objects, so that the rest of the store can be read.

    object      its substitute
    segment     a segment with its undamaged blocks, verbatim; without any, an empty segment
    opening     the same; if these blocks have no opening record, an opening made from the claim and the seals
    seal        a seal at the same position
    claim       a claim with the process run that wrote the epoch's log
    format      a format object with the store id of the old header; if that is damaged too, with a new id
"""

from __future__ import annotations

import random

from broker.inspect.salvage import find_blocks
from broker.inspect.survey import Epoch, ShardSurvey
from broker.storage.format.block import BlockCore
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, NONCE_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.opening import encode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import (
    HEAD_BYTES_MIN,
    ROW_BYTES,
    DirectoryRow,
    SegmentHead,
    decode_head,
    encode_segment_front,
    fixed_landed,
)
from broker.storage.format.store import StoreFormat

__all__ = ["SUBSTITUTE", "Unrepairable", "claim_for", "format_for", "header_of", "log_entry_for"]

SUBSTITUTE = "jetblock fsck"
"""The name in objects that no broker wrote."""


class Unrepairable(Exception):
    """No substitute can be made for an object; ``str()`` gives the reason."""


def log_entry_for(data: bytes, position: Position, shard: ShardSurvey, rng: random.Random, now_ns: int
                  ) -> tuple[bytes, list[DirectoryRow] | None]:
    """Make a substitute for the log entry at ``position``, with all undamaged blocks of ``data``.

    Args: data is the damaged object, b"" if it is missing.
    Returns: the substitute, and the rows of the blocks that it lacks; None instead of rows if they are not known.
    Raises: Unrepairable.
    """
    epochs = {epoch.number: epoch for epoch in shard.epochs}
    epoch = epochs.get(position.epoch, Epoch(position.epoch))
    nonce = epoch.claim.run_id if epoch.claim is not None else _nonce_of(data) or rng.randbytes(NONCE_BYTES)
    if epoch.end == position.number or _is_seal(data):
        return Seal(position, SUBSTITUTE, position.epoch + 1, nonce, now_ns).encode(), []
    blocks, dropped = _sound_blocks(data, position)
    if position.number == 0 and not any(record.kind == Opening.KIND for row, core in blocks if row.stream_id == 0
                                        for record in core.records):
        return encode_opening(_opening(epoch, epochs, now_ns), position, nonce), []
    rows = [row for row, _ in blocks]
    front, _ = encode_segment_front(ObjectKind.SEGMENT, position, 0, nonce, [
        (row.stream_id, row.first_seq, row.last_seq, row.messages, row.core_bytes, row.index_bytes, row.frames_bytes,
         row.raw_bytes) for row in rows], _landed(data, position))
    parts = [front]
    parts += [data[row.core_offset:row.core_offset + row.core_bytes] for row in rows]
    parts += [data[row.index_offset:row.index_offset + row.index_bytes] for row in rows]
    parts += [data[row.frames_offset:row.frames_offset + row.frames_bytes] for row in rows]
    return b"".join(parts), dropped


def claim_for(data: bytes, epoch: int, writer: bytes | None, rng: random.Random, now_ns: int) -> bytes:
    """Make a substitute for the claim of ``epoch``.

    Args: data is the damaged claim, b"" if it is missing. writer is the process run that wrote the epoch's other
        objects, None if there are none.
    """
    header = header_of(data)
    own = header is not None and (header.kind, header.position) == (ObjectKind.CLAIM, Position(epoch, 0))
    nonce = writer or (header.nonce if header is not None and own else rng.randbytes(NONCE_BYTES))
    return Claim(epoch, SUBSTITUTE, nonce, now_ns).encode()


def format_for(data: bytes, rng: random.Random, now_ns: int) -> bytes:
    """Make a substitute for the format object, with the store id in the header of ``data`` if that is undamaged."""
    return StoreFormat.make(_nonce_of(data) or rng.randbytes(NONCE_BYTES), now_ns).encode()


def _sound_blocks(data: bytes, position: Position
                  ) -> tuple[list[tuple[DirectoryRow, BlockCore]], list[DirectoryRow] | None]:
    """Find the undamaged blocks of a segment, by its directory, or by a search if the directory is damaged.

    Returns: the blocks with core and all bytes, and the rows of the others; None instead of those rows if the directory
        is damaged and bytes are missing.
    """
    try:
        head = decode_head(data, position)
    except FormatError:
        head = 0
    if not isinstance(head, SegmentHead):
        found = [(row, core) for row, core in find_blocks(data, position) if core is not None and _is_whole(row, data)]
        parts = sum(row.core_bytes + row.index_bytes + row.frames_bytes for row, _ in found)
        whole = HEAD_BYTES_MIN + ROW_BYTES * len(found) + parts == len(data)
        return found, [] if whole else None
    found, dropped = [], []
    for i, row in enumerate(head.rows):
        try:
            core = head.core(i)
        except FormatError:
            dropped.append(row)
            continue
        if _is_whole(row, data):
            found.append((row, core))
        else:
            dropped.append(row)
    return found, dropped


def _landed(data: bytes, position: Position) -> int | None:
    """Return the segment's field for the entries that were stored before it; None if it is damaged."""
    try:
        return fixed_landed(data, position, "")
    except FormatError:
        return None


def _is_whole(row: DirectoryRow, data: bytes) -> bool:
    return not row.messages or bool(row.index_bytes and row.frames_offset
                                    and row.frames_offset + row.frames_bytes <= len(data))


def _opening(epoch: Epoch, epochs: dict[int, Epoch], now_ns: int) -> Opening:
    before = [number for number, one in epochs.items() if number < epoch.number and one.begun in ("opened", "swept")]
    since = max(before, default=0)
    ends = []
    for number in range(max(since, 1), epoch.number):
        known = epochs.get(number)
        if known is None or known.end is None:
            raise Unrepairable(f"only the opening of epoch {epoch.number} has the end of epoch {number}, and it is "
                               "damaged")
        ends.append(Position(number, known.end))
    owner, at_ns = (epoch.claim.owner, epoch.claim.at_ns) if epoch.claim is not None else (SUBSTITUTE, now_ns)
    return Opening(owner, tuple(ends), at_ns)


def _is_seal(data: bytes) -> bool:
    return len(data) > 8 and data[8] == ObjectKind.SEAL


def header_of(data: bytes) -> ObjectHeader | None:
    """Return the object's header; None if it is damaged."""
    try:
        return ObjectHeader.unpack(data[:HEADER_BYTES])
    except FormatError:
        return None


def _nonce_of(data: bytes) -> bytes | None:
    header = header_of(data)
    return None if header is None else header.nonce
