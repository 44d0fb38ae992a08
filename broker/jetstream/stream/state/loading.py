"""Loads the blocks of a live stream from its applied state, and frees blocks, a slice at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.jetstream.stream.state.block import LiveBlock

if TYPE_CHECKING:
    from broker.storage.log.open_block import OpenBlock
    from broker.storage.state.stream import StreamState

__all__ = ["BlockLoading", "add_in_flight", "free_in_turns"]

_FREED_AT_ONCE = 8192
"""Number of blocks freed between two turns of the loop: about 2 ms."""


class BlockLoading:
    """A partial copy of the applied state's block table, which may grow at its end in the meantime."""

    def __init__(self, state: StreamState, on_blocks_loaded: Callable[[Sequence[LiveBlock]], object] | None) -> None:
        self.state = state
        self._on_blocks_loaded = on_blocks_loaded
        self.first_seq = state.first_seq
        self.swaps = state.blocks.swaps
        self.blocks: list[LiveBlock] = []
        self.begins: list[int] = []
        self.msgs = self.bytes = 0
        """Live messages and bytes of ``blocks``, including those that were removed at the stream's front."""
        self._stored = state.blocks.steady()

    @property
    def left(self) -> int:
        return len(self.state.blocks) - len(self.blocks)

    def load(self, count: int) -> None:
        blocks = list(map(LiveBlock.of_entry, islice(self._stored, count)))
        self.blocks += blocks
        self.begins += [block.first_seq for block in blocks]
        self.msgs += sum([block.live_msgs for block in blocks])
        self.bytes += sum([block.live_bytes for block in blocks])
        if self._on_blocks_loaded is not None:
            self._on_blocks_loaded(blocks)


def add_in_flight(blocks: list[LiveBlock], in_flight: deque[LiveBlock | OpenBlock[Any] | None]) -> None:
    """Append the open blocks of ``in_flight`` to ``blocks``, and replace each by its live block in ``in_flight``.

    ``blocks`` are those of the applied state as it is now.
    """
    # The newest of the applied blocks may be among those in flight: ``persisted`` is called after they are applied.
    applied = {block.first_seq: block for block in blocks[len(blocks) - min(len(blocks), len(in_flight)):]}
    for at, mine in enumerate(in_flight):
        if mine is not None:
            assert not isinstance(mine, LiveBlock)
            live = applied.get(mine.first_seq)
            if live is None:
                live = LiveBlock.of_open(mine)
                blocks.append(live)
            in_flight[at] = live


def free_in_turns(blocks: list[LiveBlock]) -> None:
    """Empty a list that nothing else uses, a slice in each turn of the loop: freeing a million blocks takes time."""
    del blocks[-_FREED_AT_ONCE:]
    if blocks:
        asyncio.get_running_loop().call_soon(free_in_turns, blocks)
