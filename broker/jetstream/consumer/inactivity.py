"""Detects that a consumer was unused for its ``inactive_threshold``.

A push consumer is in use while it has subscribers. A pull consumer is in use when a request or an answer arrives, while
a request waits, and while the ack wait of a delivery is running.

Source: nats-server consumer.go: deleteNotActive, updateInactiveThreshold.
"""

from __future__ import annotations

import random

from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.delivery.admission import PullAdmission

__all__ = ["InactivityTimer"]


class InactivityTimer:
    """The timer of one consumer's inactivity.

    Attributes: ``used_ns``: when the consumer was last used; ``at_ns``: when it may have been idle for too long, 0: the
        timer is not running. Both are monotonic.
    """

    def __init__(self, rng: random.Random, acks: AckState) -> None:
        self.used_ns = 0
        self.at_ns = 0
        self._rng = rng
        self._acks = acks
        self._threshold_ns = 0

    def begin(self, threshold_ns: int, mono_ns: int, *, pull: bool) -> None:
        """Start or restart, until ``end``; a threshold of 0 never expires."""
        self.used_ns = mono_ns
        self.at_ns = 0
        if threshold_ns > 0:
            # Add a random time, so that consumers created together are not deleted together.
            self._threshold_ns = threshold_ns + (100_000_000 + self._rng.randrange(900_000_000) if pull else 0)
            self.at_ns = mono_ns + self._threshold_ns

    def end(self) -> None:
        """Stop until ``begin``: there are subscribers."""
        self.at_ns = 0

    def expired(self, mono_ns: int, admission: PullAdmission | None) -> bool:
        """Return whether the consumer has been idle for too long; if not, ``at_ns`` is when to check again.

        ``admission`` queues its pull requests; None for a push consumer without subscribers.
        """
        if not self.at_ns or self.at_ns > mono_ns:
            return False
        self.at_ns = self._next_check_ns(mono_ns, admission)
        return not self.at_ns

    def _next_check_ns(self, mono_ns: int, admission: PullAdmission | None) -> int:
        if admission is None:
            return 0
        threshold_ns = self._threshold_ns
        if mono_ns - self.used_ns < threshold_ns:
            return self.used_ns + threshold_ns
        admission.sweep(mono_ns, at_end=True)
        if admission.waiting:
            return mono_ns + threshold_ns
        last_ns = self._acks.last_due_ns
        if last_ns is not None and last_ns + threshold_ns > mono_ns:
            return last_ns + threshold_ns
        return 0
