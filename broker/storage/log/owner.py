"""The interface between the log and the owner of a block; the owners of blocks without messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.storage.format.block import Outcome
from broker.storage.format.record import Record
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import SealedBlock

__all__ = ["BlockOwner", "OutcomeOwner", "ShardBlockOwner"]


class BlockOwner(Protocol):
    """A live stream as the log knows it. All calls are synchronous."""

    @property
    def stream_id(self) -> int: ...

    def sealing(self, block: OpenBlock[Any]) -> None:
        """Set ``block.outcome`` to the state after everything sequenced so far, and add lazy records."""

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        """Do the same as ``sealing``, but ``block`` stays open for more.

        Returns: the records that ``sealing`` will add for all messages of the block, for those from ordinal ``start``
            on. They are kept until then, and not added to the block.
        """

    def safe(self, last_seq: int) -> None:
        """Handle that all messages up to ``last_seq`` are safe, because the journal has them: readers may see them.

        ``persisted`` is called later. Pending calls are made after all owners were notified.
        """

    def persisted(self, block: SealedBlock[Any]) -> None:
        """Handle a block that is stored and applied. Pending calls are made after all owners were notified."""

    def failed(self, error: Exception) -> None:
        """Handle the failure of a block that is sequenced and not persisted: the stream can store nothing any more.

        Called once, perhaps in the middle of a decision: change nothing except what refuses further work.
        """

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        """Return the ``items`` of a pending call of ``fn`` (see ``Log.wait_batched``) without those of this stream."""


class OutcomeOwner:
    """An owner of blocks without messages: it gives them an outcome, and nothing waits for them."""

    def __init__(self, stream_id: int, outcome: Outcome) -> None:
        self.stream_id = stream_id
        self.outcome = outcome

    def sealing(self, block: OpenBlock[Any]) -> None:
        block.outcome = self.outcome

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        self.sealing(block)
        return ()

    def safe(self, last_seq: int) -> None:
        pass

    def persisted(self, block: SealedBlock[Any]) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        return items


class ShardBlockOwner(OutcomeOwner):
    """Owner of the shard's own block, stream 0: openings and releases."""

    def __init__(self) -> None:
        super().__init__(0, Outcome())
