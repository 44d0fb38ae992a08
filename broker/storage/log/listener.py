"""The interface for listeners of a log: the checkpointer, the cache, the engine, the process."""

from __future__ import annotations

from collections.abc import Sequence

from broker.storage.format.records.adoption import Adopted
from broker.storage.log.putter import Segment

__all__ = ["LogListener"]


class LogListener:
    """Override the methods needed, and pass the instance to ``Log.listen``. All calls are synchronous."""

    def segment_applied(self, segment: Segment) -> None:
        """Handle a segment that is stored and in the applied state. Owners of its blocks are notified after this."""

    def segment_persisted(self, segment: Segment) -> None:
        """Handle a segment after its owners were notified and the first calls that waited for it were made."""

    def commit_safe(self, urgent_ns: int) -> None:
        """Handle a commit that is safe in the journal; something has waited for it since ``urgent_ns``."""

    def blocks_adopted(self, adopted: Sequence[Adopted]) -> Sequence[Adopted]:
        """Handle the replacement of blocks by blocks of runs in the applied state.

        Returns: the adoptions to report again later, because a live stream still uses the old blocks.
        """
        return ()

    def lease_renewed(self) -> None:
        """Handle the renewal of an expired lease: nothing was served while it was expired."""

    def log_failed(self, error: BaseException) -> None:
        """Handle the end of the log: it is fenced or cannot continue. It acknowledges nothing more. Called once."""

    def commits_paused(self) -> bool:
        """Return True to let the log put only heartbeats. Call ``Log.schedule_commit`` when the pause ends."""
        return False
