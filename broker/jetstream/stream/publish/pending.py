"""Publishes that a run has accepted but not yet appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.stream.publish.totals import Total

__all__ = ["Pending"]


class Pending:
    """Messages accepted and not yet appended: from one publisher, with one time and consecutive sequences.

    Neither the stream nor its window of ids includes them, so they can be dropped without a trace. But the index of a
    stream that limits subjects does include them.

    Args: ``append`` appends them to the stream, empties this object, and returns whether they were appended.
    Attributes: ``batched``: True if they are an atomic batch, checked as a whole. ``indexed``: True while the index may
        have a message that is not in ``msgs``.
    """

    batched = False
    __slots__ = ("_append", "bytes", "due", "first_seq", "ids", "indexed", "last_id", "msgs", "removed",
                 "removed_bytes", "source", "time_ns", "totals", "ttls", "values")

    def __init__(self, first_seq: int, source: Source | None, time_ns: int, append: Callable[[Pending], bool]) -> None:
        self.source = source
        self.time_ns = time_ns
        self._append = append
        self.indexed = False
        self.begin(first_seq)

    def begin(self, first_seq: int) -> None:
        """Drop all messages; the next accepted message gets sequence ``first_seq``."""
        self.first_seq = first_seq
        self.msgs: list[Msg] = []
        self.bytes = 0
        self.ids: dict[bytes, int] = {}
        """Message ids: id → sequence."""
        self.last_id = b""
        """The id of the last message, b"" if it has none."""
        self.removed: list[tuple[int, int]] = []
        """(sequence, size) of messages that the accepted ones replace."""
        self.removed_bytes = 0
        self.ttls: list[tuple[int, int]] = []
        """(sequence, seconds to live) of the messages that have a TTL."""
        self.due: list[tuple[int, int]] = []
        """(sequence, time) of schedules among the messages, and of schedules that are due again."""
        self.totals: dict[bytes, Total] = {}
        """Totals of counters: subject → total including its last message."""
        self.values: list[int] = []
        """Totals of counters: the total including each message."""

    @property
    def last_seq(self) -> int:
        """Sequence of the last pending message; if there is none, of the stream's last message."""
        return self.first_seq + len(self.msgs) - 1

    def add(self, msg: Msg, size: int, msg_id: bytes, replaced: Sequence[tuple[int, int]], ttl: int = 0) -> None:
        """Accept a message that replaces the messages ``replaced``, as (sequence, size)."""
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
        """Record the total of the subject, including the message just added."""
        self.totals[subject] = total
        self.values.append(total.value)

    def last_of(self, subject: bytes) -> int:
        """Return the sequence of the last message with this subject; 0: there is none."""
        for place in range(len(self.msgs) - 1, -1, -1):
            if self.msgs[place][0] == subject:
                return self.first_seq + place
        return 0

    def schedule(self, subject: bytes) -> tuple[int, int] | None:
        """Return sequence and size of the last message with this subject, if it is a schedule in an atomic batch."""
        return None

    def append(self) -> bool:
        """Append the messages to the stream; return False if that failed and they were refused. Empty afterwards."""
        return self._append(self)
