"""A stream as a plain list of messages, for comparison with the real one. It is slow and obvious on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.jetstream.filters import Filters

__all__ = ["Kept", "Model"]


class Kept(NamedTuple):
    """A message of the model."""

    seq: int
    subject: bytes
    payload: bytes
    size: int
    time_ns: int
    ttl: int = 0
    """In seconds; -1: never expires."""


@dataclass
class Model:
    """The effects of the same publishes and requests by nats-server's rules. Limits as in StreamConfig, -1 for none."""

    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    max_age: int = 0
    discard: str = "old"
    discard_new_per_subject: bool = False
    msgs: list[Kept] = field(default_factory=list)
    last_seq: int = 0
    empty_first_seq: int = 0
    last_time_ns: int = 0
    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    window_ns: int = 120_000_000_000

    @property
    def first_seq(self) -> int:
        return self.msgs[0].seq if self.msgs else self.empty_first_seq

    @property
    def bytes(self) -> int:
        return sum(msg.size for msg in self.msgs)

    def counts(self) -> dict[bytes, int]:  # type: ignore[valid-type]
        counts: dict[bytes, int] = {}
        for msg in self.msgs:
            counts[msg.subject] = counts.get(msg.subject, 0) + 1
        return counts

    def last(self, subject: bytes) -> int:  # type: ignore[valid-type]
        return max((msg.seq for msg in self.msgs if msg.subject == subject), default=0)

    def publish(self, subject: bytes, payload: bytes, size: int, now_ns: int, *,  # type: ignore[valid-type]
                msg_id: bytes = b"", rollup: str = "",  # type: ignore[valid-type]
                expected_last: int | None = None, ttl: int = 0) -> int | str:
        """Publish a message; return its sequence, the negated first one for a duplicate, or the refusal."""
        now_ns = max(now_ns, self.last_time_ns)
        self.enforce()
        if expected_last is not None and self.last(subject) != expected_last:
            return f"wrong last sequence: {self.last(subject)}"
        if msg_id in self.ids and self.ids[msg_id][1] + self.window_ns > now_ns:
            return -self.ids[msg_id][0]
        if self.discard == "new":
            own = [msg for msg in self.msgs if msg.subject == subject]
            replaces = 0 < self.max_msgs_per_subject <= len(own)
            if replaces and self.discard_new_per_subject and not rollup:
                return "maximum messages per subject exceeded"
            if 0 < self.max_msgs <= len(self.msgs) and not replaces:
                return "maximum messages exceeded"
            if 0 < self.max_bytes < self.bytes + size and (not replaces or own[0].size < size):
                return "maximum bytes exceeded"
        self.last_seq += 1
        self.last_time_ns = now_ns
        self.msgs.append(Kept(self.last_seq, subject, payload, size, now_ns, ttl))
        if msg_id:
            self.ids[msg_id] = self.last_seq, now_ns
        if rollup:
            self.remove([m for m in self.msgs[:-1] if rollup == "all" or m.subject == subject])
        if self.max_msgs_per_subject > 0:
            own = [msg for msg in self.msgs if msg.subject == subject]
            self.remove(own[:-self.max_msgs_per_subject])
        return self.last_seq

    def enforce(self) -> None:
        """Apply max_msgs and max_bytes after each message. A stream that refuses new messages keeps all that it has."""
        while self.discard == "old" and self.msgs and (
                0 < self.max_msgs < len(self.msgs) or 0 < self.max_bytes < self.bytes):
            self.remove(self.msgs[:1])

    def update(self, max_msgs: int, per_subject: int) -> None:
        self.max_msgs, self.max_msgs_per_subject = max_msgs, per_subject
        self.enforce()
        if per_subject > 0:
            for subject in self.counts():
                self.remove([msg for msg in self.msgs if msg.subject == subject][:-per_subject])

    def expire(self, now_ns: int) -> None:
        if self.max_age:
            self.remove([msg for msg in self.msgs if msg.ttl >= 0 and msg.time_ns <= now_ns - self.max_age])
        self.remove([msg for msg in self.msgs if msg.ttl > 0 and msg.time_ns + msg.ttl * 1_000_000_000 <= now_ns])

    def delete(self, seq: int) -> bool:
        found = [msg for msg in self.msgs if msg.seq == seq]
        self.remove(found)
        return bool(found)

    def purge(self, wanted: bytes | None, seq: int, keep: int) -> int:  # type: ignore[valid-type]
        if seq == 1:
            return 0
        filters = Filters(() if wanted is None else (wanted,))
        found = [msg for msg in self.msgs if filters.match(msg.subject) and (not seq or msg.seq < seq)]
        if keep:
            found = found[:-keep]
        self.remove(found)
        if filters.all and not keep and not self.msgs:
            self.last_seq = max(self.last_seq, seq - 1)
            self.empty_first_seq = self.last_seq + 1
        return len(found)

    def remove(self, found: list[Kept]) -> None:
        if found:
            gone = {msg.seq for msg in found}
            self.msgs = [msg for msg in self.msgs if msg.seq not in gone]
            self.empty_first_seq = self.last_seq + 1
