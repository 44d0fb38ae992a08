"""Messages that are about to join a stream: their record is written and not yet persisted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock

__all__ = ["Joining"]


class Joining:
    """The blocks of one adoption or large batch, with their totals.

    Attributes: ``blocks``: the blocks in order; each has a live message. ``numbers``: their numbers in the request.
        ``expiring``: the messages that have a TTL; ``expiry_times``: the time at which each of them expires.
    """

    __slots__ = ("blocks", "expiring", "expiry_times", "first_seq", "last_seq", "msgs", "numbers", "size_bytes")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.msgs = 0
        self.size_bytes = 0
        self.blocks: list[LiveBlock] = []
        self.numbers: list[int] = []
        self.expiring: list[int] = []
        self.expiry_times: list[int] = []

    def add(self, number: int, block: LiveBlock) -> None:
        """Append ``block``, which has this number in the request."""
        self.numbers.append(number)
        self.blocks.append(block)
        self.last_seq = block.last_seq
        self.msgs += block.live_msgs
        self.size_bytes += block.live_bytes

    @property
    def first_live(self) -> tuple[int, int]:
        """The sequence of the first live message, and the time of its block."""
        block = self.blocks[0]
        return block.first_seq if block.dead is None else block.dead.ends[0], block.first_time_ns
