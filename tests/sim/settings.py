"""The settings that both worlds share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.storage.compaction.settings import CompactionSettings

__all__ = ["eager_compaction"]

SECOND = 1_000_000_000


def eager_compaction(choice: Callable[[Sequence[int]], int]) -> CompactionSettings:
    """Return settings for compaction that takes a few messages for a large block, and works all the time."""
    return CompactionSettings(
        segments=choice((2, 3, 8)), quiet_ns=choice((1, 5)) * SECOND, few=2, cpu=1.0, large_bytes=choice((200, 2000)),
        object_bytes=choice((400, 4000, 1 << 20)), block_bytes=choice((100, 1000, 1 << 20)),
        merge_bytes=choice((500, 1 << 20)))
