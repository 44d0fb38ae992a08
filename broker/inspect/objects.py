"""The check of one whole object: a checksum covers every byte, and every checksum is compared.

A fault in one part does not hide others: each core, index and frame of a segment is checked. Parts are also compared
with each other: a core's figures must match its index and frames.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.inspect.source import Source, Window
from broker.storage.format.agreement import check_agreement
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef
from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.document import decode_document
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind
from broker.storage.format.index import Head, decode_index
from broker.storage.format.page import decode_page, decode_pages_directory
from broker.storage.format.segment import HEAD_BYTES, DirectoryRow, SegmentHead, decode_head
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.format.store import StoreFormat
from broker.storage.objectstore import NotFound, ObjectInfo
from broker.storage.paths import Key

__all__ = ["Checked", "Fault", "OnBlock", "check_object", "check_records", "read_head"]

OnBlock = Callable[[BlockRef, BlockCore, Head], None]
"""A function that is called with each block whose core and index are undamaged."""


@dataclass(slots=True)
class Fault:
    """A fault in an object."""

    error: FormatError
    row: DirectoryRow | None = None
    """The affected block; None: the whole object."""
    first_seq: int = 0
    """The first affected sequence of the block."""
    last_seq: int = 0
    core: bool = False
    """True if a replay needs the damaged part."""


@dataclass(slots=True)
class Checked:
    """The outcome of the check of one object."""

    info: ObjectInfo
    key: Key
    header: ObjectHeader | None = None
    """None if it cannot be read."""
    gone: bool = False
    """True if the object was deleted after the listing."""
    faults: list[Fault] = field(default_factory=list)
    root: Root | None = None
    claim: Claim | None = None
    seal: Seal | None = None


async def check_object(source: Source, info: ObjectInfo, key: Key, on_block: OnBlock) -> Checked:
    """Read and check a listed object. Raises: StoreError."""
    checked = Checked(info, key)
    async with source.window(info.key, info.size) as window:
        try:
            prefix = await window.read(0, min(info.size, HEADER_BYTES))
            checked.header = ObjectHeader.unpack(prefix, info.key)
            if checked.header.size != info.size:
                raise Corrupt(info.key, "header", 40, f"the object has {info.size} bytes, not the "
                              f"{checked.header.size} that were written")
        except NotFound:
            checked.gone = True
            return checked
        except FormatError as error:
            checked.faults.append(Fault(error))
        try:
            if key.kind in (ObjectKind.SEGMENT, ObjectKind.RUN) and not _is_seal(checked):
                await _check_blocks(window, checked, on_block)
            elif key.kind == ObjectKind.PAGES:
                await _check_pages(window, checked)
            else:
                _check_document(await window.read(0, info.size), checked)
        except NotFound:
            checked.gone = True
        except FormatError as error:
            _add(checked, Fault(error))
    return checked


def _is_seal(checked: Checked) -> bool:
    return (checked.key.kind == ObjectKind.SEGMENT and checked.header is not None
            and checked.header.kind == ObjectKind.SEAL)


def _add(checked: Checked, fault: Fault) -> None:
    """Add a fault, unless the whole object has one: a truncated object fails by its size, then at each part."""
    if not any(known.row is None for known in checked.faults):
        checked.faults.append(fault)


def _check_document(data: bytes, checked: Checked) -> None:
    key = checked.key
    position = key.position
    if key.kind == ObjectKind.FORMAT:
        StoreFormat.decode(data)
        return
    if key.kind == ObjectKind.INBOX:
        decode_document(data, ObjectKind.INBOX, None, key.object_id)
        return
    assert position is not None
    if key.kind == ObjectKind.CLAIM:
        checked.claim = Claim.decode(data, position.epoch)
    elif key.kind == ObjectKind.ROOT:
        checked.root = Root.decode(data, position)
    else:
        checked.seal = Seal.decode(data, position)


async def _check_pages(window: Window, checked: Checked) -> None:
    position, size = checked.key.position, checked.info.size
    assert position is not None
    asked = min(size, HEAD_BYTES)
    while isinstance(refs := decode_pages_directory(await window.read(0, asked), position), int):
        if asked >= size:
            raise Corrupt(checked.info.key, "directory", size, "cut short")
        asked = min(size, refs)
    for ref in refs:
        try:
            decode_page(await window.read(ref.offset, ref.offset + ref.size), ref)
        except FormatError as error:
            _add(checked, Fault(error))


async def read_head(read: Callable[[int, int], Awaitable[bytes]], info: ObjectInfo, key: Key) -> SegmentHead:
    """Read the head of a segment or run; ``read`` is the method of a Window.

    Raises: FormatError; NotFound; StoreError.
    """
    position, asked = key.position, min(info.size, HEAD_BYTES)
    assert position is not None
    while True:
        data = await read(0, asked)
        head = decode_head(data, position, kind=key.kind, object_id=key.object_id, complete=len(data) < asked)
        if isinstance(head, SegmentHead):
            return head
        if asked >= info.size:
            raise Corrupt(info.key, "directory", info.size, "cut short")
        asked = min(info.size, head)


def check_records(core: BlockCore) -> None:
    """Decode the bodies of a core's records. Raises: Corrupt."""
    for record in core.records:
        record.decode()


async def _check_blocks(window: Window, checked: Checked, on_block: OnBlock) -> None:
    key, name = checked.key, checked.info.key
    head = await read_head(window.read, checked.info, key)
    place = (BlockPlace.LOG if key.kind == ObjectKind.SEGMENT
             else BlockPlace.RUN if key.shard is not None
             else BlockPlace.STAGED if head.header.position.epoch == STAGED_EPOCH else BlockPlace.STREAM_RUN)
    found: list[tuple[DirectoryRow, BlockRef, Head]] = []
    for i, row in enumerate(head.rows):
        core: BlockCore | None = None
        try:
            core = head.core(i)
            check_records(core)
        except FormatError as error:
            if isinstance(error, Corrupt) and error.name == "record":
                error = Corrupt(name, error.section, row.core_offset, error.why)
            checked.faults.append(Fault(error, row, row.first_seq, row.last_seq, core=True))
        if not row.messages:
            continue
        try:
            # The rest of a block with a damaged core is checked as well: the directory has its offsets.
            given = core or BlockCore(row.stream_id, head.header.position, object_id=head.header.object_id)
            ref = row.ref(place, given)
            data = await window.read(row.index_offset, row.index_offset + row.index_bytes)
            index = decode_index(data, ref, name)
            if core is not None:
                check_agreement(core, index, name, row.core_offset)
            found.append((row, ref, index))
            if core is not None:
                on_block(ref, core, index)
        except FormatError as error:
            checked.faults.append(Fault(error, row, row.first_seq, row.last_seq))
    for row, ref, index in found:
        await _check_frames(window, checked, row, ref, index)


async def _check_frames(window: Window, checked: Checked, row: DirectoryRow, ref: BlockRef, index: Head) -> None:
    for number, frame in enumerate(index.frames):
        start = ref.frames_offset + frame.offset
        try:
            decode_frame(index, number, await window.read(start, start + frame.stored_bytes), checked.info.key)
        except FormatError as error:
            first, last = index.seq_of(frame.start), index.seq_of(frame.start + frame.messages - 1)
            checked.faults.append(Fault(error, row, first, last))
