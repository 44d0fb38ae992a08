"""Publishes that a run has accepted but not yet appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.stream.publish.totals import Total

__all__ = ["Pending"]


class Pending:
    """Messages accepted and not yet appended: all of one publisher and one time, with consecutive sequences.

    Neither the stream nor its window of ids includes them, so dropping them leaves no trace. The index of a stream that
    limits subjects does: ``indexed`` while it may hold a message that is not here.

    Args: ``append`` appends them to the stream and empties this; returns whether they were appended.
    Attributes: ``batched``: they are an atomic batch, checked as a whole.
    """

    batched = False
    __slots__ = ("_append", "bytes", "due", "first_seq", "ids", "indexed", "last_id", "msgs", "removed", "removed_bytes", "source",
                 "time_ns", "totals", "ttls", "values")

    def __init__(self, first_seq: int, source: Source | None, time_ns: int, append: Callable[[Pending], bool]) -> None:
        self.source = source
        self.time_ns = time_ns
        self._append = append
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
        self.ttls: list[tuple[int, int]] = []
        """(sequence, seconds to live) of those that have a TTL."""
        self.due: list[tuple[int, int]] = []
        """(sequence, time) of schedules among them, and of those that are due again."""
        self.totals: dict[bytes, Total] = {}
        """Of counters: subject → total including its last message."""
        self.values: list[int] = []
        """Of counters: the total including each message."""

    @property
    def last_seq(self) -> int:
        """Sequence of the last one; if empty, of the stream's last message."""
        return self.first_seq + len(self.msgs) - 1

    def add(self, msg: Msg, size: int, msg_id: bytes, replaced: Sequence[tuple[int, int]], ttl: int = 0) -> None:
        """Accept a message, which replaces ``replaced`` as (sequence, size)."""
        msgs = self.msgs
        if msg_id:
            self.ids[msg_id] = self.first_seq + len(msgs)
        self.last_id = msg_id
        if ttl:
            self.ttls.append((self.first_seq + len(msgs), ttl))
        msgs.append(msg)
        self.bytes += size
        if replaced:
            self.removed += replaced
            for _, replaced_size in replaced:
                self.removed_bytes += replaced_size

    def count(self, subject: bytes, total: Total) -> None:
        """Record the subject's total including the message just added."""
        self.totals[subject] = total
        self.values.append(total.value)

    def last_of(self, subject: bytes) -> int:
        """Sequence of the last one with this subject; 0: there is none."""
        for place in range(len(self.msgs) - 1, -1, -1):
            if self.msgs[place][0] == subject:
                return self.first_seq + place
        return 0

    def schedule(self, subject: bytes) -> tuple[int, int] | None:
        """Sequence and size of the last one with this subject, in an atomic batch and if it is a schedule."""
        return None

    def append(self) -> bool:
        """Append them to the stream; False: that failed, and they were refused. Empty afterwards."""
        return self._append(self)
