"""What was asked of the store and not yet decoded: extents, each of neighbouring frames of one block, as they are stored.

Owns: which frames are on their way or here, so that nobody asks for them twice; the bound on their bytes.
Does not own: requests and decoding (reader), what is worth loading ahead (whoever reads in order).

An extent leaves the window when each of its frames has been used, or when nobody came for the rest of it while four times the
window was loaded, and its room is needed. A quarter of the window is for what somebody waits for: if many readers read ahead,
others would be left with single frames, and each frame costs a request. Where there is no room, nothing is read ahead, and loads
take fewer frames, in the end one: with those that nobody waits for any more, it has no more than four times its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from broker.storage.format.index import Head

__all__ = ["Extent", "Window"]

_STALE_SHARE = 4
_AHEAD_SHARE = 0.75
"""Extents are loaded ahead while no more than so much of the bound is used, not counting what was unpacked."""
_UNPACKED_SHARE = 0.75
"""Frames are unpacked ahead while no more than so much of the bound is used."""
_EXTENTS_MAX = 1024
"""Bounds what they take beside their bytes: 1 MiB."""
_ALL = 1 << 32
"""More frames than any block has: of an extent whose index is on its way with the frames."""


class Extent:
    """Frames ``first`` to ``end`` (half-open) of one block, ``size`` bytes in the store; ``end`` 0: all of the block's.

    ``begun`` is called when the first of them is decoded, with the ordinal after the last. ``data`` is None until ``came``;
    then ``start`` is where the block's frames would begin in it. ``left`` are the frames that have not been used yet; ``passed``
    those that were used, from the cache, while it was on its way.

    Frames unpacked ahead are in ``bodies`` from when a thread is done with them; ``unpacked`` has what those take that have been
    given to it, and ``size`` includes that. ``batch_at`` to ``batch_end`` (half-open) were given last.
    """

    __slots__ = ("batch_at", "batch_end", "begun", "block", "bodies", "born", "data", "end", "first", "head", "left", "passed",
                 "read_on", "size", "start", "unpacked")

    def __init__(self, block: Hashable, first: int, end: int, size: int, begun: Callable[[int], None] | None) -> None:
        self.block = block
        self.first = first
        self.end = end or _ALL
        self.size = size
        self.begun = begun
        self.read_on = begun is not None
        """Whether whoever had it loaded reads its frames in order."""
        self.head: Head | None = None
        self.data: bytes | None = None
        self.start = 0
        self.left: set[int] = set()
        self.passed: set[int] = set()
        self.born = 0
        self.batch_at = self.batch_end = first
        self.unpacked: dict[int, int] = {}
        self.bodies: dict[int, bytes | memoryview] = {}

    def came(self, head: Head, data: bytes, index_bytes: int = 0) -> None:
        """It is here, behind so many bytes of the block's index."""
        self.end = min(self.end, len(head.frames))
        self.left.update(range(self.first, self.end))
        self.left -= self.passed
        self.head, self.data, self.start = head, data, index_bytes - head.frames[self.first].offset

    def frame(self, number: int) -> memoryview:
        """The stored bytes of one of its frames, once it is here."""
        if self.head is None or self.data is None:
            raise RuntimeError("the extent is on its way")
        frame = self.head.frames[number]
        at = self.start + frame.offset
        return memoryview(self.data)[at:at + frame.stored_bytes]


class Window:
    """The extents of all blocks, oldest first; ``bytes`` of them count from the request on."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._unpacked = 0
        """Of them, what was unpacked ahead."""
        self._loaded_bytes = 0
        """In all, ever: the clock by which extents become stale."""
        self._extents: dict[Extent, None] = {}
        self._of_block: dict[Hashable, list[Extent]] = {}

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def find(self, block: Hashable, frame: int) -> Extent | None:
        """The extent with a frame of a block."""
        for extent in self._of_block.get(block, ()):
            if extent.first <= frame < extent.end:
                return extent
        return None

    @property
    def left(self) -> int:
        """Bytes for which there is room."""
        return max(self.bytes_max - self.bytes, 0) if len(self._extents) < _EXTENTS_MAX else 0

    def room(self, size: int) -> bool:
        """Whether there is room for so many bytes, after stale extents have left, and if need be what was unpacked."""
        while self.bytes + size > self.bytes_max or len(self._extents) >= _EXTENTS_MAX:
            if not self._drop_stale() and not self._pack():
                return False
        return True

    def room_ahead(self, size: int) -> bool:
        """The same for what nobody waits for yet."""
        while self.bytes - self._unpacked + size > _AHEAD_SHARE * self.bytes_max:
            if not self._drop_stale():
                return False
        return self.room(size)

    def _drop_stale(self) -> bool:
        """Drop the oldest extent if it is stale."""
        oldest = next(iter(self._extents), None)
        if oldest is None or self._loaded_bytes - oldest.born <= _STALE_SHARE * self.bytes_max:
            return False
        self.drop(oldest)
        return True

    def _pack(self) -> bool:
        """Forget what was unpacked ahead, which saves time; a load without room costs requests. False: there is nothing."""
        if not self._unpacked:  # most often: then no load has to look at all extents
            return False
        before = self.bytes
        for extent in self._extents:
            size = sum(extent.unpacked.values())
            extent.unpacked.clear()
            extent.bodies.clear()
            extent.size -= size
            self.bytes -= size
        self._unpacked = 0
        return self.bytes < before

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
        self._unpacked -= sum(extent.unpacked.values())
        rest = self._of_block[extent.block]
        rest.remove(extent)
        if not rest:
            del self._of_block[extent.block]

    def unpack(self, extent: Extent, frames: dict[int, int]) -> bool:
        """Count so many bytes of frames of ``extent``, by number, that are about to be unpacked. False: there is no room."""
        size = sum(frames.values())
        if extent not in self._extents or self.bytes + size > _UNPACKED_SHARE * self.bytes_max:
            return False
        extent.unpacked |= frames
        extent.size += size
        self.bytes += size
        self._unpacked += size
        return True

    def came(self, extent: Extent) -> None:
        """It is here; it leaves at once if all of it was in the cache, and used, before."""
        if not extent.left:
            self.drop(extent)

    def used(self, extent: Extent, number: int) -> None:
        """One of its frames is in the cache, and somebody has used it."""
        if extent.data is None:
            extent.passed.add(number)
            return
        extent.left.discard(number)
        size = extent.unpacked.pop(number, 0)
        extent.bodies.pop(number, None)  # a thread may have been done with it while it was decoded
        if extent in self._extents:
            extent.size -= size
            self.bytes -= size
            self._unpacked -= size
            if not extent.left:
                self.drop(extent)

    def skip(self, extent: Extent, number: int) -> None:
        """Whoever reads on begins with this frame: nobody comes for those before it."""
        extent.left.difference_update(range(extent.first, number))
