"""Limits on the pace of delivery: the flow control window, the rate limit, and replay at the original pace.

Each is pure bookkeeping over sizes and times: it returns how many of the given messages may be sent now, and when to
ask again.

Source: nats-server consumer.go: needFlowControl, processFlowControl, setRateLimit, loopAndGatherMsgs.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FlowWindow", "RateLimit", "Replay"]

_WINDOW_MAX = 32 << 20
_WINDOW_START = _WINDOW_MAX // 16
_GAP_NS = 1_000_000
"""Messages closer together than this are replayed without a pause between them."""


class FlowWindow:
    """Bytes in flight to a push subscriber, acknowledged through flow control requests.

        0 ─────────── half ─────────── window          above half: one request follows the message
        ░░░░░░ unanswered ░░░░│                        above the window: delivery stops until it is answered

    Each answer doubles the window, up to 32 MiB. At most one request is outstanding; ``outstanding`` is its subject.
    """

    def __init__(self) -> None:
        self.window = _WINDOW_START
        self.unanswered = 0
        self.outstanding = b""
        self._asked = 0

    @property
    def closed(self) -> bool:
        return self.unanswered > self.window

    def send(self, sizes: Sequence[int]) -> tuple[int, bool]:
        """Return how many of the next messages may be sent now (counted as sent),
        and whether a request follows them."""
        total = sum(sizes)
        if self.unanswered + total <= (self.window if self.outstanding else self.window // 2):
            # Then no step of the loop below ends it early: ``_asked`` is not negative.
            self.unanswered += total
            return len(sizes), False
        for i, size in enumerate(sizes):
            self.unanswered += size
            if not self.outstanding:
                if self.unanswered > self.window // 2:
                    return i + 1, True
            elif self.unanswered - self._asked >= self.window:
                # One huge message: the outstanding request covers its bytes; otherwise the window could stay shut.
                self._asked += size
            if self.unanswered > self.window:
                return i + 1, False
        return len(sizes), False

    def return_unsent(self, size: int) -> None:
        """Subtract ``size`` bytes that were counted as sent, but were not sent."""
        self.unanswered = max(0, self.unanswered - size)

    def asked(self, subject: bytes) -> None:
        """Record that a request with the reply subject ``subject`` was sent."""
        self.outstanding = subject
        self._asked = self.unanswered

    def answered(self, subject: bytes) -> bool:
        """Apply an answer; False: it does not answer the outstanding request."""
        if subject != self.outstanding or not subject:
            return False
        self.window = min(self.window * 2, _WINDOW_MAX)
        self.unanswered = max(0, self.unanswered - self._asked)
        self.outstanding, self._asked = b"", 0
        return True


class RateLimit:
    """A token bucket over bytes; ``bits_per_second`` as configured, ``burst`` the largest message."""

    def __init__(self, bits_per_second: int, burst: int, mono_ns: int) -> None:
        self._bytes_per_second = max(1, bits_per_second // 8)
        self._burst = burst
        self._tokens = float(burst)
        self._at_ns = mono_ns

    def send(self, sizes: Sequence[int], mono_ns: int) -> tuple[int, int]:
        """Return how many of the next messages may be sent now, and when to ask again if that is not all."""
        rate = self._bytes_per_second
        self._tokens = min(self._burst, self._tokens + (mono_ns - self._at_ns) * rate / 1e9)
        self._at_ns = mono_ns
        for i, size in enumerate(sizes):
            # A message above the burst is sent once the bucket is full.
            need = min(size, self._burst)
            if self._tokens < need:
                return i, mono_ns + int((need - self._tokens) / rate * 1e9) + 1
            self._tokens -= size
        return len(sizes), 0


class Replay:
    """The pace of ``replay_policy: original``: the original gaps between messages stored up to ``last_seq``."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        self._time_ns = 0
        self._sent_mono_ns = 0

    def send(self, seqs: Sequence[int], times_ns: Sequence[int], mono_ns: int) -> tuple[int, int]:
        """Return how many of the next messages may be sent now, and when to ask again if that is not all."""
        for i, time_ns in enumerate(times_ns):
            gap = time_ns - self._time_ns
            if self._time_ns and gap > _GAP_NS and seqs[i] <= self.last_seq:
                due = self._sent_mono_ns + gap
                if due > mono_ns:
                    return i, due
            self._time_ns, self._sent_mono_ns = time_ns, mono_ns
        return len(times_ns), 0
