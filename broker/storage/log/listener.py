"""What a log reports to others than its streams: the checkpointer, the cache, the engine, the process."""

from __future__ import annotations

from collections.abc import Sequence

from broker.storage.format.records.adoption import Adopted
from broker.storage.log.putter import Segment

__all__ = ["LogListener"]


class LogListener:
    """Override the methods needed, and pass the instance to ``Log.listen``. All calls are synchronous, on the loop."""

    def segment_applied(self, segment: Segment) -> None:
        """``segment`` is in the store and in the applied state; the owners of its blocks have not been notified yet."""

    def segment_persisted(self, segment: Segment) -> None:
        """All that follows from ``segment`` was done: owners were notified, and what waited for it was called."""

    def blocks_adopted(self, adopted: Sequence[Adopted]) -> Sequence[Adopted]:
        """Blocks of runs have taken the places of others in the applied state. Returns those to be told of again: a live
        stream is in the middle of something that relies on the old ones."""
        return ()

    def lease_renewed(self) -> None:
        """A put has renewed an expired lease: while it was expired nothing was served."""

    def log_failed(self, error: BaseException) -> None:
        """The log is fenced or must stop. What was not acknowledged by then never will be. Called once."""

    def commits_paused(self) -> bool:
        """While true of any listener, only heartbeats are put. Call ``Log.schedule_commit`` when it ends."""
        return False
