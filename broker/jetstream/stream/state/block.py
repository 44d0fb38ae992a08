"""A block of a live stream: its numbers, which are known without its rows, and its dead messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.storage.format.header import Position
from broker.storage.format.message_size import messages_size
from broker.storage.log.writer import seal_block
from broker.storage.state.dead import DeadSet

if TYPE_CHECKING:
    from broker.storage.format.block import BlockRef, SubjectSummary
    from broker.storage.format.frame import Chunk
    from broker.storage.format.index import Head
    from broker.storage.log.writer import OpenBlock
    from broker.storage.state.table import BlockEntry

__all__ = ["LiveBlock"]


class LiveBlock:
    """A block of a live stream.

    Attributes:
        open: the writer's block until it is persisted, then None.
        tail: the newest chunk that a reader needed of ``open``.
        unread: the writer's block of a persisted block of a memory stream, until something reads it (``seal``). An
            unread block has no chunks, head and subjects, and may grow (``memory_blocks``).
        ref: the block's place in the store once it is persisted; None before, and always None in a memory stream.
        chunks: the messages of a persisted block of a memory stream; None in a stored stream, which uses the cache.
        starts: the first ordinal of each frame, once known; with it the reader finds a chunk in the cache.
        head: the block's head while it is pinned: always in memory streams, otherwise during an operation.
        dead: sequences removed one by one; those below the stream's first_seq may be missing.
        subjects: (subject, count, first_seq, last_seq) of each subject if they are few, otherwise None.
    """

    __slots__ = ("bytes", "chunks", "count", "dead", "first_seq", "first_time_ns", "head", "last_seq", "last_time_ns",
                 "live_bytes", "live_msgs", "open", "ref", "starts", "subjects", "tail", "unread")

    def __init__(self, first_seq: int, last_seq: int, count: int, size: int, first_time_ns: int,
                 last_time_ns: int) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.count = count
        self.bytes = size
        self.first_time_ns = first_time_ns
        self.last_time_ns = last_time_ns
        self.live_msgs = count
        self.live_bytes = size
        self.dead: DeadSet | None = None
        self.open: OpenBlock[Any] | None = None
        self.tail: Chunk | None = None
        self.unread: OpenBlock[Any] | None = None
        self.ref: BlockRef | None = None
        self.chunks: Sequence[Chunk] | None = None
        self.starts: Sequence[int] | None = None
        self.head: Head | None = None
        self.subjects: SubjectSummary | None = None

    @classmethod
    def of_open(cls, block: OpenBlock[Any]) -> LiveBlock:
        """Return a live block for an open block that has messages and is not persisted."""
        hlens = block.hlens
        size = messages_size(block.count, 0 if hlens is None else block.count - hlens.count(0),
                             sum(map(len, block.subjects)), sum(map(len, block.bodies)))
        live = cls(block.first_seq, block.last_seq, block.count, size, block.runs[0][2], block.runs[-1][2])
        live.open = block
        return live

    @classmethod
    def of_entry(cls, entry: BlockEntry) -> LiveBlock:
        """Return a live block for an entry of the applied state's block table."""
        ref = entry.ref
        live = cls(ref.first_seq, ref.last_seq, ref.count, ref.bytes, ref.first_time_ns, ref.last_time_ns)
        live.live_msgs -= entry.dead_count
        live.live_bytes -= entry.dead_bytes
        live.ref, live.subjects = ref, ref.subjects
        if entry.dead is not None:
            live.dead = entry.dead.moved(ref.first_seq)
        return live

    @property
    def gapless(self) -> bool:
        return self.last_seq - self.first_seq + 1 == self.count

    @property
    def persisted(self) -> bool:
        return self.open is None

    def seal(self) -> None:
        """Make the chunks and the head of an unread block, which does not grow any more."""
        unread, self.unread = self.unread, None
        if unread is not None:
            sealed = seal_block(unread, Position(0, 0), stored=False)
            self.subjects, self.chunks, self.head = sealed.subjects, sealed.chunks, sealed.head
            self.starts = [chunk.start for chunk in sealed.chunks]

    def __repr__(self) -> str:
        return f"<LiveBlock {self.first_seq}..{self.last_seq}: {self.live_msgs} of {self.count} live>"
