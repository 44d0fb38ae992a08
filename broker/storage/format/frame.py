"""Frames: the bodies of successive messages of a block, about 128 KiB of them, compressed together.

    raw frame   body | body | …             body = header bytes + payload, exactly as published
    stored      a section: its zstd form, or the raw bytes if zstd saves nothing

The block's index has lengths, subjects, times and the CRC of each stored frame. So bodies are side by side, and a
columnar reader uses a frame as one buffer with offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.storage.format.section import SectionHeader

__all__ = ["FRAME_BYTES", "FRAME_MESSAGES_MAX", "Chunk", "Frame"]

FRAME_BYTES: Final = 128 * 1024
"""A frame is closed before it exceeds this; a larger message has a frame of its own."""

FRAME_MESSAGES_MAX: Final = 4096
"""Bounds the decoding for one small get, and the loop's time for a chunk."""

_BYTES_OF_ROW: Final = 33 + 8 + 8 + 8
"""Memory of a message apart from the bytes of its body: the bytes object, its place in two lists, and its time."""


class Frame(NamedTuple):
    """A row of a block's frame table."""

    start: int
    """The ordinal of its first message in the block."""
    messages: int
    offset: int
    """The offset in bytes from the beginning of the block's frames."""
    raw_bytes: int
    stored_bytes: int
    crc: int = 0
    """crc32 of the stored bytes; 0 until the block is encoded."""
    form: int = 0

    @property
    def header(self) -> SectionHeader:
        """The header of the frame as a section: the last four fields."""
        return self[3:]


class Chunk:
    """The messages of one frame as columns, all of one length. All readers share it, so it is never changed.

    Attributes: start is the ordinal of the first message in its block. first_seq and last_seq are the sequences of the
        first and the last message. seqs is None if they have no gap. hlens is None if no message has headers. times are
        UTC ns. size is about its memory in bytes.
    """

    __slots__ = ("__weakref__", "bodies", "first_seq", "hlens", "last_seq", "seqs", "size", "start", "subjects",
                 "times")

    def __init__(self, start: int, first_seq: int, seqs: Sequence[int] | None, subjects: Sequence[bytes],
                 hlens: Sequence[int] | None, bodies: Sequence[bytes], times: Sequence[int], body_bytes: int) -> None:
        self.start = start
        self.first_seq = first_seq
        self.last_seq = first_seq + len(bodies) - 1 if seqs is None else seqs[-1]
        self.seqs = seqs
        # The garbage collector ignores tuples of bytes and ints. Lists in a cache full of messages would cost it some
        # 20 ms at each full collection.
        self.subjects = tuple(subjects)
        self.hlens = tuple(hlens) if type(hlens) is list else hlens
        self.bodies = tuple(bodies)
        self.times = times
        self.size = body_bytes + _BYTES_OF_ROW * len(bodies) + 256

    def __len__(self) -> int:
        return len(self.bodies)

    def seq(self, i: int) -> int:
        """Return the sequence of message ``i`` of this chunk."""
        return self.first_seq + i if self.seqs is None else self.seqs[i]

    def __repr__(self) -> str:
        return f"<Chunk {self.first_seq}..{self.last_seq}: {len(self.bodies)} messages from ordinal {self.start}>"
