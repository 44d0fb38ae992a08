"""Frames decompressed and compared with their checksums in a thread, before somebody asks for them.

Owns: which frames, and how many. Does not own: extents and the bound on their bytes (window), cutting frames into messages
(format).

    an extent came ── its first batch ──> thread ──> extent.bodies ── asked for ──> cut into messages, on the loop
                      the next one, when a frame of the last is asked for

Nobody waits for the thread: who asks sooner has the frame decoded on the loop, and whatever is wrong with a frame shows there.
"""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import suppress

from broker.storage.format.errors import FormatError
from broker.storage.format.index import frame_body
from broker.storage.read.window import Extent, Window

__all__ = ["Unpacker"]

_BATCH_BYTES = 1 << 20
"""Of a batch, decompressed: half a millisecond in the thread. Smaller ones cost the loop as much as they save."""

_FRAMES_MIN = 4
"""An extent of fewer frames is hardly worth a thread's attention."""


class Unpacker:
    """Unpacks the frames of a window's extents."""

    def __init__(self, window: Window, executor: Executor) -> None:
        self._window = window
        self._executor = executor

    def came(self, extent: Extent, name: str) -> None:
        """``extent`` of the object ``name`` is here."""
        if extent.read_on:
            self._next(extent, extent.first, name)

    def taken(self, extent: Extent, number: int, name: str) -> bytes | memoryview | None:
        """A frame that is asked for now, as of ``frame_body``; None: it is not unpacked yet."""
        if extent.batch_at <= number and extent.batch_end < extent.end and extent.read_on:
            self._next(extent, max(extent.batch_end, number + 1), name)
        return extent.bodies.pop(number, None)

    def _next(self, extent: Extent, start: int, name: str) -> None:
        """Begin the next batch, from frame ``start`` on, if there is room for it."""
        if extent.head is None or len(extent.left) < _FRAMES_MIN:
            return
        frames, end = extent.head.frames, start
        batch: dict[int, int] = {}
        while end < extent.end and sum(batch.values()) < _BATCH_BYTES:
            if end in extent.left:
                batch[end] = frames[end].raw_bytes
            end += 1
        if batch and self._window.unpack(extent, batch):
            extent.batch_at, extent.batch_end = start, end
            with suppress(RuntimeError):  # the broker stops, and its threads have ended
                self._executor.submit(_unpack, extent, list(batch), name)


def _unpack(extent: Extent, numbers: list[int], name: str) -> None:
    """In a thread. Other threads see each frame as soon as it is there; dicts need no lock for that."""
    head, wanted, bodies = extent.head, extent.unpacked, extent.bodies
    if head is None:
        return
    with suppress(FormatError):
        for number in numbers:
            if number in wanted:
                bodies[number] = frame_body(head, number, extent.frame(number), name)
                if number not in wanted:  # the loop was sooner, or needed the room
                    bodies.pop(number, None)
