"""When compaction works, and how much of the machine and of the store it may use."""

from __future__ import annotations

from math import inf

__all__ = ["CompactionSettings"]


class CompactionSettings:
    """Bounds of one shard's compaction.

    Args: segments is how many objects of about one size are merged into one; quiet_ns for how long nothing may be persisted
        before fewer are. bytes_per_second bounds what is read and written, puts_per_second the objects that are written, cpu
        the share of one core that it takes. dead_share is the share of removed bytes from which on a large block is
        rewritten. merge_bytes bounds what one merge has in memory, as messages count, beyond two objects. recent_bytes bounds the
        segments that are kept in memory until they are merged, so that they need not be read.
    """

    def __init__(self, *, segments: int = 64, quiet_ns: int = 30_000_000_000, bytes_per_second: int = 16 << 20,
                 puts_per_second: float = inf, cpu: float = 0.1, dead_share: float = 0.5, merge_bytes: int = 32 << 20,
                 large_bytes: int = 1 << 20, object_bytes: int = 8 << 20, block_bytes: int = 4 << 20,
                 block_messages: int = 32_768, few: int = 8, recent_bytes: int = 16 << 20) -> None:
        if segments < 2 or few < 2:
            raise ValueError("fewer than two objects cannot be merged")
        self.segments = segments
        self.quiet_ns = quiet_ns
        self.bytes_per_second = bytes_per_second
        self.puts_per_second = puts_per_second
        self.cpu = cpu
        self.dead_share = dead_share
        self.merge_bytes = merge_bytes
        self.large_bytes = large_bytes
        """A block with as many live bytes stays where it is, unless its dead share is too high."""
        self.object_bytes = object_bytes
        """An object whose small blocks have as many is not merged again. A stream that has as many in a merge gets a run of its
        own."""
        self.block_bytes = block_bytes
        """Blocks are joined up to this, and to ``block_messages``."""
        self.block_messages = block_messages
        self.recent_bytes = recent_bytes
        self.few = few
        """How many objects are worth a merge when the shard is quiet."""
