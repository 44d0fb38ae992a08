"""Converts whole objects to plain values and back, for the format's tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.storage.format.block import BlockCore, BlockPlace, Outcome
from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.document import decode_document
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import decode_index
from broker.storage.format.page import decode_page, decode_pages_directory
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.format.store import StoreFormat
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block

NONCE = bytes(range(16))
AT = Position(3, 0x2A)


class Row(NamedTuple):
    """A message as a reader decodes it."""

    seq: int
    time_ns: int
    subject: bytes
    hlen: int
    body: bytes


def chunk_rows(chunk: Chunk) -> list[Row]:
    """Return the messages of a chunk."""
    assert chunk.last_seq == chunk.seq(len(chunk) - 1)
    return [Row(chunk.seq(i), chunk.times[i], chunk.subjects[i], 0 if chunk.hlens is None else chunk.hlens[i],
                chunk.bodies[i]) for i in range(len(chunk))]


def open_block(stream_id: int, runs: Sequence[Sequence[Row]], **outcome: int) -> OpenBlock[None]:
    """Return a block of these messages; those of one run are adjacent in sequence and have one time."""
    block: OpenBlock[None] = OpenBlock(stream_id, None)
    for run in runs:
        hlens = [row.hlen for row in run]
        block.append_run(run[0].seq, [row.subject for row in run], hlens if any(hlens) else None,
                         [row.body for row in run], run[0].time_ns)
    block.outcome = Outcome(**outcome)
    return block


def encode(*blocks: OpenBlock[Any], position: Position = AT, codec: SectionCodec = SECTIONS) -> bytes:
    """Return a segment of these blocks."""
    return b"".join(encode_segment(position, NONCE, [seal_block(block, position) for block in blocks], codec))


def head_of(data: bytes, position: Position = AT, **which: Any) -> SegmentHead:
    """Return the head of a whole object."""
    head = decode_head(data, position, complete=True, **which)
    assert isinstance(head, SegmentHead)
    return head


def block_rows(data: bytes, head: SegmentHead, i: int) -> tuple[BlockCore, list[Row]]:
    """Read one block of a whole object as a reader does: core, index, every frame."""
    core = head.core(i)
    for record in core.records:
        assert record.body is record.body
    ref = head.ref(i, core, BlockPlace.STAGED if core.staged else BlockPlace.LOG)
    if ref is None:
        return core, []
    index = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref, head.header.name)
    rows: list[Row] = []
    for frame_no, frame in enumerate(index.frames):
        start = ref.frames_offset + frame.offset
        rows += chunk_rows(decode_frame(index, frame_no, data[start:start + frame.stored_bytes], head.header.name))
    assert [index.subject_of(i) for i in range(index.count)] == [row.subject for row in rows]
    assert sum(map(index.size_of, range(index.count))) == core.bytes
    return core, rows


def plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON; bytes as latin-1 text, which is lossless and readable for text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def decode_plain(data: bytes, kind: ObjectKind, position: Position, object_id: int = 0) -> Any:
    """Return an object's whole content, as JSON values. Raises: FormatError."""
    if kind in (ObjectKind.SEGMENT, ObjectKind.RUN):
        return _segment(data, kind, position, object_id)
    if kind is ObjectKind.PAGES:
        refs = decode_pages_directory(data, position, complete=True)
        assert isinstance(refs, list)
        return plain([[ref.pack(), decode_page(data[ref.offset:ref.offset + ref.size], ref)[:4]] for ref in refs])
    if kind is ObjectKind.ROOT:
        return plain(Root.decode(data, position))
    if kind is ObjectKind.SEAL:
        *values, landed = Seal.decode(data, position)
        return plain([*values, *([] if landed is None else [landed])])
    if kind is ObjectKind.CLAIM:
        return plain(Claim.decode(data, position.epoch))
    if kind is ObjectKind.FORMAT:
        return plain(StoreFormat.decode(data))
    return plain(decode_document(data, kind, position, object_id)[1])


def _segment(data: bytes, kind: ObjectKind, position: Position, object_id: int) -> Any:
    head = head_of(data, position, kind=kind, object_id=object_id)
    blocks = []
    for i in range(len(head)):
        core, rows = block_rows(data, head, i)
        blocks.append(plain({
            "stream_id": core.stream_id, "codec": core.codec.name, "outcome": core.outcome, "bytes": core.bytes,
            "raw_bytes": core.raw_bytes, "first_seq": core.first_seq, "last_seq": core.last_seq,
            "first_time_ns": core.first_time_ns, "last_time_ns": core.last_time_ns, "removed": list(core.removed),
            "records": [[r.kind, r.version, r.must_understand, r.after_seq, r.body] for r in core.records],
            "subjects": core.subjects,
            **({} if core.subject_filter is None else {"subject_filter": core.subject_filter}),
            "messages": [(*row[:4], _short(row.body)) for row in rows]}))
    landed = {} if head.landed is None else {"landed": head.landed}
    return {"nonce": head.header.nonce.hex(), **landed, "blocks": blocks}


def _short(body: bytes) -> bytes:
    """Return ``body``, or for a long one a digest that identifies it."""
    return body if len(body) <= 100 else b"%d B, sha256 %b" % (len(body), hashlib.sha256(body).hexdigest().encode())
