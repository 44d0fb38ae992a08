"""The window: frames that were requested from the store and are not decoded yet, as extents of neighbouring frames.

An extent holds neighbouring frames of one block, as they are stored.

Owns: the knowledge which frames are loading or loaded, so that no frame is requested twice; the bound on their bytes.
Does not own: requests and decoding (reader), the decision which frames to read ahead (the callers that read in order).

An extent is dropped when each of its frames has been used. It is also dropped if its room is needed and its other
frames were not used while four times the window's bytes were loaded (it is stale then). A quarter of the window is
reserved for loads that a caller waits for. Otherwise many callers that read ahead would leave only single frames to the
others, and each frame would cost a request. If there is no room, nothing is read ahead, and loads request fewer frames,
at least one. So the window may exceed its bound, but by no more than four times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from broker.storage.format.index import Head

__all__ = ["Extent", "Window"]

_STALE_SHARE = 4
_AHEAD_SHARE = 0.75
"""The share of the bound up to which extents are read ahead; unpacked frames do not count."""
_UNPACKED_SHARE = 0.75
"""The share of the bound up to which frames are unpacked ahead."""
_EXTENTS_MAX = 1024
"""The most extents in the window: their objects take 1 MiB of memory beside their bytes."""
_ALL = 1 << 32
"""More frames than any block has: the end of an extent until the block's index, loaded with it, gives the real one."""


class Extent:
    """Frames ``first`` to ``end`` (half-open) of one block, ``size`` bytes in the store; ``end`` 0 means all frames.

    Attributes:
        ``begun``: called when the first of the frames is decoded, with the ordinal of the message after the last frame.
        ``data``: the stored bytes; None until ``fill``. ``start``: the offset in ``data`` at which the block's frame 0
            begins; it is negative if ``data`` begins with a later frame.
        ``left``: the frames that have not been used. ``passed``: the frames that were used, from the cache, during the
        load. ``bodies``: frames that a thread has unpacked ahead. ``unpacked``: the unpacked bytes of each frame that
            was given to a thread; ``size`` includes them. ``batch_at`` to ``batch_end`` (half-open): the last batch
            given to a thread.
        ``born``: the window's count of loaded bytes when the extent was added.
    """

    __slots__ = ("batch_at", "batch_end", "begun", "block", "bodies", "born", "data", "end", "first", "head", "left",
                 "passed", "read_on", "size", "start", "unpacked")

    def __init__(self, block: Hashable, first: int, end: int, size: int, begun: Callable[[int], None] | None) -> None:
        self.block = block
        self.first = first
        self.end = end or _ALL
        self.size = size
        self.begun = begun
        self.read_on = begun is not None
        """True if the caller that requested the load reads the frames in order."""
        self.head: Head | None = None
        self.data: bytes | None = None
        self.start = 0
        self.left: set[int] = set()
        self.passed: set[int] = set()
        self.born = 0
        self.batch_at = self.batch_end = first
        self.unpacked: dict[int, int] = {}
        self.bodies: dict[int, bytes | memoryview] = {}

    def fill(self, head: Head, data: bytes, index_bytes: int = 0) -> None:
        """Store the loaded ``data``, in which the frames follow ``index_bytes`` bytes of the block's index."""
        self.end = min(self.end, len(head.frames))
        self.left.update(range(self.first, self.end))
        self.left -= self.passed
        self.head, self.data, self.start = head, data, index_bytes - head.frames[self.first].offset

    def frame(self, number: int) -> memoryview:
        """Return the stored bytes of one frame of a loaded extent."""
        if self.head is None or self.data is None:
            raise RuntimeError("the extent is not loaded yet")
        frame = self.head.frames[number]
        at = self.start + frame.offset
        return memoryview(self.data)[at:at + frame.stored_bytes]


