"""What was asked of the store and not yet decoded: extents, each of neighbouring frames of one block, as they are stored.

Owns: which frames are on their way or here, so that nobody asks for them twice; the bound on their bytes.
Does not own: requests and decoding (reader), what is worth loading ahead (whoever reads in order).

An extent leaves the window when each of its frames has been decoded, or when nobody came for the rest of it while four times
the window was loaded, and its room is needed. Where there is no room, nothing is read ahead, and loads take single frames: with
those that nobody waits for any more, it has no more than four times its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from broker.storage.format.index import Head

__all__ = ["Extent", "Window"]

_STALE_SHARE = 4
_EXTENTS_MAX = 1024
"""Bounds what they take beside their bytes: 1 MiB."""
_ALL = 1 << 32
"""More frames than any block has: of an extent whose index is on its way with the frames."""


class Extent:
    """Frames ``first`` to ``end`` (half-open) of one block, ``size`` bytes in the store; ``end`` 0: all of the block's.

    ``begun`` is called when the first of them is decoded, with the ordinal after the last. ``data`` is None until ``came``;
    then ``start`` is where the block's frames would begin in it.
    """

    __slots__ = ("begun", "block", "born", "data", "end", "first", "head", "left", "size", "start")

    def __init__(self, block: Hashable, first: int, end: int, size: int, begun: Callable[[int], None] | None) -> None:
        self.block = block
        self.first = first
        self.end = end or _ALL
        self.size = size
        self.begun = begun
        self.head: Head | None = None
        self.data: bytes | None = None
        self.start = 0
        self.left: set[int] = set()
        self.born = 0

    def came(self, head: Head, data: bytes, index_bytes: int = 0) -> None:
        """It is here, behind so many bytes of the block's index."""
        self.end = min(self.end, len(head.frames))
        self.left.update(range(self.first, self.end))
        self.head, self.data, self.start = head, data, index_bytes - head.frames[self.first].offset

    def frame(self, number: int) -> bytes:
        """The stored bytes of one of its frames, once it is here."""
        if self.head is None or self.data is None:
            raise RuntimeError("the extent is on its way")
        frame = self.head.frames[number]
        at = self.start + frame.offset
        return self.data[at:at + frame.stored_bytes]


class Window:
    """The extents of all blocks, oldest first; ``bytes`` of them count from the request on."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._loaded_bytes = 0
        """In all, ever: the clock by which extents become stale."""
        self._extents: dict[Extent, None] = {}
        self._of_block: dict[Hashable, list[Extent]] = {}

    def __len__(self) -> int:
        return len(self._extents)

    def find(self, block: Hashable, frame: int) -> Extent | None:
        """The extent with a frame of a block."""
        for extent in self._of_block.get(block, ()):
            if extent.first <= frame < extent.end:
                return extent
        return None

    def room(self, size: int) -> bool:
        """Whether there is room for so many bytes, after stale extents have left."""
        while self.bytes + size > self.bytes_max or len(self._extents) >= _EXTENTS_MAX:
            oldest = next(iter(self._extents), None)
            if oldest is None or self._loaded_bytes - oldest.born <= _STALE_SHARE * self.bytes_max:
                return False
            self.drop(oldest)
        return True

    def add(self, extent: Extent) -> None:
        """Count it, whether there is room or not."""
        self._extents[extent] = None
        self._of_block.setdefault(extent.block, []).append(extent)
        self.bytes += extent.size
        # Very small ones count for more, or a thousand of them would keep others out for long.
        self._loaded_bytes += max(extent.size, self.bytes_max // _EXTENTS_MAX)
        extent.born = self._loaded_bytes
        self.room(0)

    def drop(self, extent: Extent) -> None:
        """Forget it; who holds it may use it still."""
        if extent not in self._extents:
            return
        del self._extents[extent]
        self.bytes -= extent.size
        rest = self._of_block[extent.block]
        rest.remove(extent)
        if not rest:
            del self._of_block[extent.block]

    def decoded(self, extent: Extent, number: int) -> None:
        """One of its frames is in the cache."""
        extent.left.discard(number)
        if not extent.left:
            self.drop(extent)
