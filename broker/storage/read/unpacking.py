"""Unpacking ahead: a thread decompresses frames and checks their checksums, before a caller needs them.

Owns: the choice of the frames and their number. Does not own: extents and the bound on their bytes (window), cutting
frames into messages (format).

    an extent is loaded ── its first batch ──> thread ──> extent.bodies ── a caller needs a frame ──> the loop cuts it
                           the next batch, when a caller needs a frame of the last one

Nobody waits for the thread: a frame that is needed earlier is decoded on the loop. A damaged frame, too, is decoded
again on the loop, which reports the damage. A frame that is stored as it is has only its checksum to be computed: that
takes less time than passing the GIL to the thread and back.
"""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import suppress

from broker.storage.format.errors import FormatError
from broker.storage.format.frames import frame_body
from broker.storage.read.window import Extent, Window

__all__ = ["Unpacker"]

_BATCH_BYTES = 1 << 20
"""The decompressed bytes of a batch: half a millisecond in the thread. Smaller batches would not save time."""

_FRAMES_MIN = 4
"""An extent of fewer frames is not unpacked ahead: it would save too little."""


class Unpacker:
    """Unpacks the frames of a window's extents in a thread."""

    def __init__(self, window: Window, executor: Executor) -> None:
        self._window = window
        self._executor = executor

    def begin(self, extent: Extent, name: str) -> None:
        """Begin with the first batch of an extent of the object ``name``, which has just been loaded."""
        if extent.read_on:
            self._begin_batch(extent, extent.first, name)

    def pop_frame(self, extent: Extent, number: int, name: str) -> bytes | memoryview | None:
        """Remove and return an unpacked frame, as ``frame_body`` gives it; None if it is not unpacked yet.

        Begins the next batch if the frame belongs to the last one.
        """
        if extent.batch_at <= number and extent.batch_end < extent.end and extent.read_on:
            self._begin_batch(extent, max(extent.batch_end, number + 1), name)
        return extent.bodies.pop(number, None)

    def _begin_batch(self, extent: Extent, start: int, name: str) -> None:
        """Begin the next batch, from frame ``start`` on, if there is room for it."""
        if extent.head is None or len(extent.left) < _FRAMES_MIN:
            return
        frames, end = extent.head.frames, start
        batch: dict[int, int] = {}
        while end < extent.end and sum(batch.values()) < _BATCH_BYTES:
            if end in extent.left and (frames[end].form or frames[end].parts):
                batch[end] = frames[end].raw_bytes
            end += 1
        if not batch:
            extent.batch_at, extent.batch_end = start, end  # all of these are used, or stored as they are
        elif self._window.reserve_unpacked(extent, batch):
            extent.batch_at, extent.batch_end = start, end
            with suppress(RuntimeError):  # the broker stops, and its threads have ended
                self._executor.submit(_unpack, extent, list(batch), name)


def _unpack(extent: Extent, numbers: list[int], name: str) -> None:
    """Unpack frames, in a thread. The loop sees each frame as soon as it is in ``bodies``, without a lock."""
    head, wanted, bodies = extent.head, extent.unpacked, extent.bodies
    if head is None:
        return
    with suppress(FormatError):
        for number in numbers:
            if number in wanted:
                bodies[number] = frame_body(head, number, extent.frame(number), name)
                if number not in wanted:  # the loop decoded it meanwhile, or needed the room
                    bodies.pop(number, None)
