"""What a reader of one stream needs next, asked of the store before it gets there.

Owns: which extents are loaded ahead, and how many. Does not own: loading and its bounds (storage.read).

    loaded on demand ── begun ──> 2 extents ahead ── the first begun ──> 4 ahead, and so on until a read finds nothing loaded

Nobody registers as a reader: whoever decodes the first frame of an extent has what comes after it loaded. A demand begins that
only where it continues an earlier one, so that single messages, redelivered in any order, cost no more than their extents.
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

_AHEAD_MIN, _AHEAD_MAX = 2, 4
"""Extents on their way or waiting, of about 1 MiB: with 40 ms to S3 four make 100 MB/s."""

_SMALL_MAX = 16
"""The same, of small blocks."""

_EXTENT_BYTES = 1 << 20

_ENDS_MAX = 64
"""Readers that are recognised when they come to the end of what they loaded."""


class ReadAhead:
    """Reading ahead for all readers of one stream."""

    def __init__(self, live: Live, reader: BlockReader, may_match: Callable[[LiveBlock, Filters], bool]) -> None:
        """``may_match`` tells from memory whether a block may have a match."""
        self._live = live
        self._reader = reader
        self._may_match = may_match
        self._ends: dict[int, None] = {}

    def on_begun(self, block: LiveBlock, seq: int, filters: Filters | None) -> Callable[[int], None]:
        """What to call when an extent, loaded on demand for a reader at ``seq``, has begun to be read."""
        if filters is None:
            if seq not in self._ends:
                return partial(self._note_reader, block)
            del self._ends[seq]
        return partial(self._load_ahead, block, filters, _AHEAD_MIN)

    def _note_reader(self, block: LiveBlock, ordinal: int) -> None:
        """A reader may come to want what follows message ``ordinal - 1``."""
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
        """Have ``extents`` loaded from message ``ordinal`` of ``block`` on."""
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
            end = self._reader.read_ahead(block, ordinal, partial(self._load_ahead, block, filters, begun))
            if end is None:
                return
            left -= block.ref.frames_bytes * (end - ordinal) // block.count
            if left <= 0:
                return
            ordinal = end

    def _after(self, block: LiveBlock, filters: Filters | None) -> LiveBlock | None:
        """The next block with something for a reader, unless it is not stored yet."""
        live = self._live
        for i in range(live.index_at(block.last_seq + 1), min(len(live.blocks), live.index_at(block.last_seq + 1) + _SMALL_MAX)):
            following = live.blocks[i]
            if following.open is not None:
                return None
            if following.live_msgs and (filters is None or self._may_match(following, filters)):
                return following
        return None
