"""Block tables for planning queries on very many blocks: subject summaries stay packed until they are used.

A block's reference takes about 0.6 KiB, a summary of 16 subjects 3.5 KiB more; packed it is a sixth of that. Most
queries use few summaries or none, so a page is read without creating objects for them.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from broker.storage.format.block import BlockRef, SubjectSummary, unpack_summary
from broker.storage.format.codec import SECTION_BYTES_MAX, Unpackable, unpack_value
from broker.storage.format.errors import Corrupt
from broker.storage.format.subject_filter import check_filter

__all__ = ["LazyBlockRef", "unpack_table_page"]

_REF_NUMBERS: Final = 17
"""The count of numbers at the beginning of a packed BlockRef; its subjects or their filter follow."""

_BINARY: Final = (0xC4, 0xC5, 0xC6)
"""The first bytes of msgpack values that are binary."""


class LazyBlockRef(BlockRef):
    """A BlockRef that unpacks its ``subjects`` at each access: get them once, and keep them no longer than needed.

    The access raises Corrupt if they are not a summary.
    """

    __slots__ = ("_packed",)

    @classmethod
    def unpack(cls, packed: Any) -> BlockRef:
        """Do the same as ``BlockRef.unpack``, with subjects as bytes. Raises: Corrupt."""
        ref = super().unpack([*packed[:-1], None])
        subjects = packed[-1]
        if subjects is not None and subjects[0] in _BINARY:
            try:
                ref.subject_filter = check_filter(unpack_value(subjects))
            except ValueError as error:
                raise Corrupt("block reference", "subjects", 0, str(error)) from None
        else:
            ref.subjects = subjects
        return ref

    @property
    def subjects(self) -> SubjectSummary | None:
        packed = self._packed
        if not isinstance(packed, bytes):
            return packed
        try:
            return unpack_summary(unpack_value(packed))
        except (TypeError, ValueError) as error:
            raise Corrupt("block reference", "subjects", 0, str(error)) from None

    @subjects.setter
    def subjects(self, value: SubjectSummary | bytes | None) -> None:
        self._packed = value


def unpack_table_page(body: bytes) -> list[Any]:
    """Unpack the body of a BLOCKS page as ``unpack_value`` does, but leave the subjects of its references packed.

    Subjects, if present, are the bytes of one msgpack value. Raises: Unpackable.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=SECTION_BYTES_MAX, raw=False, strict_map_key=False,
                                unicode_errors="surrogatepass")
    unpacker.feed(body)
    unpack, array = unpacker.unpack, unpacker.read_array_header
    try:
        if array() != 2:
            raise Unpackable("not a page of a block table")
        room = unpack()
        entries: list[Any] = []
        for _ in range(array()):
            parts = array()
            if array() != _REF_NUMBERS + 1:
                raise Unpackable("a block reference of another length")
            ref = [unpack() for _ in range(_REF_NUMBERS)]
            start = unpacker.tell()
            unpacker.skip()
            subjects = body[start:unpacker.tell()]
            ref.append(None if subjects == b"\xc0" else subjects)
            entries.append([ref, *[unpack() for _ in range(parts - 1)]])
        if unpacker.tell() != len(body):
            raise Unpackable("something follows the page")
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgpack.UnpackException) as error:
        raise Unpackable(f"not msgpack: {error!r}") from None
    return [room, entries]
