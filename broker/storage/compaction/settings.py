"""Bounds of compaction: the conditions of its work, and the part of the machine and of the store that it may use.

Operators set ``cpu`` and ``bytes_per_second`` (``broker.config.settings``). The other bounds are constants:
docs/adr/0006 has the measurements behind them.
"""

from __future__ import annotations

__all__ = ["CompactionSettings"]

SEGMENTS = 64
"""The objects of one merge. Merging 64 at a time costs 1.6 % more puts; merging 16 at a time would cost 7 %."""
QUIET_NS = 30_000_000_000
"""Longer than the pauses of most publishers that send rarely: each merge of few objects rewrites bytes."""
PUTS_PER_SECOND = 50.0
"""The number of commits at the default interval of S3, 20 ms, so compaction at most doubles the puts."""
MERGE_BYTES = 32 << 20
"""A whole merge of the largest tier, 64 objects below 8 MiB, is rarely larger; the broker's memory has room for one."""
DEAD_SHARE = 0.5
"""A half, because then compaction writes at most as many bytes as it frees."""


class CompactionSettings:
    """Bounds of one shard's compaction."""

    def __init__(self, *, cpu: float = 0.2, bytes_per_second: int = 16 << 20, segments: int = SEGMENTS, few: int = 8,
                 quiet_ns: int = QUIET_NS, puts_per_second: float = PUTS_PER_SECOND, merge_bytes: int = MERGE_BYTES,
                 dead_share: float = DEAD_SHARE, large_bytes: int = 1 << 20, object_bytes: int = 8 << 20,
                 block_bytes: int = 4 << 20, block_messages: int = 32_768, recent_bytes: int = 16 << 20) -> None:
        if segments < 2 or few < 2:
            raise ValueError("fewer than two objects cannot be merged")
        self.cpu = cpu
        """The highest share of one core."""
        self.bytes_per_second = bytes_per_second
        """The most bytes read and written in a second."""
        self.segments = segments
        """The number of objects of similar size that are merged into one."""
        self.few = few
        """The number of objects that are merged while the shard is quiet."""
        self.quiet_ns = quiet_ns
        """The time without a commit after which the shard is quiet."""
        self.puts_per_second = puts_per_second
        """The most objects written in a second."""
        self.merge_bytes = merge_bytes
        """The most message bytes that one merge has in memory, though it merges at least two objects."""
        self.dead_share = dead_share
        """A large block is rewritten when at least this share of its bytes is dead."""
        self.large_bytes = large_bytes
        """A block with at least this many live bytes stays where it is, unless its dead share is too high."""
        self.object_bytes = object_bytes
        """An object whose small blocks have at least this many live bytes is not merged again. A stream that has as
        many in one merge gets a run of its own."""
        self.block_bytes = block_bytes
        """Blocks are joined up to this size, and up to ``block_messages``."""
        self.block_messages = block_messages
        self.recent_bytes = recent_bytes
        """New segments are kept in memory until they are merged, up to this many bytes, which saves reading them."""
