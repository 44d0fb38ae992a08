"""A recorded history of one stream under crashes, and the checker of the contract.

All records come from stock clients: publishes begun, PubAcks, deliveries, acks and answered double acks. The contract:

* every PubAck's (sequence, payload) is read back from the restarted broker, byte for byte;
* no sequence ever names two payloads, and no message id two sequences (an unanswered publish may or may not have
  happened);
* every message read back was published; nothing is stored twice;
* a delivery whose double ack was answered is never repeated; a plain ack may be forgotten if it was not stored with the
  next segment yet, within 1 s.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["ACK_WAIT", "PLAIN_ACK_GRACE", "History", "Violation", "worked"]

PLAIN_ACK_GRACE = 1.5
"""Seconds of work before a kill in which a plain ack may be lost: the contract's 1 s, and half a second for the put."""
SILENCE = 0.3
"""A broker that sends nothing for longer has not worked meanwhile: the machine was busy with something else."""
STANDSTILL_MAX = 30.0
ACK_WAIT = 2.0
"""Seconds after which an unacknowledged message is delivered again to a consumer of the kill loop."""


class Violation(AssertionError):
    """A broken promise of the broker's contract."""


@dataclass
class History:
    """The record of one stream over any number of kills."""

    strict: bool = True
    """True if a plain ack may be forgotten only near one of ``kills``; false if brokers may take over from each other
    without a kill."""
    begun: dict[bytes, bytes] = field(default_factory=dict)
    """Payload by message id, recorded before the publish is sent."""
    acked: dict[bytes, int] = field(default_factory=dict)
    """Sequence by message id, from PubAcks."""
    delivered: dict[int, bytes] = field(default_factory=dict)
    """Message id by sequence, from deliveries."""
    double_acked: set[int] = field(default_factory=set)
    under_way: Counter[int] = field(default_factory=Counter)
    """Sequences of which another delivery had arrived, unread, when their double ack was answered: a kill in between
    made the broker forget the first delivery. Later deliveries arrive after the answer, on one connection."""
    plain_acked: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Times by sequence: the earliest time of its delivery, and the time of its plain ack."""
    kills: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """Times of PubAcks and deliveries, in order."""
    redelivered: int = 0

    def begin(self, msg_id: bytes, payload: bytes) -> None:
        if self.begun.setdefault(msg_id, payload) != payload:
            raise AssertionError("the test used one id for two payloads")

    def ack(self, msg_id: bytes, seq: int) -> None:
        """Record a PubAck, duplicate or not."""
        self.arrivals.append(time.monotonic())
        if self.acked.setdefault(msg_id, seq) != seq:
            raise Violation(f"message {msg_id!r} was acknowledged at {self.acked[msg_id]}, then at {seq}")

    def deliver(self, seq: int, msg_id: bytes, payload: bytes) -> None:
        self.arrivals.append(time.monotonic())
        if self.begun.get(msg_id) != payload:
            raise Violation(f"sequence {seq} was delivered with bytes that nobody published under {msg_id!r}")
        if self.delivered.setdefault(seq, msg_id) != msg_id:
            raise Violation(f"sequence {seq} named {self.delivered[seq]!r}, then {msg_id!r}")
        if self.under_way[seq]:
            self.under_way[seq] -= 1
        elif seq in self.double_acked:
            raise Violation(f"sequence {seq} was delivered again after its double ack had been answered")
        if seq in self.plain_acked:
            self.redelivered += 1
            since, at = self.plain_acked[seq]
            # A kill between delivery and ack makes the broker forget the delivery. The next one may be under way when
            # the ack for the first one arrives; so may one that the broker makes after ACK_WAIT.
            if self.strict and at - since < ACK_WAIT and not any(
                    since <= kill and worked(self.arrivals, at, kill) <= PLAIN_ACK_GRACE for kill in self.kills):
                raise Violation(f"sequence {seq}, delivered {at - since:.2f} s before it was acked at most, acked "
                                f"{time.monotonic() - at:.2f} s ago, was delivered again; kills after the ack: "
                                f"{[round(kill - at, 2) for kill in self.kills[-5:]]} s")

    def double_ack(self, seq: int, queued: list[int]) -> None:
        """Record the answer to the double ack of ``seq``; ``queued`` had been received by then but not examined yet."""
        self.double_acked.add(seq)
        self.under_way[seq] = queued.count(seq)

    def plain_ack(self, seq: int, since: float) -> None:
        """Record that an ack for ``seq``, delivered at ``since`` or later, was sent."""
        self.plain_acked[seq] = since, time.monotonic()

    def killed(self) -> None:
        self.kills.append(time.monotonic())

    def check(self, stored: dict[int, tuple[bytes, bytes]], last_seq: int) -> None:
        """Compare with ``stored``: message id and payload by sequence, as the stream has them at the end."""
        ids: dict[bytes, int] = {}
        for seq, (msg_id, payload) in stored.items():
            if self.begun.get(msg_id) != payload:
                raise Violation(f"sequence {seq} has bytes that nobody published under {msg_id!r}")
            if ids.setdefault(msg_id, seq) != seq:
                raise Violation(f"{msg_id!r} is stored twice, at {ids[msg_id]} and {seq}")
        for msg_id, seq in self.acked.items():
            if ids.get(msg_id) != seq:
                raise Violation(f"{msg_id!r} was acknowledged at {seq}; the stream has it at {ids.get(msg_id)}")
        for seq, msg_id in self.delivered.items():
            if stored.get(seq, (None,))[0] != msg_id:
                raise Violation(f"sequence {seq} was delivered as {msg_id!r} and is gone")
        gaps = set(range(1, last_seq + 1)) - stored.keys()
        if gaps:
            raise Violation(f"the stream has gaps at {sorted(gaps)[:5]}, {len(gaps)} in all, though nothing was "
                            "deleted")


def worked(arrivals: Sequence[float], start: float, end: float) -> float:
    """Return for how many seconds a broker had the processor between two instants, by the times of its messages."""
    if end - start > STANDSTILL_MAX:
        return end - start
    times = [start, *arrivals[bisect_left(arrivals, start):bisect_right(arrivals, end)], end]
    return sum(min(later - earlier, SILENCE) for earlier, later in pairwise(times))
