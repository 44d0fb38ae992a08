"""The lease on a shard: for how long a put that landed proves that the shard is still ours."""

from __future__ import annotations

from collections.abc import Iterable

from broker.base.clock import Clock
from broker.storage.log.putter import Segment

__all__ = ["Lease"]


class Lease:
    """``lease_ns`` from the beginning of the newest put that proves it; None: a lock is the lease, and never expires.

    The outside clock measures it: the lease must not outlast the wait of another broker, whose machine kept running while
    this one was suspended.

    Attributes: ``proved_ns``: when, by that clock, that put began.
    """

    __slots__ = ("_clock", "_lease_ns", "proved_ns")

    def __init__(self, lease_ns: int | None, clock: Clock, proved_ns: int) -> None:
        self._lease_ns = lease_ns
        self._clock = clock
        self.proved_ns = proved_ns

    @property
    def expired(self) -> bool:
        """Whether the proof is too old to read, deliver or acknowledge by."""
        lease_ns = self._lease_ns
        return lease_ns is not None and self._clock.outside_ns() - self.proved_ns > lease_ns

    @property
    def renew_at_ns(self) -> int | None:
        """When, by the outside clock, the next put should begin even if there is nothing to put; None: never."""
        return None if self._lease_ns is None else self.proved_ns + self._lease_ns // 3

    def renew(self, in_flight: Iterable[Segment]) -> bool:
        """One of the puts ``in_flight``, in log order, has landed; returns whether that ended an expiry."""
        expired = self.expired
        for segment in in_flight:
            # Beyond a put that has not landed there may be a seal, and what lands beyond a seal proves nothing.
            if not segment.stored:
                break
            self.proved_ns = max(self.proved_ns, segment.proved_ns)
        return expired and not self.expired
