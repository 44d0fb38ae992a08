"""A recorded history of one stream under crashes, and the checker of whether the contract held.

All records come from stock clients: publishes begun, PubAcks, deliveries, acks and answered double acks. The contract:

* every PubAck's (sequence, payload) is read back from the restarted broker, byte for byte;
* no sequence ever names two payloads, and no message id two sequences (an unanswered publish may or may not have
  happened);
* every message read back was published; nothing is stored twice;
* a delivery whose double ack was answered never comes again; a plain ack may be forgotten for at most what rides along
  with the next segment (1 s).
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
"""Seconds of work before a kill in which a plain ack may be lost: the contract's 1 s and half a second for the put."""
SILENCE = 0.3
"""A broker that says nothing for longer has not worked meanwhile: the machine was busy with something else."""
STANDSTILL_MAX = 30.0
ACK_WAIT = 2.0
"""Seconds after which a consumer of the kill loop is sent again what it has not acknowledged."""


class Violation(AssertionError):
    """A violation of the broker's contract."""


@dataclass
class History:
    """One stream's record over any number of kills."""

    strict: bool = True
    """True if a plain ack may be forgotten only near one of ``kills``. False where brokers may take over from each
    other when nobody killed any."""
    begun: dict[bytes, bytes] = field(default_factory=dict)
    """Payload by message id, noted before the publish is sent."""
    acked: dict[bytes, int] = field(default_factory=dict)
    """Sequence by message id, from PubAcks."""
    delivered: dict[int, bytes] = field(default_factory=dict)
    """Message id by sequence, from deliveries."""
    double_acked: set[int] = field(default_factory=set)
    under_way: Counter[int] = field(default_factory=Counter)
    """Sequences that had come once more, unseen, when their double ack was answered: a kill in between made the broker
    forget that it had delivered them. Later deliveries arrive after the answer, on one connection."""
    plain_acked: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By sequence: when it had been delivered, at the earliest, and when its plain ack was sent."""
    kills: list[float] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    """When PubAcks and deliveries came, in order."""
    redelivered: int = 0

    def begin(self, msg_id: bytes, payload: bytes) -> None:
        if self.begun.setdefault(msg_id, payload) != payload:
            raise AssertionError("the test used one id for two payloads")

    def ack(self, msg_id: bytes, seq: int) -> None:
        """A PubAck, duplicate or not."""
        self.heard.append(time.monotonic())
        if self.acked.setdefault(msg_id, seq) != seq:
            raise Violation(f"message {msg_id!r} was acknowledged at {self.acked[msg_id]}, then at {seq}")

    def deliver(self, seq: int, msg_id: bytes, payload: bytes) -> None:
        self.heard.append(time.monotonic())
        if self.begun.get(msg_id) != payload:
            raise Violation(f"sequence {seq} was delivered with bytes that nobody published under {msg_id!r}")
        if self.delivered.setdefault(seq, msg_id) != msg_id:
            raise Violation(f"sequence {seq} named {self.delivered[seq]!r}, then {msg_id!r}")
        if self.under_way[seq]:
            self.under_way[seq] -= 1
        elif seq in self.double_acked:
            raise Violation(f"sequence {seq} came again after its double ack had been answered")
        if seq in self.plain_acked:
            self.redelivered += 1
            since, at = self.plain_acked[seq]
            # A kill between delivery and ack makes the broker forget the delivery, and the next one may be on its way
            # when the ack for the first one comes; so may one that the broker makes after ACK_WAIT.
            if self.strict and at - since < ACK_WAIT and not any(
                    since <= kill and worked(self.heard, at, kill) <= PLAIN_ACK_GRACE for kill in self.kills):
                raise Violation(f"sequence {seq}, delivered {at - since:.2f} s before it was acked at most, acked "
                                f"{time.monotonic() - at:.2f} s ago, came again; kills after the ack: "
                                f"{[round(kill - at, 2) for kill in self.kills[-5:]]} s")

    def double_ack(self, seq: int, queued: list[int]) -> None:
        """The double ack of ``seq`` was answered; ``queued`` had been received by then but not examined yet."""
        self.double_acked.add(seq)
        self.under_way[seq] = queued.count(seq)

    def plain_ack(self, seq: int, since: float) -> None:
        """An ack for ``seq``, delivered at ``since`` or later, was sent."""
        self.plain_acked[seq] = since, time.monotonic()

    def killed(self) -> None:
        self.kills.append(time.monotonic())

    def check(self, stored: dict[int, tuple[bytes, bytes]], last_seq: int) -> None:
        """``stored``: message id and payload by sequence, as the stream holds them at the end."""
        ids: dict[bytes, int] = {}
        for seq, (msg_id, payload) in stored.items():
            if self.begun.get(msg_id) != payload:
                raise Violation(f"sequence {seq} holds bytes that nobody published under {msg_id!r}")
            if ids.setdefault(msg_id, seq) != seq:
                raise Violation(f"{msg_id!r} is stored twice, at {ids[msg_id]} and {seq}")
        for msg_id, seq in self.acked.items():
            if ids.get(msg_id) != seq:
                raise Violation(f"{msg_id!r} was acknowledged at {seq}; the stream has it at {ids.get(msg_id)}")
        for seq, msg_id in self.delivered.items():
            if stored.get(seq, (None,))[0] != msg_id:
                raise Violation(f"sequence {seq} was delivered as {msg_id!r} and has gone")
        gaps = set(range(1, last_seq + 1)) - stored.keys()
        if gaps:
            raise Violation(f"the stream has gaps at {sorted(gaps)[:5]}, {len(gaps)} in all, though nothing was "
                            "deleted")


def worked(heard: Sequence[float], start: float, end: float) -> float:
    """For how many seconds a broker had the processor between two instants, by when it was heard of."""
    if end - start > STANDSTILL_MAX:
        return end - start
    times = [start, *heard[bisect_left(heard, start):bisect_right(heard, end)], end]
    return sum(min(later - earlier, SILENCE) for earlier, later in pairwise(times))
