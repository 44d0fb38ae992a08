"""One ``commit_interval`` for all shards of a store, so that the bill does not grow with their number.

Each busy shard puts segments of its own. So the interval of each is the configured one times the number of busy shards.
A shard counts as much as it uses of the puts that its interval permits, from 0 to 1:

    puts of shard k in a second    p_k           its interval    i = commit_interval * max(1, u_1 + u_2 + …)
    what it uses                   u_k = min(1, p_k * i)

If the shards want more puts than one interval permits, each u_k goes to 1, and i to ``commit_interval`` times their
number. If they want fewer, i goes to ``commit_interval``. Shards of other brokers count by hints: without these the
bill grows, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol
from weakref import WeakKeyDictionary

__all__ = ["CommitBudget"]


class Committing(Protocol):
    """The log of a shard."""

    @property
    def commit_count(self) -> int: ...

    def share_interval(self, shards: float) -> None:
        """Leave ``shards`` times the configured interval between two puts."""


class CommitBudget:
    """Sets the intervals of this process's shards. Call ``measure`` about once a second.

    Attributes: ``busy``: the number of its busy shards; ``others`` returns that of all other brokers.
    """

    def __init__(self, interval_ns: int) -> None:
        self.busy = 0.0
        self.others: Callable[[], float] = lambda: 0.0
        self._interval_ns = interval_ns
        self._factor = 1.0
        self._counts: WeakKeyDictionary[Committing, int] = WeakKeyDictionary()
        self._measured_ns: int | None = None

    def measure(self, logs: Collection[Committing], now_ns: int) -> None:
        """Count the puts since the last call, and set the intervals."""
        before, self._measured_ns = self._measured_ns, now_ns
        busy = 0.0
        for log in logs:
            count = log.commit_count
            puts, self._counts[log] = count - self._counts.get(log, count), count
            if before is not None and now_ns > before:
                busy += min(1.0, puts * self._interval_ns * self._factor / (now_ns - before))
        self.busy = busy
        self._factor = max(1.0, busy + self.others())
        for log in logs:
            log.share_interval(self._factor)
