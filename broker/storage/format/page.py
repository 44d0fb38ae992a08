"""Checkpoint pages: msgpack values, each with the position that it includes, several in an object.

    object    header | fixed part | directory | page | page | …

    fixed part, 16 bytes
        64     4  page count
        68     4  0
        72     4  crc32 of the directory
        76     4  crc32 of bytes 64 to 76
    directory row, 24 bytes
         0     8  offset of the page in the object
         8     4  bytes of the page
        12     1  kind
        13     3  0
        16     8  key (the owner of the page: a stream's incarnation, or 0)
    page
         0     4  magic "JPAG"
         4     1  version, 4; of earlier releases 1
         5     1  kind
         6     1  flags: 1 the body is compressed (version 1 only), 2 its block references may have a subject filter,
                   4 its streams may have expiries, 8 its pages of block tables have summaries,
                   16 its block references may be of staged blocks, 32 its streams may have pages of subjects,
                   64 its streams may have message ids, 128 its streams may be offline
         7     1  0
         8    12  epoch, number: the last position that this page includes
        20    12  epoch, number of the object it was written in
        32     8  key
        40    16  header of the body (``section``); version 1: 12 bytes, without the form
        56     4  crc32 of bytes 0 to 56; version 1: 52, of bytes 0 to 52
        60        body; version 1: 56

A page is read alone, by its PageRef. If a round leaves it unchanged, the next root names it again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

from broker.storage.format.codec import (
    SECTION_BYTES_MAX,
    Undecodable,
    Unpackable,
    pack_value,
    unpack_value,
)
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import (
    EPOCH_MAX,
    FORMAT_VERSION,
    HEADER_BYTES,
    NUMBER_MAX,
    ObjectHeader,
    ObjectKind,
    Position,
    object_name,
)
from broker.storage.format.section import (
    NO_POSITION,
    SECTION_HEADER_BYTES,
    SECTIONS,
    Compressed,
    SectionCodec,
    SectionKind,
    SectionPosition,
    check_compressed_flag,
    fixed_layout,
    fixed_part_header,
    header_of_version_1,
    is_known,
    pack_header,
    unpack_header,
)

__all__ = ["Page", "PageBody", "PageKind", "PageRef", "decode_page", "decode_pages_directory", "encode_pages",
           "object_size"]

PAGES_MAX: Final = 1 << 20
_MAGIC: Final = b"JPAG"
_FILTERS: Final = 2
_EXPIRIES: Final = 4
_SUMMARIES: Final = 8
_STAGED: Final = 16
_SUBJECTS: Final = 32
_IDS: Final = 64
_OFFLINE: Final = 128
_FLAGS: Final = _FILTERS | _EXPIRIES | _SUMMARIES | _STAGED | _SUBJECTS | _IDS | _OFFLINE
_FIXED: Final = struct.Struct("<IIII")
_ROW: Final = struct.Struct("<QIB3sQ")
_PAGE_V1: Final = struct.Struct("<4sBBBBIQIQQ III I".replace(" ", ""))
_PAGE: Final = struct.Struct("<4sBBBBIQIQQ IIII I".replace(" ", ""))
_FRONT: Final = struct.Struct(_PAGE.format[:-5])
"""The bytes of a page before the header of its body."""
_ROWS_AT: Final = HEADER_BYTES + _FIXED.size
assert (_ROW.size, _PAGE_V1.size, _PAGE.size) == (24, 56, 60)


class PageKind(IntEnum):
    """The contents of a page, which ``storage.state`` interprets. Numbers are permanent and never reused."""

    SHARD = 1
    """state that belongs to no stream, such as releases of which not everything is deleted"""
    DIRECTORY = 2
    """streams with their small state inline"""
    BLOCKS = 3
    """a part of one stream's block table"""
    CONSUMERS = 4
    """consumers of one stream"""
    DEDUPE = 5
    """the message ids of successive messages of one stream"""
    SUBJECTS = 6
    """the subjects of successive messages of one stream"""
    EXPIRY = 7
    """the expiry times of messages of one stream"""
    SCHEDULE = 8
    """the due times of scheduled messages of one stream"""


_OF_SHARD: Final = frozenset((PageKind.SHARD, PageKind.DIRECTORY))
"""The pages that belong to no single stream."""


