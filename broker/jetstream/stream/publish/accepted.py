"""Publishes that a run has accepted and not appended yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg

__all__ = ["Pending"]


class Pending:
    """Messages accepted and not yet appended: all of one publisher, with consecutive sequences.

    Neither the stream nor its window of ids knows of them, so leaving them out leaves nothing behind. The index of a
    stream that limits subjects does: ``indexed`` while it may hold a message that is not here.
    """

    __slots__ = ("bytes", "first_seq", "ids", "indexed", "last_id", "msgs", "removed", "removed_bytes")

    def __init__(self, first_seq: int) -> None:
        self.indexed = False
        self.begin(first_seq)

    def begin(self, first_seq: int) -> None:
        """Hold nothing; the next message accepted is ``first_seq``."""
        self.first_seq = first_seq
        self.msgs: list[Msg] = []
        self.bytes = 0
        self.ids: dict[bytes, int] = {}
        """Their ids: id → sequence."""
        self.last_id = b""
        """The id of the last of them, b"" when it has none."""
        self.removed: list[tuple[int, int]] = []
        """(sequence, size) of messages that the accepted ones replace."""
        self.removed_bytes = 0

    @property
    def last_seq(self) -> int:
        """Sequence of the last one; of the stream's last message while there is none."""
        return self.first_seq + len(self.msgs) - 1

    def replaces(self, gone: Sequence[tuple[int, int]]) -> None:
        """The last of them replaces messages (sequence, size)."""
        self.removed += gone
        self.removed_bytes += sum(size for _, size in gone)