class Window:
    """The extents of all blocks, oldest first. An extent counts in ``bytes`` from its request on."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._unpacked = 0
        """The part of ``bytes`` that was unpacked ahead."""
        self._loaded_bytes = 0
        """All bytes ever loaded: the clock by which extents become stale."""
        self._extents: dict[Extent, None] = {}
        self._by_block: dict[Hashable, list[Extent]] = {}

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def find(self, block: Hashable, frame: int) -> Extent | None:
        """Return the extent that has this frame of the block; None if there is none."""
        for extent in self._by_block.get(block, ()):
            if extent.first <= frame < extent.end:
                return extent
        return None

    @property
    def bytes_free(self) -> int:
        """The bytes for which there is room."""
        return max(self.bytes_max - self.bytes, 0) if len(self._extents) < _EXTENTS_MAX else 0

    def make_room(self, size: int) -> bool:
        """Drop stale extents, and if need be the unpacked frames, until there is room for ``size`` bytes.

        Returns: False if there is not enough room in the end.
        """
        while self.bytes + size > self.bytes_max or len(self._extents) >= _EXTENTS_MAX:
            if not self._drop_stale() and not self._drop_unpacked():
                return False
        return True

    def make_room_ahead(self, size: int) -> bool:
        """Do the same as ``make_room`` for an extent that is read ahead, which must leave a part of the window free."""
        while self.bytes - self._unpacked + size > _AHEAD_SHARE * self.bytes_max:
            if not self._drop_stale():
                return False
        return self.make_room(size)

    def _drop_stale(self) -> bool:
        """Drop the oldest extent if it is stale."""
        oldest = next(iter(self._extents), None)
        if oldest is None or self._loaded_bytes - oldest.born <= _STALE_SHARE * self.bytes_max:
            return False
        self.drop(oldest)
        return True

    def _drop_unpacked(self) -> bool:
        """Drop the frames that were unpacked ahead: they only save time, where a load without room costs requests.

        Returns: False if there are none.
        """
        if not self._unpacked:  # this is the common case, and saves a loop over all extents
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
        """Add an extent, even if there is no room for it."""
        self._extents[extent] = None
        self._by_block.setdefault(extent.block, []).append(extent)
        self.bytes += extent.size
        # Very small extents count for more than their size, or a thousand of them would block the window for long.
        self._loaded_bytes += max(extent.size, self.bytes_max // _EXTENTS_MAX)
        extent.born = self._loaded_bytes
        self.make_room(0)

    def drop(self, extent: Extent) -> None:
        """Remove an extent from the window; callers that hold it can still use it."""
        if extent not in self._extents:
            return
        del self._extents[extent]
        self.bytes -= extent.size
        self._unpacked -= sum(extent.unpacked.values())
        rest = self._by_block[extent.block]
        rest.remove(extent)
        if not rest:
            del self._by_block[extent.block]

    def reserve_unpacked(self, extent: Extent, frames: dict[int, int]) -> bool:
        """Count the bytes of frames of ``extent`` that are about to be unpacked ahead.

        Args: frames has the unpacked bytes of each frame by its number.
        Returns: False if there is no room for them.
        """
        size = sum(frames.values())
        if extent not in self._extents or self.bytes + size > _UNPACKED_SHARE * self.bytes_max:
            return False
        extent.unpacked |= frames
        extent.size += size
        self.bytes += size
        self._unpacked += size
        return True

    def drop_if_used(self, extent: Extent) -> None:
        """Drop an extent that was just filled if all of its frames were used, from the cache, during the load."""
        if not extent.left:
            self.drop(extent)

    def mark_used(self, extent: Extent, number: int) -> None:
        """Record that a frame of the extent is in the cache and was used; drop the extent after its last frame."""
        if extent.data is None:
            extent.passed.add(number)
            return
        extent.left.discard(number)
        size = extent.unpacked.pop(number, 0)
        extent.bodies.pop(number, None)  # a thread may have unpacked the frame while the loop decoded it
        if extent in self._extents:
            extent.size -= size
            self.bytes -= size
            self._unpacked -= size
            if not extent.left:
                self.drop(extent)

    def skip_before(self, extent: Extent, number: int) -> None:
        """Record that the frames before ``number`` will not be used: the reader in order begins with this frame."""
        extent.left.difference_update(range(extent.first, number))
