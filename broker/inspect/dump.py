"""The dump of one object: header, body, pages, or a segment's blocks with their records and messages.

A damaged object is decoded as far as possible, with a list of its faults: a broken header is rebuilt from the key, a
broken map is read up to the break, and blocks without a directory are found by their magic bytes. The whole object is
held in memory.
"""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from typing import Any

import msgpack

from broker.base.output import plain, printable, when
from broker.inspect.salvage import find_blocks
from broker.inspect.source import CannotInspect, Source
from broker.protocol import headers
from broker.storage.format.block import BlockCore, BlockPlace
from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.document import body_offset, decode_document, document_size
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import (
    FORMAT_VERSION,
    HEADER_BYTES,
    UNFLAGGED_VERSION,
    ObjectHeader,
    ObjectKind,
    Position,
)
from broker.storage.format.index import Head, decode_index
from broker.storage.format.page import PageKind, decode_page, decode_pages_directory
from broker.storage.format.record import Record
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.segment import DirectoryRow, SegmentHead, decode_head, decode_landed
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.format.store import StoreFormat
from broker.storage.paths import ROOT, Key, parse

__all__ = ["dump", "read_object"]

_HEADER = struct.Struct("<8sBBHIQ16sQQII")


async def read_object(source: Source, wanted: str) -> tuple[str, bytes]:
    """Return the full key and its object; ``wanted`` may omit the beginning (``v1/``, ``v1/shards/0/``).

    Raises: CannotInspect if no object has such a key; StoreError.
    """
    wanted = wanted.strip("/")
    tried = [wanted, ROOT + wanted, f"{ROOT}shards/0/{wanted}"]
    for key in tried if not wanted.startswith(ROOT) else tried[:1]:
        data = await source.find(key)
        if data is not None:
            return key, data
    raise CannotInspect(f"{source.url}: no object has the key {wanted}; list keys with `segments`, `blocks STREAM` and "
                        f"the overview")


def dump(key: str, data: bytes, limit: int | None = None) -> dict[str, Any]:
    """Decode the object at ``key`` as JSON values; ``limit`` bounds the messages shown of each block.

    The value's member ``wrong`` lists the damage: section, offset, what.
    """
    return _Dump(key, data, limit).run()


