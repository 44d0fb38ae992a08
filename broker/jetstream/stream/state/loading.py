"""Loads the blocks of a restarted stream into its live state, and frees blocks, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from broker.jetstream.stream.state.block import LiveBlock

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState

__all__ = ["Look", "let_go"]

_LET_GO_AT_ONCE = 8192
"""Blocks freed between two turns of the loop: about 2 ms."""


class Look:
    """Blocks being loaded from the applied state, which may grow at its end meanwhile."""

    def __init__(self, state: StreamState, told: Callable[[Sequence[LiveBlock]], object] | None) -> None:
        self.state = state
        self._told = told
        self.first_seq = state.first_seq
        self.swaps = state.blocks.swaps
        self.blocks: list[LiveBlock] = []
        self.begins: list[int] = []
        self.msgs = self.bytes = 0
        """Live in ``blocks``, except for what left at the front."""
        self._stored = state.blocks.steady()

    @property
    def left(self) -> int:
        return len(self.state.blocks) - len(self.blocks)

    def take(self, count: int) -> None:
        blocks = list(map(LiveBlock.of_entry, islice(self._stored, count)))
        self.blocks += blocks
        self.begins += [block.first_seq for block in blocks]
        self.msgs += sum([block.live_msgs for block in blocks])
        self.bytes += sum([block.live_bytes for block in blocks])
        if self._told is not None:
            self._told(blocks)


def let_go(blocks: list[LiveBlock]) -> None:
    """Empty a list that nothing else holds, a slice in each turn of the loop: freeing a million blocks takes time."""
    del blocks[-_LET_GO_AT_ONCE:]
    if blocks:
        asyncio.get_running_loop().call_soon(let_go, blocks)
