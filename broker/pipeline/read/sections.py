"""The stored sections of a block's bodies as numpy columns: which messages each has, and where.

Bodies have *places*, in the order in which they are stored. Usually that is the order of the messages, and a section
is a frame. In a grouped block (``storage.format.frame``) the bodies of each frame are sorted by subject and cut into
parts. Then the wanted messages of a few subjects are in a few parts.

    order     the ordinal of the message at each place
    places    the place of each message
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from broker.pipeline.read.columns import Numbers
from broker.storage.format.codec import SECTION_BYTES_MAX
from broker.storage.format.frame import Frame
from broker.storage.format.index import Head

__all__ = ["Rows", "Sections", "as_array", "bounded", "values_at"]

Rows = range | Numbers
"""Ordinals of a block, ascending."""


class Sections:
    """The sections of one block.

    Attributes: ``table`` has a row for each, whose ``start`` and ``messages`` count places. ``order`` and ``places``
        are None if each message's place is its ordinal.
    """

    __slots__ = ("_starts_made", "order", "places", "table")

    def __init__(self, head: Head) -> None:
        self.table: Sequence[Frame] = head.frames
        self.order: Numbers | None = None
        self.places: Numbers | None = None
        if head.grouped:
            self._place(head)
        self._starts_made: Numbers | None = None

    def holding(self, rows: Rows) -> list[int]:
        """Return the numbers of the sections with these messages, ascending."""
        if len(rows) == self.table[-1].start + self.table[-1].messages:
            return list(range(len(self.table)))
        if self.places is not None:
            return self._sections_at(self.places[as_array(rows)])
        if not isinstance(rows, range):
            return self._sections_at(rows)
        if not rows:
            return []
        first, last = np.searchsorted(self._starts, [rows.start, rows.stop - 1], "right") - 1
        return list(range(int(first), int(last) + 1))

    def members(self, numbers: Sequence[int]) -> Rows:
        """Return the ordinals of all messages in some sections, in the order of their places."""
        first, last = self.table[numbers[0]], self.table[numbers[-1]]
        end = last.start + last.messages
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            return range(first.start, end) if self.order is None else self.order[first.start:end]
        places = np.concatenate([np.arange(section.start, section.start + section.messages)
                                 for section in (self.table[number] for number in numbers)])
        return places if self.order is None else self.order[places]

    def among(self, rows: Rows, numbers: Sequence[int]) -> Rows:
        """Return where ``rows`` are among the ``members`` of the sections that hold them."""
        first, last = numbers[0], numbers[-1]
        if last - first + 1 == len(numbers):
            start = self.table[first].start
            if self.places is not None:
                return self.places[as_array(rows)] - start
            return range(rows.start - start, rows.stop - start) if isinstance(rows, range) else rows - start
        places = as_array(rows) if self.places is None else self.places[as_array(rows)]
        some = [self.table[number] for number in numbers]
        starts = np.asarray([section.start for section in some])
        before = np.cumsum([0, *(section.messages for section in some[:-1])])
        at = np.searchsorted(starts, places, "right") - 1
        shifted: Numbers = places - starts[at] + before[at]
        return shifted

    @property
    def _starts(self) -> Numbers:
        if self._starts_made is None:
            self._starts_made = np.asarray([section.start for section in self.table])
        return self._starts_made

    def _sections_at(self, places: Numbers) -> list[int]:
        return np.unique(np.searchsorted(self._starts, places, "right") - 1).tolist()  # type: ignore[no-any-return]

    def _place(self, head: Head) -> None:
        """Compute the places of a grouped block. Bodies are not checked here: the caller compares their lengths."""
        count, frames = head.count, head.frames
        order = np.arange(count)
        if head.subject_ids is not None:
            ids: Any = head.subject_ids
            for frame in frames:
                start, end = frame.start, frame.start + frame.messages
                order[start:end] = np.argsort(ids[start:end], kind="stable") + start
        self.order = order
        self.places = np.empty(count, np.int64)
        self.places[order] = np.arange(count)
        ends = np.cumsum(np.broadcast_to(bounded(head.body_len, head.body_lens, order), count))
        headers = [header for frame in frames for header in frame.parts]
        begins = np.cumsum([0, *(header[0] for header in headers)])
        # A message without a body belongs to the part before it; each of its zero bytes is in any part.
        starts = np.minimum(np.searchsorted(ends, begins, "right"), count)
        starts[0], starts[-1] = 0, count
        offsets = np.cumsum([0, *(header[1] for header in headers)])
        self.table = [Frame(int(starts[i]), int(starts[i + 1] - starts[i]), int(offsets[i]), *header)
                      for i, header in enumerate(headers)]


def values_at(column: Any, rows: Rows) -> Numbers:
    """The values of ``rows`` in a column."""
    some: Numbers = column[rows.start:rows.stop] if isinstance(rows, range) else column[rows]
    return some


def as_array(rows: Rows) -> Numbers:
    """Return ``rows`` as an array."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows


def bounded(value: int, column: Any, rows: Rows) -> Numbers | int:
    """Return the lengths of ``rows``: those of ``column``, or all ``value``. A length that exceeds any section is wrong
    in any place. It is clipped to a value that is wrong, too, and with which sums do not wrap."""
    most = SECTION_BYTES_MAX + 1
    if column is None:
        return min(value, most)
    lens = values_at(column, rows)
    return np.minimum(lens, most) if lens.itemsize > 2 else lens
