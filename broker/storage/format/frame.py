"""Frames: the bodies of successive messages of a block, about 128 KiB of them, compressed together.

    raw frame   body | body | …             body = header bytes + payload, exactly as published
    stored      a section: its zstd form, or the raw bytes if zstd saves nothing

The block's index has lengths, subjects, times and the CRC of each stored frame. So bodies are side by side, and a
columnar reader uses a frame as one buffer with offsets.

Compaction writes *grouped* blocks, so that a reader of a few subjects reads few bytes. There a frame, which is a range
of ordinals that is decoded together, is larger, and stored in *parts*:

    in the order of messages   a1 b1 a2 c1 b2 a3 c2 …       1 MiB, a row of this module's frame table
    stored                     a1 a2 a3 | b1 b2 | c1 c2     sorted by subject, in parts of 32 KiB, each a section

Where a part ends follows from the subjects and lengths in the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.storage.format.section import SectionHeader

__all__ = ["FRAME_BYTES", "FRAME_MESSAGES_MAX", "GROUPED_BLOCK_MAX", "GROUPED_BYTES", "PART_BYTES", "Chunk", "Frame"]

FRAME_BYTES: Final = 128 * 1024
"""A frame is closed before it exceeds this; a larger message has a frame of its own."""

FRAME_MESSAGES_MAX: Final = 4096
"""Bounds the decoding for one small get, and the loop's time for a chunk."""

_BYTES_OF_ROW: Final = 33 + 8 + 8 + 8
"""Memory of a message apart from the bytes of its body: the bytes object, its place in two lists, and its time."""


GROUPED_BYTES: Final = 1 << 20
"""The size of a frame that is stored in parts. A larger one would save a reader of some subjects requests and bytes,
but cost a reader of one message time."""

GROUPED_BLOCK_MAX: Final = 8 << 20
"""The largest bodies of a grouped block. In a larger one, messages are so large that it has few, and a reader of some
subjects would load all of its parts at once."""

PART_BYTES: Final = 32 * 1024
"""A part is closed before it exceeds this; a larger message has a part of its own."""


class Frame(NamedTuple):
    """A row of a block's frame table; in a grouped block, the rows of its parts."""

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
    parts: tuple[SectionHeader, ...] = ()
    """The headers of its parts, which lie side by side; without parts, the frame is one section."""
    first_part: int = 0
    """The number of its first part in the block."""

    @property
    def header(self) -> SectionHeader:
        """The header of the frame as a section."""
        return self[3:7]


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