class PageBody:
    """The body of a page before it is sealed: a msgpack value, compressed if that saves something.

    Immutable once it is packed.
    """

    __slots__ = ("_make", "_packed")

    def __init__(self, packed: Compressed) -> None:
        self._packed = packed
        self._make: Callable[[], bytes] | None = None

    @classmethod
    def later(cls, make: Callable[[], bytes]) -> PageBody:
        """Return a body whose msgpack ``make`` returns, at the first ``pack`` and in any thread."""
        body = cls((b"", 0, 0))
        body._make = make
        return body

    @classmethod
    def unpack(cls, inline: Any, stream_id: int) -> PageBody:
        """Return the body that ``inline`` sealed. Earlier releases wrote a list of the raw length and the stored bytes.

        Raises: Undecodable or VersionUnknown; TypeError or ValueError for other values.
        """
        if not isinstance(inline, bytes):
            raw_bytes, data = inline
            return cls((data, raw_bytes, header_of_version_1(raw_bytes, len(data), 0)[-1]))
        header = unpack_header(inline)
        if not is_known(header[-1]):
            raise VersionUnknown("block table", "section", 12, f"form {header[-1]}: not this reader's")
        return cls(SECTIONS.unseal(header, inline[SECTION_HEADER_BYTES:], _inline_position(stream_id)))

    def inline(self, stream_id: int, codec: SectionCodec = SECTIONS) -> bytes:
        """Return the body sealed for a directory page, as a part of the stream's block table."""
        header, stored = codec.seal(self.pack(), _inline_position(stream_id))
        return pack_header(header) + stored

    def pack(self) -> Compressed:
        """Return the body, compressed if that saves something."""
        if self._make is not None:
            self._packed, self._make = SECTIONS.compress(self._make()), None
        return self._packed

    def raw(self) -> bytes:
        """Return the msgpack. Raises: Undecodable."""
        return SECTIONS.decompress(self.pack())


def _inline_position(stream_id: int) -> SectionPosition:
    return NO_POSITION, 0, stream_id, SectionKind.TABLE, 0


def _position(object_position: Position, key: int, kind: int) -> SectionPosition:
    if kind in _OF_SHARD:
        return object_position, key, 0, SectionKind.PAGE, kind
    return object_position, 0, key, SectionKind.PAGE, kind


class Page(NamedTuple):
    """A page. A replay skips everything at or before ``position`` for it.

    ``key`` is the owner of the page. ``body`` is a value, or a PageBody. The other attributes show older readers that
    the page is newer. They are True if the page may have:

        filters      block references with subject filters
        expiries     streams with expiries
        summaries    pages of block tables with summaries
        staged       references to staged blocks
        subjects     streams with pages of subjects
        ids          streams with message ids
        offline      streams that are offline
    """

    kind: int
    position: Position
    key: int
    body: Any
    filters: bool = False
    expiries: bool = False
    summaries: bool = False
    staged: bool = False
    subjects: bool = False
    ids: bool = False
    offline: bool = False


class PageRef(NamedTuple):
    """The place of a stored page: ``position`` is that of its object's key."""

    position: Position
    offset: int
    size: int
    kind: int
    key: int

    def pack(self) -> list[int]:
        """Return a compact list for msgpack."""
        return [*self.position, self.offset, self.size, int(self.kind), self.key]

    @classmethod
    def unpack(cls, packed: Any) -> PageRef:
        """Return the reference that ``pack`` packed. Raises: Corrupt for any other value."""
        if not isinstance(packed, (list, tuple)) or len(packed) != 6 or not all(
                type(n) is int and n >= 0 for n in packed):
            raise Corrupt("page reference", "fields", 0, "not six numbers")
        epoch, number, *rest = packed
        if epoch > EPOCH_MAX or number > NUMBER_MAX:
            raise Corrupt("page reference", "position", 0, f"no object can have epoch {epoch} and number {number}")
        return cls(Position(epoch, number), *rest)


def object_size(refs: Collection[PageRef]) -> int:
    """Return the size of an object that has these pages and no others."""
    return _ROWS_AT + len(refs) * _ROW.size + sum(ref.size for ref in refs)


def encode_pages(position: Position, nonce: bytes, pages: Iterable[Page], codec: SectionCodec = SECTIONS
                 ) -> tuple[list[bytes], list[PageRef]]:
    """Encode one ``pages/`` object.

    Args: position is that of the object's key, nonce the writer's.
    Returns: the object's bytes as buffers, and the place of each page, in order.
    """
    encoded = [(page, _encode_page(page, position, codec)) for page in pages]
    at = _ROWS_AT + len(encoded) * _ROW.size
    refs: list[PageRef] = []
    rows: list[bytes] = []
    for page, data in encoded:
        refs.append(PageRef(position, at, len(data), page.kind, page.key))
        rows.append(_ROW.pack(at, len(data), page.kind, b"", page.key))
        at += len(data)
    directory = b"".join(rows)
    fixed = _FIXED.pack(len(encoded), 0, crc32(directory), 0)[:-4]
    front = b"".join((ObjectHeader(ObjectKind.PAGES, position, nonce, at).pack(), fixed,
                      crc32(fixed).to_bytes(4, "little"), directory))
    return [front, *(data for _, data in encoded)], refs


def _encode_page(page: Page, object_position: Position, codec: SectionCodec) -> bytes:
    body = (page.body if isinstance(page.body, PageBody) else PageBody.later(partial(pack_value, page.body))).pack()
    flags = ((_FILTERS if page.filters else 0)
             | (_EXPIRIES if page.expiries else 0) | (_SUMMARIES if page.summaries else 0)
             | (_STAGED if page.staged else 0) | (_SUBJECTS if page.subjects else 0)
             | (_IDS if page.ids else 0) | (_OFFLINE if page.offline else 0))
    front = _FRONT.pack(_MAGIC, FORMAT_VERSION, page.kind, flags, 0, *page.position, *object_position, page.key)
    header, stored = codec.seal(body, _position(object_position, page.key, page.kind), front)
    fixed = front + pack_header(header)
    return b"".join((fixed, crc32(fixed).to_bytes(4, "little"), stored))


