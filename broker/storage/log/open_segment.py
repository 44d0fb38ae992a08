"""The open segment: the blocks that streams add to, and the reasons to close it soon.

Owns the contents of the segment. Does not own when it is closed (``commit_schedule``), nor its position (``log``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from broker.storage.log.open_block import OpenBlock, Tally
from broker.storage.log.owner import BlockOwner
from broker.storage.log.settings import LogSettings

__all__ = ["OpenSegment"]


class OpenSegment:
    """The segment that streams add to.

    Attributes:
        blocks: by stream_id. ``tally`` counts their bytes and messages.
        lazy: owners with lazy changes, which nothing waits for, by stream_id. Owners that get lazy changes while this
            segment is being closed belong to the next one.
        content: True if there is something to put although every block is empty: lazy changes that were made urgent, or
            a proof of the lease.
        hasty: True if something that waits for this segment must not wait for the commit interval.
        urgent: True if something has waited for this segment since ``urgent_ns``.
        overdue: True if lazy changes have waited long enough.
    """

    __slots__ = ("blocks", "content", "hasty", "lazy", "overdue", "tally", "urgent", "urgent_ns")

    def __init__(self, lazy: dict[int, BlockOwner] | None = None) -> None:
        self.blocks: dict[int, OpenBlock[Any]] = {}
        self.tally = Tally()
        self.lazy: dict[int, BlockOwner] = {} if lazy is None else lazy
        self.content = False
        self.hasty = False
        self.urgent = False
        self.urgent_ns = 0
        self.overdue = False

    def add_block(self, owner: BlockOwner) -> OpenBlock[Any]:
        """Return a new block for a stream that has none in this segment."""
        block = self.blocks[owner.stream_id] = OpenBlock(owner.stream_id, owner, self.tally)
        return block

    def full(self, settings: LogSettings, times: int = 1) -> bool:
        """Return whether it has reached ``times`` a segment's bounds."""
        return (self.tally.bytes >= times * settings.segment_bytes
                or self.tally.count >= times * settings.segment_count)

    @property
    def has_content(self) -> bool:
        """True if there is something to put apart from lazy changes."""
        return self.content or self.tally.bytes > 0 or self.tally.count > 0

    @property
    def asked(self) -> bool:
        """True if it should be closed as soon as a put may begin."""
        return (self.urgent or self.overdue) and (self.has_content or bool(self.lazy))

    def has_changes(self, owner: BlockOwner | None) -> bool:
        """Return whether ``owner``, or any owner, has changes that are in no closed segment, including lazy ones."""
        if owner is None:
            return bool(self.lazy) or self.has_content
        block = self.blocks.get(owner.stream_id)
        return owner.stream_id in self.lazy or (block is not None and not block.empty)

    def finish(self, failed: Collection[int], on_error: Callable[[BlockOwner, Exception], None]
               ) -> list[OpenBlock[Any]]:
        """Call ``sealing`` of every owner with changes, then of other owners whose blocks have grown by these calls.

        Args: failed are streams that are offline; it may grow meanwhile. on_error is called for an owner that cannot
            give its outcome.
        Returns: the blocks to store. Raises: as ``on_error``.
        """
        blocks = self.blocks
        lazy, self.lazy = self.lazy, {}
        for owner in lazy.values():
            if owner.stream_id not in blocks:
                self.add_block(owner)
        called = set(failed)
        while to_call := [block for stream_id, block in blocks.items()
                          if stream_id not in called and (stream_id in lazy or not block.empty)]:
            for block in to_call:
                called.add(block.stream_id)
                try:
                    block.owner.sealing(block)
                except Exception as error:
                    on_error(block.owner, error)
        return [block for block in blocks.values() if not block.empty and block.stream_id not in failed]
