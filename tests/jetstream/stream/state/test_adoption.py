"""A live stream and blocks that compaction joins: while it loads its table, and afterwards."""

from __future__ import annotations

import asyncio

from broker.jetstream.stream.state.live import Live
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import Position
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

BLOCKS = 5000


def block(first: int, last: int, place: BlockPlace = BlockPlace.LOG, number: int = 1) -> BlockRef:
    count = last - first + 1
    return BlockRef(place, Position(1, number), int(place is BlockPlace.RUN), 7, 0, 200, 200, 100, 300, 10 * count,
                    first, last, count, 40 * count, 1, 1, ((b"s", count, first, last),))


def stored() -> StreamState:
    """A stream of five thousand blocks of two messages each."""
    state = StreamState(7, "$G", "S", {}, 1)
    for number in range(1, BLOCKS + 1):
        assert state.blocks.append(block(2 * number - 1, 2 * number, number=number).pack())
    state.first_seq, state.last_seq, state.msgs, state.bytes = 1, 2 * BLOCKS, 2 * BLOCKS, 80 * BLOCKS
    return state


def join(state: StreamState, first: int, last: int, number: int) -> None:
    state.blocks.swap(state.blocks.within(first, last), BlockEntry(block(first, last, BlockPlace.RUN, number)))


async def test_blocks_that_are_joined_while_the_table_is_loaded() -> None:
    """It is loaded a slice in each turn of the loop; between two slices blocks of both are joined. The stream has each message
    once, and the table's blocks."""
    state = stored()
    live = Live(lambda block: None, lambda: state)
    live.first_seq, live.last_seq, live.msgs, live.size_bytes = state.first_seq, state.last_seq, state.msgs, state.bytes
    looking = asyncio.ensure_future(live.look())
    for turn in range(2):
        await asyncio.sleep(0)
        join(state, 4001 + 8 * turn, 4008 + 8 * turn, BLOCKS + 1 + turn)
    join(state, 1, 4000, BLOCKS + 4)
    join(state, 4001, 9000, BLOCKS + 5)
    await looking
    assert [(one.first_seq, one.last_seq, one.ref) for one in live.blocks] == [
        (entry.first_seq, entry.last_seq, entry.ref) for entry in state.blocks]
    assert len(live.blocks) == 2 + (2 * BLOCKS - 9000) // 2
    assert sum(one.live_msgs for one in live.blocks) == 2 * BLOCKS
