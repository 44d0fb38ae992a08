"""The lease on a shard: how long a stored put proves that the shard is still ours."""

from __future__ import annotations

from collections.abc import Iterable

from broker.base.clock import Clock
from broker.storage.log.putter import Segment

__all__ = ["Lease"]


class Lease:
    """A period of ``lease_ns`` from the beginning of the newest put that proves our ownership.

    The outside clock measures it: the lease must not outlast the wait of another broker, whose machine kept running
    while this one was suspended.

    Args: ``lease_ns`` None: a lock is the lease, and it never expires.
    Attributes: ``proved_ns`` is when, by the outside clock, the put that proves our ownership began.
    """

    __slots__ = ("_clock", "_lease_ns", "proved_ns")

    def __init__(self, lease_ns: int | None, clock: Clock, proved_ns: int) -> None:
        self._lease_ns = lease_ns
        self._clock = clock
        self.proved_ns = proved_ns

    @property
    def expired(self) -> bool:
        """True if the proof is too old to read, deliver or acknowledge."""
        lease_ns = self._lease_ns
        return lease_ns is not None and self._clock.outside_ns() - self.proved_ns > lease_ns

    @property
    def renew_at_ns(self) -> int | None:
        """The instant, by the outside clock, at which the next put should begin even if it is empty; None: never."""
        return None if self._lease_ns is None else self.proved_ns + self._lease_ns // 3

    def renew(self, in_flight: Iterable[Segment]) -> bool:
        """Renew the lease after one of the puts ``in_flight``, in log order, is stored.

        Returns: True if the lease had expired and is valid again.
        """
        expired = self.expired
        for segment in in_flight:
            # An earlier put that is not stored may find a seal in its place, and a put beyond a seal proves nothing.
            if not segment.stored:
                break
            self.proved_ns = max(self.proved_ns, segment.proved_ns)
        return expired and not self.expired

    def prove(self, began_ns: int) -> bool:
        """Renew the lease after a request that began at ``began_ns``, and proves our ownership as a put does.

        Returns: as ``renew``.
        """
        expired = self.expired
        self.proved_ns = max(self.proved_ns, began_ns)
        return expired and not self.expired
