"""Loads data that the readers of one stream need next from the store, before they ask for it.

Owns: the choice and number of extents that are loaded ahead. Does not own: loading and its limits (storage.read).

    an extent loaded on demand ── read of it begins ──> 2 extents ahead ── read of the first begins ──> 4 ahead, then 8,
                                                                           until a read finds nothing loaded

Of 8 extents, two neighbours are loaded by one GET. With the last extents of a block, the index of the next block is
loaded, too: its extents are known only then.

Readers are not registered: whoever decodes the first frame of an extent causes the next extents to be loaded. A load on
demand starts this only if it continues an earlier one. So single messages, redelivered in any order, cost no more than
their own extents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.filters import Filters
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.live import Live
    from broker.storage.read.reader import BlockReader

__all__ = ["ReadAhead"]

_AHEAD_MIN, _AHEAD_MAX = 2, 8
"""Extents being loaded or waiting, of about 1 MiB."""

_GETS = 4
"""A reader that has most extents ahead loads them by so many GETs at once: at 40 ms to S3, they give 130 MB/s."""

_SMALL_MAX = 16
"""Maximum number of small blocks that are loaded ahead instead."""

_EXTENT_BYTES = 1 << 20

_ENDS_MAX = 64
"""Number of readers that are recognised when they continue at the end of their last extent."""


class ReadAhead:
    """The loading ahead for all readers of one stream."""

    def __init__(self, live: Live, reader: BlockReader, may_match: Callable[[LiveBlock, Filters], bool]) -> None:
        """Args: ``may_match`` returns, from memory, whether a block may have a match."""
        self._live = live
        self._reader = reader
        self._may_match = may_match
        self._ends: dict[int, None] = {}

    def on_begun(self, block: LiveBlock, seq: int, filters: Filters | None) -> Callable[[int], None]:
        """Return the function to call when the reading of an extent, loaded on demand for ``seq``, begins."""
        if filters is None:
            if seq not in self._ends:
                return partial(self._note_reader, block)
            del self._ends[seq]
        return partial(self._load_ahead, block, filters, _AHEAD_MIN)

    def _note_reader(self, block: LiveBlock, ordinal: int) -> None:
        """Remember that a reader may continue at message ``ordinal``."""
        if ordinal >= block.count:
            following = self._after(block, None)
            if following is None:
                return
            seq = max(following.first_seq, self._live.first_seq)
        elif block.gapless:
            seq = block.first_seq + ordinal
        else:
            self._load_ahead(block, None, _AHEAD_MIN, ordinal)
            return
        self._ends[seq] = None
        if len(self._ends) > _ENDS_MAX:
            del self._ends[next(iter(self._ends))]

    def _load_ahead(self, block: LiveBlock, filters: Filters | None, extents: int, ordinal: int) -> None:
        """Load ``extents`` ahead, from message ``ordinal`` of ``block`` on."""
        if not self._live.holds(block):
            return
        begun, left = min(2 * extents, _AHEAD_MAX), extents * _EXTENT_BYTES
        for _ in range(_SMALL_MAX):
            if ordinal >= block.count:
                following = self._after(block, filters)
                if following is None:
                    return
                block, ordinal = following, 0
                if block.first_seq < self._live.first_seq and block.gapless:
                    ordinal = self._live.first_seq - block.first_seq
            if block.ref is None or block.chunks is not None:
                return
            end = self._reader.read_ahead(block, ordinal, partial(self._load_ahead, block, filters, begun),
                                          max(1, extents // _GETS))
            if end is None:
                return
            left -= block.ref.frames_bytes * (end - ordinal) // block.count
            if left <= 0:
                following = self._after(block, filters) if end >= block.count else None
                if following is not None and following.ref is not None and following.chunks is None:
                    self._reader.read_head_ahead(following)
                return
            ordinal = end

    def _after(self, block: LiveBlock, filters: Filters | None) -> LiveBlock | None:
        """Return the next block that has messages for a reader; None if there is none or it is not stored yet."""
        live = self._live
        start = live.index_at(block.last_seq + 1)
        for i in range(start, min(len(live.blocks), start + _SMALL_MAX)):
            following = live.blocks[i]
            if following.open is not None:
                return None
            if following.live_msgs and (filters is None or self._may_match(following, filters)):
                return following
        return None