class _Dump:
    def __init__(self, key: str, data: bytes, limit: int | None) -> None:
        self.key = key
        self.data = data
        self.limit = limit
        self.wrong: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        parsed = parse(self.key)
        value: dict[str, Any] = {"key": self.key, "bytes": len(self.data), "names": _key_json(parsed)}
        header = self._header(value, parsed)
        value["wrong"] = self.wrong
        if header is None:
            return value
        kind, position, object_id = header.kind, header.position, header.object_id
        if kind == ObjectKind.SEGMENT:
            value["landed"] = self._landed(position)
        if kind in (ObjectKind.SEGMENT, ObjectKind.RUN):
            value["blocks"] = self._blocks(header)
        elif kind == ObjectKind.PAGES:
            value["pages"] = self._pages(position)
        else:
            value["body"] = self._document(kind, position, object_id, header.version)
        return value

    def _note(self, error: FormatError) -> None:
        row = {"section": error.section, "offset": error.offset, "what": error.why}
        if row not in self.wrong:
            self.wrong.append(row)

    def _header(self, value: dict[str, Any], parsed: Key | None) -> ObjectHeader | None:
        """Return the header to use: the object's own, or one made from the key, which then replaces it in ``data``."""
        data = self.data
        fields: tuple[Any, ...] = ()
        if len(data) >= HEADER_BYTES:
            fields = _HEADER.unpack_from(data)
            magic, kind, flags, version, epoch, number, nonce, size, object_id, _, crc = fields
            value["header"] = {
                "magic": plain(magic), "kind": _name(ObjectKind, kind), "flags": flags, "version": version,
                "epoch": epoch, "number": number, "nonce": nonce.hex(), "size": size, "id": f"{object_id:016x}",
                "crc": f"{crc:08x}"}
        header: ObjectHeader | None = None
        try:
            header = ObjectHeader.unpack(data, self.key)
            if header.size != len(data):
                self._note(Corrupt(self.key, "header", 40, f"the object has {len(data)} bytes, not {header.size}"))
            if parsed is not None:
                kind = header.kind if header.kind == ObjectKind.SEAL else parsed.kind
                header.expect(kind, parsed.position, parsed.object_id)
        except FormatError as error:
            self._note(error)
        if header is not None:
            if header.size < len(data):
                self.data = data[:header.size]
            return header
        if parsed is None or len(data) < HEADER_BYTES:
            return None
        kind = parsed.kind
        old = document_size(data, UNFLAGGED_VERSION) == len(data)
        if kind == ObjectKind.SEGMENT and (
                fields[1] == ObjectKind.SEAL or old or document_size(data, FORMAT_VERSION) == len(data)):
            kind = ObjectKind.SEAL
        version = UNFLAGGED_VERSION if old else FORMAT_VERSION
        made = ObjectHeader(kind, parsed.position or Position(0, 0), fields[6], len(data), parsed.object_id, version)
        self.data = made.pack() + data[HEADER_BYTES:]
        value["header_taken_from"] = "the key"
        return made

    # Small objects.

    def _document(self, kind: ObjectKind, position: Position, object_id: int, version: int) -> Any:
        bare = kind in (ObjectKind.FORMAT, ObjectKind.INBOX)
        try:
            body = decode_document(self.data, kind, None if bare else position, object_id)[1]
        except FormatError as error:
            self._note(error)
            return plain(_partial_map(self.data[body_offset(version):]))
        try:
            if kind == ObjectKind.FORMAT:
                StoreFormat.decode(self.data)
            elif kind == ObjectKind.CLAIM:
                Claim.decode(self.data, position.epoch)
            elif kind == ObjectKind.ROOT:
                Root.decode(self.data, position)
            elif kind == ObjectKind.SEAL:
                Seal.decode(self.data, position)
        except FormatError as error:
            self._note(error)
        return plain(body)

    # Pages.

    def _pages(self, position: Position) -> list[dict[str, Any]]:
        try:
            refs = decode_pages_directory(self.data, position)
            if isinstance(refs, int):
                raise Corrupt(self.key, "directory", len(self.data), "cut short")
        except FormatError as error:
            self._note(error)
            return []
        pages = []
        for ref in refs:
            row: dict[str, Any] = {"offset": ref.offset, "bytes": ref.size, "kind": _name(PageKind, ref.kind),
                                   "of": f"{ref.key:016x}" if ref.kind != PageKind.DIRECTORY else str(ref.key)}
            try:
                page = decode_page(self.data[ref.offset:ref.offset + ref.size], ref)
                row |= {"includes": str(page.position), "body": plain(page.body)}
            except FormatError as error:
                self._note(error)
                row["damaged"] = error.why
            pages.append(row)
        return pages

    # Segments and runs.

    def _landed(self, position: Position) -> int | None:
        """Return the number up to which the log was complete when this entry was written; None: not recorded."""
        try:
            return decode_landed(self.data, position)
        except FormatError:
            return None  # the damage is noted with the blocks

    def _blocks(self, header: ObjectHeader) -> list[dict[str, Any]]:
        try:
            head = decode_head(self.data, header.position, kind=header.kind, object_id=header.object_id)
            if isinstance(head, int):
                raise Corrupt(self.key, "directory", len(self.data), "cut short")
        except FormatError as error:
            self._note(error)
            return [self._block(header, found.row, found.core) | {"found_by": "its own marks"}
                    for found in find_blocks(self.data, header.position, header.object_id)]
        return [self._block(header, row, self._core(head, i)) for i, row in enumerate(head.rows)]

    def _core(self, head: SegmentHead, i: int) -> BlockCore | None:
        try:
            return head.core(i, everything=True)
        except FormatError as error:
            self._note(error)
            return None

    def _block(self, header: ObjectHeader, row: DirectoryRow, core: BlockCore | None) -> dict[str, Any]:
        value: dict[str, Any] = {
            "stream": f"{row.stream_id:016x}", "messages": row.messages, "first_seq": row.first_seq,
            "last_seq": row.last_seq, "raw_bytes": row.raw_bytes, "core_offset": row.core_offset,
            "core_bytes": row.core_bytes, "index_offset": row.index_offset, "index_bytes": row.index_bytes,
            "frames_offset": row.frames_offset, "frames_bytes": row.frames_bytes}
        if core is None:
            value["core"] = "damaged"
        else:
            value["core"] = {
                "codec": core.codec.name.lower(), "bytes": core.bytes, "first_time": when(core.first_time_ns),
                "last_time": when(core.last_time_ns)}
            value["outcome"] = core.outcome._asdict()
            value["removed"] = [removed._asdict() for removed in core.removed]
            value["records"] = [self._record(record, row) for record in core.records]
            if core.subjects is not None:
                value["subjects"] = [{"subject": plain(subject), "messages": count, "first_seq": first,
                                      "last_seq": last}
                                     for subject, count, first, last in core.subjects]
            if core.subject_filter is not None:
                value["subject_filter_bytes"] = len(core.subject_filter)
        if row.messages:
            self._add_index(header, row, core, value)
        return value

    def _record(self, record: Record, row: DirectoryRow) -> dict[str, Any]:
        value = {"kind": _name(RecordKind, record.kind), "version": record.version, "after_seq": record.after_seq,
                 "must_understand": record.must_understand, "understood": record.known}
        try:
            value["body"] = plain(_readable(record.decode()) if record.known else record.body)
        except FormatError as error:
            self._note(type(error)(self.key, error.section, row.core_offset, error.why))
            value["body"] = plain(_partial_map(record.packed))
        return value

    def _add_index(self, header: ObjectHeader, row: DirectoryRow, core: BlockCore | None,
                   value: dict[str, Any]) -> None:
        """Add a block's index, frames and messages to ``value``."""
        if not row.index_bytes:
            value["index"] = "not found"
            return
        place = (BlockPlace.LOG if header.kind == ObjectKind.SEGMENT
                 else BlockPlace.STAGED if header.position.epoch == STAGED_EPOCH else BlockPlace.RUN)
        ref = row.ref(place, core or BlockCore(row.stream_id, header.position, object_id=header.object_id))
        try:
            index = decode_index(self.data[row.index_offset:row.index_offset + row.index_bytes], ref, self.key)
        except FormatError as error:
            self._note(error)
            value["index"] = "damaged"
            return
        value["index"] = {"subjects": len(index.subjects), "frames": len(index.frames), "gaps": index.seqs is not None,
                          "times": len(set(index.times)) if index.times is not None else 1}
        frames = value["frames"] = []
        rows: list[dict[str, Any]] = []
        for number, frame in enumerate(index.frames):
            at = row.frames_offset + frame.offset
            line: dict[str, Any] = {"frame": number, "offset": at, "stored_bytes": frame.stored_bytes,
                                    "raw_bytes": frame.raw_bytes, "first_ordinal": frame.start,
                                    "messages": frame.messages, "crc": f"{frame.crc:08x}", "state": "sound"}
            frames.append(line)
            chunk: Chunk | None = None
            try:
                if not row.frames_offset:
                    raise Corrupt(self.key, f"frame {number}", 0, "its offset is unknown")
                chunk = decode_frame(index, number, self.data[at:at + frame.stored_bytes], self.key)
            except FormatError as error:
                self._note(error)
                line["state"] = error.why
            rows += self._rows(index, frame.start, frame.messages, chunk, len(rows))
        value["rows"] = rows

    def _rows(self, index: Head, start: int, count: int, chunk: Chunk | None, before: int) -> list[dict[str, Any]]:
        """Return messages from the index, with their first bytes if the frame is undamaged."""
        if self.limit is not None:
            count = min(count, self.limit - before)
        rows = []
        for i in range(count):
            ordinal = start + i
            hlen = index.hlen if index.hlens is None else index.hlens[ordinal]
            size = index.body_len if index.body_lens is None else index.body_lens[ordinal]
            row: dict[str, Any] = {"seq": index.seq_of(ordinal), "time": when(index.time_of(ordinal)),
                                   "subject": plain(index.subject_of(ordinal)), "header_bytes": hlen,
                                   "payload_bytes": size - hlen}
            if chunk is not None:
                body = chunk.bodies[i]
                row["headers"] = "; ".join(f"{printable(name)}: {printable(value)}"
                                           for name, value in headers.items(body[:hlen]))
                row["begins"] = plain(body[hlen:hlen + 48])
            rows.append(row)
        return rows