def decode_page(data: bytes, ref: PageRef, unpack: Callable[[bytes], Any] | None = unpack_value) -> Page:
    """Decode the page that ``ref`` points to.

    Args: data is the object from ``ref.offset``, ``ref.size`` long. unpack makes a value of the body's msgpack, and
        raises Unpackable; None: the body is a PageBody.
    Raises: Corrupt for damaged bytes or those of another page; VersionUnknown.
    """
    name, offset = object_name(ObjectKind.PAGES, ref.position), ref.offset
    layout = fixed_layout(data, _PAGE_V1, _PAGE)
    if len(data) < layout.size:
        raise Corrupt(name, "page", offset + len(data), "cut short")
    (magic, version, kind, flags, spare, epoch, number, object_epoch, object_number, key, *_,
     crc) = fields = layout.unpack_from(data)
    if magic != _MAGIC or crc32(data[:layout.size - 4]) != crc:
        raise Corrupt(name, "page", offset, "the checksum of its fixed part does not match")
    header, readable = fixed_part_header(version, flags, fields, _FLAGS)
    if not readable or spare:
        raise VersionUnknown(name, "page", offset + 4,
                             f"version {version}, flags {flags}, form {header[-1]}: not this reader's")
    if (object_epoch, object_number, kind, key) != (*ref.position, ref.kind, ref.key) or number > NUMBER_MAX:
        raise Corrupt(name, "page", offset + 5, "it is another page than the reference names")
    try:
        check_compressed_flag(version, flags, header)
        if len(data) != ref.size or header[0] > SECTION_BYTES_MAX:
            raise Undecodable("its lengths are out of bounds")
        stored, at, front = data[layout.size:], _position(ref.position, key, kind), data[:_FRONT.size]
        body = (PageBody(SECTIONS.unseal(header, stored, at, front)) if unpack is None
                else unpack(SECTIONS.open(header, stored, at, front)))
    except (Undecodable, Unpackable) as error:
        raise Corrupt(name, "page", offset + layout.size, str(error)) from None
    return Page(kind, Position(epoch, number), key, body, bool(flags & _FILTERS), bool(flags & _EXPIRIES),
                bool(flags & _SUMMARIES), bool(flags & _STAGED), bool(flags & _SUBJECTS), bool(flags & _IDS),
                bool(flags & _OFFLINE))


def decode_pages_directory(prefix: bytes, position: Position, *, complete: bool = False) -> list[PageRef] | int:
    """Return references to the pages of one object, for ``inspect`` and repair; roots name their pages themselves.

    Args: prefix is the object from byte 0; complete: the object has no more bytes than these.
    Returns: a reference to each page; or the number of bytes that are needed from 0, if ``prefix`` is shorter.
    Raises: Corrupt; VersionUnknown.
    """
    name = object_name(ObjectKind.PAGES, position)
    header = ObjectHeader.unpack(prefix, name)
    header.expect(ObjectKind.PAGES, position)
    if len(prefix) > header.size or (complete and len(prefix) != header.size):
        raise Corrupt(name, "header", 40, f"the object has {len(prefix)} bytes, not {header.size}")
    if header.size < _ROWS_AT:
        raise Corrupt(name, "header", 40, "the object is smaller than its own head")
    if len(prefix) < _ROWS_AT:
        return _ROWS_AT
    count: int
    count, spare, directory_crc, crc = _FIXED.unpack_from(prefix, HEADER_BYTES)
    if crc32(prefix[HEADER_BYTES:_ROWS_AT - 4]) != crc:
        raise Corrupt(name, "fixed part", _ROWS_AT - 4, "the checksum does not match")
    end = _ROWS_AT + count * _ROW.size
    if spare or count > PAGES_MAX or end > header.size:
        raise Corrupt(name, "fixed part", HEADER_BYTES, "its count does not fit the object")
    if len(prefix) < end:
        return end
    directory = prefix[_ROWS_AT:end]
    if crc32(directory) != directory_crc:
        raise Corrupt(name, "directory", _ROWS_AT, "the checksum does not match")
    refs: list[PageRef] = []
    for offset, size, kind, row_spare, key in _ROW.iter_unpack(directory):
        if offset != end or size < _PAGE_V1.size or any(row_spare):
            raise Corrupt(name, "directory", _ROWS_AT + len(refs) * _ROW.size, "a row is out of bounds")
        refs.append(PageRef(position, offset, size, kind, key))
        end += size
    if end != header.size:
        raise Corrupt(name, "directory", _ROWS_AT, "its pages do not fill the object")
    return refs
