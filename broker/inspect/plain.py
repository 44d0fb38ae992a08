"""Finds what of a store is not encrypted: sections whose form has no cipher.

No key is needed. Objects that are never encrypted are left out: ``v1/format``, claims, seals, openings, and the wrapped
keys themselves (docs/ENCRYPTION.md has the reasons).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from broker.inspect.source import Source
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, UNFLAGGED_VERSION, ObjectHeader, ObjectKind
from broker.storage.format.page import decode_pages_directory
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.objectstore import NotFound
from broker.storage.paths import ROOT, Key, parse

__all__ = ["PlainObject", "plain_objects", "plain_parts"]

_CIPHER_OF_CORE: Final = 157
_CIPHER_OF_INDEX: Final = 73
_CIPHER_OF_PAGE: Final = 53
_CIPHER_OF_DOCUMENT: Final = HEADER_BYTES + 13
_VERSION: Final = 4
"""The places of the cipher in the section headers, and of the version in a part."""
_NEVER: Final = frozenset((ObjectKind.FORMAT, ObjectKind.CLAIM, ObjectKind.SEAL, ObjectKind.KEYS))


class PlainObject(NamedTuple):
    """An object with plain parts: their number, and that of all parts."""

    key: str
    size: int
    plain: int
    parts: int
    streams: tuple[int, ...]
    """The incarnations of the streams that they belong to; 0: of the shard."""


def plain_parts(data: bytes, key: Key) -> tuple[int, int, tuple[int, ...]]:
    """Return the number of plain parts of a whole object, the number of its parts, and the owners of plain parts.

    Raises: FormatError.
    """
    header = ObjectHeader.unpack(data)
    if header.kind in _NEVER:
        return 0, 0, ()
    if header.kind in (ObjectKind.ROOT, ObjectKind.INBOX):
        plain = header.version == UNFLAGGED_VERSION or not data[_CIPHER_OF_DOCUMENT]
        return int(plain), 1, (0,) if plain else ()
    owners: list[int] = []
    parts = 0
    if header.kind == ObjectKind.PAGES:
        refs = decode_pages_directory(data, header.position, complete=True)
        assert not isinstance(refs, int)
        for ref in refs:
            parts += 1
            if _is_plain(data, ref.offset, _CIPHER_OF_PAGE):
                owners.append(ref.key)
        return len(owners), parts, tuple(dict.fromkeys(owners))
    head = decode_head(data, header.position, kind=header.kind, object_id=header.object_id, complete=True)
    assert isinstance(head, SegmentHead)
    if header.kind == ObjectKind.SEGMENT and not header.position.number:
        return 0, 0, ()  # the opening of an epoch
    for row in head.rows:
        parts += 1
        if _is_plain(data, row.core_offset, _CIPHER_OF_CORE) or (
                row.index_bytes and _is_plain(data, row.index_offset, _CIPHER_OF_INDEX)):
            owners.append(row.stream_id)
    return len(owners), parts, tuple(dict.fromkeys(owners))


def _is_plain(data: bytes, at: int, cipher: int) -> bool:
    return data[at + _VERSION] == UNFLAGGED_VERSION or not data[at + cipher]


async def plain_objects(source: Source) -> AsyncIterator[PlainObject]:
    """Yield the objects with plain parts. An object that is damaged counts as plain. Raises: StoreError."""
    for info in await source.list(ROOT):
        key = parse(info.key)
        if key is None or key.kind in _NEVER:
            continue
        try:
            data = await source.get(info.key)
            plain, parts, streams = plain_parts(data, key)
        except NotFound:
            continue
        except FormatError:
            plain, parts, streams = 1, 1, ()
        if plain:
            yield PlainObject(info.key, info.size, plain, parts, streams)
