"""What the log asks of the owner of a block, and the owner of the shard's own block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker.storage.format.block import Outcome
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import SealedBlock

__all__ = ["BlockOwner", "ShardBlockOwner"]


class BlockOwner(Protocol):
    """A live stream, as the log sees it. All calls are synchronous."""

    @property
    def stream_id(self) -> int: ...

    def sealing(self, block: OpenBlock[Any]) -> None:
        """The segment closes: set ``block.outcome`` as of everything sequenced so far, and add lazy records."""

    def persisted(self, block: SealedBlock[Any]) -> None:
        """``block`` is in the store and in the applied state. Waiters run once the segment's owners are notified."""

    def failed(self, error: Exception) -> None:
        """The stream can no longer store anything, from a block on that is sequenced and not persisted. Called once,
        perhaps in the middle of a decision: change nothing but what keeps others out."""

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        """The ``items`` that ``fn`` was to be called with (see ``Log.wait_batched``), without those about this stream."""


class ShardBlockOwner:
    """Owner of the shard's own block, stream 0: openings and releases."""

    stream_id = 0

    def sealing(self, block: OpenBlock[Any]) -> None:
        block.outcome = Outcome()

    def persisted(self, block: SealedBlock[Any]) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        return items
