"""Applies a compaction to a live stream: replaces the compacted blocks with the block of the run.

Owns: the conditions for that, and the changes to the live state. Does not own: the applied state, which is changed
already, and deleting the old objects (which waits until every stream has applied the compaction).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.stream.state.block import LiveBlock
from broker.storage.format.block import BlockRef
from broker.storage.state.swap import dead_in, is_newer
from broker.storage.state.table import BlockEntry

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.adoption import Adopted

__all__ = ["apply_compaction"]


def apply_compaction(stream: Stream, adopted: Adopted) -> bool:
    """Replace the compacted blocks by the new block; return False if an operation relies on the old ones now.

    Raises: ValueError if the stream's blocks are not those of the record.
    """
    live = stream.live
    if not live.blocks_loaded:
        return True  # they will be loaded from the applied state, which has the new block
    if stream.queue.busy or stream.heads.walks or stream.msg_ids.loading:
        return False
    ref = BlockRef.unpack(adopted.ref)
    old = live.within(adopted.first_seq, adopted.last_seq)
    if not old or (len(old) == 1 and old[0].ref == ref):
        return True  # no message of it is live, or the block was replaced before
    if (old[0].first_seq < adopted.first_seq or old[-1].last_seq > adopted.last_seq
            or any(block.ref is None or is_newer(block.ref, ref) for block in old)):
        raise ValueError(f"{ref!r} cannot take the place of {old}")
    new: LiveBlock | None = LiveBlock.of_entry(BlockEntry(ref))
    assert new is not None
    new.dead = dead_in(ref, old)
    new.live_msgs = sum(block.live_msgs for block in old)
    new.live_bytes = sum(block.live_bytes for block in old)
    if not new.live_msgs:
        new = None
    live.replace_blocks(old, new)
    stream.msg_ids.blocks_replaced(old, new)
    stream.rollups.forget()
    return True
