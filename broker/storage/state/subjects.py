"""The pages of a checkpoint with the subjects of a stream's messages: a page for each range of sequences.

A page stays valid for its range (see ``subject_rows``), so it is neither replayed nor changed, not even by removals or
compaction. The subjects of messages without a page are read from their blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, object_name
from broker.storage.format.page import PageKind, PageRef, decode_page
from broker.storage.format.subject_rows import SubjectRows

__all__ = ["SubjectPage", "covering", "decode_subjects"]


@dataclass(frozen=True, slots=True)
class SubjectPage:
    """A page with the subjects of ``count`` messages: those in first_seq..last_seq that were live when it was made."""

    first_seq: int
    last_seq: int
    count: int
    place: PageRef

    def pack(self) -> list[Any]:
        """Return the reference to the page as a value for a directory page."""
        return [self.first_seq, self.last_seq, self.count, self.place.pack()]

    @classmethod
    def unpack(cls, packed: Any, after: int) -> SubjectPage:
        """Return the packed reference; ``after`` is the last sequence of the previous page.

        Raises: ValueError, TypeError or Corrupt.
        """
        first_seq, last_seq, count, ref = packed
        place = PageRef.unpack(ref)
        if not after < first_seq <= last_seq or count <= 0 or place.kind != PageKind.SUBJECTS:
            raise ValueError("the pages of a stream's subjects are not in order")
        return cls(first_seq, last_seq, count, place)


def covering(pages: Sequence[SubjectPage], seq: int) -> SubjectPage | None:
    """Return the page whose range contains ``seq``, or None."""
    at = bisect_right(pages, seq, key=_first_seq) - 1
    return pages[at] if at >= 0 and pages[at].last_seq >= seq else None


def decode_subjects(data: bytes, page: SubjectPage) -> SubjectRows:
    """Return the rows of ``page``; ``data`` are the bytes at its place. Raises: Corrupt; VersionUnknown."""
    body = decode_page(data, page.place).body
    try:
        rows = SubjectRows.unpack(body)
        if (rows.first_seq, rows.last_seq, rows.count) != (page.first_seq, page.last_seq, page.count):
            raise ValueError("it does not match the directory")
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise Corrupt(object_name(ObjectKind.PAGES, page.place.position), "page", page.place.offset,
                      str(error)) from None
    return rows


def _first_seq(page: SubjectPage) -> int:
    return page.first_seq