def _key_json(key: Key | None) -> Any:
    if key is None:
        return "this is no key of a jetblock store"
    value: dict[str, Any] = {"kind": "SEGMENT or SEAL" if key.kind == ObjectKind.SEGMENT else key.kind.name}
    for name in ("shard", "account", "stream"):
        if getattr(key, name) is not None:
            value[name] = getattr(key, name)
    if key.incarnation is not None:
        value["incarnation"] = f"{key.incarnation:016x}"
    if key.position is not None:
        value |= {"epoch": key.position.epoch, "number": key.position.number}
    if key.object_id:
        value["id"] = f"{key.object_id:016x}"
    return value


def _name(kinds: Any, value: int) -> str:
    try:
        return str(kinds(value).name)
    except ValueError:
        return f"unknown ({value})"


def _readable(value: Any) -> Any:
    """Return a record's body by field name, without empty fields."""
    if isinstance(value, list):
        return [_readable(one) for one in value]
    if not is_dataclass(value):
        return value
    by_name = {field.name: _readable(getattr(value, field.name)) for field in fields(value)}
    return {name: one for name, one in by_name.items() if one is not None and one != {}}


def _partial_map(packed: bytes) -> Any:
    """Decode the entries of a msgpack map up to the first damage; None if there are none."""
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="replace")
    unpacker.feed(packed)
    found: dict[str, Any] = {}
    try:
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            found[str(key)] = unpacker.unpack()
    except (ValueError, TypeError, RecursionError, MemoryError, msgpack.UnpackException):
        pass
    return found or None
